/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the names of other hosts appear here. */
#pragma once

#include <stdbool.h>

#include "mirror/bus.h"
#include "mirror/config.h"
#include "mirror/serve.h"

struct import;

/* Begins. @serve relays what comes to other hosts, and may be NULL. Returns 0 or a negative errno
 * after an error message. */
int import_open(struct import **out, const struct config *config, const struct rule *rule,
		struct bus *bus, struct serve *serve);
/* Asks which hosts there are, and compares with all, because messages may have been lost. */
void import_compare(struct import *i);
/* True if `tensorlease kick` has ended its connection, without which it cannot continue. */
bool import_is_over(const struct import *i);
/* Ends the threads. */
void import_stop(struct import *i);
/* @i may be NULL. Close first its bus, then its serve. */
void import_close(struct import *i);
