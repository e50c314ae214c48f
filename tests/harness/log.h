/* SPDX-License-Identifier: Apache-2.0 */
/* What a daemon of a test writes to stderr, in the file "log" of its directory. */
#pragma once

char *log_read(const char *dir); /* the caller frees it; NULL: no daemon has written there */
void log_show(const char *dir);	 /* on our stderr */
/* must() fails if a signal but SIGKILL ended a daemon that has a keeper, or a sanitizer reported.
 */
void log_must_have_no_crash(const char *dir);
