/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients of a daemon that stands still: calls end in their time while its backlog or the socket is
 * full, and what they had to tell the daemon is told when it goes on.
 */
#include <sys/socket.h>
#include <sys/un.h>

#include "tests/client/common.h"

/* ---- A full backlog ---- */

static int socket_at(struct sockaddr_un *a, const struct test_daemon *d)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	must(fd >= 0);
	*a = (struct sockaddr_un){ .sun_family = AF_UNIX };
	snprintf(a->sun_path, sizeof(a->sun_path), "%s/other", d->dir);
	return fd;
}

/* The timeout is a whole number of seconds, and hardly any of it has passed before the wait. */
TEST(connecting_ends_in_its_time_while_the_backlog_is_full)
{
	cleanup_td struct test_daemon d = td_start();
	struct sockaddr_un a;
	int listener = socket_at(&a, &d), first = socket_at(&a, &d);
	tl_connect_options o = { .size = sizeof(o),
				 .address = a.sun_path,
				 .timeout_ns = 1 * SECOND };
	int64_t start;
	tl_client *client;

	must_be(bind(listener, (struct sockaddr *)&a, sizeof(a)), 0);
	must_be(listen(listener, 0), 0);
	must_be(connect(first, (struct sockaddr *)&a, sizeof(a)), 0);
	start = now_ns();
	must_be(tl_connect(&o, &client), -ETIMEDOUT);
	must(now_ns() - start >= 1 * SECOND);
	close(first);
	close(listener);
	must_be(unlink(a.sun_path), 0);
}

int main(void)
{
	return suite_run();
}
