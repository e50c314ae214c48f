/* SPDX-License-Identifier: Apache-2.0 */
/* The one piece of a client's memory that the daemon reads: what it refuses, and what may be in it.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "tests/harness/harness.h"
#include "tests/harness/stuck_fd.h"

struct offer {
	const char *what;
	int fd;
	uint64_t size;
	uint64_t layout;
};

/* Offers a ledger. The daemon must not take it, whatever it answers, and the connection must not
 * become ready. */
static void must_refuse(const struct test_daemon *d, const struct offer *o)
{
	struct wire_ledger ledger = { .size = o->size, .layout = o->layout };
	struct wire_plain sync = { 0 };
	struct raw rc = rc_connect(d);
	struct conn_message m;
	int r;

	rc_hello(&rc);
	must_be(rc_send(&rc, WIRE_LEDGER, &ledger, sizeof(ledger), o->fd), 0);
	close(o->fd);
	r = rc_receive(&rc, &m);
	if (r == 0 && m.header.type == WIRE_READY)
		print_error("taken: %s\n", o->what);
	if (r == 0) {
		must_be(m.header.type, WIRE_ERROR);
		r = rc_judge(&m, WIRE_READY);
		must(r == WIRE_E_INVALID || r == WIRE_E_PROTOCOL);
		r = rc_call(&rc, WIRE_SYNC, &sync, sizeof(sync), &m);
		if (r == 0) { /* the connection is not ready, so this is out of order */
			rc_must_fail(&m, WIRE_E_PROTOCOL);
			r = rc_receive(&rc, &m);
		}
	}
	must(r == -ECONNRESET || r == -EPIPE);
	rc_close(&rc);
}

