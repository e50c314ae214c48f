/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files become tensors and tensors become files: what load and save do, here and in the Python
 * package. Over the public API; tells nobody anything. Functions return 0 or a negative errno. Then
 * the text in @why, FILE_ERROR_TEXT bytes, says what is wrong, or is "": the library refused, and
 * tl_last_error() has the words.
 */
#pragma once

#include <tensorlease/tensorlease.h>

#include "files/file.h"

/*
 * What entry @i will be called: "PREFIX/name"; its name alone if @prefix is empty, and @prefix
 * alone if the file has one tensor without a name. NULL: no memory.
 */
char *transfer_name(const struct tensor_file *f, size_t i, const char *prefix);

/*
 * Publishes all that is in @f in one step, after all of it was read and found right. Waits for
 * space as
 * @timeout_ns says.
 */
int transfer_load(tl_client *client, struct tensor_file *f, const char *prefix, int64_t timeout_ns,
		  file_progress progress, void *context, char *why);

/* Tensors as they were at one moment, sorted by name. All zero there are none. */
struct transfer {
	char **names;
	size_t count;
	size_t prefix; /* bytes of each name that do not go into a file */
	DLManagedTensorVersioned **tensors;
};

/* Releases them. */
void transfer_deinit(struct transfer *t);

/*
 * Gets all tensors whose names start with @prefix, and no others: names that come together, as
 * those of a group do, are all in it or not at all. None is no failure. -EBUSY: they change too
 * fast.
 */
int transfer_get(struct transfer *t, tl_client *client, const char *prefix, enum tl_mode mode,
		 char *why);

/*
 * Gets what a file of that format holds: all that is below @prefix/, or the one tensor called
 * @prefix. -ENOENT: there is none.
 */
int transfer_pick(struct transfer *t, tl_client *client, const char *prefix,
		  enum file_format format, char *why);
/* Writes them. */
int transfer_save(const struct transfer *t, const char *path, enum file_format format,
		  file_progress progress, void *context, char *why);
