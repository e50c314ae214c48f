/* SPDX-License-Identifier: Apache-2.0 */
/* Sees to it that lifetimes end when their time has come. */
#pragma once

#include <uv.h>

#include "daemon/state/state.h"

struct expiry {
	struct shared *shared;
	uv_timer_t timer; /* runs while a lifetime is to end */
};

void expiry_init(struct expiry *expiry, uv_loop_t *loop, struct shared *shared);
/* Ends some of those whose time has come. */
void expiry_settle(struct expiry *expiry);
/* Has the loop come back when the next are due: to be called last before it waits. */
void expiry_arm(struct expiry *expiry);
/* Are there more whose time has come? */
bool expiry_busy(const struct expiry *expiry);
void expiry_stop(struct expiry *expiry);
