/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors: a length, a JSON header, and the bytes of all tensors without gaps. Only file.c uses
 * this.
 */
#pragma once

#include "files/entry.h"
#include "files/output.h"

input_check safetensors_check;
/* Opens such a file. Its __metadata__ becomes the notes of @f. */
int safetensors_open(struct tensor_file *f, const struct report *to);
int safetensors_read(struct tensor_file *f, const struct file_entry *e, void *dst,
		     const struct report *to);
/* Counts the bytes of a tensor, or reports why the format cannot hold it. */
int safetensors_measure(const struct file_item *item, uint64_t *nbytes, const struct report *to);
/* Writes the tensors sorted as the format's own library does: widest type first, then by name. */
int safetensors_write(struct output *out, const struct file_item *items, size_t count,
		      const struct file_note *notes, size_t note_count);
