/* SPDX-License-Identifier: Apache-2.0 */
/* What is given up for a create when /dev/shm is full, though the daemon's capacity is not. */
#include <stdlib.h>
#include <sys/stat.h>

#include "tests/client/common.h"
#include "tests/daemon/shm_common.h"
#include "tests/harness/own_user.h"

#define NEEDS_MOUNT SKIP_UNLESS(may_mount(), "may not mount a small tmpfs")

static int try_put(tl_client *client, const char *name, uint64_t nbytes, const tl_put_options *o)
{
	int64_t shape[1] = { (int64_t)nbytes };
	void *bytes = calloc(1, nbytes + 1);
	const DLTensor t = bytes_tensor(bytes, shape);
	int r = tl_put(client, name, &t, o, &(uint64_t){ 0 });

	free(bytes);
	return r;
}

/* Its memory is kept warm then. */
static void put_and_delete(tl_client *client, uint64_t nbytes)
{
	must_be(try_put(client, "warm", nbytes, NULL), 0);
	must_be(tl_delete(client, "warm"), 0);
}

TEST(warm_memory_of_another_namespace_is_taken_for_a_create)
{
	static const char rule[] = "[namespace lab]\ncapacity = 32M\n";
	char config[] = "/tmp/tl-config-XXXXXX";
	const char *const extra[] = { "--config", config, "--warm-time", "3600", NULL };
	tl_client *client, *lab;
	struct test_daemon d;
	int fd;

	NEEDS_MOUNT;
	fd = mkstemp(config);
	must_be(write(fd, rule, strlen(rule)), (ssize_t)strlen(rule));
	close(fd);
	d = td_start(.extra = extra, .storage = "shm", .shm_size = 64 * MIB);
	client = td_connect(&d);
	must_be(tl_connect(&(tl_connect_options){ .size = sizeof(tl_connect_options),
						  .address = d.socket,
						  .namespace_name = "lab" },
			   &lab),
		0);
	must_be(try_put(lab, "a", 8 * MIB, NULL), 0);
	put_and_delete(client, 14 * MIB);
	must_be(td_status(&d).bytes_warm, 14 * MIB);
	fill_shm(&d, 0);
	must_be(try_put(lab, "b", 14 * MIB, NULL), 0); /* more than is left of lab's capacity */
	must_be(td_status(&d).bytes_warm, 0);
	must_be(tl_close(client) | tl_close(lab), 0);
	empty_shm(&d);
	td_stop(&d);
	unlink(config);
}

/* A part of the capacity, which is larger than /dev/shm, but not of that. */
TEST(a_create_larger_than_shm_takes_no_warm_memory)
{
	static const char *const extra[] = { "--warm-time", "3600", NULL };
	tl_client *client;
	struct test_daemon d;

	NEEDS_MOUNT;
	d = td_start(.capacity = 256 * MIB, .extra = extra, .storage = "shm", .shm_size = 80 * MIB);
	client = td_connect(&d);
	put_and_delete(client, 8 * MIB);
	must_be(try_put(client, "a", 80 * MIB + 1, NULL), -ENOSPC);
	must(strstr(tl_last_error(), "never fit: /dev/shm has"));
	must_be(tl_last_cause(NULL), TL_CAUSE_TOO_LARGE);
	must_be(td_status(&d).bytes_warm, 8 * MIB);
	must_be(tl_close(client), 0);
	td_stop(&d);
}

/* SIGXFSZ would end it, and the next daemons, to which the request is sent again. */
TEST(a_create_larger_than_a_file_may_be_is_an_error_for_the_asker_only)
{
	enum { MOST = (8 << 20) + 1 }; /* the last byte's page does not fit */
	static const uint64_t sizes[] = { MOST, MOST + 1, 32 * MIB };
	cleanup_td struct test_daemon d = td_start(.fsize = MOST, .max_tensors = 1000);
	tl_client *client = td_connect(&d);

	must_be(try_put(client, "kept", MIB, NULL), 0);
	for (int i = 0; i < 3; i++) {
		must_be(try_put(client, "large", sizes[i], NULL), -ENOSPC);
		must_be(tl_last_cause(NULL), TL_CAUSE_TOO_LARGE);
		must(strstr(tl_last_error(), "8388609 bytes; raise its RLIMIT_FSIZE"));
	}
	must_be(try_put(client, "as large as may be", MOST - 1, NULL), 0);
	must_be(tl_delete(client, "kept"), 0); /* nothing was lost */
	must(td_alive(&d));
	must_be(tl_close(client), 0);
}

