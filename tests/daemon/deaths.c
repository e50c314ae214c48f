/* SPDX-License-Identifier: Apache-2.0 */
/* Clients that die or stall, and what must hold then: real processes, killed where it hurts. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "tests/harness/harness.h"
#include "tests/harness/messages.h"

/* ---- With the library ---- */

static tl_draft *lib_create(tl_client *client, const char *name, int64_t nbytes)
{
	tl_spec spec = { .size = sizeof(spec),
			 .shape = &nbytes,
			 .ndim = 1,
			 .dtype = { .code = 1, .bits = 8, .lanes = 1 } };
	tl_draft *draft = NULL;

	must_be(tl_create(client, name, &spec, &draft), 0);
	return draft;
}

static void lib_put(tl_client *client, const char *name, int64_t nbytes, int byte)
{
	tl_draft *draft = lib_create(client, name, nbytes);

	memset(tl_draft_tensor(draft)->data, byte, (size_t)nbytes);
	must_be(tl_commit(draft, &(uint64_t){ 0 }), 0);
}

static DLManagedTensorVersioned *lib_get(tl_client *client, const char *name)
{
	DLManagedTensorVersioned *tensor = NULL;

	must_be(tl_get(client, name, NULL, &tensor), 0);
	return tensor;
}

static int get_twice_and_stay(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);

	lib_get(client, arg);
	lib_get(client, arg);
	pause_at(1);
	return 0;
}

TEST(a_killed_consumers_leases_vanish)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d);
	struct test_child dies, lives;
	struct tl_status s;
	uint64_t used;

	must_be(rc_put(&rc, "a", MIB, 1, NULL), 0);
	dies = child_start(&d, get_twice_and_stay, (void *)"a");
	lives = child_start(&d, get_twice_and_stay, (void *)"a");
	child_await(&dies);
	child_await(&lives);
	must_be(rc_delete(&rc, "a"), 0);
	s = td_status(&d);
	must_be(s.retired, 1);
	must_be(s.clients, 3);
	used = s.bytes_used;

	child_kill(&dies);
	s = td_status(&d);
	must_be(s.clients, 2);
	must_be(s.retired, 1); /* the other client holds it */
	must_be(s.bytes_used, used);
	child_kill(&lives);
	s = td_status(&d);
	must_be(s.clients, 1);
	must_be(s.retired, 0);
	must_be(s.bytes_used, used); /* it is kept warm, since dead processes map nothing */
	must_be(s.bytes_warm, MIB);
	must_be(rc_put(&rc, "a", MIB, 2, NULL), 0);
	rc_goodbye(&rc);
}

TEST(leases_of_the_killed_are_gone_in_a_moment)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d);
	int64_t longest = 0;

	for (int i = 0; i < 20; i++) {
		struct wire_draft draft;
		struct test_child c;
		int64_t start;

		must_be(rc_put(&rc, "a", 1000, i, &draft), 0);
		c = child_start_ready(&d, get_twice_and_stay, (void *)"a");
		must_be(rc_delete(&rc, "a"), 0);
		rc_sync(&rc);
		must_be(row_word_state(atomic_load(&rc_row(&rc, draft.ref)->word)), ROW_RETIRED);
		child_kill(&c);
		start = now_ns();
		eventually(atomic_load(&rc_row(&rc, draft.ref)->word) !=
			   row_word(ref_generation(draft.ref), ROW_RETIRED));
		longest = now_ns() - start > longest ? now_ns() - start : longest;
	}
	print_message("leases gone at most %.3f ms after the process\n", (double)longest / 1e6);
	rc_goodbye(&rc);
}

static int write_half_and_stay(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	tl_draft *draft = lib_create(client, arg, MIB);

	memset(tl_draft_tensor(draft)->data, 0x77, MIB / 2);
	pause_at(1);
	return 0;
}

TEST(a_producer_killed_before_commit_leaves_nothing)
{
	static const char *const extra[] = { "--warm-time", "0", NULL };
	cleanup_td struct test_daemon d = td_start(.extra = extra);
	struct tl_status before = td_status(&d), s;
	unsigned objects = td_objects(&d), fds = count_fds(d.pid);
	tl_client *client = td_connect(&d);
	tl_info info = { .size = sizeof(info) };

	for (int i = 0; i < 10; i++) {
		struct test_child c = child_start_ready(&d, write_half_and_stay, (void *)"never");

		must_be(td_status(&d).drafts, 1);
		must(td_status(&d).bytes_used >= before.bytes_used + MIB);
		must_be(tl_stat(client, "never", &info), -ENOENT);
		child_kill(&c);
		s = td_status(&d);
		must_be(s.drafts, 0);
		must_be(s.bytes_used, before.bytes_used);
		must_be(s.segments, before.segments);
		/* the kernel may still count the dead process as one that writes */
		eventually(td_objects(&d) == objects);
		must_be(tl_stat(client, "never", &info), -ENOENT);
	}
	tl_close(client);
	td_sync(&d);
	must_be(count_fds(d.pid), fds);
}

