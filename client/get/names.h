/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the catalog's description of a leased tensor, and of all tensors whose names begin alike.
 */
#pragma once

#include <stddef.h>

#include "client/get/lookup.h"
#include "client/session/client.h"

/* row_info(), with the number that this process gives to the device. */
int tensor_info(const struct session *s, const struct catalog_row *row, tl_info *info);

int names_list(struct session *s, const char *prefix,
	       int (*visit)(const tl_info *info, void *context), void *context);
/*
 * For somebody who waits: is there a name that starts with @prefix? 0; LEASE_E_NONE: sleep on
 * *@wake; LEASE_E_UNSERVED, or a negative errno.
 */
int names_wait(struct session *s, const char *prefix, struct wake_word *wake);
