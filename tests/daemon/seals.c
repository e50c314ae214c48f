/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealed memory (--storage memfd): what not even a process of the daemon's own user can do to a
 * published tensor, and what is charged for how long.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "tests/daemon/adopted_common.h"
#include "tests/harness/harness.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

enum { SIZE = 1 << 20 };

/* Nobody may write, shrink, grow or empty it by a descriptor. */
static void must_be_out_of_reach(int fd)
{
	static const int modes[] = { 0, FALLOC_FL_KEEP_SIZE,
				     FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE };
	static const off_t sizes[] = { 0, SIZE / 2, 2 * SIZE };
	void *p;

	for (int i = 0; i < 3; i++) {
		must(ftruncate(fd, sizes[i]));
		must(fallocate(fd, modes[i], modes[i] & FALLOC_FL_PUNCH_HOLE ? 0 : SIZE, SIZE));
	}
	must_be(pwrite(fd, "x", 1, 0), -1);
	must(mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
	p = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
	must(p != MAP_FAILED);
	must(mprotect(p, SIZE, PROT_READ | PROT_WRITE));
	must(madvise(p, SIZE, MADV_REMOVE));
	munmap(p, SIZE);
	must(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE)); /* the producer has it mapped: EBUSY */
}

static int reopen(pid_t pid, int fd, int flags)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, fd);
	return open(path, flags | O_CLOEXEC);
}

struct attack {
	pid_t pid; /* who has the descriptors */
	int writable, readable;
};

/* Another process of the same user, which got the descriptors before the commit. */
static int attack(const struct test_daemon *d, void *arg)
{
	const struct attack *a = arg;
	int fds[4] = { a->writable, reopen(a->pid, a->writable, O_RDWR),
		       reopen(a->pid, a->readable, O_RDWR), reopen(a->pid, a->readable, O_RDONLY) };
	void *p;

	(void)d;
	for (int i = 0; i < 3; i++) {
		must(fds[i] >= 0);
		must_be_out_of_reach(fds[i]);
	}
	must(fds[3] >= 0);
	must(ftruncate(fds[3], 0));
	p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fds[3], 0);
	must(p != MAP_FAILED);
	memset(p, 0xee, SIZE); /* a copy of its own */
	return 0;
}