static int memfd_with(uint32_t slots, uint64_t magic, int seals)
{
	int fd = ledger_new(slots, magic);

	must_be(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static int resized(uint32_t slots, off_t size)
{
	int fd = ledger_new(slots, LEDGER_MAGIC);

	must_be(ftruncate(fd, size), 0);
	must_be(ledger_seal(fd), 0);
	return fd;
}

static int with_word(uint32_t slots, size_t at, uint64_t value, size_t size)
{
	int fd = ledger_new(slots, LEDGER_MAGIC);

	must_be(pwrite(fd, &value, size, (off_t)at), size);
	must_be(ledger_seal(fd), 0);
	return fd;
}

static int ordinary_file(off_t size)
{
	char path[108];
	int fd;

	snprintf(path, sizeof(path), "%s/tl-file-XXXXXX",
		 getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	fd = mkostemp(path, O_CLOEXEC);
	must(fd >= 0);
	unlink(path);
	must_be(ftruncate(fd, size), 0);
	return fd;
}

static int in_dev_shm(off_t size)
{
	char path[] = "/dev/shm/tl-test-XXXXXX";
	int fd = mkostemp(path, O_CLOEXEC);

	must(fd >= 0);
	unlink(path);
	must_be(ftruncate(fd, size), 0);
	return fd;
}

static int socket_inside_socket(void)
{
	int ends[2];

	must_be(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	close(ends[1]);
	return ends[0];
}

static int end_of_a_pipe(void)
{
	int ends[2];

	must_be(pipe2(ends, O_CLOEXEC), 0);
	must(fcntl(ends[0], F_SETPIPE_SZ, 64 * 4096) >= 64 * 4096);
	close(ends[1]);
	return ends[0];
}

static int read_only(int fd_take)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd_take);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	must(fd >= 0);
	close(fd_take);
	return fd;
}

TEST(only_a_sealed_memfd_of_the_right_size_is_taken)
{
	enum { SLOTS = 1024 };
	cleanup_td struct test_daemon d = td_start(.max_tensors = SLOTS);
	uint64_t size = ledger_size(SLOTS);
	struct raw honest = rc_open(&d);
	unsigned fds;
	const struct offer offers[] = {
		{ "not sealed", memfd_with(SLOTS, LEDGER_MAGIC, 0), size, LEDGER_LAYOUT },
		{ "may shrink", memfd_with(SLOTS, LEDGER_MAGIC, LEDGER_SEALS & ~F_SEAL_SHRINK),
		  size, LEDGER_LAYOUT },
		{ "may grow", memfd_with(SLOTS, LEDGER_MAGIC, LEDGER_SEALS & ~F_SEAL_GROW), size,
		  LEDGER_LAYOUT },
		{ "may be punched",
		  memfd_with(SLOTS, LEDGER_MAGIC, LEDGER_SEALS & ~F_SEAL_FUTURE_WRITE), size,
		  LEDGER_LAYOUT },
		{ "may not be sealed", memfd_with(SLOTS, LEDGER_MAGIC, LEDGER_SEALS | F_SEAL_SEAL),
		  size, LEDGER_LAYOUT },
		{ "only for reading", read_only(memfd_with(SLOTS, LEDGER_MAGIC, LEDGER_SEALS)),
		  size, LEDGER_LAYOUT },
		{ "too small", resized(SLOTS, 4096), size, LEDGER_LAYOUT },
		{ "empty", resized(SLOTS, 0), size, LEDGER_LAYOUT },
		{ "too large", resized(SLOTS, (off_t)size + 4096), size, LEDGER_LAYOUT },
		{ "a byte short", resized(SLOTS, (off_t)size - 1), size, LEDGER_LAYOUT },
		{ "says too small", memfd_with(SLOTS, LEDGER_MAGIC, LEDGER_SEALS), 4096,
		  LEDGER_LAYOUT },
		{ "says too large", memfd_with(SLOTS, LEDGER_MAGIC, LEDGER_SEALS), size + 4096,
		  LEDGER_LAYOUT },
		{ "is and says too small", resized(SLOTS, 4096), 4096, LEDGER_LAYOUT },
		{ "wrong magic", memfd_with(SLOTS, LEDGER_MAGIC + 1, LEDGER_SEALS), size,
		  LEDGER_LAYOUT },
		{ "a catalog's magic", memfd_with(SLOTS, CATALOG_MAGIC, LEDGER_SEALS), size,
		  LEDGER_LAYOUT },
		{ "wrong layout in it", with_word(SLOTS, offsetof(struct ledger, layout), 5, 8),
		  size, LEDGER_LAYOUT },
		{ "wrong layout said", memfd_with(SLOTS, LEDGER_MAGIC, LEDGER_SEALS), size,
		  LEDGER_LAYOUT + 1 },
		{ "wrong slots in it", with_word(SLOTS, offsetof(struct ledger, slots), 5, 4), size,
		  LEDGER_LAYOUT },
		{ "an ordinary file", ordinary_file((off_t)size), size, LEDGER_LAYOUT },
		{ "a file in /dev/shm", in_dev_shm((off_t)size), size, LEDGER_LAYOUT },
		{ "a socket", socket_inside_socket(), size, LEDGER_LAYOUT },
		{ "a pipe", end_of_a_pipe(), size, LEDGER_LAYOUT },
		{ "a device", open("/dev/zero", O_RDWR | O_CLOEXEC), size, LEDGER_LAYOUT },
		{ "a directory", open("/", O_RDONLY | O_CLOEXEC), size, LEDGER_LAYOUT },
		{ "only a path", open("/dev/null", O_PATH | O_CLOEXEC), size, LEDGER_LAYOUT },
		{ "the catalog", fcntl(honest.catalog_fd, F_DUPFD_CLOEXEC, 0), size,
		  LEDGER_LAYOUT },
	};

	td_sync(&d);
	fds = count_fds(d.pid);
	for (size_t i = 0; i < sizeof(offers) / sizeof(offers[0]); i++)
		must_refuse(&d, &offers[i]);
	td_sync(&d);
	must_be(count_fds(d.pid), fds);
	must_be(rc_put(&honest, "a", 100, 1, NULL), 0);
	rc_goodbye(&honest);
}

TEST(a_ledger_on_huge_pages_is_refused)
{
	enum { SLOTS = (2 * MIB - LEDGER_PAGE) / 4 }; /* ledger_size() of it is one huge page */
	struct ledger header = { .magic = LEDGER_MAGIC, .layout = LEDGER_LAYOUT, .slots = SLOTS };
	int fd = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
	struct offer o = { "of huge pages", fd, 2 * MIB, LEDGER_LAYOUT };
	void *p = MAP_FAILED;

	if (fd >= 0 && ftruncate(fd, 2 * MIB) == 0)
		p = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED && fd >= 0)
		close(fd);
	SKIP_UNLESS(p != MAP_FAILED, "there are no huge pages for a memfd");
	cleanup_td struct test_daemon d = td_start(.max_tensors = SLOTS);
	memcpy(p, &header, sizeof(header));
	munmap(p, 2 * MIB);
	must_be(ledger_seal(fd), 0);
	must_refuse(&d, &o);
	td_sync(&d);
}

/* Sends LEDGER with that memfd. Returns what rc_judge() makes of the answer. */
static int offer(struct raw *rc, int fd)
{
	struct wire_ledger ledger = { .size = ledger_size(rc->welcome.max_tensors),
				      .layout = LEDGER_LAYOUT };
	struct conn_message m;

	must_be(rc_send(rc, WIRE_LEDGER, &ledger, sizeof(ledger), fd), 0);
	must_be(rc_receive(rc, &m), 0);
	return rc_judge(&m, WIRE_READY);
}

TEST(two_connections_cannot_have_one_ledger)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw first = rc_open(&d), second = rc_connect(&d);

	rc_hello(&second);
	must_be(offer(&second, first.ledger_fd), WIRE_E_INVALID);
	rc_close(&second);
	rc_close(&first);
	td_must_be_empty(&d);
}

