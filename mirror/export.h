/* SPDX-License-Identifier: Apache-2.0 */
/* Offers the names of a rule to other hosts. */
#pragma once

#include <signal.h>
#include <stdbool.h>

#include "mirror/bus.h"
#include "mirror/config.h"
#include "mirror/serve.h"

/* The process gets this signal when a host asks for hosts, and must then call export_beat(). */
#define EXPORT_ASKED SIGUSR2

struct export;

/* Connects to the daemon and begins. Returns 0 or a negative errno after an error message. */
int export_open(struct export **out, const struct config *config, const struct rule *rule,
		struct bus *bus, struct serve *serve);
/* Tells other hosts that this one is alive. To be called every 2 s, and after EXPORT_ASKED. */
void export_beat(struct export *e);
/* True if `tensorlease kick` has ended its connection, without which it cannot continue. */
bool export_is_over(const struct export *e);
/* To be called when messages may have been lost: makes other hosts compare. */
void export_renew(struct export *e);
/* The state of an export. */
struct export_look {
	bool is_there;		   /* the daemon answers; otherwise the counts are 0 */
	uint64_t names, bytes;	   /* names offered, and their bytes */
	uint64_t on_gpus;	   /* names not offered, since their tensors are on GPUs */
	uint64_t moment;	   /* of the set, in ns since 1970; 0: not a set */
	const struct given *given; /* for tickets_given() */
};

void export_look(struct export *e, struct export_look *look);
/* Ends the thread. The client and the tickets stay until export_close(). */
void export_stop(struct export *e);
/* @e may be NULL. Close first its bus, then its serve. */
void export_close(struct export *e);