/* Makes a cgroup with that memory limit. Its directory is @group. */
static bool group_make(char *group, size_t size, uint64_t limit)
{
	static const char *const kinds[][2] = {
		{ "/sys/fs/cgroup/memory", "memory.limit_in_bytes" },
		{ "/sys/fs/cgroup", "memory.max" },
	};
	char file[128], number[24];

	snprintf(number, sizeof(number), "%llu", (unsigned long long)limit);
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		snprintf(group, size, "%s/tl-test-%d", kinds[i][0], (int)getpid());
		snprintf(file, sizeof(file), "%s/%s", group, kinds[i][1]);
		if (!mkdir(group, 0755) && write_text(file, number))
			return true;
		rmdir(group);
	}
	return false;
}

/* Beyond the limit the kernel kills the daemon, and the next ones, to which the request is sent
 * again. */
TEST(by_default_the_capacity_fits_into_the_memory_limit)
{
	char group[64], procs[96], name[16], *log;
	tl_client *client;
	struct test_daemon d;
	int count = 0, r;

	SKIP_UNLESS(group_make(group, sizeof(group), 256 * MIB), "may not make a memory cgroup");
	snprintf(procs, sizeof(procs), "%s/cgroup.procs", group);
	d = td_start(.capacity = UINT64_MAX, .max_tensors = 1000, .group = procs);
	must_be(td_status(&d).capacity, 128 * MIB);
	client = td_connect(&d);
	do {
		snprintf(name, sizeof(name), "%d", count);
		r = try_put(client, name, 16 * MIB, NULL);
	} while (!r && ++count < 100);
	must_be(r, -ENOSPC);
	must(count >= 7);
	must_be(td_full_status(&d).restarts, 0);
	must_be(tl_close(client), 0);
	td_stop(&d);
	d = td_start(.capacity = 512 * MIB, .max_tensors = 1000, .group = procs);
	log = td_log(&d);
	must(strstr(log, "the memory limit of the cgroup is below the capacity"));
	free(log);
	td_stop(&d);
	eventually(!rmdir(group));
}

/*
 * Starts a daemon with a ring of four segments of @size bytes, and nothing else. A ring that begins
 * late, on a busy machine, leaves a warm segment, which would be taken before the ring.
 */
static struct test_daemon start_with_ring(uint64_t size, tl_client **client)
{
	const tl_put_options ring = { .size = sizeof(ring), .ring = 4 };
	struct test_daemon d;

	for (;;) {
		d = td_start(.capacity = 256 * MIB, .storage = "shm", .shm_size = 32 * MIB);
		*client = td_connect(&d);
		for (int i = 0; i < 6; i++)
			must_be(try_put(*client, "ring", size, &ring), 0);
		must_be(td_status(&d).rings, 1);
		if (td_status(&d).segments == 4)
			return d;
		must_be(tl_close(*client), 0);
		td_stop(&d);
	}
}

TEST(a_ring_ends_for_a_create)
{
	tl_client *client;
	struct test_daemon d;

	NEEDS_MOUNT;
	d = start_with_ring(4 * MIB, &client);
	fill_shm(&d, 2 * (off_t)MIB);
	must_be(try_put(client, "a", 6 * MIB, NULL), 0);
	must_be(td_status(&d).rings, 0);
	must_be(tl_stat(client, "ring", &(tl_info){ .size = sizeof(tl_info) }), 0);
	must_be(tl_close(client), 0);
	empty_shm(&d);
	td_stop(&d);
}

/* Publishes names without bytes, whose rows have no room yet. */
static void rows_must_be_made(tl_client *client)
{
	char name[16];

	for (int i = 0; i < 5000; i++) {
		snprintf(name, sizeof(name), "row-%d", i);
		must_be(try_put(client, name, 0, NULL), 0);
	}
}

TEST(the_catalog_grows_where_warm_memory_was)
{
	static const char *const extra[] = { "--warm-time", "3600", NULL };
	tl_client *client;
	struct test_daemon d;

	NEEDS_MOUNT;
	d = td_start(.extra = extra, .storage = "shm", .shm_size = 32 * MIB);
	client = td_connect(&d);
	put_and_delete(client, 4 * MIB);
	fill_shm(&d, 0);
	rows_must_be_made(client);
	must_be(td_status(&d).bytes_warm, 0);
	must_be(tl_close(client), 0);
	empty_shm(&d);
	td_stop(&d);
}

