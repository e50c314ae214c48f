/* SPDX-License-Identifier: Apache-2.0 */
#include "client/produce/trial.h"
#include "proto/ring_layout.h"

enum { EQUALS_MIN = 3, EQUALS_MAX = 3000 };
#define TRIAL_NS (2 * NS_PER_SEC) /* publications further apart do not count together */

static uint64_t mix(uint64_t hash, const void *data, size_t size)
{
	const unsigned char *p = data;

	for (size_t i = 0; i < size; i++)
		hash = (hash ^ p[i]) * 0x100000001b3ULL;
	return hash;
}

uint64_t trial_hash(const char *name, size_t name_len, DLDataType dtype, unsigned ndim,
		    const int64_t *shape)
{
	uint64_t hash = mix(0xcbf29ce484222325ULL, name, name_len);

	hash = mix(hash, &dtype, sizeof(dtype));
	return mix(hash, shape, ndim * sizeof(*shape));
}

static struct trial *find(struct trials *trials, uint64_t hash)
{
	struct trial *t;

	for (unsigned i = 0; i < TRIALS; i++)
		if (trials->of[i].hash == hash)
			return &trials->of[i];
	t = &trials->of[trials->next++ % TRIALS];
	*t = (struct trial){ .hash = hash, .needed = EQUALS_MIN };
	return t;
}

bool trial_publish(struct trials *trials, uint64_t hash, bool waits, uint32_t *depth)
{
	struct trial *t = find(trials, hash);
	int64_t now = now_mono_ns();

	t->equals = now - t->last < TRIAL_NS ? t->equals + 1 : 1;
	t->last = now;
	if (*depth == TL_RING_AUTO && !waits)
		return false; /* it takes round trips, and this call must not wait */
	if (trials->refused && now - trials->refused < TRIAL_REFUSED_NS)
		return false;
	if (t->deeper) {
		*depth = t->deeper;
		t->deeper = t->equals = 0;
		return true;
	}
	if (t->equals < t->needed && *depth == TL_RING_AUTO)
		return false;
	t->equals = 0;
	t->needed = t->needed * 2 < EQUALS_MAX ? t->needed * 2 : EQUALS_MAX;
	return true;
}

void trial_refused(struct trials *trials)
{
	trials->refused = now_mono_ns();
}

void trial_deepen(struct trials *trials, uint64_t hash, unsigned slots)
{
	find(trials, hash)->deeper = slots * 2 < RING_SLOTS_MAX ? slots * 2 : RING_SLOTS_MAX;
}

/*
 * With more slots the daemon needs to be told less often, which matters as long as a copy takes no
 * longer than a message. Fewer slots stay in the caches. No ring may take up much of the capacity.
 */
unsigned ring_depth(uint64_t capacity, uint64_t nbytes, uint32_t asked)
{
	uint64_t share = capacity / 16;
	unsigned depth = nbytes <= (16 << 10)	? RING_SLOTS_MAX
			 : nbytes <= (64 << 10) ? 16
			 : nbytes <= (4 << 20)	? 8
						: 4;

	if (asked != TL_RING_AUTO)
		depth = asked < RING_SLOTS_MIN ? RING_SLOTS_MIN : asked;
	while (depth > RING_SLOTS_MIN && depth * nbytes > share)
		depth--;
	return depth * nbytes <= capacity / 4 ? depth : 0;
}
