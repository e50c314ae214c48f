/* SPDX-License-Identifier: Apache-2.0 */
/* TensorFlow's TensorProto in binary form: one tensor without a name. Only file.c uses this. */
#pragma once

#include "files/entry.h"
#include "files/input.h"
#include "files/output.h"

enum { TENSORPROTO_MAX = INT32_MAX /* bytes, as of every message of protobuf */ };

/* Is an input_check. */
int tensorproto_check(const unsigned char *head, size_t size, const struct report *to);
int tensorproto_open(struct tensor_file *f, const struct report *to);
int tensorproto_read(struct tensor_file *f, const struct file_entry *e, void *dst,
		     const struct report *to);
/* Writes the values as tensor_content. */
int tensorproto_write(struct output *out, const struct file_item *item);
