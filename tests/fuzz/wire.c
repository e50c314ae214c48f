/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that nobody meant as a message: the validator answers and the printer prints what passed;
 * the sanitizers watch. A test with a fixed seed ($TL_FUZZ_SEED, $TL_FUZZ_ROUNDS): `make fuzz` has
 * the same in daemon.c and client.c.
 */
#include "tests/fuzz/target.h"
#include "tests/harness/messages.h"

static int feed(const unsigned char *bytes, size_t length, unsigned nfds, enum wire_side side)
{
	char why[WIRE_WHY_TEXT] = "";
	char line[512];
	int r = wire_check(bytes, length, nfds, side, why);

	if (r) {
		if (!*why)
			abort();
		return r;
	}
	wire_print(bytes, nfds > 0, line, sizeof(line));
	for (const char *c = line; *c; c++)
		if (*c < 0x20 || *c >= 0x7f)
			abort();
	return 0;
}

static struct samples all;

static uint64_t number_from(const char *variable, uint64_t otherwise)
{
	const char *text = getenv(variable);

	return text ? strtoull(text, NULL, 0) : otherwise;
}

/* Changes some bytes, or cuts and lengthens, or makes the header agree with the length again. */
static void mutate(struct sample *s, uint64_t *seed)
{
	static const unsigned char edges[] = { 0, 1, 2, 0x7f, 0x80, 0xfe, 0xff };
	unsigned changes = (unsigned)(samples_random(seed) % 6);

	for (unsigned i = 0; i < changes; i++) {
		uint64_t r = samples_random(seed);
		size_t at = (r >> 8) % (r & 1 ? s->length : s->length < 64 ? s->length : 64);

		s->bytes[at] = r & 2 ? edges[(r >> 40) % sizeof(edges)] : (unsigned char)(r >> 48);
	}
	switch (samples_random(seed) % 4) {
	case 0:
		s->length = samples_random(seed) % (WIRE_MAX + 1);
		break;
	case 1:
		s->nfds = (unsigned)(samples_random(seed) % 3);
		break;
	}
	if (samples_random(seed) % 2)
		s->header.length = (uint32_t)s->length;
}

PLAIN_TEST(changed_messages_never_break_the_reader)
{
	uint64_t seed = number_from("TL_FUZZ_SEED", 0x9e3779b97f4a7c15);
	uint64_t rounds = number_from("TL_FUZZ_ROUNDS", 1000000);
	uint64_t passed = 0;

	samples_make(&all);
	for (uint64_t i = 0; i < rounds; i++) {
		struct sample s = all.list[samples_random(&seed) % all.n];
		unsigned char *copy;

		mutate(&s, &seed);
		copy = malloc(s.length ? s.length : 1);
		assert_non_null(copy);
		memcpy(copy, s.bytes, s.length);
		passed += feed(copy, s.length, s.nfds, s.side) == 0;
		free(copy);
	}
	assert_true(passed > rounds / 100); /* else it tried nothing but the first test */
	assert_true(passed < rounds);
}

PLAIN_TEST(random_bytes_never_break_the_reader)
{
	uint64_t seed = number_from("TL_FUZZ_SEED", 0x2545f4914f6cdd1d);
	alignas(8) unsigned char bytes[WIRE_MAX] = { 0 };

	for (unsigned i = 0; i < 200000; i++) {
		size_t length = samples_random(&seed) % sizeof(bytes);

		for (size_t k = 0; k < length; k += 8) {
			uint64_t r = samples_random(&seed);

			memcpy(bytes + k, &r, length - k < 8 ? length - k : 8);
		}
		bytes[0] = (unsigned char)(bytes[0] % WIRE_REPLY_END); /* a type that there may be
									*/
		bytes[1] = 0;
		feed(bytes, length, (unsigned)(seed % 3),
		     seed & 4 ? WIRE_TO_CLIENT : WIRE_TO_DAEMON);
	}
}

int main(void)
{
	return suite_run();
}
