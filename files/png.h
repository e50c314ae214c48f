/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures of 8 bits a channel as PNG files. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/*
 * Writes @width x @height pixels of @channels bytes each (1: grey, 3: RGB, 4: RGBA), the top row
 * first, as file_write() writes. 0, or a negative errno and why in @err.
 */
int png_write(const char *path, uint32_t width, uint32_t height, int channels,
	      const unsigned char *pixels, char *err, size_t err_len);
