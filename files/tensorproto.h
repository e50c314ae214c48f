/* SPDX-License-Identifier: Apache-2.0 */
/* TensorFlow's TensorProto in binary form: one tensor without a name. Only file.c uses this. */
#pragma once

#include "files/entry.h"
#include "files/output.h"

int tensorproto_open(struct tensor_file *f, const struct report *to);
int tensorproto_read(struct tensor_file *f, const struct file_entry *e, void *dst,
		     const struct report *to);
/* Writes the values as tensor_content. */
int tensorproto_write(struct output *out, const struct file_item *item);
