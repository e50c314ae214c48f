/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares copy_gather() with an obvious copy, which takes each element, or each bit, by itself.
 * Sources and copies are allocated to the byte, so that a sanitizer sees every access beyond them.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "tensor/check.h"
#include "tensor/copy.h"
#include "tensor/dtype.h"
#include "tensor/extent.h"
#include "tensor/limits.h"
#include "tests/harness/limit.h"
#include "tests/harness/suite.h"
#include "util/parallel.h"

enum { TIMEOUT_S = 120, ROUNDS = 3000, CANARY = 16 };

#define COUNT(array) (sizeof(array) / sizeof(*(array)))
#define I64(...) ((int64_t[]){ __VA_ARGS__ })
#define PADDED DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED

/* Gives the same numbers in every run. */
static uint64_t seed;

static uint64_t next_random(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

static int64_t random_below(int64_t n)
{
	return (int64_t)(next_random() % (uint64_t)n);
}

static const DLDataType types[] = {
	{ 1, 8, 1 },  { 2, 16, 1 }, { 2, 32, 1 }, { 2, 64, 1 },	 { 5, 128, 1 }, { 1, 8, 3 },
	{ 2, 16, 3 }, { 2, 32, 3 }, { 2, 32, 5 }, { 5, 128, 5 }, { 1, 8, 7 },	{ 2, 64, 4 },
	{ 1, 1, 1 },  { 0, 2, 1 },  { 0, 4, 1 },  { 15, 6, 1 },	 { 17, 4, 2 },	{ 17, 4, 3 },
	{ 16, 6, 3 }, { 1, 1, 5 },  { 1, 2, 3 },  { 15, 6, 4 },	 { 1, 1, 17 },	{ 0, 4, 33 },
};

/* A strided view of random bytes, all in memory that ends where the view does. */
struct source {
	DLTensor t;
	uint64_t flags;
	int64_t shape[TENSOR_NDIM_MAX], strides[TENSOR_NDIM_MAX];
	unsigned char *memory;
};

/* Gives the source its memory, and checks that its maker did it right. */
static void source_fill(struct source *s)
{
	char why[TENSOR_WHY_TEXT] = "";
	int64_t low, high, before = random_below(9);
	size_t size;

	s->t.shape = s->shape;
	s->t.strides = s->strides;
	s->t.device.device_type = kDLCPU;
	assert_int_equal(tensor_extent(&s->t, s->flags, &low, &high), 0);
	size = (size_t)(before + high - low);
	s->memory = malloc(size ? size : 1);
	assert_non_null(s->memory);
	for (size_t i = 0; i < size; i++)
		s->memory[i] = (unsigned char)next_random();
	/* Element 0 lies -low bytes into them; data and byte_offset share the way there. */
	s->t.byte_offset = (uint64_t)random_below(before - low + 1);
	s->t.data = s->memory + (before - low) - s->t.byte_offset;
	if (tensor_check_source(&s->t, s->flags, why, sizeof(why)))
		fail_msg("the test's own source is refused: %s", why);
}

/* The expected copy: every bit is fetched by itself. */
static void gather_obviously(unsigned char *dst, const struct source *s)
{
	uint32_t bits = tensor_element_bits(s->t.dtype, s->flags & PADDED);
	const unsigned char *from = (const unsigned char *)s->t.data + s->t.byte_offset;
	int64_t index[TENSOR_NDIM_MAX] = { 0 };
	uint64_t numel, to = 0;

	assert_int_equal(tensor_numel(s->t.ndim, s->shape, &numel), 0);
	for (uint64_t n = 0; n < numel; n++) {
		int64_t at = 0;

		for (int i = 0; i < s->t.ndim; i++)
			at += index[i] * s->strides[i] * (int64_t)bits;
		for (uint32_t b = 0; b < bits; b++, at++, to++) {
			int64_t byte = at >> 3;

			if (from[byte] >> (at & 7) & 1)
				dst[to / 8] |= (unsigned char)(1U << (to % 8));
		}
		for (int i = s->t.ndim - 1; i >= 0 && ++index[i] == s->shape[i]; i--)
			index[i] = 0;
	}
}

/* Compares, and frees the source. */
static void check_and_free(struct source *s, const char *what)
{
	unsigned char *copy, *expected;
	uint64_t nbytes;

	assert_int_equal(tensor_nbytes(s->t.dtype, s->t.ndim, s->shape, s->flags & PADDED, &nbytes),
			 0);
	copy = malloc(nbytes ? nbytes : 1);
	expected = calloc(nbytes ? nbytes : 1, 1);
	assert_true(copy && expected);
	memset(copy, 0xa5, nbytes);
	gather_obviously(expected, s);
	assert_int_equal(copy_gather(copy, &s->t, s->flags, random_below(16) ? 1 : 3), 0);
	for (uint64_t i = 0; i < nbytes; i++) {
		char text[TENSOR_DTYPE_TEXT];

		if (copy[i] != expected[i])
			fail_msg("%s: byte %" PRIu64 " of %" PRIu64
				 " of %s, ndim %d, is %02x, not %02x",
				 what, i, nbytes, tensor_dtype_format(s->t.dtype, text), s->t.ndim,
				 copy[i], expected[i]);
	}
	free(copy);
	free(expected);
	free(s->memory);
}

/* The strides are arbitrary: overlapping, broadcast, reversed, with gaps. */
PLAIN_TEST(views_of_any_strides_are_copied)
{
	seed = 0x7e5701ea5eULL;
	for (int round = 0; round < ROUNDS; round++) {
		struct source s = { .t = { .dtype = types[(size_t)round % COUNT(types)] } };
		char what[32];

		snprintf(what, sizeof(what), "round %d", round);
		s.flags = random_below(4) == 0 ? PADDED : 0;
		s.t.ndim = (int32_t)random_below(5);
		for (int i = 0; i < s.t.ndim; i++) {
			s.shape[i] = random_below(8) == 0 ? random_below(2) : 1 + random_below(7);
			s.strides[i] = random_below(41) - 20;
		}
		source_fill(&s);
		check_and_free(&s, what);
	}
}

/* Steps, crops, flips and permutations of an array are the views that programs really make. */
PLAIN_TEST(slices_of_permuted_arrays_are_copied)
{
	seed = 0x51ce5;
	for (int round = 0; round < ROUNDS; round++) {
		struct source s = { .t = { .dtype = types[(size_t)round % COUNT(types)] } };
		int64_t stride = 1;
		char what[32];

		snprintf(what, sizeof(what), "round %d", round);
		s.t.ndim = 1 + (int32_t)random_below(4);
		for (int i = s.t.ndim - 1; i >= 0; i--) {
			int64_t size = 1 + random_below(9), step = 1 + random_below(6) / 3;

			s.shape[i] = (size + step - 1) / step;
			s.strides[i] = random_below(3) ? stride * step : -stride * step;
			stride *= size;
		}
		for (int i = s.t.ndim - 1; i > 0; i--) {
			int j = (int)random_below(i + 1);
			int64_t size = s.shape[i], step = s.strides[i];

			s.shape[i] = s.shape[j];
			s.strides[i] = s.strides[j];
			s.shape[j] = size;
			s.strides[j] = step;
		}
		source_fill(&s);
		check_and_free(&s, what);
	}
}

/* The sizes are larger than a tile and no multiple of one. */
PLAIN_TEST(transposed_arrays_of_every_element_size_are_copied)
{
	static const int64_t sizes[][2] = { { 64, 64 }, { 65, 63 }, { 1, 200 },
					    { 131, 3 }, { 3, 131 }, { 129, 97 } };

	seed = 0x7a5;
	for (size_t i = 0; i < COUNT(types); i++) {
		for (size_t j = 0; j < COUNT(sizes); j++) {
			struct source s = { .t = { .dtype = types[i], .ndim = 2 } };

			s.shape[0] = sizes[j][0];
			s.shape[1] = sizes[j][1];
			s.strides[0] = 1;
			s.strides[1] = sizes[j][0];
			source_fill(&s);
			check_and_free(&s, "transposed");
			s.strides[0] = -1;
			source_fill(&s);
			check_and_free(&s, "transposed and reversed");
			s.strides[1] = -sizes[j][0] - 3;
			source_fill(&s);
			check_and_free(&s, "transposed, reversed, with gaps");
		}
	}
}

PLAIN_TEST(planes_become_pixels_and_pixels_planes)
{
	seed = 0x41c;
	for (size_t i = 0; i < COUNT(types); i++) {
		struct source s = { .t = { .dtype = types[i], .ndim = 3 } };

		memcpy(s.shape, I64(3, 37, 41), 24);
		memcpy(s.strides, I64(1, 41 * 3, 3), 24);
		source_fill(&s);
		check_and_free(&s, "planes of pixels");
		memcpy(s.shape, I64(37, 41, 3), 24);
		memcpy(s.strides, I64(41, 1, 41 * 37), 24);
		source_fill(&s);
		check_and_free(&s, "pixels of planes");
		memcpy(s.shape, I64(41, 37, 3), 24);
		memcpy(s.strides, I64(3, 41 * 3, 1), 24);
		source_fill(&s);
		check_and_free(&s, "transposed pixels");
	}
}

PLAIN_TEST(sixty_four_dimensions_are_copied)
{
	seed = 64;
	for (int round = 0; round < 200; round++) {
		struct source s = { .t = { .dtype = types[(size_t)round % COUNT(types)],
					   .ndim = 64 } };

		for (int i = 0; i < 64; i++) {
			s.shape[i] = 1;
			s.strides[i] = random_below(1000) - 500;
		}
		for (int i = 0; i < 8; i++)
			s.shape[random_below(64)] = 2 + random_below(2);
		source_fill(&s);
		check_and_free(&s, "64 dimensions");
	}
}

PLAIN_TEST(a_number_of_elements_beyond_64_bits_is_not_copied)
{
	int64_t shape[64], strides[64];
	unsigned char value = 42, copy = 7;
	DLTensor t = { .data = &value,
		       .device = { kDLCPU, 0 },
		       .ndim = 64,
		       .dtype = { 1, 8, 1 },
		       .shape = shape,
		       .strides = strides };
	char why[TENSOR_WHY_TEXT];

	for (int i = 0; i < 64; i++) {
		shape[i] = 2;
		strides[i] = 0;
	}
	assert_int_equal(tensor_check_source(&t, 0, why, sizeof(why)), -EOVERFLOW);
	assert_int_equal(copy_gather(&copy, &t, 0, 0), -EOVERFLOW);
	assert_int_equal(copy, 7);
}

PLAIN_TEST(nothing_is_written_for_no_elements)
{
	unsigned char copy = 7;
	DLTensor t = { .device = { kDLCPU, 0 },
		       .ndim = 3,
		       .dtype = { 2, 32, 1 },
		       .shape = I64(4, 0, 5),
		       .strides = I64(INT64_MAX, 1, INT64_MIN) };

	assert_int_equal(copy_gather(&copy, &t, 0, 0), 0);
	assert_int_equal(copy, 7);
}

PLAIN_TEST(a_scalar_without_shape_is_copied)
{
	unsigned char memory[9] = { 9, 9, 9, 1, 2, 3, 4, 9, 9 }, copy[4];
	DLTensor t = {
		.data = memory, .device = { kDLCPU, 0 }, .dtype = { 2, 32, 1 }, .byte_offset = 3
	};

	assert_int_equal(copy_gather(copy, &t, 0, 0), 0);
	assert_memory_equal(copy, memory + 3, 4);
}

PLAIN_TEST(null_strides_mean_c_order)
{
	unsigned char memory[13], copy[12];
	DLTensor t = { .data = memory,
		       .device = { kDLCPU, 0 },
		       .ndim = 2,
		       .dtype = { 1, 16, 1 },
		       .shape = I64(2, 3),
		       .byte_offset = 1 };

	for (size_t i = 0; i < sizeof(memory); i++)
		memory[i] = (unsigned char)i;
	assert_int_equal(copy_gather(copy, &t, 0, 0), 0);
	assert_memory_equal(copy, memory + 1, 12);
}

PLAIN_TEST(bits_beyond_the_last_element_become_zero)
{
	unsigned char memory[2] = { 0xff, 0xff }, copy[2] = { 0x55, 0x55 };
	DLTensor t = { .data = memory,
		       .device = { kDLCPU, 0 },
		       .ndim = 1,
		       .dtype = { 17, 4, 1 },
		       .shape = I64(3),
		       .strides = I64(1) };

	assert_int_equal(copy_gather(copy, &t, 0, 0), 0);
	assert_int_equal(copy[0], 0xff);
	assert_int_equal(copy[1], 0x0f);
	t.strides = I64(0);
	copy[1] = 0x55;
	assert_int_equal(copy_gather(copy, &t, 0, 0), 0);
	assert_int_equal(copy[1], 0x0f);
}

PLAIN_TEST(packed_elements_start_at_the_low_bits)
{
	unsigned char memory[3] = { 0x21, 0x43, 0x65 }, copy[3];
	DLTensor t = { .data = memory,
		       .device = { kDLCPU, 0 },
		       .ndim = 1,
		       .dtype = { 0, 4, 1 },
		       .shape = I64(3),
		       .strides = I64(2) };

	assert_int_equal(copy_gather(copy, &t, 0, 0), 0); /* 1, 3, 5 */
	assert_int_equal(copy[0], 0x31);
	assert_int_equal(copy[1], 0x05);
	t.byte_offset = 2;
	t.shape = I64(5);
	t.strides = I64(-1);
	assert_int_equal(copy_gather(copy, &t, 0, 0), 0); /* 5, 4, 3, 2, 1 */
	assert_int_equal(copy[0], 0x45);
	assert_int_equal(copy[1], 0x23);
	assert_int_equal(copy[2], 0x01);
}

PLAIN_TEST(a_copy_writes_its_bytes_and_no_other)
{
	seed = 0xca9a;
	for (size_t i = 0; i < COUNT(types); i++) {
		struct source s = { .t = { .dtype = types[i], .ndim = 2 } };
		unsigned char *copy;
		uint64_t nbytes;

		memcpy(s.shape, I64(33, 35), 16);
		memcpy(s.strides, I64(1, 34), 16);
		source_fill(&s);
		assert_int_equal(tensor_nbytes(s.t.dtype, 2, s.shape, false, &nbytes), 0);
		copy = malloc(nbytes + 2 * CANARY);
		assert_non_null(copy);
		memset(copy, 0xc5, nbytes + 2 * CANARY);
		assert_int_equal(copy_gather(copy + CANARY, &s.t, 0, 0), 0);
		for (size_t j = 0; j < CANARY; j++) {
			assert_int_equal(copy[j], 0xc5);
			assert_int_equal(copy[CANARY + nbytes + j], 0xc5);
		}
		free(copy);
		free(s.memory);
	}
}

/* The parts that threads copy are all of it, whatever the sizes and wherever it begins. */
PLAIN_TEST(several_threads_copy_all_bytes_and_no_other)
{
	static const DLDataType kinds[] = { { kDLUInt, 8, 1 },
					    { kDLInt, 4, 1 },
					    { kDLFloat, 32, 1 } };

	seed = 0x7d5;
	for (size_t i = 0; i < COUNT(kinds); i++) {
		for (uint32_t threads = 1; threads <= 5; threads++) {
			int64_t n = 3 * PARALLEL_BLOCK + random_below(PARALLEL_BLOCK);
			struct source s = { .t = { .dtype = kinds[i], .ndim = 1 } };
			unsigned char *copy, *from, *end;
			uint64_t nbytes;

			s.shape[0] = n;
			s.strides[0] = 1;
			source_fill(&s);
			assert_int_equal(tensor_nbytes(s.t.dtype, 1, s.shape, false, &nbytes), 0);
			from = (unsigned char *)s.t.data + s.t.byte_offset;
			if (s.t.dtype.bits == 4 && n % 2)
				from[nbytes - 1] &= 15;
			copy = malloc(nbytes + 2 * CANARY);
			assert_non_null(copy);
			memset(copy, 0xc5, nbytes + 2 * CANARY);
			assert_int_equal(copy_gather(copy + 1, &s.t, 0, threads), 0);
			assert_memory_equal(copy + 1, from, nbytes);
			end = copy + 1 + nbytes;
			assert_true(copy[0] == 0xc5 && *end == 0xc5);
			free(copy);
			free(s.memory);
		}
	}
}

/* Of a matrix with its rows and columns in any order, and of more threads than rows. */
PLAIN_TEST(several_threads_copy_what_has_strides)
{
	seed = 0x7d6;
	for (int64_t rows = 1; rows <= 70; rows += 23) {
		for (uint32_t threads = 1; threads <= PARALLEL_MAX + 1; threads += 16) {
			struct source s = { .t = { .dtype = { kDLFloat, 32, 1 }, .ndim = 2 } };
			unsigned char *copy, *expected;
			uint64_t nbytes;

			memcpy(s.shape, I64(rows, 501), 16);
			memcpy(s.strides, threads & 32 ? I64(1, 71) : I64(-1003, 2), 16);
			source_fill(&s);
			assert_int_equal(tensor_nbytes(s.t.dtype, 2, s.shape, false, &nbytes), 0);
			copy = malloc(nbytes);
			expected = calloc(nbytes, 1);
			assert_true(copy && expected);
			gather_obviously(expected, &s);
			assert_int_equal(copy_gather(copy, &s.t, 0, threads), 0);
			assert_memory_equal(copy, expected, nbytes);
			free(copy);
			free(expected);
			free(s.memory);
		}
	}
}

int main(void)
{
	alarm(test_limit(TIMEOUT_S));
	return suite_run();
}
