/* SPDX-License-Identifier: Apache-2.0 */
/* numpy's .npz: a ZIP archive of .npy files. Only file.c uses this. */
#pragma once

#include "files/entry.h"
#include "files/output.h"

int npz_open(struct tensor_file *f, const struct report *to);
/* Reads the data of @e in the order of the file. */
int npz_read(struct tensor_file *f, const struct file_entry *e, void *dst, const struct report *to);
int npz_write(struct output *out, const struct file_item *items, size_t count);
