/* SPDX-License-Identifier: Apache-2.0 */
/* What a wait says that was in vain. */
#pragma once

#include "client/session/call.h"

/*
 * -ETIMEDOUT: nothing above @newer_than came under @name, which has @version now, or is not there
 * if that is 0.
 */
int late_fail(const struct call *c, const struct session *s, const char *name, uint64_t newer_than,
	      uint64_t version);

enum { LATE_DAEMON = 64 };
/* "; the daemon was started N s ago" if that was during the wait, else "". */
void late_daemon(const struct call *c, const struct session *s, char text[LATE_DAEMON]);
