/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the values of a tensor in CPU memory, of any type: integers of 1 to 64 bits, packed or
 * padded, floats of 4 to 64 bits, complex numbers, bool. Each lane counts as a value. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tensorlease/tensorlease.h>

enum value_kind { VALUE_NONE, VALUE_BOOL, VALUE_INT, VALUE_UINT, VALUE_FLOAT, VALUE_COMPLEX };

enum { VALUE_BLOCK = 512 };

/* A block of values. Floats are in d, complex numbers are pairs in d, bool is 0 or 1 in u. */
union value_block {
	int64_t i[2 * VALUE_BLOCK];
	uint64_t u[2 * VALUE_BLOCK];
	double d[2 * VALUE_BLOCK];
};

struct elements {
	const unsigned char *data;
	enum value_kind kind; /* VALUE_NONE: they cannot be read */
	uint64_t count;	      /* values: elements times lanes */
	unsigned code;	      /* DLPack's type code */
	unsigned bits;	      /* of a value, or of half a complex one */
	unsigned lanes;
	unsigned step; /* bits from one element to the next */
	double *table; /* values of all bit patterns of a float of up to 8 bits, else NULL */
};

/* Prepares to read @data, which has info->nbytes bytes and is described by @info. */
void elements_init(struct elements *elements, const tl_info *info, const void *data);
void elements_deinit(struct elements *elements);

/* Reads values from number @first on into @block. Returns their number: VALUE_BLOCK except near the
 * end, 0 at the end. */
size_t elements_read(const struct elements *elements, uint64_t first, union value_block *block);

/*
 * Reads the same as doubles: integers of more than 53 bits are rounded, complex numbers become
 * their magnitude.
 */
size_t elements_doubles(const struct elements *elements, uint64_t first, double out[VALUE_BLOCK]);