TEST(the_catalog_grows_where_a_ring_was)
{
	tl_client *client;
	struct test_daemon d;

	NEEDS_MOUNT;
	d = start_with_ring(MIB, &client);
	fill_shm(&d, 0);
	rows_must_be_made(client);
	must_be(td_status(&d).rings, 0);
	must_be(tl_close(client), 0);
	empty_shm(&d);
	td_stop(&d);
}

/* ---- Creates that wait ---- */

/* They are made by a worker, and in the loop. The waiter keeps what it got, which would be warm for
 * it otherwise. */
TEST(who_waits_for_a_full_tmpfs_gets_space_when_it_comes)
{
	static const uint64_t sizes[] = { 9 * MIB, 200 * KIB };
	struct raw holder, waiter;
	struct wire_draft a;
	uint32_t serial;

	NEEDS_MOUNT;
	cleanup_td struct test_daemon d = td_start(.capacity = 256 * MIB, .storage = "shm",
						   .shm_size = 64 * MIB);
	holder = rc_open(&d);
	waiter = rc_open(&d);
	for (unsigned i = 0; i < 2; i++) {
		must_be(rc_put(&holder, "a", sizes[i], 1, &a), 0);
		must(rc_hold(&holder, a.ref));
		must_be(rc_delete(&holder, "a"), 0);
		fill_shm(&d, 64 * (off_t)KIB);
		serial = ask_and_wait(&d, &waiter, sizes[i]); /* space comes by a last release */
		rc_drop(&holder, a.ref);
		rc_sync(&holder);
		must_be(answer_to(&waiter, serial, NULL), 0);
		empty_shm(&d);

		must_be(rc_put_as(&holder, "b", sizes[i], WIRE_LIFETIME_EVICTABLE, 0, &a), 0);
		must(rc_hold(&holder, a.ref));
		fill_shm(&d, 64 * (off_t)KIB);
		serial = ask_and_wait(&d, &waiter, sizes[i]); /* it can be given up later */
		rc_drop(&holder, a.ref);
		must_be(answer_to(&waiter, serial, NULL), 0);

		serial = ask_and_wait(&d, &waiter, sizes[i]); /* it comes from another program */
		empty_shm(&d);
		must_be(answer_to(&waiter, serial, NULL), 0);
	}
	rc_goodbye(&holder);
	rc_goodbye(&waiter);
}

TEST(a_catalog_that_cannot_grow_in_a_full_tmpfs_makes_a_create_wait)
{
	struct wire_draft draft;
	struct raw rc, waiter;
	char name[16];
	uint32_t serial;
	int r = 0;

	NEEDS_MOUNT;
	cleanup_td struct test_daemon d = td_start(.shm_size = 24 * MIB, .max_tensors = 60000);
	rc = rc_open(&d);
	waiter = rc_open(&d);
	fill_shm(&d, 0);
	for (int n = 0; r == 0; n++) {
		snprintf(name, sizeof(name), "name-%d", n);
		r = rc_put(&rc, name, 0, 0, NULL);
	}
	while ((r = rc_create(&rc, NULL, 0, 0, &draft)) == 0)
		;
	must_be(r, WIRE_E_NO_SPACE);
	serial = ask_and_wait(&d, &waiter, 0);
	empty_shm(&d);
	must_be(answer_to(&waiter, serial, NULL), 0);
	rc_goodbye(&rc);
	rc_goodbye(&waiter);
}

/* What others have there is missing even then. */
TEST(nothing_is_given_up_for_a_create_that_would_not_fit)
{
	const tl_put_options brief = { .size = sizeof(brief), .timeout_ns = 300 * MS },
			     cache = { .size = sizeof(cache), .lifetime = TL_LIFETIME_EVICTABLE };
	uint64_t ours;
	tl_client *client;

	NEEDS_MOUNT;
	cleanup_td struct test_daemon d = td_start(.capacity = 256 * MIB, .storage = "shm",
						   .shm_size = 32 * MIB);
	client = td_connect(&d);
	must_be(try_put(client, "a", 3 * MIB, &cache), 0);
	must_be(try_put(client, "b", 3 * MIB, &cache), 0);
	td_sync(&d);
	fill_shm(&d, 64 * (off_t)KIB);
	ours = td_status(&d).bytes_used; /* and a draft that the library keeps for the next put */
	for (int i = 0; i < 2; i++) {
		must_be(try_put(client, "c", ours + MIB, i ? &brief : NULL), -ENOSPC);
		must_be(td_status(&d).bytes_used, ours);
	}
	must_be(try_put(client, "c", ours, NULL), 0);
	must_be(td_status(&d).tensors, 1);
	must_be(tl_close(client), 0);
	empty_shm(&d);
}