TEST(nobody_changes_what_is_published)
{
	cleanup_td struct test_daemon d = td_start(.storage = "memfd");
	struct raw producer = rc_open(&d), reader = rc_open(&d);
	struct attack a = { .pid = getpid() };
	const unsigned char *bytes;
	struct wire_draft draft;
	struct test_child c;
	void *late;

	producer.unsealed = true;
	must_be(rc_create(&producer, "a", SIZE, 0, &draft), 0);
	a.writable = rc_writable(&producer, &draft);
	must(ftruncate(a.writable, 0)); /* its size is fixed from the start */
	must(ftruncate(a.writable, 2 * SIZE));
	must(fallocate(a.writable, FALLOC_FL_KEEP_SIZE, SIZE, SIZE));
	late = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, a.writable, 0);
	must(late != MAP_FAILED);
	memset(late, 0x11, SIZE);
	munmap(late, SIZE);
	must_be(fcntl(a.writable, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
	must_be(rc_commit(&producer, draft.ref, "a", SIZE), 0);

	must(rc_hold(&reader, draft.ref));
	must_be(rc_map(&reader, draft.ref, &a.readable), 0);
	bytes = rc_view(&reader, &draft);
	must_be(fcntl(a.readable, F_GET_SEALS) &
			(F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE),
		F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE);
	must_be_out_of_reach(a.writable);
	c = child_start(&d, attack, &a);
	child_must_succeed(&c);
	bytes_must_be(bytes, 0x11, SIZE);
	close(a.readable);
	rc_goodbye(&reader);
	rc_goodbye(&producer);
}

static DLManagedTensorVersioned *get(tl_client *client, const char *name)
{
	DLManagedTensorVersioned *t = NULL;

	must_be(tl_get(client, name, NULL, &t), 0);
	return t;
}

/* The library refuses to map what is called sealed and is not. */
TEST(a_group_and_a_link_are_sealed_too)
{
	cleanup_td struct test_daemon d = td_start(.storage = "memfd");
	tl_client *client = td_connect(&d), *reader = td_connect(&d);
	const int64_t shape[1] = { 100000 };
	tl_group_item items[2] = {
		{ .name = "a", .shape = shape, .ndim = 1, .dtype = { kDLUInt, 8, 1 } },
		{ .name = "b", .shape = shape, .ndim = 1, .dtype = { kDLUInt, 8, 1 } },
	};
	DLManagedTensorVersioned *t;
	tl_group *group;
	bool copied;

	must_be(tl_group_create(client, items, 2, NULL, &group), 0);
	for (size_t i = 0; i < 2; i++)
		memset(tl_group_tensor(group, i)->data, 5, 100000);
	must_be(tl_group_commit(group), 0);
	t = get(reader, "b");
	bytes_must_be(t->dl_tensor.data, 5, 100000);
	must_be(tl_publish(reader, "c", t, NULL, &copied, NULL), 0); /* which takes @t */
	must(!copied);
	must_be(tl_delete(client, "a"), 0);
	must_be(tl_delete(client, "b"), 0);
	t = get(client, "c");
	bytes_must_be(t->dl_tensor.data, 5, 100000);
	t->deleter(t);
	tl_close(client);
	tl_close(reader);
}

/* Who does not seal harms itself only. */
TEST(who_does_not_seal_publishes_nothing)
{
	cleanup_td struct test_daemon d = td_start(.storage = "memfd");
	struct raw rc = rc_open(&d);
	struct wire_draft draft;

	rc.unsealed = true;
	must_be(rc_create(&rc, "a", SIZE, 0, &draft), 0);
	must_be(rc_commit(&rc, draft.ref, "a", SIZE), WIRE_E_INVALID);
	must_be(td_status(&d).tensors, 0);
	rc.unsealed = false;
	must_be(rc_put(&rc, "b", 2 * SIZE, 1, NULL), 0);
	rc_goodbye(&rc);
}

/* ---- what is charged ---- */

TEST(memory_is_charged_until_nobody_maps_it)
{
	static const char *const extra[] = { "--warm-time", "0", NULL };
	cleanup_td struct test_daemon d = td_start(.storage = "memfd", .extra = extra);
	struct raw producer = rc_open(&d), reader = rc_open(&d);
	struct wire_draft draft;
	struct tl_status s;
	void *p;
	int fd;

	must_be(rc_put(&producer, "a", SIZE, 1, &draft), 0);
	must(rc_hold(&reader, draft.ref));
	must_be(rc_map(&reader, draft.ref, &fd), 0);
	p = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
	must(p != MAP_FAILED);
	close(fd);
	must_be(rc_delete(&producer, "a"), 0);
	s = td_status(&d);
	must_be(s.retired, 1);
	must_be(s.bytes_used, SIZE);
	must_be(s.bytes_kept, 0);
	rc_drop(&reader, draft.ref);
	rc_sync(&reader);
	rc_sync(&producer); /* lets go of its own mapping */
	s = td_status(&d);
	must_be(s.retired, 0);
	must_be(s.bytes_used, SIZE);
	must_be(s.bytes_kept, SIZE);
	must_be(s.segments, 1);
	bytes_must_be(p, 1, SIZE); /* no SIGBUS, whatever has become of the tensor */
	munmap(p, SIZE);
	s = td_status(&d);
	must_be(s.bytes_used, 0);
	must_be(s.bytes_kept, 0);
	must_be(s.segments, 0);
	rc_goodbye(&reader);
	rc_goodbye(&producer);
}

/* To unmap it may be to free it, and a release must not take as long as that. The second release
 * finds that the memory of the first tensor has ended. */
TEST(a_release_leaves_much_memory_to_the_next_request)
{
	enum { LARGE = 8 << 20 };
	static const char *const extra[] = { "--warm-time", "0", NULL };
	cleanup_td struct test_daemon d = td_start(.storage = "memfd", .extra = extra);
	struct raw producer = rc_open(&d);
	const tl_get_options o = { .size = sizeof(o), .timeout_ns = SECOND / 50 };
	tl_client *reader = td_connect(&d);
	DLManagedTensorVersioned *t, *second;

	for (uint64_t size = LARGE; size; size = size == LARGE ? SIZE : 0) {
		must_be(rc_put(&producer, "a", size, 1, NULL), 0);
		must_be(rc_put(&producer, "b", 100, 1, NULL), 0);
		must_be(tl_get(reader, "a", NULL, &t), 0);
		must_be(tl_get(reader, "b", NULL, &second), 0);
		must_be(rc_delete(&producer, "a"), 0);
		must_be(rc_delete(&producer, "b"), 0);
		t->deleter(t);
		rc_sync(&producer); /* lets go of its own mapping */
		eventually(td_status(&d).retired == 1);
		second->deleter(second);
		must_be(td_status(&d).bytes_kept >= size, size == LARGE);
		must_be(tl_get(reader, "a", &o, &t), -ETIMEDOUT);
		must(td_status(&d).bytes_kept < SIZE);
	}
	rc_goodbye(&producer);
	tl_close(reader);
}

/* The next daemon cannot find that memory any more, and must not show what the last one knew. */
TEST(the_next_daemon_charges_nobody_for_deleted_memory_that_is_mapped)
{
	static const char *const extra[] = { "--warm-time", "0", "--keeper", "yes", NULL };
	cleanup_td struct test_daemon d = td_start(.storage = "memfd", .extra = extra);
	struct raw producer = rc_open(&d);
	tl_client *c = td_connect(&d);
	struct wire_draft draft;
	const unsigned char *p;

	must_be(rc_put(&producer, "a", SIZE, 1, &draft), 0);
	p = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, rc_writable(&producer, &draft), 0);
	must(p != MAP_FAILED);
	must_be(rc_delete(&producer, "a"), 0);
	rc_goodbye(&producer);
	must_be(td_status(&d).bytes_kept, SIZE);
	daemon_kill(c);
	eventually(client_status(c).restarts == 1);
	must_be(td_status(&d).bytes_used, 0);
	must_be(td_status(&d).bytes_kept, 0);
	must_be(td_check(&d, false), 0);
	bytes_must_be(p, 1, SIZE);
	munmap((void *)(uintptr_t)p, SIZE);
	tl_close(c);
}

