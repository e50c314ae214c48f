/* SPDX-License-Identifier: Apache-2.0 */
/* One timer for all lifetimes, and for ends in streams that wait for subscribers; see server.h.
 * Loop thread only. */
#include "daemon/serve/server.h"
#include "daemon/state/expire.h"
#include "daemon/state/stream.h"
#include "util/clock.h"

/* How often a subscriber is looked at that holds up an end. */
#define STREAMS_PAUSE_NS (20 * NS_PER_MS)

void expiry_init(struct expiry *expiry, uv_loop_t *loop, struct common *common)
{
	expiry->common = common;
	uv_timer_init(loop, &expiry->timer);
}

static void expiry_on_timer(uv_timer_t *timer)
{
	(void)timer; /* the loop runs what is due before it waits again */
}

static bool streams_wait(const struct expiry *expiry)
{
	return !list_empty(&expiry->common->streaming);
}

/* When the next lifetime of any namespace ends, or streams are to be looked at. */
static int64_t expiry_due(const struct expiry *expiry)
{
	const struct heap_node *first = expiry->common->expiring.top;
	int64_t due = first ? (int64_t)first->key : DEADLINE_NEVER;

	return streams_wait(expiry) && expiry->streams_at < due ? expiry->streams_at : due;
}

void expiry_run_due(struct expiry *expiry)
{
	struct heap_node *first = expiry->common->expiring.top;
	int64_t now = now_mono_ns();

	if (first && deadline_passed((int64_t)first->key))
		expire_step(container_of(first, struct state, lifetimes.next), now);
	if (!streams_wait(expiry) || !deadline_passed(expiry->streams_at))
		return;
	list_for_each_safe(l, &expiry->common->streaming)
		streams_step(list_entry(l, struct state, streaming));
	expiry->streams_at = now + STREAMS_PAUSE_NS;
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