static int put_and_stay(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);

	lib_put(client, arg, MIB, 0x42);
	pause_at(1);
	return 0;
}

TEST(a_producer_killed_after_commit_leaves_its_tensor)
{
	cleanup_td struct test_daemon d = td_start();
	struct test_child c = child_start_ready(&d, put_and_stay, (void *)"stays");
	DLManagedTensorVersioned *tensor;
	tl_client *client;

	child_kill(&c);
	td_sync(&d);
	client = td_connect(&d);
	tensor = lib_get(client, "stays");
	must_be(tensor->dl_tensor.shape[0], MIB);
	bytes_must_be(tensor->dl_tensor.data, 0x42, MIB);
	for (int i = 0; i < 50; i++) /* any client of that user may reuse the name; the old bytes
					stay */
		lib_put(client, "stays", MIB, i);
	bytes_must_be(tensor->dl_tensor.data, 0x42, MIB);
	tensor->deleter(tensor);
	tl_close(client);
	must_be(td_status(&d).tensors, 1);
	must_be(td_status(&d).retired, 0);
}

static int hold_and_stop(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	DLManagedTensorVersioned *tensor = lib_get(client, arg);

	parent_tell((uint64_t)getpid());
	raise(SIGSTOP);
	bytes_must_be(tensor->dl_tensor.data, 0x11, MIB);
	tensor->deleter(tensor);
	tl_close(client);
	return 0;
}

TEST(a_stopped_holder_holds_only_its_own)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 16 * MIB);
	struct raw rc = rc_open(&d);
	struct test_child c;
	struct tl_status s;
	int status;

	must_be(rc_put(&rc, "a", MIB, 0x11, NULL), 0);
	c = child_start_ready(&d, hold_and_stop, (void *)"a");
	must_be(waitpid(c.pid, &status, WUNTRACED), c.pid);
	must(WIFSTOPPED(status));
	for (int i = 0; i < 500; i++) { /* this is far more than the capacity, if any of it were
					   kept */
		must_be(rc_put(&rc, "a", MIB, 0x22, NULL), 0);
		must_be(rc_put(&rc, "b", MIB, 0x33, NULL), 0);
	}
	s = td_status(&d);
	must_be(s.retired, 1);
	must_be(s.clients, 2);
	must_be(kill(c.pid, SIGCONT), 0);
	child_must_succeed(&c);
	must_be(td_status(&d).retired, 0);
	must_be(td_status(&d).clients, 1);
	rc_goodbye(&rc);
}

/* ---- A connection that ends while its process lives ---- */

TEST(who_lost_its_connection_reads_on_undisturbed)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 16 * MIB);
	struct raw producer = rc_open(&d), reader = rc_open(&d);
	struct wire_draft large, small;
	const unsigned char *large_bytes, *small_bytes;

	must_be(rc_put(&producer, "large", MIB, 0xaa, &large), 0);
	must_be(rc_put(&producer, "small", 5000, 0xbb, &small), 0);
	must(rc_hold(&reader, large.ref) && rc_hold(&reader, small.ref));
	large_bytes = rc_view(&reader, &large);
	small_bytes = rc_view(&reader, &small);
	must_be(shutdown(reader.fd, SHUT_RDWR), 0);
	td_sync(&d);
	must_be(td_status(&d).clients, 2); /* it still counts, and so does what it holds */

	for (int i = 0; i < 3000; i++) { /* the sizes are the same, so that memory is reused */
		must_be(rc_put(&producer, "large", MIB, i & 0x7f, NULL), 0);
		must_be(rc_put(&producer, "small", 5000, i & 0x7f, NULL), 0);
		if (i % 100 == 0) {
			bytes_must_be(large_bytes, 0xaa, MIB);
			bytes_must_be(small_bytes, 0xbb, 5000);
		}
	}
	must_be(rc_delete(&producer, "large"), 0);
	must_be(rc_delete(&producer, "small"), 0);
	rc_goodbye(&producer);
	td_sync(&d);
	bytes_must_be(large_bytes, 0xaa, MIB);
	bytes_must_be(small_bytes, 0xbb, 5000);
	must_be(td_status(&d).retired, 2);
	must(td_status(&d).bytes_used >= MIB); /* it is charged as long as it can be read */
	rc_close(&reader);		       /* from now on it reads no more */
	eventually(td_status(&d).retired == 0);
	must_be(td_status(&d).clients, 0);
	must_be(td_status(&d).bytes_used, td_status(&d).bytes_warm);
}

