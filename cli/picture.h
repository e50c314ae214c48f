/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors as pictures: HxW, HxWx1, HxWx3, HxWx4, or CxHxW with 1, 3 or 4 channels; lanes count as a
 * last dimension. uint8 and bool are drawn as they are; of other types the smallest value is black
 * and the largest white, NaN black. An alpha channel goes from 0 to 1, or to the largest value of
 * an integer.
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
	bool planes;	       /* the tensor has the channels first */
	unsigned char *pixels; /* height * width * channels, ours */
};

/* Does it look like one? Sets all but the pixels. */
bool picture_init(struct picture *p, const tl_info *info, const struct elements *e);
/* Makes the pixels. */
void picture_draw(struct picture *p, const struct elements *e);
void picture_deinit(struct picture *p);

/*
 * Prints it, smaller if it needs more than that many columns and lines: in 24-bit colour with half
 * blocks, or in letters.
 */
void picture_print(FILE *out, const struct picture *p, unsigned columns, unsigned lines,
		   bool colour);
