/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of other hosts, whose items are put into streams here, each by a thread of its own. */
#pragma once

#include "mirror/config.h"
#include "mirror/note.h"
#include "util/log.h"

struct flow;

/* Those of an import. */
struct flows {
	struct flow *first;
	struct flow *ending; /* their threads have not ended yet, or just now */
	struct log_limit conflicts;
};

/* The streams of @host are those of the message now. What is not among them ends, and is deleted
 * here, some time later. */
void flows_update(struct flows *flows, const struct config *config, const struct rule *rule,
		  const char *host, const struct message *message);
void flows_close(struct flows *flows);
