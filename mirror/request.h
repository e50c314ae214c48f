/* SPDX-License-Identifier: Apache-2.0 */
/* Names that come only because a program here has requested them, by publishing a name with a
 * certain prefix in the default namespace. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "mirror/config.h"

struct requests;

/* Calls @on_request for each new request, by a thread that ends with requests_close(). Returns NULL
 * after an error message. */
struct requests *requests_open(const struct config *config, const struct rule *rule,
			       void (*on_request)(void *context), void *context);
bool requests_have(struct requests *requests, const char *name);
size_t requests_count(struct requests *requests);
/* Forgets a request, so that the name can be requested again. */
void requests_forget(struct requests *requests, const char *name);
/* Returns all names, each after a byte 0, in memory that the caller frees; or NULL. */
char *requests_list(struct requests *requests, size_t *size);
/* @requests may be NULL. */
void requests_close(struct requests *requests);