/* An orphan cannot say what it releases, but its ledger shows it. */
TEST(a_lost_reader_gives_up_one_of_two)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw producer = rc_open(&d), reader = rc_open(&d);
	struct wire_draft one, two;

	must_be(rc_put(&producer, "one", MIB, 1, &one), 0);
	must_be(rc_put(&producer, "two", MIB, 2, &two), 0);
	must(rc_hold(&reader, one.ref) && rc_hold(&reader, two.ref));
	must_be(rc_delete(&producer, "one"), 0);
	must_be(rc_delete(&producer, "two"), 0);
	must_be(shutdown(reader.fd, SHUT_RDWR), 0);
	must_be(td_status(&d).retired, 2);
	atomic_fetch_sub(rc_held(&reader, ref_slot(one.ref)), 1);
	eventually(td_status(&d).retired == 1);
	atomic_fetch_sub(rc_held(&reader, ref_slot(two.ref)), 1);
	eventually(td_status(&d).retired == 0);
	eventually(td_status(&d).clients == 1); /* it goes although it has its ledger mapped */
	rc_close(&reader);
	rc_goodbye(&producer);
}

/* The first client with an id above @after. Returns false if there is none. */
static bool next_client(struct raw *rc, uint64_t after, struct wire_client *client)
{
	struct wire_clients ask = { .after = after };
	struct conn_message m;

	must_be(rc_call(rc, WIRE_CLIENTS, &ask, sizeof(ask), &m), 0);
	if (m.header.type == WIRE_DONE)
		return false;
	must_be(m.header.type, WIRE_CLIENT);
	memcpy(client, m.bytes, sizeof(*client));
	return true;
}

/* While a worker looks whether its ledger is still mapped, nothing reads it, and it is not listed.
 */
TEST(nobody_is_listed_with_leases_that_it_has_not)
{
	enum { TENSORS = 20, LISTS = 3000 };
	cleanup_td struct test_daemon d = td_start();
	struct raw producer = rc_open(&d), reader = rc_open(&d);
	struct wire_client first, client;
	struct wire_draft draft;
	unsigned listed = 0;
	char name[16];

	for (unsigned i = 0; i < TENSORS; i++) {
		snprintf(name, sizeof(name), "n%u", i);
		must_be(rc_put(&producer, name, 10, 1, &draft), 0);
	}
	must(rc_hold(&reader, draft.ref));
	must(next_client(&producer, 0, &first));
	must_be(shutdown(reader.fd, SHUT_RDWR), 0);
	for (unsigned n = 0; n < LISTS || !listed; n++) { /* on a busy machine few, and late */
		if (!next_client(&producer, first.id, &client))
			continue;
		must_be(client.leases, 1);
		must_be(client.tensors_held, 1);
		listed++;
	}
	rc_close(&reader);
	eventually(td_status(&d).clients == 1);
	rc_goodbye(&producer);
}

TEST(a_lost_reader_takes_no_new_lease)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw producer = rc_open(&d), reader = rc_open(&d);
	const _Atomic uint64_t
		*mine = (const _Atomic uint64_t *)(const void *)((const char *)reader.catalog +
								 reader.catalog->off_clients) +
			reader.welcome.client_index;

	must_be(atomic_load(mine), live_word(reader.welcome.client_generation));
	must_be(shutdown(reader.fd, SHUT_RDWR), 0);
	td_sync(&d);
	must(atomic_load(mine) != live_word(reader.welcome.client_generation));
	rc_close(&reader);
	reader = rc_open(&d); /* it may get the same place, but never the same word */
	must(atomic_load(mine) == 0 || reader.welcome.client_index != 0 ||
	     reader.welcome.client_generation > 1);
	rc_goodbye(&reader);
	rc_goodbye(&producer);
}

