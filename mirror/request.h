/* SPDX-License-Identifier: Apache-2.0 */
/* Names that are brought because somebody here has asked for them: by a name below a prefix of the
 * default namespace. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "mirror/config.h"

struct requests;

/* @on_request is called when there is a new one, by a thread that ends with requests_close().
 * Returns NULL after an error message. */
struct requests *requests_open(const struct config *config, const struct rule *rule,
			       void (*on_request)(void *context), void *context);
bool requests_have(struct requests *requests, const char *name);
size_t requests_count(struct requests *requests);
/* Somebody may ask for it anew. */
void requests_forget(struct requests *requests, const char *name);
/* Returns all names, each after a byte 0, which the caller frees, or NULL without memory. */
char *requests_list(struct requests *requests, size_t *size);
/* May be NULL. */
void requests_close(struct requests *requests);