/* The kernel's leases on files do not see these, but they keep the pages all the same. */
TEST(a_descriptor_that_opens_nothing_is_charged_too)
{
	static const char *const extra[] = { "--warm-time", "0", NULL };
	cleanup_td struct test_daemon d = td_start(.storage = "memfd", .extra = extra);
	struct raw producer = rc_open(&d);
	struct wire_draft draft;
	int path;

	must_be(rc_put(&producer, "a", SIZE, 1, &draft), 0);
	path = reopen(getpid(), rc_writable(&producer, &draft), O_PATH);
	must(path >= 0);
	must_be(rc_delete(&producer, "a"), 0);
	rc_goodbye(&producer);
	must_be(td_status(&d).bytes_kept, SIZE);
	close(path);
	must_be(td_status(&d).bytes_used, 0);
}

TEST(a_producer_frees_space_for_itself)
{
	cleanup_td struct test_daemon d = td_start(.storage = "memfd", .capacity = 16 * MIB);
	tl_client *client = td_connect(&d), *reader = td_connect(&d);
	DLManagedTensorVersioned *t;
	unsigned char *data = calloc(1, 12 * MIB);
	const int64_t timeouts[] = { 0, WAIT_S * SECOND };

	must(data);
	for (int i = 0; i < 4; i++) { /* each size has to take the space of the one before */
		int64_t shape[1] = { i % 2 ? 12 * MIB : 3 * MIB };
		DLTensor source = { .data = data,
				    .device = { kDLCPU, 0 },
				    .ndim = 1,
				    .dtype = { kDLUInt, 8, 1 },
				    .shape = shape };
		tl_put_options o = { .size = sizeof(o), .timeout_ns = timeouts[i / 2] };

		must_be(tl_put(client, "a", &source, &o, &(uint64_t){ 0 }), 0);
		t = get(client, "a");
		t->deleter(t);
		must_be(tl_delete(client, "a"), 0);
	}
	free(data);
	tl_close(client);
	tl_close(reader);
	must_be(td_status(&d).bytes_used, 0);
}

TEST(nothing_is_left_of_a_killed_daemon)
{
	cleanup_td struct test_daemon d = td_start(.storage = "memfd");
	struct raw rc = rc_open(&d);
	const unsigned char *bytes;
	struct wire_draft draft;

	must_be(rc_put(&rc, "a", SIZE, 7, &draft), 0);
	must_be(td_objects(&d), 1); /* the catalog */
	bytes = rc_view(&rc, &draft);
	td_kill(&d);
	cleanup_td struct test_daemon next = td_start(.socket = d.socket, .storage = "memfd");
	bytes_must_be(bytes, 7, SIZE);
	rc_close(&rc);
	td_must_be_empty(&next);
}

