/* SPDX-License-Identifier: Apache-2.0 */
/* Offers the names of a rule as a set: all of their tensors at one moment. */
#pragma once

#include "mirror/ticket.h"

/*
 * Takes the present moment, and offers it in place of *@newest. *@message, which the caller frees,
 * announces it, with the bytes of small members if they fit. *@moment is its time in ns since 1970.
 * Returns 1; 0 if nothing has changed since *@newest; or a negative errno: -EAGAIN if names come
 * and go too fast, -E2BIG if there are too many.
 */
int moment_take(struct tickets *tickets, tl_client *client, struct given *given, const char *url,
		struct ticket **newest, uint64_t *moment, char **message, size_t *size);
