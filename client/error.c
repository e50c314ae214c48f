/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text and the cause of a thread's last failure. They are kept in thread-local storage; nothing
 * here allocates or prints.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "client/error.h"
#include "util/text.h"

enum { TEXT_MAX = 1024 };

static _Thread_local char last_text[TEXT_MAX];
static _Thread_local uint32_t last_cause, last_id;
static _Thread_local unsigned hidden;

void tl_fail_say(int err, const char *format, ...)
{
	char text[TEXT_MAX]; /* the old text may be among the arguments */
	va_list args;

	errno = -err; /* for %m */
	if (hidden)
		return;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	text_escape(last_text, sizeof(last_text), text, strlen(text)); /* other users may have
									  chosen the names in it */
	last_cause = last_id = 0;
	errno = -err;
}

void tl_fail_because(uint32_t cause, uint32_t id)
{
	if (hidden)
		return;
	last_cause = cause;
	last_id = id;
}

void tl_failures_hide(void)
{
	hidden++;
}

void tl_failures_show(void)
{
	hidden--;
}

const char *tl_failure_text(void)
{
	return last_text;
}

uint32_t tl_failure_cause(uint32_t *id)
{
	*id = last_id;
	return last_cause;
}
