/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of other hosts, whose items are put into streams here, each by a thread of its own. */
#pragma once

#include <stdatomic.h>

#include "mirror/config.h"
#include "mirror/note.h"
#include "util/log.h"

struct flow;
struct pace;

/* Items of a host that are in streams here. */
struct came {
	atomic_ullong items, bytes;
};

/* Those of an import. */
struct flows {
	struct flow *first;
	struct pace *pace;
	struct flow *ending; /* their threads have not ended yet, or just now */
	struct log_limit conflicts;
};

/* The streams of @host are those of the message now. What is not among them ends, and is deleted
 * here, some time later. @came: counts what comes, until flows_close(). */
void flows_update(struct flows *flows, const struct config *config, const struct rule *rule,
		  const char *host, struct came *came, const struct message *message);

struct flows_look {
	uint64_t streams, ended; /* those of which the end has come, too */
	uint64_t waiting;	 /* items that came with a message and are not in streams here */
};

void flows_look(const struct flows *flows, const char *host, struct flows_look *look);
/* Whether streams of that host come, or end just now. */
bool flows_have(const struct flows *flows, const char *host);
void flows_close(struct flows *flows);