TEST(a_ledger_that_the_daemon_may_not_read_is_refused)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_connect(&d);
	int fd;

	rc_hello(&rc);
	fd = ledger_new(rc.welcome.max_tensors, LEDGER_MAGIC);
	must_be(ledger_seal(fd), 0);
	must_be(fchmod(fd, 0), 0);
	/* root may open it, whatever its mode is */
	must_be(offer(&rc, fd), geteuid() ? WIRE_E_INVALID : 0);
	close(fd);
	rc_close(&rc);
}

TEST(it_cannot_be_pulled_away_once_it_is_taken)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d), other = rc_open(&d);
	struct wire_draft draft;

	must(ftruncate(rc.ledger_fd, 0) && errno == EPERM);
	must(ftruncate(rc.ledger_fd, (off_t)rc.ledger_size * 2) && errno == EPERM);
	must(fallocate(rc.ledger_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
		       (off_t)rc.ledger_size) &&
	     errno == EPERM);
	must(madvise(rc.ledger, rc.ledger_size, MADV_REMOVE) && errno == EPERM);
	must(mmap(NULL, rc.ledger_size, PROT_READ | PROT_WRITE, MAP_SHARED, rc.ledger_fd, 0) ==
	     MAP_FAILED);
	for (int i = 0; i < 100; i++) { /* each retires the one before, and the ledger is read */
		must_be(rc_put(&other, "a", 1000, i, &draft), 0);
		rc_become_holder(&rc, draft.ref);
	}
	must(td_alive(&d));
	rc_goodbye(&rc);
	rc_goodbye(&other);
}

static void fill(struct raw *rc, uint32_t value)
{
	for (uint32_t i = 0; i < rc->welcome.max_tensors; i++)
		atomic_store(rc_held(rc, i), value);
}

