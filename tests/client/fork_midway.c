/* SPDX-License-Identifier: Apache-2.0 */
/* fork() while the library has something in hand: a child keeps nothing that is of no use to it. */
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "tests/client/common.h"

/* In a process of the test: fork where the ledger has just been mapped, or made. */
static bool fork_at_map, fork_at_seal;

/* In the child that is forked there. */
static void live_on(void)
{
	pause_at(1);
	_exit(0);
}

static void fork_once(bool *here)
{
	pid_t pid;

	*here = false;
	pid = fork();
	must(pid >= 0);
	if (pid == 0)
		live_on();
}

/* These are in place of the system's, for the library too. */

void *mmap(void *addr, size_t len, int prot, int flags, int fd, off_t offset)
{
	long r = syscall(SYS_mmap, addr, len, prot, flags, fd, offset);

	if (fork_at_map && fd >= 0 && prot & PROT_WRITE && flags & MAP_SHARED)
		fork_once(&fork_at_map);
	return (void *)r;
}

int fcntl(int fd, int cmd, ...)
{
	static int (*control)(int fd, int cmd, ...);
	va_list args;
	void *arg;

	if (!control)
		*(void **)&control = dlsym(RTLD_NEXT, "fcntl");
	va_start(args, cmd);
	arg = va_arg(args, void *);
	va_end(args);
	if (cmd == F_ADD_SEALS && fork_at_seal)
		fork_once(&fork_at_seal);
	return control(fd, cmd, arg);
}

static int connects_and_leaves(const struct test_daemon *d, void *arg)
{
	tl_client *client;
	bool *here = arg;

	*here = true;
	client = td_connect(d);
	must(!*here);
	get(client, "a");
	return 0;
}

static void no_child_may_keep_the_ledger(bool *here)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	struct test_child c;

	put_bytes(client, "a", 1, 100);
	c = child_start(&d, connects_and_leaves, here);
	must_be(child_wait_open(&c), 0);
	must_be(child_await(&c), 1);
	must_be(tl_delete(client, "a"), 0);
	eventually(td_status(&d).retired == 0);
	must_be(td_status(&d).clients, 1);
	child_go(&c);
	child_hang_up(&c);
	tl_close(client);
}

TEST(a_child_does_not_keep_the_ledger_of_a_connection_that_was_being_made)
{
	no_child_may_keep_the_ledger(&fork_at_seal);
}

TEST(a_child_does_not_keep_a_ledger_that_was_mapped_just_before)
{
	no_child_may_keep_the_ledger(&fork_at_map);
}

static int counts_descriptors(const struct test_daemon *d, void *arg)
{
	unsigned mine = count_fds(0);
	int status;
	pid_t pid;

	(void)d;
	(void)arg;
	pid = fork();
	if (pid == 0) {
		must_be(count_fds(0), mine);
		_exit(0);
	}
	must_be(waitpid(pid, &status, 0), pid);
	must_be(status, 0);
	return 0;
}

TEST(a_child_has_no_more_descriptors_than_its_parent)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	DLManagedTensorVersioned *t;

	put_bytes(client, "a", 1, 100);
	t = get(client, "a");
	must_be(td_run_client(&d, counts_descriptors, NULL), 0);
	drop(t);
	tl_close(client);
}

int main(void)
{
	return suite_run();
}
