/* SPDX-License-Identifier: Apache-2.0 */
/* When a client asks for a ring. */
#include "client/publish/ring_trial.h"
#include "tests/harness/harness.h"

enum { SLOTS = 8 };

static bool asks(struct ring_trials *trials, uint64_t hash, uint32_t depth)
{
	return ring_trial_publish(trials, hash, &depth);
}

TEST(who_asks_for_slots_gets_them_at_once_and_others_after_three_equal_publishes)
{
	struct ring_trials trials = { 0 };

	must(asks(&trials, 1, SLOTS));
	must(!asks(&trials, 2, TL_RING_AUTO));
	must(!asks(&trials, 2, TL_RING_AUTO));
	must(asks(&trials, 2, TL_RING_AUTO));
}

/* As many names as a client may have rings for are followed, in whatever order, and more do not
 * keep those from rings. */
TEST(all_names_that_may_have_a_ring_get_one)
{
	struct ring_trials trials = { 0 };
	unsigned n = 0;

	for (int round = 0; round < 3; round++)
		for (uint64_t hash = 1; hash <= RINGS_CLIENT_MAX + 8; hash++)
			n += asks(&trials, hash, TL_RING_AUTO);
	must_be(n, RINGS_CLIENT_MAX);
	must(asks(&trials, RINGS_CLIENT_MAX + 1, SLOTS));
	trials.of[7].last -= TRIAL_NS;
	must(!asks(&trials, RINGS_CLIENT_MAX + 1, TL_RING_AUTO));
	must_be(trials.of[7].hash, RINGS_CLIENT_MAX + 1);
}

/* It costs a round trip for each slot. */
TEST(after_a_refusal_nobody_asks_for_a_while)
{
	struct ring_trials trials = { 0 };
	int64_t before;
	bool asked;

	do { /* another process may have the processor for all of that time */
		ring_trial_refused(&trials);
		before = trials.refused;
		asked = asks(&trials, 1, SLOTS) || asks(&trials, 2, SLOTS);
	} while (now_mono_ns() - before >= TRIAL_REFUSED_NS);
	must(!asked);
	trials.refused -= TRIAL_REFUSED_NS;
	must(asks(&trials, 1, SLOTS));
}

/* A stream that begins again now and then is as fast each time. */
TEST(the_next_ring_takes_more_publishes_unless_the_last_one_is_long_ago)
{
	struct ring_trials trials = { 0 };

	for (int i = 0; i < 2; i++) {
		must(!asks(&trials, 1, TL_RING_AUTO));
		must(!asks(&trials, 1, TL_RING_AUTO));
		must(asks(&trials, 1, TL_RING_AUTO));
		for (int k = 0; k < 5; k++)
			must(!asks(&trials, 1, TL_RING_AUTO));
		must(asks(&trials, 1, TL_RING_AUTO));
		for (int k = 0; k < TRIALS; k++)
			trials.of[k].began -= TRIAL_AGAIN_NS;
	}
}

TEST(small_tensors_get_many_slots_and_large_ones_none)
{
	const uint64_t capacity = (uint64_t)1 << 40;
	unsigned before = RING_SLOTS_MAX;

	for (uint64_t nbytes = 1; nbytes <= RING_BYTES_MAX; nbytes *= 2) {
		unsigned depth = ring_depth(capacity, nbytes, TL_RING_AUTO);

		must(depth >= RING_SLOTS_MIN && depth <= before);
		before = depth;
	}
	must_be(before, RING_SLOTS_MIN);
	must_be(ring_depth(capacity, RING_BYTES_MAX + 1, TL_RING_AUTO), 0);
	must_be(ring_depth(capacity, RING_BYTES_MAX + 1, SLOTS), SLOTS);
}

int main(void)
{
	return suite_run();
}
