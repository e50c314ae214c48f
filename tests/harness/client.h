/* SPDX-License-Identifier: Apache-2.0 */
/* What tests ask a client for again and again. */
#pragma once

#include "tests/harness/harness.h"

static inline struct tl_status client_status(tl_client *client)
{
	struct tl_status status = { .size = sizeof(status) };

	must_be(tl_get_status(client, &status), 0);
	return status;
}

/* All numbers, of a daemon that clients can reach; see td_status(). */
static inline struct tl_status td_full_status(const struct test_daemon *d)
{
	tl_client *client = td_connect(d);
	struct tl_status status = client_status(client);

	tl_close(client);
	return status;
}

static inline bool client_sees(tl_client *client, const char *name)
{
	tl_info info = { .size = sizeof(info) };
	int r = tl_stat(client, name, &info);

	must(r == 0 || r == -ENOENT);
	return r == 0;
}
