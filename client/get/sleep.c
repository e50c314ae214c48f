/* SPDX-License-Identifier: Apache-2.0 */
#include "client/get/sleep.h"
#include "client/session/request.h"
#include "util/clock.h"

/* A waiter sleeps at most this long before it looks whether the daemon is there. */
#define SLICE_NS (1 * NS_PER_SEC)
/* One who is wary sleeps between so long and so long: about as long as from version to version. */
#define WARY_MIN_NS (100 * NS_PER_US)
#define WARY_MAX_NS (2 * NS_PER_MS)
/* A sleeper that was woken by the daemon has looked sooner than this. */
#define LATE_NS (20 * NS_PER_MS)

/* How many waits it stays wary: more each time that it is cheated again after that. */
enum { WARY_WAITS = 1000, WARY_WAITS_MAX = 64000 };

/* Threads of a client share it, and one of two changes at a time may be lost. */
static int64_t wary_slice(const tl_client *client)
{
	int64_t slice = atomic_load_explicit(&client->wary_slice_ns, memory_order_relaxed);

	return slice ? slice : WARY_MAX_NS;
}

static void set_wary_slice(tl_client *client, int64_t slice)
{
	if (slice < WARY_MIN_NS)
		slice = WARY_MIN_NS;
	if (slice > WARY_MAX_NS)
		slice = WARY_MAX_NS;
	atomic_store_explicit(&client->wary_slice_ns, slice, memory_order_relaxed);
}

int64_t sleeper_begin(struct sleeper *sl, int64_t left)
{
	int64_t slice;

	if (!sl->began) {
		uint32_t waits = atomic_load_explicit(&sl->client->wary, memory_order_relaxed);

		sl->wary = waits;
		if (waits) /* two threads may count one wait */
			atomic_store_explicit(&sl->client->wary, waits - 1, memory_order_relaxed);
	}
	sl->began = now_real_ns();
	slice = sl->wary ? wary_slice(sl->client) : SLICE_NS;
	return left < slice ? left : slice;
}

void sleeper_cheated(struct sleeper *sl)
{
	tl_client *client = sl->client;
	uint32_t waits = atomic_load_explicit(&client->wary_waits, memory_order_relaxed);

	if (sl->wary)
		set_wary_slice(client, wary_slice(client) / 2); /* it was too long */
	else
		waits = waits == 0 ? WARY_WAITS : waits < WARY_WAITS_MAX ? waits * 2 : waits;
	sl->wary = true;
	atomic_store_explicit(&client->wary_waits, waits, memory_order_relaxed);
	atomic_store_explicit(&client->wary, waits, memory_order_relaxed);
}

/*
 * A thief who wakes those whom he has moved makes them late, or makes them miss a version. Both
 * happen without him too, but seldom to somebody who is asleep. Only a ring is published to so fast
 * that everybody misses versions, and there lateness alone tells.
 */
void sleeper_found(struct sleeper *sl, const struct wake_word *wake, uint64_t newer_than)
{
	int64_t since = (int64_t)wake->published_ns;

	if (!sl->began)
		return;
	if (since < sl->began)
		since = sl->began;
	if (now_real_ns() - since > LATE_NS ||
	    (newer_than && !wake->ring && wake->version != newer_than + 1))
		sleeper_cheated(sl);
}

bool sleeper_served(struct sleeper *sl, struct session *s)
{
	int64_t now = now_mono_ns();
	int64_t slice = wary_slice(sl->client);

	if (sl->wary) /* by so little that it meets most versions when they come often */
		set_wary_slice(sl->client, slice + slice / 16);
	if (!session_served(s))
		return false;
	if (sl->wary && now - sl->probed < SLICE_NS)
		return true;
	sl->probed = now;
	return session_probe(s);
}
