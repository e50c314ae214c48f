/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers of fork() that the program registered before it connected, and that call the library. */
#include "tests/client/common.h"

static tl_client *client; /* NULL: the handlers do nothing */
static unsigned calls;

static void call(const char *name)
{
	if (!client)
		return;
	put_alone(client, name, 1, 100);
	drop(get(client, name));
	calls++;
}

static void prepare(void)
{
	call("prepare");
}

static void parent(void)
{
	call("parent");
}

static void child(void)
{
	call("child");
}

__attribute__((constructor)) static void register_first(void)
{
	pthread_atfork(prepare, parent, child);
}

TEST(handlers_of_fork_that_are_older_than_the_client_may_call_it)
{
	cleanup_td struct test_daemon d = td_start();
	DLManagedTensorVersioned *held;
	int status;
	pid_t pid;

	client = td_connect(&d);
	put_bytes(client, "a", 1, 1000);
	held = get(client, "a");
	pid = fork();
	must(pid >= 0);
	if (pid == 0) {
		must_be(calls, 2); /* before the fork, and after it */
		drop(held);
		tl_close(client);
		_exit(0);
	}
	must_be(waitpid(pid, &status, 0), pid);
	must_be(status, 0);
	must_be(calls, 2);
	must(client_sees(client, "prepare") && client_sees(client, "parent") &&
	     client_sees(client, "child"));
	drop(held);
	tl_close(client);
	client = NULL;
}

int main(void)
{
	return suite_run();
}