/* A producer whose connection ended may keep writing, so nobody else may get that memory. */
TEST(what_a_lost_producer_writes_reaches_nobody)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 16 * MIB);
	struct raw lost = rc_open(&d), next;
	struct wire_draft draft, small, fresh;
	int fd, small_fd;

	lost.unsealed = true; /* it writes by its descriptors */
	must_be(rc_create(&lost, NULL, MIB, 0, &draft), 0);
	must_be(rc_create(&lost, NULL, 1000, 0, &small), 0);
	fd = fcntl(rc_writable(&lost, &draft), F_DUPFD_CLOEXEC, 0);
	small_fd = fcntl(rc_writable(&lost, &small), F_DUPFD_CLOEXEC, 0);
	must(fd >= 0 && small_fd >= 0);
	rc_close(&lost);
	next = rc_open(&d);
	for (int i = 0; i < 50; i++) {
		must_be(rc_put(&next, "a", MIB, 0x10, &fresh), 0);
		must_be(pwrite(fd, "evil", 4, (off_t)draft.offset), 4);
		bytes_must_be(rc_view(&next, &fresh), 0x10, MIB);
		must_be(rc_put(&next, "b", 1000, 0x10, &fresh), 0);
		must_be(pwrite(small_fd, "evil", 4, (off_t)small.offset), 4);
		bytes_must_be(rc_view(&next, &fresh), 0x10, 1000);
	}
	close(fd);
	close(small_fd);
	rc_goodbye(&next);
}

/* ---- exit() while threads keep running ---- */

static struct {
	_Atomic bool waits;
	_Atomic bool writing;
	tl_client *client;
	tl_draft *draft;
	DLManagedTensorVersioned *read;
	unsigned char *bytes;
} leaving;

static void *write_for_ever(void *arg)
{
	(void)arg;
	for (int i = 0;; i++) {
		memset(leaving.bytes, 0xe0 + i % 16, 8 * MIB);
		atomic_store(&leaving.writing, true);
	}
	return NULL;
}

/* Runs after all other destructors, including those of the library. */
__attribute__((destructor(101))) static void last_of_all(void)
{
	if (!atomic_load(&leaving.waits))
		return;
	pause_at(1);
	bytes_must_be(leaving.read->dl_tensor.data, 0x55, MIB);
	pause_at(2);
}

static int exit_while_a_thread_writes(const struct test_daemon *d, void *arg)
{
	pthread_t thread;

	(void)arg;
	leaving.client = td_connect(d);
	leaving.draft = lib_create(leaving.client, "mine", 8 * MIB);
	leaving.bytes = tl_draft_tensor(leaving.draft)->data;
	leaving.read = lib_get(leaving.client, "read");
	must_be(pthread_create(&thread, NULL, write_for_ever, NULL), 0);
	eventually(atomic_load(&leaving.writing));
	atomic_store(&leaving.waits, true);
	exit(0);
}

TEST(what_threads_do_while_their_process_exits_harms_nobody)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 64 * MIB);
	tl_client *client = td_connect(&d);
	DLManagedTensorVersioned *tensor;
	struct test_child c;
	struct tl_status s;

	lib_put(client, "read", MIB, 0x55);
	c = child_start(&d, exit_while_a_thread_writes, NULL);
	must_be(child_await(&c), 1);
	for (int i = 0; i < 20; i++) {
		lib_put(client, "read", MIB, i);
		lib_put(client, "theirs", 8 * MIB, 0x33);
		tensor = lib_get(client, "theirs");
		for (int k = 0; k < 10; k++)
			bytes_must_be(tensor->dl_tensor.data, 0x33, 8 * MIB);
		tensor->deleter(tensor);
	}
	must_be(child_step(&c), 2);
	child_finish(&c);
	s = td_status(&d);
	must_be(s.drafts + s.rings, 2); /* ours, of two sizes, prefetched; or a ring took one */
	must_be(s.retired, 0);
	tl_close(client);
}

TEST(memory_of_who_left_is_used_again)
{
	cleanup_td struct test_daemon d = td_start(.storage = "shm");
	struct raw rc = rc_open(&d);
	struct tl_status s;

	must_be(rc_put(&rc, "a", MIB, 1, NULL), 0);
	must_be(rc_delete(&rc, "a"), 0);
	rc_goodbye(&rc);
	s = td_status(&d);
	must(s.bytes_warm >= MIB);
	must_be(s.bytes_used, s.bytes_warm);
	rc = rc_open(&d);
	must_be(rc_put(&rc, "b", MIB, 1, NULL), 0);
	must_be(td_status(&d).bytes_used, s.bytes_used); /* it is the same segment */
	rc_goodbye(&rc);
}