TEST(mad_counters_hold_only_until_their_client_ends)
{
	cleanup_td struct test_daemon d = td_start(.max_tensors = 256);
	struct raw honest = rc_open(&d), mad = rc_open(&d);
	struct wire_clients ask = { .after = 0 };
	struct wire_draft draft;
	struct tl_status s;
	struct conn_message m;

	fill(&mad, UINT32_MAX);
	must_be(rc_put(&honest, "a", 1000, 0, &draft), 0);
	rc_become_holder(&mad, draft.ref); /* or nobody would look at its ledger */
	for (int i = 1; i < 50; i++)
		must_be(rc_put(&honest, "a", 1000, i, NULL), 0);
	s = td_status(&d);
	must_be(s.tensors, 1);
	must_be(s.retired, 49);
	do { /* the daemon sums what the ledger says */
		must_be(rc_call(&honest, WIRE_CLIENTS, &ask, sizeof(ask), &m), 0);
		memcpy(&ask.after, m.bytes + offsetof(struct wire_client, id), 8);
		ask.header.serial = 0;
	} while (m.header.type == WIRE_CLIENT);
	must_be(m.header.type, WIRE_DONE);
	rc_close(&mad);
	s = td_status(&d);
	must_be(s.retired, 0);
	must_be(s.tensors, 1);
	rc_goodbye(&honest);
}

/* Reading a page of a memfd that was never written allocates it, and the reader is charged. */
TEST(pages_that_were_never_written_are_not_read)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw mad = rc_open(&d), other = rc_open(&d);
	struct wire_holdings ask = { 0 };
	struct wire_clients clients = { 0 };
	struct stat before, after;
	struct wire_draft draft;
	struct conn_message m;

	for (unsigned i = 0; i < mad.welcome.max_tensors / LEDGER_PAGE_SLOTS; i++)
		atomic_store(&mad.ledger->touched[i], LEDGER_HELD | LEDGER_USED);
	must_be(fstat(mad.ledger_fd, &before), 0);
	must_be(rc_put_as(&other, "a", 4096, WIRE_LIFETIME_EVICTABLE, 0, &draft), 0);
	rc_become_holder(&mad, draft.ref);
	must_be(rc_call(&other, WIRE_CLIENTS, &clients, sizeof(clients), &m), 0);
	must_be(m.header.type, WIRE_CLIENT);
	memcpy(&ask.id, m.bytes + offsetof(struct wire_client, id), sizeof(ask.id));
	must_be(rc_call(&other, WIRE_HOLDINGS, &ask, sizeof(ask), &m), 0);
	must_be(m.header.type, WIRE_DONE);
	must_be(rc_delete(&other, "a"), 0);
	must_be(rc_create(&other, NULL, 60 * MIB, 0, &draft), 0);
	rc_sync(&other);
	must_be(fstat(mad.ledger_fd, &after), 0);
	must_be(after.st_blocks, before.st_blocks);
	must_be(td_status(&d).retired, 0);
	rc_goodbye(&mad);
	rc_goodbye(&other);
}

TEST(a_lying_rescan_word_costs_nothing_but_time)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d);

	atomic_store(&rc.ledger->rescan, 1);
	for (int i = 0; i < 200; i++)
		must_be(rc_put(&rc, "a", 1000, i, NULL), 0);
	must_be(td_status(&d).retired, 0);
	rc_goodbye(&rc);
}

/* If RELEASED does not fit into the socket, the daemon finds the retired tensor by itself. */
TEST(rescan_finds_what_nobody_told)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw honest = rc_open(&d), quiet = rc_open(&d);
	struct wire_draft draft;

	must_be(rc_put(&honest, "a", 1000, 1, &draft), 0);
	must(rc_hold(&quiet, draft.ref));
	must_be(rc_delete(&honest, "a"), 0);
	must_be(td_status(&d).retired, 1);
	atomic_store(rc_held(&quiet, ref_slot(draft.ref)), 0);
	must_be(td_status(&d).retired, 1); /* the daemon was not told */
	atomic_store(&quiet.ledger->rescan, 1);
	rc_sync(&quiet); /* any message makes it look */
	must_be(td_status(&d).retired, 0);
	rc_goodbye(&quiet);
	rc_goodbye(&honest);
}

