/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Draws tensors as pictures. Their shape is HxW, HxWx1, HxWx3, HxWx4, or CxHxW with 1, 3 or 4
 * channels; lanes count as a last dimension. uint8 and bool are drawn as they are. For other types
 * the smallest value is black and the largest is white; NaN is black. An alpha channel ranges from
 * 0 to 1, or to the largest value of an integer type.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "cli/element.h"

#define PICTURE_VALUES_MAX (1ULL << 30)

struct picture {
	uint32_t width, height;
	int channels;	       /* 1: grey, 3: RGB, 4: RGBA */
	bool planes;	       /* the tensor has its channels first */
	unsigned char *pixels; /* height * width * channels, owned */
};

/* Returns whether the tensor has such a shape. Sets everything but the pixels. */
bool picture_init(struct picture *p, const tl_info *info, const struct elements *e);
/* Computes the pixels. */
void picture_draw(struct picture *p, const struct elements *e);
void picture_deinit(struct picture *p);

/*
 * Prints the picture, scaled down if it needs more columns or lines than given: in 24-bit colour
 * with half blocks, or in letters.
 */
void picture_print(FILE *out, const struct picture *p, unsigned columns, unsigned lines,
		   bool colour);
