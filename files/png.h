/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures with 8 bits for each channel as PNG files. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "files/report.h"

/* The top row is first. */
struct png {
	uint32_t width, height;
	int channels; /* bytes of a pixel; 1: grey, 3: RGB, 4: RGBA */
	const unsigned char *pixels;
};

/*
 * The file is replaced, and @progress and @interrupted may stop that, as in file_write_noted().
 * Returns 0, or a negative errno with a text in @err.
 */
int png_write(const char *path, const struct png *picture, file_progress progress,
	      file_interrupted interrupted, void *context, char *err, size_t err_len);
