/* SPDX-License-Identifier: Apache-2.0 */
/* Error texts of waits that ended without success. */
#pragma once

#include "client/connection/address.h"
#include "client/connection/call.h"

/* Where a name was looked for, in an error text: another daemon, or another namespace, may have it.
 * LATE_AT_ARGS() are its arguments. */
#define LATE_AT " at %s%s%s"
#define LATE_AT_ARGS(address)                                                                      \
	(address)->path, *(address)->name_space ? " in the namespace " : "", (address)->name_space

/* Fails with -ETIMEDOUT: @name got no version above @newer_than. @version is its present version,
 * or 0 if the name does not exist. */
int late_fail(const struct call *c, const struct session *s, const char *name, uint64_t newer_than,
	      uint64_t version);

enum { LATE_DAEMON = 64 };
/* Sets @text to "; the daemon was started N s ago" if that was during the wait, else to "". */
void late_daemon(const struct call *c, const struct session *s, char text[LATE_DAEMON]);
