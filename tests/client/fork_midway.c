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

/* ---- Calls that sleep in other threads ---- */

static void *sleeps_in_wait(void *arg)
{
	const tl_wait_item items[] = { { .name = "later" }, { .name = "never" } };
	tl_wait_options o = { .size = sizeof(o), .timeout_ns = WAIT_S * SECOND };
	struct asleep *a = arg;
	size_t which = 9;

	atomic_store(&a->tid, (pid_t)syscall(SYS_gettid));
	must_be(tl_wait_many(a->client, items, 2, &o, &which), 0);
	must_be(which, 0);
	return NULL;
}

static void *sleeps_in_claim(void *arg)
{
	tl_claim_options o = { .size = sizeof(o), .timeout_ns = WAIT_S * SECOND };
	struct asleep *a = arg;

	atomic_store(&a->tid, (pid_t)syscall(SYS_gettid));
	must_be(tl_claim(a->client, "claimed", &o), 0);
	return NULL;
}

static void *sleeps_for_space(void *arg)
{
	int64_t n = 3 * MIB;
	tl_spec spec = { .size = sizeof(spec),
			 .shape = &n,
			 .ndim = 1,
			 .dtype = U8,
			 .timeout_ns = WAIT_S * SECOND };
	struct asleep *a = arg;
	tl_draft *draft;

	atomic_store(&a->tid, (pid_t)syscall(SYS_gettid));
	must_be(tl_create(a->client, "large", &spec, &draft), 0);
	tl_abort(draft);
	return NULL;
}

static void *(*const sleepers[])(void *) = { wait_for_later, sleeps_in_wait, sleeps_in_claim,
					     sleeps_for_space };

enum { SLEEPERS = sizeof(sleepers) / sizeof(sleepers[0]) };

struct inherited {
	tl_client *client;
	DLManagedTensorVersioned *held;
};

static int gives_all_back(const struct test_daemon *d, void *arg)
{
	const struct inherited *i = arg;

	(void)d;
	must(all_bytes(i->held, 1, 3 * MIB));
	drop(i->held);
	tl_close(i->client);
	pause_at(1);
	return 0;
}

/* A call that runs all the time, as any other does for some moments. */
static void *spins_in_get(void *arg)
{
	tl_get_options o = { .size = sizeof(o),
			     .timeout_ns = WAIT_S * SECOND,
			     .spin_ns = WAIT_S * SECOND };
	DLManagedTensorVersioned *t = NULL;
	struct asleep *a = arg;

	must_be(tl_get(a->client, "later", &o, &t), 0);
	return t;
}

static int64_t worked_ns(pthread_t thread)
{
	struct timespec ts;
	clockid_t clock;

	must_be(pthread_getcpuclockid(thread, &clock), 0);
	must_be(clock_gettime(clock, &ts), 0);
	return ts.tv_sec * SECOND + ts.tv_nsec;
}

/* The child has a connection of its own, since it reads a tensor. */
static void close_in_a_child(void *(*call)(void *))
{
	cleanup_td struct test_daemon d = td_start(.capacity = 4 * MIB);
	tl_client *client = td_connect(&d);
	struct asleep a = { .client = client };
	struct inherited i = { .client = client };
	struct test_child c;
	pthread_t thread;
	void *got;

	put_alone(client, "a", 1, 3 * MIB);
	i.held = get(client, "a");
	must_be(tl_claim(client, "claimed", NULL), 0);
	must_be(pthread_create(&thread, NULL, call, &a), 0);
	if (call == spins_in_get)
		eventually(worked_ns(thread) > 20 * MS);
	else
		until_it_sleeps(&a.tid);
	c = child_start_ready(&d, gives_all_back, &i);
	eventually(td_status(&d).clients == 1);
	drop(i.held);
	must_be(tl_delete(client, "a"), 0); /* the child does not keep its memory */
	put_bytes(client, "later", 2, 100);
	tl_unclaim(client, "claimed");
	must_be(pthread_join(thread, &got), 0);
	if (got)
		drop(got);
	child_finish(&c);
	tl_close(client);
}

TEST(a_childs_close_does_not_wait_for_calls_that_slept_in_its_parent)
{
	for (int i = 0; i < SLEEPERS; i++)
		close_in_a_child(sleepers[i]);
}

TEST(a_childs_close_does_not_wait_for_calls_that_ran_in_its_parent)
{
	close_in_a_child(spins_in_get);
}

static int maps_nothing(const struct test_daemon *d, void *arg)
{
	(void)d;
	(void)arg;
	must_be(mapped_objects(), 0);
	return 0;
}

TEST(a_child_that_inherits_no_tensor_maps_nothing_though_a_call_slept)
{
	cleanup_td struct test_daemon d = td_start();
	struct asleep a = { .client = td_connect(&d) };
	pthread_t thread;
	void *got;

	put_alone(a.client, "a", 1, 3 * MIB);
	drop(get(a.client, "a"));
	must_be(td_run_client(&d, maps_nothing, NULL), 0);
	must_be(pthread_create(&thread, NULL, wait_for_later, &a), 0);
	until_it_sleeps(&a.tid);
	must_be(td_run_client(&d, maps_nothing, NULL), 0);
	put_bytes(a.client, "later", 2, 100);
	must_be(pthread_join(thread, &got), 0);
	drop(got);
	tl_close(a.client);
}

int main(void)
{
	return suite_run();
}
