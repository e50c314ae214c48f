/* SPDX-License-Identifier: Apache-2.0 */
#include "client/publish/ring_trial.h"

enum { EQUALS_MIN = 3, EQUALS_MAX = 3000 };

static uint64_t mix(uint64_t hash, const void *data, size_t size)
{
	const unsigned char *p = data;

	for (size_t i = 0; i < size; i++)
		hash = (hash ^ p[i]) * 0x100000001b3ULL;
	return hash;
}

uint64_t ring_trial_hash(const char *name, size_t name_len, DLDataType dtype, unsigned ndim,
			 const int64_t *shape)
{
	uint64_t hash = mix(0xcbf29ce484222325ULL, name, name_len);

	hash = mix(hash, &dtype, sizeof(dtype));
	return mix(hash, shape, ndim * sizeof(*shape));
}

/* Finds the name's entry, or makes one in place of the oldest. NULL: all others were published a
 * short time ago, and are not forgotten for this one. */
static struct ring_trial *find(struct ring_trials *trials, uint64_t hash, int64_t now)
{
	struct ring_trial *oldest = &trials->of[0];

	for (unsigned i = 0; i < TRIALS; i++) {
		struct ring_trial *t = &trials->of[i];

		if (t->hash == hash)
			return t;
		if (t->last < oldest->last)
			oldest = t;
	}
	if (now - oldest->last < TRIAL_NS)
		return NULL;
	*oldest = (struct ring_trial){ .hash = hash, .needed = EQUALS_MIN };
	return oldest;
}

bool ring_trial_publish(struct ring_trials *trials, uint64_t hash, uint32_t *depth)
{
	int64_t now = now_mono_ns();
	struct ring_trial *t = find(trials, hash, now);

	if (t) {
		t->equals = now - t->last < TRIAL_NS ? t->equals + 1 : 1;
		t->last = now;
	}
	if (*depth == TL_RING_AUTO && !t)
		return false;
	if (trials->refused && now - trials->refused < TRIAL_REFUSED_NS)
		return false;
	if (!t)
		return true;
	if (now - t->began >= TRIAL_AGAIN_NS)
		t->needed = EQUALS_MIN;
	if (t->equals < t->needed && *depth == TL_RING_AUTO && !t->deeper)
		return false;
	t->equals = 0;
	t->began = now;
	if (t->deeper) {
		*depth = t->deeper;
		t->deeper = 0;
		return true;
	}
	t->needed = t->needed * 2 < EQUALS_MAX ? t->needed * 2 : EQUALS_MAX;
	return true;
}

void ring_trial_refused(struct ring_trials *trials)
{
	trials->refused = now_mono_ns();
}

void ring_trial_deepen(struct ring_trials *trials, uint64_t hash, unsigned slots)
{
	struct ring_trial *t = find(trials, hash, now_mono_ns());

	if (t)
		t->deeper = slots * 2 < RING_SLOTS_MAX ? slots * 2 : RING_SLOTS_MAX;
}

/*
 * With more slots the daemon needs to be told less often, which matters as long as a copy takes no
 * longer than a message. Fewer slots stay in the caches: of the fewest, the daemon is told of each
 * former tensor at once, and its slot is the next one to be written. No ring may take up much of
 * the capacity. Above RING_BYTES_MAX a message is nothing beside the copy, and to make the slots
 * takes far longer than that.
 */
unsigned ring_depth(uint64_t capacity, uint64_t nbytes, uint32_t asked)
{
	uint64_t share = capacity / 16;
	unsigned depth = nbytes <= (16 << 10)	    ? RING_SLOTS_MAX
			 : nbytes <= (64 << 10)	    ? 16
			 : nbytes <= (1 << 20)	    ? 8
			 : nbytes <= RING_BYTES_MAX ? RING_SLOTS_MIN
						    : 0;

	if (asked != TL_RING_AUTO)
		depth = asked < RING_SLOTS_MIN ? RING_SLOTS_MIN : asked;
	while (depth > RING_SLOTS_MIN && depth * nbytes > share)
		depth--;
	return depth * nbytes <= capacity / 4 ? depth : 0;
}
