/* SPDX-License-Identifier: Apache-2.0 */
/* Ends lifetimes in time. */
#pragma once

#include <uv.h>

#include "daemon/state/state.h"

struct expiry {
	struct shared *shared;
	uv_timer_t timer; /* runs while a lifetime is to end */
};

void expiry_init(struct expiry *expiry, uv_loop_t *loop, struct shared *shared);
/* Ends some lifetimes whose time has come. */
void expiry_run_due(struct expiry *expiry);
/* Starts the timer for the next one. To be called last before the loop waits. */
void expiry_arm(struct expiry *expiry);
/* True if there are more whose time has come. */
bool expiry_busy(const struct expiry *expiry);
void expiry_stop(struct expiry *expiry);