/* A client killed between R1 and R2 has a ledger that shows nothing, and tells nobody. */
TEST(who_dies_before_it_could_tell_leaves_nothing)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw honest = rc_open(&d);
	struct wire_draft draft;

	for (int clean = 0; clean < 2; clean++) {
		struct raw dies = rc_open(&d);

		must_be(rc_put(&honest, "a", 1000, 1, &draft), 0);
		must(rc_hold(&dies, draft.ref));
		must_be(rc_delete(&honest, "a"), 0);
		must_be(td_status(&d).retired, 1);
		atomic_store(rc_held(&dies, ref_slot(draft.ref)), 0);
		if (clean)
			rc_goodbye(&dies);
		else
			rc_close(&dies);
		must_be(td_status(&d).retired, 0);
	}
	rc_goodbye(&honest);
}

/* The ledger is mapped nowhere, but the kernel keeps one of its pages for the pipe. */
static void leave_with_a_page_in(struct raw *rc, int pipe_end)
{
	struct iovec page = { .iov_base = rc->ledger, .iov_len = 1 };

	must_be(vmsplice(pipe_end, &page, 1, 0), 1);
	must_be(munmap(rc->ledger, rc->ledger_size), 0);
	rc->ledger = NULL;
	rc_close(rc);
}

/* It is on a file system of the client's own, which need not say anything about it. */
TEST(a_file_that_cannot_be_examined_holds_nobody_up)
{
	struct raw honest;
	int fds[STUCK_FDS];
	pid_t server;

	NEEDS_FUSE;
	cleanup_td struct test_daemon d = td_start();
	honest = rc_open(&d);
	server = stuck_fds_make(fds, FUSE_GETATTR);
	must_refuse(&d, &(struct offer){ "a file without attributes", fds[0],
					 ledger_size(honest.welcome.max_tensors), LEDGER_LAYOUT });
	must_be(rc_put(&honest, "honest", 4096, 1, NULL), 0);
	rc_goodbye(&honest);
	for (int i = 1; i < STUCK_FDS; i++)
		close(fds[i]);
	stuck_fds_free(server);
}

/* Each look may wait for such pages, so the daemon must not look all the time. */
TEST(ledgers_whose_pages_are_kept_do_not_keep_the_daemon_busy)
{
	enum { LOST = 8 };
	cleanup_td struct test_daemon d = td_start();
	struct raw honest = rc_open(&d);
	struct wire_draft draft;
	int ends[2];

	must_be(pipe2(ends, O_CLOEXEC), 0);
	must(fcntl(ends[0], F_SETPIPE_SZ, 64 * 4096) >= 64 * 4096);
	must_be(rc_put(&honest, "a", MIB, 1, &draft), 0);
	for (int i = 0; i < LOST; i++) {
		struct raw rc = rc_open(&d);

		must(rc_hold(&rc, draft.ref));
		leave_with_a_page_in(&rc, ends[1]);
	}
	must_be(rc_delete(&honest, "a"), 0);
	for (int i = 0; i < 2000; i++)
		must_be(rc_put(&honest, "b", 1000, 1, NULL), 0);
	must_be(td_status(&d).retired, 1);
	must_be(td_status(&d).clients, LOST + 1);
	close(ends[0]);
	close(ends[1]);
	eventually(td_status(&d).clients == 1);
	must_be(td_status(&d).retired, 0);
	rc_goodbye(&honest);
}

/* An answer may come late, when the segment was used again and mapped by another thread. */
TEST(a_late_note_of_a_mapping_takes_no_later_one_back)
{
	enum { SLOTS = 64 };
	struct ledger *l = calloc(1, ledger_size(SLOTS));

	must(l);
	ledger_map_note(l, SLOTS, 3, 2);
	ledger_map_note(l, SLOTS, 3, 1);
	must_be(ledger_mapped(l, SLOTS)[3], 2);
	ledger_map_forget(l, SLOTS, 3, 1);
	must_be(ledger_mapped(l, SLOTS)[3], 2);
	ledger_map_note(l, SLOTS, 3, 3);
	must_be(ledger_mapped(l, SLOTS)[3], 3);
	ledger_map_forget(l, SLOTS, 3, 3);
	must_be(ledger_mapped(l, SLOTS)[3], 0);
	free(l);
}

int main(void)
{
	return suite_run();
}
