/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The values of a tensor in CPU memory, whatever its type: integers of 1 to 64 bits, packed or
 * padded, floats from 4 to 64 bits, complex, bool. Lanes are values of their own.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tensorlease/tensorlease.h>

enum value_kind { VALUE_NONE, VALUE_BOOL, VALUE_INT, VALUE_UINT, VALUE_FLOAT, VALUE_COMPLEX };

enum { VALUE_BLOCK = 512 };

/* Some values; floats in d, complex ones as pairs in d; bool as 0 or 1 in u. */
union value_block {
	int64_t i[2 * VALUE_BLOCK];
	uint64_t u[2 * VALUE_BLOCK];
	double d[2 * VALUE_BLOCK];
};

struct elements {
	const unsigned char *data;
	enum value_kind kind; /* VALUE_NONE: they cannot be told */
	uint64_t count;	      /* of values: elements times lanes */
	unsigned code;	      /* DLPack's */
	unsigned bits;	      /* of a value; of a half of it if complex */
	unsigned lanes;
	unsigned step; /* bits from an element to the next */
	double *table; /* what the 2^bits patterns of a float of up to 8 bits mean, else NULL */
};

/* @info describes @data, of info->nbytes bytes. */
void elements_init(struct elements *elements, const tl_info *info, const void *data);
void elements_deinit(struct elements *elements);

/* Values @first and on into @block; how many: VALUE_BLOCK unless the end is near, 0 at the end. */
size_t elements_read(const struct elements *elements, uint64_t first, union value_block *block);

/* The same as doubles, rounded where they are integers of more than 53 bits; the magnitude of
 * complex ones. */
size_t elements_doubles(const struct elements *elements, uint64_t first, double out[VALUE_BLOCK]);