TEST(each_segment_takes_a_descriptor)
{
	/* 128 - 32 for itself: 48 of these for segments, the other half for 24 clients */
	cleanup_td struct test_daemon d = td_start(.storage = "memfd", .nofile = 128);
	struct raw rc = rc_open(&d);
	struct wire_draft drafts[64];
	unsigned before = count_fds(d.pid);
	int n = 0, r;

	while ((r = rc_create(&rc, NULL, 100 * KIB, 0, &drafts[n])) == 0)
		must(++n < 64);
	must_be(r, WIRE_E_NO_RESOURCES);
	must_be(n, 48);
	must_be(count_fds(d.pid), before + (unsigned)n);
	for (int i = 0; i < n; i++)
		must_be(rc_ref(&rc, WIRE_ABORT, drafts[i].ref), 0);
	must_be(rc_create(&rc, NULL, SIZE, 0, &drafts[0]), 0); /* warm ones give way */
	rc_goodbye(&rc);
	must_be(td_status(&d).drafts, 0);
}

/* ---- what an idle reader keeps ---- */

enum { ALICE = 1111, BOB = 2222, LARGE = 20 << 20 };

static int read_and_idle(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	DLManagedTensorVersioned *t = get(client, "a");

	(void)arg;
	must(((unsigned char *)t->dl_tensor.data)[LARGE - 1] == 1);
	t->deleter(t); /* no lease is left, but it is mapped for the next get */
	pause_at(1);
	tl_close(client);
	return 0;
}

/* Publishes, deletes and publishes the same again; @arg: there is space for that. */
static int publish_again(const struct test_daemon *d, void *arg)
{
	unsigned char *bytes = calloc(1, LARGE);
	int64_t shape[1] = { LARGE };
	DLTensor source = { .data = bytes,
			    .device = { kDLCPU, 0 },
			    .ndim = 1,
			    .dtype = { kDLUInt, 8, 1 },
			    .shape = shape };
	tl_put_options o = { .size = sizeof(o), .timeout_ns = WAIT_S * SECOND };
	tl_client *client = td_connect(d);

	must(bytes);
	memset(bytes, 1, LARGE);
	must_be(tl_put(client, "a", &source, NULL, NULL), 0);
	pause_at(1); /* the reader maps it */
	must_be(tl_delete(client, "a"), 0);
	if (arg) {
		must_be(tl_put(client, "a", &source, &o, NULL), 0);
	} else {
		must_be(tl_put(client, "a", &source, NULL, NULL), -EDQUOT);
		must(strstr(tl_last_error(),
			    "user 1111 has 20971520 of its 33554432 bytes (20.0 of "
			    "32.0 MiB), 20971520 of them in deleted tensors that "
			    "processes still map (limit bytes;"));
	}
	pause_at(2); /* the reader ends */
	if (!arg)
		must_be(tl_put(client, "a", &source, &o, NULL), 0);
	must_be(tl_put(client, "b", &source, NULL, NULL), -EDQUOT);
	must(!strstr(tl_last_error(), "deleted tensors"));
	tl_close(client);
	free(bytes);
	return 0;
}

/* docs/ARCHITECTURE.md, Decisions, "Sealed memfds are a choice": this is why. */
TEST(an_idle_reader_keeps_sealed_memory_of_another_user_and_no_other)
{
	static const char *const storages[] = { "memfd", "shm" };
	static const char *const extra[] = { "--warm-time", "0", NULL };
	struct test_child alice, bob;

	SKIP_UNLESS(geteuid() == 0, "needs root, to be other users");
	for (int i = 0; i < 2; i++) {
		cleanup_td struct test_daemon d = td_start(.storage = storages[i], .extra = extra,
							   .capacity = 64 * MIB,
							   .for_others = true);

		alice = child_start_as(ALICE, &d, publish_again, i ? (void *)"space" : NULL);
		child_await(&alice);
		bob = child_start_as(BOB, &d, read_and_idle, NULL);
		child_await(&bob);
		child_step(&alice);
		child_finish(&bob);
		child_finish(&alice);
	}
}

int main(void)
{
	return suite_run();
}
