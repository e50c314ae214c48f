/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures with 8 bits for each channel as PNG files. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/*
 * Writes @width x @height pixels of @channels bytes (1: grey, 3: RGB, 4: RGBA), the top row first.
 * The file is replaced as file_write() does. Returns 0, or a negative errno with a text in @err.
 */
int png_write(const char *path, uint32_t width, uint32_t height, int channels,
	      const unsigned char *pixels, char *err, size_t err_len);
