/* SPDX-License-Identifier: Apache-2.0 */
/* Offers the names of a rule to other hosts. */
#pragma once

#include "mirror/bus.h"
#include "mirror/config.h"
#include "mirror/serve.h"

struct export;

/* Connects to the daemon and begins. Returns 0 or a negative errno after an error message. */
int export_open(struct export **out, const struct config *config, const struct rule *rule,
		struct bus *bus, struct serve *serve);
/* Tells others that this host is there. To be called every 2 s. */
void export_beat(struct export *e);
/* Messages may have been lost, so others are to compare. */
void export_renew(struct export *e);
/* Ends the thread. The client and the tickets stay until export_close(). */
void export_stop(struct export *e);
/* @e may be NULL. Its bus and then the serve are to be closed before. */
void export_close(struct export *e);
