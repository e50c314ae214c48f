/* SPDX-License-Identifier: Apache-2.0 */
/* Offers the names of a rule to other hosts. */
#pragma once

#include <signal.h>
#include <stdbool.h>

#include "mirror/bus.h"
#include "mirror/config.h"
#include "mirror/serve.h"

/* The process gets this signal when a host asks who is there, and is to call export_beat(). */
#define EXPORT_ASKED SIGUSR2

struct export;

/* Connects to the daemon and begins. Returns 0 or a negative errno after an error message. */
int export_open(struct export **out, const struct config *config, const struct rule *rule,
		struct bus *bus, struct serve *serve);
/* Tells others that this host is there. To be called every 2 s, and after EXPORT_ASKED. */
void export_beat(struct export *e);
/* Whether `tensorlease kick` has ended its connection, without which it can do no more. */
bool export_is_over(const struct export *e);
/* Messages may have been lost, so others are to compare. */
void export_renew(struct export *e);
/* What is offered now. */
struct export_look {
	bool is_there;		   /* the daemon; else the counts are 0 */
	uint64_t names, bytes;	   /* that are offered */
	uint64_t on_gpus;	   /* names that are not, since their tensors are on GPUs */
	uint64_t moment;	   /* of the set, in ns since 1970; 0: it is none */
	const struct given *given; /* for tickets_given() */
};

void export_look(struct export *e, struct export_look *look);
/* Ends the thread. The client and the tickets stay until export_close(). */
void export_stop(struct export *e);
/* @e may be NULL. Its bus and then the serve are to be closed before. */
void export_close(struct export *e);