/* It is tried again though nothing was given up for it and nobody says what others free. */
TEST(what_was_kept_for_a_create_that_would_not_fit_is_given_up_later)
{
	const tl_put_options ring = { .size = sizeof(ring), .ring = 4 };
	struct raw waiter;
	tl_client *client;
	uint32_t serial;

	NEEDS_MOUNT;
	cleanup_td struct test_daemon d = td_start(.capacity = 24 * MIB, .storage = "shm",
						   .shm_size = 32 * MIB);
	client = td_connect(&d);
	waiter = rc_open(&d);
	for (int i = 0; i < 6; i++)
		must_be(try_put(client, "ring", 2 * MIB, &ring), 0);
	must_be(td_status(&d).rings, 1);
	fill_shm(&d, 0);
	serial = ask_and_wait(&d, &waiter, 20 * MIB);
	must_be(td_status(&d).rings, 1);
	empty_shm(&d);
	must_be(answer_to(&waiter, serial, NULL), 0);
	must_be(td_status(&d).rings, 0);
	must_be(tl_close(client), 0);
	rc_goodbye(&waiter);
}

TEST(the_end_of_a_wait_says_how_full_it_is)
{
	const tl_put_options brief = { .size = sizeof(brief), .timeout_ns = 300 * MS };
	tl_client *client;
	struct test_daemon d;
	int64_t start;

	NEEDS_MOUNT;
	d = td_start(.storage = "shm", .shm_size = 32 * MIB);
	client = td_connect(&d);
	fill_shm(&d, 64 * (off_t)KIB);
	start = now_ns();
	must_be(try_put(client, "a", MIB, &brief), -ENOSPC);
	must(now_ns() - start >= brief.timeout_ns);
	must(strstr(tl_last_error(), "no space for 1048576 bytes: /dev/shm is full: "));
	must(strstr(tl_last_error(), " of its 33554432 bytes are free"));
	must_be(tl_close(client), 0);
	empty_shm(&d);
	td_stop(&d);
}

/* It has files again just before that. */
TEST(a_create_is_tried_once_more_when_its_time_is_over)
{
	struct raw rc;
	uint32_t serial;
	int64_t start, ns;
	int r;

	NEEDS_MOUNT;
	cleanup_td struct test_daemon d = td_start(.storage = "shm", .shm_size = 32 * MIB);
	rc = rc_open(&d);
	do {
		allow_files(&d, false);
		start = now_ns();
		serial = ask_for(&rc, MIB, 900 * MS);
		rc_sync(&rc);
		allow_files(&d, true);
		ns = now_ns() - start;
		r = answer_to(&rc, serial, NULL);
	} while (ns > 500 * MS); /* that may have been too late */
	must_be(r, 0);
	rc_goodbye(&rc);
}

/* A lease on its file keeps the other's memory from being given back. */
TEST(who_waits_while_memory_is_given_back_does_not_keep_the_daemon_busy)
{
	static const char *const cold[] = { "--warm-time", "0", NULL };
	struct raw producer, holder, waiter;
	struct wire_draft draft;
	uint32_t serial = 0;
	int fd;

	NEEDS_MOUNT;
	cleanup_td struct test_daemon d = td_start(.storage = "shm", .shm_size = 32 * MIB,
						   .extra = cold);
	for (int before = 0; before < 2; before++) {
		producer = rc_open(&d);
		holder = rc_open(&d);
		waiter = rc_open(&d);
		must_be(rc_put(&producer, "a", MIB, 1, &draft), 0);
		must(rc_hold(&holder, draft.ref));
		must_be(rc_map(&holder, draft.ref, &fd), 0);
		must_be(rc_delete(&producer, "a"), 0);
		rc_goodbye(&producer);
		td_sync(&d);
		must_be(fcntl(fd, F_SETSIG, SIGURG), 0);
		must_be(fcntl(fd, F_SETLEASE, F_RDLCK), 0);
		fill_shm(&d, 64 * (off_t)KIB);
		if (before) {
			serial = ask_for(&waiter, 200 * KIB, -1);
			rc_user(&waiter, 0);
		}
		rc_goodbye(&holder);
		if (!before) {
			rc_user(&waiter, 0);
			serial = ask_for(&waiter, 200 * KIB, -1);
			rc_user(&waiter, 0);
		}
		must_not_spin(d.pid);
		must(!has_answer(&waiter));
		must_be(fcntl(fd, F_SETLEASE, F_UNLCK), 0);
		close(fd);
		must_be(answer_to(&waiter, serial, NULL), 0);
		rc_goodbye(&waiter);
		empty_shm(&d);
		td_sync(&d);
	}
}

