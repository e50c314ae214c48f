/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads PNG files of any kind: a uint8 or uint16 tensor HxW, HxWx3 or HxWx4. Numbers are as they
 * are in the file, without the correction of colours that it may ask for. Only file.c uses this. A
 * build without libpng refuses such files.
 */
#pragma once

#include "files/entry.h"

#define PNG_VALUES_MAX (1ULL << 30)

input_check png_file_check;
int png_file_open(struct tensor_file *f, const struct report *to);
int png_file_read(struct tensor_file *f, const struct file_entry *e, void *dst,
		  const struct report *to);
