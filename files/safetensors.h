/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors: a length, a JSON header, and the bytes of all tensors without a gap. For file.c. */
#pragma once

#include "files/entry.h"
#include "files/output.h"

/* Its __metadata__ becomes the notes of @f. */
int safetensors_open(struct tensor_file *f, const struct report *to);
int safetensors_read(struct tensor_file *f, const struct file_entry *e, void *dst,
		     const struct report *to);
/* Sorted as the format's own library does: by type, the widest first, then by name. */
int safetensors_write(struct output *out, const struct file_item *items, size_t count);
