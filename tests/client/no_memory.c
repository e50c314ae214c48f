/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel without memory for messages: calls wait for it, and end in time. */
#include <sys/socket.h>
#include <sys/syscall.h>

#include "tests/client/common.h"

static _Atomic bool lacks_memory;
static _Atomic unsigned refused;

/* Of this program alone, and so not the daemon's. */
ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	if (!atomic_load(&lacks_memory))
		return syscall(SYS_sendmsg, fd, message, flags);
	atomic_fetch_add(&refused, 1);
	errno = ENOBUFS;
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
	atomic_store(&lacks_memory, true);
	must_be(tl_delete(client, "a"), -ETIMEDOUT);
	must(strstr(tl_last_error(), "no memory"));
	drop(t);
	atomic_store(&lacks_memory, false);
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

	atomic_store(&lacks_memory, true);
	must_be(pthread_create(&thread, NULL, connects, &d), 0);
	eventually(atomic_load(&refused) > 10);
	atomic_store(&lacks_memory, false);
	must_be(pthread_join(thread, &client), 0);
	put_bytes(client, "a", 1, 10);
	tl_close(client);
}

int main(void)
{
	return suite_run();
}
