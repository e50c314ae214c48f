/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the names of other hosts appear here. */
#pragma once

#include <stdbool.h>

#include "mirror/bus.h"
#include "mirror/config.h"
#include "mirror/serve.h"

struct import;

/* Begins. What comes is given to other hosts by @serve, which may be NULL. Returns 0 or a negative
 * errno after an error message. */
int import_open(struct import **out, const struct config *config, const struct rule *rule,
		struct bus *bus, struct serve *serve);
/* Asks who is there. All hosts are to be compared with: messages may have been lost. */
void import_compare(struct import *i);
/* Whether `tensorlease kick` has ended its connection, without which it can do no more. */
bool import_is_over(const struct import *i);
/* Ends the threads. */
void import_stop(struct import *i);
/* @i may be NULL. Its bus and then the serve are to be closed before. */
void import_close(struct import *i);