/* ---- Small tensors, whose segments are larger than they need ---- */

TEST(a_small_tensor_gets_what_is_left)
{
	static const uint64_t sizes[] = { 48 * KIB, 1000 };
	struct wire_draft draft;
	struct raw rc, waiter;
	tl_client *client;
	uint32_t serial;

	NEEDS_MOUNT;
	cleanup_td struct test_daemon d = td_start(.storage = "shm", .shm_size = 32 * MIB);
	rc = rc_open(&d);
	waiter = rc_open(&d);
	client = td_connect(&d);
	for (int i = 0; i < 600; i++) /* the catalog has room for them then */
		must_be(rc_create(&waiter, NULL, 0, 0, &draft), 0);
	rc_goodbye(&waiter);
	td_sync(&d);
	waiter = rc_open(&d);
	for (int i = 0; i < 200; i++) /* its next segment would have 4 MiB */
		must_be(rc_create(&rc, NULL, sizes[0], 0, &draft), 0);
	fill_shm(&d, 0);
	for (int i = 0; i < 2; i++)
		while (rc_create(&rc, NULL, sizes[i], 0, &draft) == 0)
			;
	must_be(try_put(client, "a", 1000, NULL), -ENOSPC);
	must(strstr(tl_last_error(), "no space for 1000 bytes"));
	serial = ask_and_wait(&d, &waiter, 1000);
	fill_shm(&d, 20 * (off_t)KIB);
	must_be(answer_to(&waiter, serial, NULL), 0);
	must_be(rc_create(&rc, NULL, 1000, 0, &draft), 0);
	must_be(try_put(client, "a", 1000, NULL), 0);
	must_be(tl_close(client), 0);
	empty_shm(&d);
	rc_goodbye(&rc);
	rc_goodbye(&waiter);
}

TEST(a_small_tensor_is_made_where_files_must_be_small)
{
	cleanup_td struct test_daemon d = td_start(.fsize = 3 * MIB, .max_tensors = 1000);
	struct raw rc = rc_open(&d);

	for (int i = 0; i < 400; i++)
		must_be(rc_create(&rc, NULL, 64 * KIB, 0, &(struct wire_draft){ 0 }), 0);
	rc_goodbye(&rc);
}

/* ---- Creates that are made at the same time ---- */

enum { ALICE = 1111, BOB = 2222, ROUNDS = 30 };

/* In each round there is space for one of the two. */
static int creates_in_rounds(const struct test_daemon *d, void *arg)
{
	int64_t n = (int64_t)(40 * MIB);
	const tl_spec spec = { .size = sizeof(spec),
			       .shape = &n,
			       .ndim = 1,
			       .dtype = U8,
			       .flags = TL_CREATE_OWN_PAGES };
	tl_client *client;

	(void)arg;
	setenv("TENSORLEASE_TRUST_UID", "0", 1);
	client = td_connect(d);
	for (int i = 0; i < ROUNDS; i++) {
		tl_draft *draft = NULL;
		int r;

		pause_at(0);
		r = tl_create(client, "a", &spec, &draft);
		must(!r || r == -ENOSPC);
		pause_at(!r);
		tl_abort(draft);
	}
	must_be(tl_close(client), 0);
	return 0;
}

TEST(of_two_large_creates_that_meet_in_shm_one_succeeds)
{
	struct test_child alice, bob;
	struct test_daemon d;

	SKIP_UNLESS(geteuid() == 0, "needs root, to be other users");
	NEEDS_MOUNT;
	d = td_start(.capacity = 256 * MIB, .storage = "shm", .shm_size = 64 * MIB,
		     .for_others = true);
	alice = child_start_as(ALICE, &d, creates_in_rounds, NULL);
	bob = child_start_as(BOB, &d, creates_in_rounds, NULL);
	for (int i = 0; i < ROUNDS; i++) {
		must_be(child_await(&alice) + child_await(&bob), 0);
		td_sync(&d); /* all is given back */
		child_go(&alice);
		child_go(&bob);
		must_be(child_await(&alice) + child_await(&bob), 1);
		child_go(&alice);
		child_go(&bob);
	}
	child_must_succeed(&alice);
	child_must_succeed(&bob);
	td_stop(&d);
}

int main(void)
{
	return suite_run();
}
