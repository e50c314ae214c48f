/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of other hosts, whose items are put into streams here, each by a thread of its own. */
#pragma once

#include <stdatomic.h>

#include "mirror/config.h"
#include "mirror/note.h"
#include "util/log.h"

struct flow;
struct pace;

/* Counts of a host's items that were put into streams here. */
struct came {
	atomic_ullong items, bytes;
};

/* The flows of an import. */
struct flows {
	struct flow *first;
	struct pace *pace;
	struct flow *ending; /* told to stop, and not joined yet */
	struct log_limit conflicts;
};

/* Makes the streams here match the message of @host. Other streams of @host end, and are deleted
 * here some time later. @came counts items until flows_close(). */
void flows_update(struct flows *flows, const struct config *config, const struct rule *rule,
		  const char *host, struct came *came, const struct message *message);

struct flows_look {
	uint64_t streams, ended; /* streams; how many of these have ended */
	uint64_t waiting;	 /* items that have come and wait for room in streams here */
};

void flows_look(const struct flows *flows, const char *host, struct flows_look *look);
/* True if there are flows of that host, including those that are ending. */
bool flows_have(const struct flows *flows, const char *host);
void flows_close(struct flows *flows);
