/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel that takes no messages, for want of memory or of descriptors: calls wait for it, and end
 * in time. */
#include <sys/socket.h>
#include <sys/syscall.h>

#include "tests/client/common.h"

static _Atomic int lack; /* ENOBUFS, ETOOMANYREFS, or 0: there is no lack */
static _Atomic unsigned refused;

/* Of this program alone, and so not the daemon's. */
ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	int error = atomic_load(&lack);

	if (!error)
		return syscall(SYS_sendmsg, fd, message, flags);
	atomic_fetch_add(&refused, 1);
	errno = error;
	return -1;
}

TEST(a_request_ends_in_time)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	DLManagedTensorVersioned *t;

	put_bytes(client, "a", 1, 10);
	put_bytes(client, "b", 1, 10);
	t = get(client, "b");
	client_set_timeout(client, 100 * MS);
	atomic_store(&lack, ENOBUFS);
	must_be(tl_delete(client, "a"), -ETIMEDOUT);
	must(strstr(tl_last_error(), "no memory"));
	drop(t);
	atomic_store(&lack, 0);
	client_set_timeout(client, WAIT_S * SECOND);
	must_be(tl_delete(client, "a"), 0);
	must_be(tl_delete(client, "b"), 0);
	td_sync(&d);
	must_be(td_status(&d).retired, 0);
	tl_close(client);
}

static void *connects(void *arg)
{
	return td_connect(arg);
}

TEST(a_connection_is_made_when_there_is_memory_again)
{
	cleanup_td struct test_daemon d = td_start();
	void *client;
	pthread_t thread;

	atomic_store(&lack, ENOBUFS);
	must_be(pthread_create(&thread, NULL, connects, &d), 0);
	eventually(atomic_load(&refused) > 10);
	atomic_store(&lack, 0);
	must_be(pthread_join(thread, &client), 0);
	put_bytes(client, "a", 1, 10);
	tl_close(client);
}

TEST(a_connection_that_is_not_made_in_time_says_why)
{
	cleanup_td struct test_daemon d = td_start();
	const tl_connect_options o = { .size = sizeof(o),
				       .address = d.socket,
				       .timeout_ns = 20 * MS };
	tl_client *client;

	atomic_store(&lack, ENOBUFS);
	must_be(tl_connect(&o, &client), -ETIMEDOUT);
	must(strstr(tl_last_error(), "no memory for a message"));
	atomic_store(&lack, ETOOMANYREFS);
	must_be(tl_connect(&o, &client), -EMFILE);
	must(strstr(tl_last_error(), "has sent as many descriptors"));
	atomic_store(&lack, 0);
}

int main(void)
{
	return suite_run();
}