/* ---- At any moment ---- */

static int work_until_killed(const struct test_daemon *d, void *arg)
{
	uint64_t seed = *(uint64_t *)arg | 1;
	tl_client *client = td_connect(d);
	DLManagedTensorVersioned *held[4] = { NULL };

	parent_tell(1);
	for (;;) {
		unsigned k = (unsigned)(samples_random(&seed) % 4);
		char name[16];

		snprintf(name, sizeof(name), "n%u", (unsigned)(samples_random(&seed) % 3));
		switch (samples_random(&seed) % 4) {
		case 0:
			lib_put(client, name, 200000, (int)(seed & 0x7f));
			break;
		case 1:
			lib_put(client, name, 300, (int)(seed & 0x7f));
			break;
		case 2:
			tl_abort(lib_create(client, name, 100000));
			break;
		default:
			if (held[k])
				held[k]->deleter(held[k]);
			held[k] = NULL;
			if (tl_get(client, name, NULL, &held[k]) == 0) { /* one value all over, or
									    it is torn */
				const unsigned char *p = held[k]->dl_tensor.data;

				bytes_must_be(p, p[0], (size_t)held[k]->dl_tensor.shape[0]);
			}
		}
	}
	return 0;
}

TEST(kill_9_anywhere_costs_nobody_anything)
{
	enum { KILLS = 150, AT_ONCE = 3 };
	cleanup_td struct test_daemon d = td_start();
	struct test_child children[AT_ONCE] = { { 0 } };
	uint64_t seed = 0x853c49e6748fea9b;
	struct raw rc = rc_open(&d);
	struct tl_status s;
	unsigned fds;

	td_sync(&d);
	fds = count_fds(d.pid);
	for (int i = 0; i < KILLS; i++) {
		struct test_child *c = &children[i % AT_ONCE];
		int64_t until;
		int status;

		if (c->pid) {
			until = now_ns() + (int64_t)(samples_random(&seed) % 3000000);
			while (now_ns() < until)
				;
			kill(c->pid, SIGKILL);
			status = child_wait(c);
			must(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL); /* it did not fail
										     before */
		}
		samples_random(&seed);
		*c = child_start_ready(&d, work_until_killed, &seed);
	}
	for (int i = 0; i < AT_ONCE; i++)
		child_kill(&children[i]);
	s = td_status(&d);
	must_be(s.clients, 1);
	must_be(s.drafts, 0);
	must_be(s.retired, 0);
	must(s.tensors <= 3);
	for (int i = 0; i < 3; i++) {
		char name[16];

		snprintf(name, sizeof(name), "n%d", i);
		rc_delete(&rc, name);
	}
	s = td_status(&d);
	must_be(s.tensors, 0);
	must_be(s.bytes_used, s.bytes_warm);
	must(count_fds(d.pid) <= fds + s.segments * (test_on_memfds() ? 2 : 1));
	rc_goodbye(&rc);
}

static int fork_then_let_the_child_read(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	DLManagedTensorVersioned *tensor = lib_get(client, arg);
	pid_t pid = fork();

	if (pid == 0) {
		/* Meanwhile our parent ends and the name means something else. */
		pause_at((uint64_t)getpid());
		bytes_must_be(tensor->dl_tensor.data, 0x11, MIB);
		tensor->deleter(tensor);
		tensor = lib_get(client, arg); /* over its own connection */
		bytes_must_be(tensor->dl_tensor.data, 0x22, MIB);
		tensor->deleter(tensor);
		tl_close(client);
		parent_tell(2);
		_exit(0);
	}
	must(pid > 0);
	return 0; /* it tells the daemon nothing */
}

TEST(a_client_that_forks_and_dies_leaves_its_child_reading)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d);
	struct test_child c;

	must_be(rc_put(&rc, "a", MIB, 0x11, NULL), 0);
	c = child_start_ready(&d, fork_then_let_the_child_read, (void *)"a");
	must_be(child_wait_open(&c), 0);
	for (int i = 0; i < 50; i++)
		must_be(rc_put(&rc, "a", MIB, 0x22, NULL), 0);
	must_be(child_step(&c), 2);
	child_hang_up(&c);
	td_sync(&d);
	rc_goodbye(&rc);
}

int main(void)
{
	return suite_run();
}
