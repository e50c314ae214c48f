/* SPDX-License-Identifier: Apache-2.0 */
/* One timer for all lifetimes; see server.h. Loop thread only. */
#include "daemon/serve/server.h"
#include "daemon/state/expire.h"
#include "util/clock.h"

void expiry_init(struct expiry *expiry, uv_loop_t *loop, struct common *common)
{
	expiry->common = common;
	uv_timer_init(loop, &expiry->timer);
}

static void expiry_on_timer(uv_timer_t *timer)
{
	(void)timer; /* the loop runs what is due before it waits again */
}

/* When the next lifetime of any namespace ends. */
static int64_t expiry_due(const struct expiry *expiry)
{
	const struct heap_node *first = expiry->common->expiring.top;

	return first ? (int64_t)first->key : DEADLINE_NEVER;
}

void expiry_run_due(struct expiry *expiry)
{
	struct heap_node *first = expiry->common->expiring.top;

	if (expiry_busy(expiry))
		expire_step(container_of(first, struct state, lifetimes.next), now_mono_ns());
}

void expiry_arm(struct expiry *expiry)
{
	int64_t due = expiry_due(expiry);

	if (due == DEADLINE_NEVER)
		uv_timer_stop(&expiry->timer);
	else
		uv_timer_start(&expiry->timer, expiry_on_timer, (uint64_t)deadline_left_ms(due), 0);
}

bool expiry_busy(const struct expiry *expiry)
{
	int64_t due = expiry_due(expiry);

	return due != DEADLINE_NEVER && deadline_passed(due);
}

void expiry_stop(struct expiry *expiry)
{
	uv_close((uv_handle_t *)&expiry->timer, NULL);
}
