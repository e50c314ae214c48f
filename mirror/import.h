/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the names of other hosts appear here. */
#pragma once

#include "mirror/bus.h"
#include "mirror/config.h"

struct import;

/* Begins. Returns 0 or a negative errno after an error message. */
int import_open(struct import **out, const struct config *config, const struct rule *rule,
		struct bus *bus);
/* Asks who is there. All hosts are to be compared with: messages may have been lost. */
void import_compare(struct import *i);
/* Ends the threads. */
void import_stop(struct import *i);
/* @i may be NULL. Its bus is to be closed before. */
void import_close(struct import *i);
