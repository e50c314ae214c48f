/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which system calls it takes to publish to a ring and to get from one: under a filter that kills
 * whoever makes another one.
 */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

#include "tests/client/common.h"
#include "tests/harness/child.h"

enum { SIZE = 4096, SLOTS = 64, PUTS = 20 * SLOTS };

/* The runtimes of sanitizers make system calls of their own. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CALLS_ARE_OURS false
#else
#define CALLS_ARE_OURS true
#endif
#define SKIP_UNLESS_OURS() SKIP_UNLESS(CALLS_ARE_OURS, "sanitizers make system calls of their own")

#ifdef SYS_poll
#define CALL_POLL SYS_poll
#else
#define CALL_POLL SYS_ppoll
#endif

/* Ends the process, with a message for people, if it makes a system call that is not one of those,
 * or its exit. */
static void allow_only(uint32_t one, uint32_t two)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, one, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, two, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { .len = sizeof(filter) / sizeof(filter[0]), .filter = filter };

	must_be(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	must_be(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

static void put(tl_client *client, int value)
{
	const tl_put_options o = { .size = sizeof(o), .ring = SLOTS };
	unsigned char data[SIZE];
	int64_t shape[1] = { SIZE };
	DLTensor t = bytes_tensor(data, shape);
	uint64_t version;

	memset(data, value, SIZE);
	must_be(tl_put(client, "r", &t, &o, &version), 0);
}

static void commit(tl_client *client)
{
	static const int64_t shape = SIZE;
	const tl_spec spec = {
		.size = sizeof(spec), .shape = &shape, .ndim = 1, .dtype = U8, .ring = SLOTS
	};
	tl_draft *draft;

	must_be(tl_create(client, "r", &spec, &draft), 0);
	must_be(tl_commit(draft, NULL), 0);
}

static uint64_t commits(tl_client *client)
{
	tl_status status = { .size = sizeof(status) };

	must_be(tl_get_status(client, &status), 0);
	return status.commits;
}

/* Publishes until the daemon has just been told of all former slots. */
static void put_until_told(tl_client *client, const struct test_daemon *d)
{
	uint64_t before;

	put(client, 0);
	do {
		before = commits(client);
		put(client, 1);
		td_sync(d);
	} while (commits(client) == before);
}

/*
 * As long as the daemon keeps up, a producer only sends it messages. It hears of half of the slots
 * at once, so that all others are free when it has heard of all but so many.
 */
static int publish_sealed(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	uint64_t base;

	(void)arg;
	put_until_told(client, d);
	base = commits(client);
	allow_only(SYS_sendmsg, CALL_POLL);
	for (unsigned i = 1; i <= PUTS; i++) {
		if (i % 2)
			put(client, (int)i);
		else
			commit(client);
		while (commits(client) - base + SLOTS / 2 < i)
			; /* which looks now and then whether the daemon is there */
	}
	_exit(0);
}

TEST(a_publish_to_a_ring_makes_no_system_call_but_messages)
{
	SKIP_UNLESS_OURS();
	cleanup_td struct test_daemon d = td_start();

	must_be(td_run_client(&d, publish_sealed, NULL), 0);
}

/* Between two messages none is made at all. */
static int publish_silently(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);

	(void)arg;
	put_until_told(client, d);
	allow_only(SYS_exit_group, CALL_POLL); /* once a second it looks for the daemon */
	for (int i = 0; i < SLOTS / 4; i++)
		put(client, i);
	_exit(0);
}

TEST(most_publishes_send_no_message)
{
	SKIP_UNLESS_OURS();
	cleanup_td struct test_daemon d = td_start();

	must_be(td_run_client(&d, publish_silently, NULL), 0);
}

static int get_sealed(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	DLManagedTensorVersioned *t = get(client, "r");

	(void)arg;
	drop(t);
	allow_only(SYS_exit_group, SYS_exit_group);
	for (int i = 0; i < 1000; i++) {
		t = get(client, "r");
		must(all_bytes(t, 7, SIZE));
		drop(t);
	}
	_exit(0);
}

TEST(a_get_from_a_ring_makes_no_system_call)
{
	SKIP_UNLESS_OURS();
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);

	put(client, 7);
	must_be(td_run_client(&d, get_sealed, NULL), 0);
	tl_close(client);
}

int main(void)
{
	return suite_run();
}
