/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "files/report.h"
#include "util/clock.h"
#include "util/fd.h"

enum { PATH_SHOWN_MAX = 256 }; /* bytes; of longer ones the end is shown */

void report_text(const struct report *to, const char *format, ...)
{
	size_t len = strlen(to->path);
	const char *path = to->path;
	va_list args;
	int n;

	if (!to->size)
		return;
	if (len > PATH_SHOWN_MAX)
		path += len - PATH_SHOWN_MAX;
	while (path > to->path && (*path & 0xc0) == 0x80) /* the rest of a split character */
		path++;
	n = snprintf(to->text, to->size, "%s%s: ", path > to->path ? "..." : "", path);
	if (n < 0 || (size_t)n >= to->size)
		return;
	va_start(args, format);
	vsnprintf(to->text + n, to->size - (size_t)n, format, args);
	va_end(args);
}

int report_errno(const struct report *to, const char *doing)
{
	int error = errno ? errno : EIO;

	if (error == EFBIG && fd_size_limit() != UINT64_MAX)
		return report(to, -error,
			      "cannot %s: this process may make files of at most %" PRIu64
			      " bytes; raise its RLIMIT_FSIZE (ulimit -f)",
			      doing, fd_size_limit());
	return report(to, -error, "cannot %s: %s", doing, strerror(error));
}

int report_memory(const struct report *to)
{
	return report(to, -ENOMEM, "out of memory");
}

/* When somebody was asked whether to go on, by any call of this thread. */
static int64_t *asked_ns(void)
{
	static _Thread_local int64_t when;

	return &when;
}

bool report_goes_on(const struct report *to)
{
	int r = to->interrupted ? to->interrupted(to->context) : 0;

	*asked_ns() = now_mono_ns();
	if (r)
		errno = -r;
	return !r;
}

bool report_await(const struct report *to, int fd, short events)
{
	struct pollfd p = { .fd = fd, .events = events };

	for (;;) {
		int n = poll(&p, 1, REPORT_LOOK_MS);

		if (n < 0 && errno != EINTR)
			return false;
		/* whoever always has a little to read, or to write, is to be asked as well */
		if ((n <= 0 || now_mono_ns() - *asked_ns() >= REPORT_LOOK_MS * NS_PER_MS) &&
		    !report_goes_on(to))
			return false;
		if (n > 0 || (n == 0 && fd < 0))
			return true;
	}
}

const char *report_shown(const char *text, size_t len, char out[FILE_SHOWN_MAX + 4])
{
	size_t n = len < FILE_SHOWN_MAX ? len : FILE_SHOWN_MAX;

	for (size_t i = 0; i < n; i++)
		out[i] = text[i] < ' ' || text[i] > '~' ? '?' : text[i];
	memcpy(out + n, len > n ? "..." : "", len > n ? 4 : 1);
	return out;
}
