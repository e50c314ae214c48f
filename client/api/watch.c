/* SPDX-License-Identifier: Apache-2.0 */
/* Watching names. */
#include <errno.h>
#include <string.h>

#include <tensorlease/watch.h>

#include "client/checks.h"
#include "client/error.h"
#include "client/read/below.h"
#include "client/read/watch.h"

TL_API int tl_watch_open(tl_client *client, const char *name, const tl_watch_options *options,
			 tl_watch **out)
{
	const uint32_t known = TL_WATCH_PREFIX | TL_WATCH_NEW;
	tl_watch_options o = { .size = sizeof(o) };
	char start[TL_NAME_MAX + 1];
	size_t len;
	int r = 0;

	if (!client || !name || !out)
		return tl_fail(-EINVAL, "tl_watch_open: %s is NULL",
			       !client ? "client"
			       : !name ? "name"
				       : "out");
	if (options)
		r = client_options(&o, sizeof(o), options, sizeof(o), "tl_watch_options");
	if (r)
		return r;
	if (o.flags & ~known)
		return tl_fail(-EINVAL, "tl_watch_options.flags is %#x; %#x is known", o.flags,
			       known);
	if (o.reserved)
		return tl_fail(-EINVAL, "tl_watch_options.reserved is %u, not 0", o.reserved);
	len = strlen(name);
	if (!len || name[len - 1] == '/')
		o.flags |= TL_WATCH_PREFIX;
	r = o.flags & TL_WATCH_PREFIX ? client_prefix(start, name) : client_check_name(name, len);
	if (r)
		return r;
	if (o.flags & TL_WATCH_PREFIX)
		name = start;
	r = watch_open(client, name, o.flags, out);
	if (r != -ENOSPC && r != -EDQUOT)
		return r;
	below_forget(client); /* these hold watches too, which the client can do without */
	return watch_open(client, name, o.flags, out);
}

TL_API int tl_watch_next(tl_watch *watch, const tl_wait_options *options, tl_watch_event *event)
{
	tl_wait_options o;
	tl_watch_event found;
	int r;

	if (!watch || !event)
		return tl_fail(-EINVAL, "tl_watch_next: %s is NULL", watch ? "event" : "watch");
	r = client_result_check(event, sizeof(found), "tl_watch_event");
	if (!r)
		r = client_wait_options(&o, options);
	if (!r)
		r = watch_next(watch, &o, &found);
	if (!r)
		client_result(event, &found, sizeof(found));
	return r;
}

TL_API int tl_watch_fd(tl_watch *watch, int *fd)
{
	if (!watch || !fd)
		return tl_fail(-EINVAL, "tl_watch_fd: %s is NULL", watch ? "fd" : "watch");
	return watch_fd(watch, fd);
}

TL_API int tl_watch_close(tl_watch *watch)
{
	if (watch)
		watch_close(watch);
	return 0;
}
