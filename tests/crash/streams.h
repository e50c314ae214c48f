/* SPDX-License-Identifier: Apache-2.0 */
/* Items of streams whose bytes tell what they are. */
#pragma once

#include <tensorlease/stream.h>

#include "tests/client/common.h"

enum { ITEM_HEAD = 8 }; /* words that each item has */

static inline tl_subscription *subscribe(tl_stream *s, uint32_t flags)
{
	const tl_subscribe_options o = { .size = sizeof(o), .flags = flags };
	tl_subscription *sub = NULL;

	must_be(tl_stream_subscribe(s, &o, &sub), 0);
	return sub;
}

/* Nobody has to wait longer for whoever has died. */
static inline int64_t patience(void)
{
	return test_limit(10) * SECOND;
}

static inline uint64_t pattern(uint32_t incarnation, uint64_t sequence, uint64_t i)
{
	return (incarnation * 0x9e3779b97f4a7c15ULL ^ sequence * 0xff51afd7ed558ccdULL) + i;
}

static inline void words_fill(uint64_t *words, uint64_t n, unsigned stream, uint32_t incarnation,
			      uint64_t sequence)
{
	for (uint64_t i = 0; i < n; i++)
		words[i] = pattern(incarnation, sequence, i);
	words[0] = stream;
	words[1] = incarnation;
	words[2] = sequence;
	words[3] = n;
}

static inline DLTensor words_tensor(uint64_t *words, int64_t *n)
{
	return (DLTensor){ .data = words,
			   .device = { kDLCPU, 0 },
			   .ndim = 1,
			   .dtype = { kDLUInt, 64, 1 },
			   .shape = n };
}

/* Puts an item of @n words, which are its metadata's and, of odd ones, a second tensor's too. */
static inline int put_words(tl_stream *s, uint64_t *words, int64_t n, int64_t timeout_ns,
			    uint64_t *number)
{
	int64_t head = ITEM_HEAD;
	DLTensor all = words_tensor(words, &n), first = words_tensor(words, &head);
	const tl_part parts[2] = { { .name = "all", .tensor = &all }, { .tensor = &first } };
	const tl_stream_put_options o = { .size = sizeof(o),
					  .timeout_ns = timeout_ns,
					  .metadata = words,
					  .metadata_size = ITEM_HEAD * sizeof(*words) };

	return tl_stream_put(s, parts, words[2] % 2 ? 2 : 1, &o, number);
}
