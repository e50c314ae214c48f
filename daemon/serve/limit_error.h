/* SPDX-License-Identifier: Apache-2.0 */
/* The error about a share that is used up. */
#pragma once

#include <stddef.h>

#include "daemon/state/state.h"

/* Writes an error for @what, which failed because account_take() returned @r. Returns the code of
 * the error, which may be a WIRE_BECAUSE(). */
unsigned share_error_text(struct state *st, struct account *account, int r, const char *what,
			  char *text, size_t size);
/* The code of the error when all of the share is used up, whoever uses it. */
unsigned share_error_code(enum share share);
