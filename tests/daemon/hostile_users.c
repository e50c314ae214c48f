/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Users who do not know each other. Alice takes all that she can get, as fast as she can; Bob is
 * served as if she were not there. Time says little on a busy machine, so these tests look at what
 * Bob gets, and at what of hers was done before. bench/hostile measures.
 */
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <linux/sockios.h>

#include "daemon/store/account.h"
#include "daemon/store/closer.h"
#include "tests/harness/harness.h"
#include "tests/harness/sleeper.h"
#include "tests/harness/slow_fd.h"
#include "tests/harness/stuck_fd.h"

enum { ALICE = 1111, BOB = 2222 };

#define NEEDS_ROOT SKIP_UNLESS(geteuid() == 0, "needs root, to be other users")

/* Sends CREATE without waiting for the answer. */
static int ask_create(struct raw *rc, uint64_t nbytes, int64_t timeout_ns)
{
	struct wire_create c = { .nbytes = nbytes, .timeout_ns = timeout_ns };

	return rc_send(rc, WIRE_CREATE, &c, sizeof(c), -1);
}

/* Publishes an empty tensor. Returns 0 or the wire error. */
static int publish_empty(struct raw *rc, const char *name)
{
	struct wire_draft draft;
	int r = rc_create(rc, name, 0, 0, &draft);

	return r ? r : rc_commit(rc, draft.ref, name, 0);
}

/* Bob connects, publishes a tensor under a name that is new, and leaves. */
static int bob_publishes(const struct test_daemon *d, void *arg)
{
	const char *name = arg ? arg : "bob";
	struct raw rc = rc_open(d);

	must_be(rc_put(&rc, name, 4096, 7, NULL), 0);
	must_be(rc_delete(&rc, name), 0);
	rc_goodbye(&rc);
	return 0;
}

static void bob_must_publish(const struct test_daemon *d)
{
	struct test_child bob = child_start_as(BOB, d, bob_publishes, NULL);

	child_must_succeed(&bob);
}

/* ---- turns ---- */

enum { CONNECTIONS = 16, REQUESTS = 64 };

static int alice_asks(const struct test_daemon *d, void *arg)
{
	static struct raw rc[CONNECTIONS];

	(void)arg;
	for (int i = 0; i < CONNECTIONS; i++)
		rc[i] = rc_open(d);
	pause_at(1);
	for (int i = 0; i < CONNECTIONS; i++)
		for (int k = 0; k < REQUESTS; k++)
			must_be(ask_create(&rc[i], 0, 0), 0);
	pause_at(2);
	return 0;
}

static int bob_asks(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_open(d);
	struct wire_draft draft;
	struct conn_message m;

	(void)arg;
	pause_at(1);
	must_be(ask_create(&rc, 0, 0), 0);
	pause_at(2);
	must_be(rc_receive(&rc, &m), 0);
	must_be(rc_judge(&m, WIRE_DRAFT), 0);
	memcpy(&draft, m.bytes, sizeof(draft));
	pause_at(ref_slot(draft.ref));
	return 0;
}

/* Slots are given out in their order, so Bob's tells how many of hers were given out before. */
TEST(who_asks_once_does_not_wait_for_all_that_another_user_asked)
{
	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.for_others = true);
	struct test_child alice = child_start_as(ALICE, &d, alice_asks, NULL);
	struct test_child bob = child_start_as(BOB, &d, bob_asks, NULL);

	must_be(child_await(&alice), 1);
	must_be(child_await(&bob), 1);
	td_freeze(&d);
	must_be(child_step(&alice), 2);
	must_be(child_step(&bob), 2);
	td_thaw(&d);
	must(child_step(&bob) < CONNECTIONS * REQUESTS / 4);
	child_finish(&bob);
	child_finish(&alice);
}

/* ---- space ---- */

static int alice_waits(const struct test_daemon *d, void *arg)
{
	static struct raw rc[CONNECTIONS];
	struct wire_draft draft;
	struct conn_message m;
	uint64_t held = 0;

	(void)arg;
	for (int i = 0; i < CONNECTIONS; i++)
		rc[i] = rc_open(d);
	while (held < 40 && rc_create(&rc[0], NULL, MIB, 0, &draft) == 0)
		held++;
	for (int i = 0; i < CONNECTIONS; i++)
		for (int k = 0; k < REQUESTS; k++)
			must_be(ask_create(&rc[i], (held - 1) * MIB, -1), 0);
	rc_sync(&rc[0]);
	while (conn_receive(rc[0].fd, WIRE_TO_CLIENT, &m, MSG_DONTWAIT) == 0)
		;
	pause_at(held);
	return 0;
}

TEST(a_thousand_creates_that_wait_keep_nobody_from_publishing)
{
	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.for_others = true);
	struct test_child alice = child_start_as(ALICE, &d, alice_waits, NULL);

	must(child_await(&alice) > 1);
	for (int i = 0; i < 20; i++)
		bob_must_publish(&d);
	child_kill(&alice);
	must_be(td_status(&d).drafts, 0);
}

static int bob_leaves_warm_memory(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_open(d);

	(void)arg;
	must_be(rc_put(&rc, "warm", 8 * MIB, 1, NULL), 0);
	must_be(rc_delete(&rc, "warm"), 0);
	rc_sync(&rc);
	pause_at(1);
	rc_goodbye(&rc);
	return 0;
}

static int alice_wants_too_much(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_open(d);
	struct wire_draft draft;
	int r;

	(void)arg;
	for (int i = 0; i < 10; i++) {
		r = rc_create(&rc, NULL, 30 * MIB, 0, &draft);
		must(r == WIRE_E_NO_SPACE || r == WIRE_E_QUOTA);
	}
	rc_goodbye(&rc);
	return 0;
}

TEST(a_create_that_cannot_fit_leaves_the_warm_memory_of_others)
{
	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.for_others = true);
	struct raw root = rc_open(&d);
	struct test_child bob, alice;
	uint64_t warm;

	/* whatever is given up, no space is left for what Alice wants */
	must_be(rc_put(&root, "kept/1", 20 * MIB, 1, NULL), 0);
	must_be(rc_put(&root, "kept/2", 20 * MIB, 1, NULL), 0);
	bob = child_start_as(BOB, &d, bob_leaves_warm_memory, NULL);
	must_be(child_await(&bob), 1);
	warm = td_status(&d).bytes_warm;
	must(warm >= 8 * MIB);
	alice = child_start_as(ALICE, &d, alice_wants_too_much, NULL);
	child_must_succeed(&alice);
	must_be(td_status(&d).bytes_warm, warm);
	child_finish(&bob);
	rc_goodbye(&root);
}

/* ---- tables ---- */

static int alice_publishes_all(const struct test_daemon *d, void *arg)
{
	const unsigned *tensors = arg;
	struct raw rc = rc_open(d);
	unsigned n = 0;
	char name[24];
	int r;

	do {
		snprintf(name, sizeof(name), "alice/%u", n);
		r = publish_empty(&rc, name);
	} while (r == 0 && ++n < *tensors);
	must(r == 0 || r == WIRE_E_LIMIT || r == WIRE_E_QUOTA);
	pause_at(n);
	return 0;
}

TEST(one_user_cannot_have_all_tensors)
{
	NEEDS_ROOT;
	unsigned tensors = 1024;
	cleanup_td struct test_daemon d = td_start(.for_others = true, .max_tensors = tensors);
	struct test_child alice = child_start_as(ALICE, &d, alice_publishes_all, &tensors);
	uint64_t n = child_await(&alice);

	must(n >= tensors / 8 && n <= tensors * 3 / 4);
	bob_must_publish(&d);
	child_kill(&alice);
	bob_must_publish(&d);
}

static int alice_exports_all(const struct test_daemon *d, void *arg)
{
	const unsigned *tensors = arg;
	struct raw rc = rc_open(d);
	struct wire_segment_ref seg;
	unsigned n = 0;

	while (n < *tensors && rc_export(&rc, SEGMENT_CUDA_IPC, 7, MIB, MIB, 1, -1, &seg) == 0)
		n++;
	pause_at(n);
	return 0;
}

TEST(one_user_cannot_have_all_segments)
{
	NEEDS_ROOT;
	unsigned tensors = 1024;
	cleanup_td struct test_daemon d = td_start(.for_others = true, .max_tensors = tensors);
	struct test_child alice = child_start_as(ALICE, &d, alice_exports_all, &tensors);
	uint64_t n = child_await(&alice);

	must(n >= tensors / 8 && n <= tensors * 3 / 4);
	bob_must_publish(&d);
	child_kill(&alice);
	bob_must_publish(&d);
}

/* Exports a little on as many devices as she is let, whose numbers are made up. */
static int alice_invents_devices(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_open(d);
	struct wire_segment_ref seg;
	uint16_t n = 0;

	(void)arg;
	while (n < 1000 &&
	       rc_export(&rc, SEGMENT_CUDA_IPC, (uint16_t)(1000 + n), 4096, 4096, 1, -1, &seg) == 0)
		n++;
	pause_at(n);
	return 0;
}

static int bob_exports(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_open(d);
	struct wire_segment_ref seg;

	(void)arg;
	must_be(rc_export(&rc, SEGMENT_CUDA_IPC, 7, MIB, MIB, 1, -1, &seg), 0);
	rc_goodbye(&rc);
	return 0;
}

TEST(one_user_cannot_have_all_devices)
{
	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.for_others = true);
	struct test_child alice = child_start_as(ALICE, &d, alice_invents_devices, NULL), bob;

	must_be(child_await(&alice), DEVICES_USER_MAX);
	bob = child_start_as(BOB, &d, bob_exports, NULL);
	child_must_succeed(&bob);
	child_kill(&alice);
}

static int alice_fills_the_bucket(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_open(d);

	rc_fill_bucket(&rc, arg);
	pause_at(1);
	return 0;
}

TEST(names_that_collide_leave_space_for_the_name_of_another_user)
{
	static char name[] = "bob";

	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.for_others = true, .max_tensors = 1024);
	struct test_child alice = child_start_as(ALICE, &d, alice_fills_the_bucket, name);

	must_be(child_await(&alice), 1);
	bob_must_publish(&d);
	child_kill(&alice);
}

/* ---- connections and descriptors ---- */

enum { SILENT = 80 };

static int alice_says_nothing(const struct test_daemon *d, void *arg)
{
	static struct raw rc[SILENT];
	enum raw_stage stage = *(enum raw_stage *)arg;
	uint64_t n = 0;

	for (int i = 0; i < SILENT; i++)
		n += rc_try_open(&rc[i], d->socket, stage, 0) == 0;
	pause_at(n);
	return 0;
}

TEST(one_user_cannot_have_all_connections)
{
	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.for_others = true, .max_clients = 64);

	for (enum raw_stage stage = RAW_CONNECTED; stage <= RAW_READY; stage++) {
		struct test_child alice = child_start_as(ALICE, &d, alice_says_nothing, &stage);
		struct raw root;

		child_await(&alice);
		bob_must_publish(&d);
		root = rc_open(&d);
		rc_goodbye(&root);
		child_kill(&alice);
	}
}

/* Ends connections, and keeps the ledgers mapped that hold something. */
static int alice_leaves_ledgers(const struct test_daemon *d, void *arg)
{
	struct wire_draft draft;
	struct raw first = rc_open(d), rc;
	uint64_t n = 0;

	(void)arg;
	must_be(rc_put(&first, "alice", 4096, 1, &draft), 0);
	while (n < 200 && rc_try_open(&rc, d->socket, RAW_READY, 0) == 0) {
		if (!rc_hold(&rc, draft.ref))
			break;
		rc.ledger = NULL; /* the mapping stays */
		rc_close(&rc);
		n++;
	}
	pause_at(n);
	return 0;
}

TEST(ledgers_that_are_left_behind_take_no_connections_of_others)
{
	struct test_child alice;

	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.for_others = true, .max_clients = 64);
	alice = child_start_as(ALICE, &d, alice_leaves_ledgers, NULL);
	must(child_await(&alice) >= 8);
	bob_must_publish(&d);
	child_kill(&alice);
	eventually(td_status(&d).clients == 0);
}

/* Says of every tensor that there is or will be that she uses it. */
static int alice_holds_everything(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_open(d);

	(void)arg;
	for (uint32_t slot = 0; slot < rc.welcome.max_tensors; slot++)
		atomic_store(rc_held(&rc, slot), 1);
	pause_at(1);
	return 0;
}

static int bob_publishes_much(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_open(d);

	(void)arg;
	for (int i = 0; i < 100; i++) /* more than fits at a time */
		must_be(rc_put(&rc, "bob", MIB, 7, NULL), 0);
	rc_goodbye(&rc);
	return 0;
}

TEST(who_says_that_she_uses_everything_does_not_use_up_the_memory_of_others)
{
	struct test_child alice, bob;

	NEEDS_ROOT;
	cleanup_td struct test_daemon d = td_start(.for_others = true);
	alice = child_start_as(ALICE, &d, alice_holds_everything, NULL);
	must_be(child_await(&alice), 1);
	bob = child_start_as(BOB, &d, bob_publishes_much, NULL);
	child_must_succeed(&bob);
	child_kill(&alice);
}

/* Leaves answers unread until the socket is full, so that further ones wait in the daemon. */
static void leave_unread(struct raw *rc, struct raw *other)
{
	struct wire_holdings h = { .id = UINT64_MAX };
	int before = -1, now = 0;

	while (now > before) {
		before = now;
		h.header.serial = 0;
		must_be(rc_send(rc, WIRE_HOLDINGS, &h, sizeof(h), -1), 0);
		rc_sync(other); /* then it was answered */
		must_be(ioctl(rc->fd, SIOCINQ, &now), 0);
	}
}

enum { HOARDERS = 24, HOARD = 60 };

static int alice_takes_no_descriptors(const struct test_daemon *d, void *arg)
{
	struct raw other = rc_open(d), rc;
	struct wire_draft draft;

	(void)arg;
	must_be(rc_put(&other, "alice", 4096, 1, &draft), 0);
	for (int i = 0; i < HOARDERS; i++) {
		if (rc_try_open(&rc, d->socket, RAW_READY, 0))
			break;
		must(rc_hold(&rc, draft.ref));
		leave_unread(&rc, &other);
		for (int k = 0; k < HOARD; k++) {
			struct wire_map map = { .ref = draft.ref, .name = CATALOG_NONE };

			if (rc_send(&rc, WIRE_MAP, &map, sizeof(map), -1))
				break; /* it was disconnected */
		}
	}
	pause_at(1);
	return 0;
}

static int bob_maps(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_open(d);
	struct wire_draft draft;
	int fd = -1;

	(void)arg;
	must_be(rc_put(&rc, "bob", 4096, 7, &draft), 0);
	must(rc_hold(&rc, draft.ref));
	must_be(rc_map(&rc, draft.ref, &fd), 0);
	close(fd);
	rc_drop(&rc, draft.ref);
	rc_goodbye(&rc);
	return 0;
}

TEST(descriptors_that_one_user_does_not_take_are_not_missing_for_others)
{
	struct test_child alice, bob;

	NEEDS_ROOT;
	test_timeout(280);
	cleanup_td struct test_daemon d = td_start(.for_others = true, .max_clients = 64,
						   .nofile = 600);
	alice = child_start_as(ALICE, &d, alice_takes_no_descriptors, NULL);
	must_be(child_await(&alice), 1);
	bob = child_start_as(BOB, &d, bob_maps, NULL);
	child_must_succeed(&bob);
	must(td_alive(&d));
	child_kill(&alice);
}

/* Sends something for which whoever closes it waits an hour, and keeps no other descriptor of it.
 */
static void send_slow(struct raw *rc, struct slow_fd *slow)
{
	struct wire_ledger ledger = {
		.header = { .type = WIRE_LEDGER, .length = sizeof(ledger), .serial = 1 },
		.size = ledger_size(rc->welcome.max_tensors),
		.layout = LEDGER_LAYOUT
	};
	struct wire_plain sync = {
		.header = { .type = WIRE_SYNC, .length = sizeof(sync), .serial = 1 }
	};

	*slow = slow_fd_make(3600);
	if (rc->ledger) /* a message that must not have one, or several */
		must_be(rc_send_bytes(rc, &sync, sizeof(sync), slow->fd, 20), 0);
	else
		must_be(rc_send_bytes(rc, &ledger, sizeof(ledger), slow->fd, 1), 0);
	close(slow->fd);
}

TEST(a_descriptor_that_is_slow_to_close_holds_nobody_up)
{
	enum { BAD = 6 };
	cleanup_td struct test_daemon d = td_start();
	struct raw honest = rc_open(&d), bad[BAD];
	struct slow_fd slow[BAD];
	struct wire_draft draft;

	for (int i = 0; i < BAD; i++) {
		bad[i] = rc_connect(&d);
		rc_hello(&bad[i]);
		if (i % 2)
			rc_ledger(&bad[i]);
	}
	td_freeze(&d); /* so that the daemon is the last to close it */
	for (int i = 0; i < BAD; i++)
		send_slow(&bad[i], &slow[i]);
	td_thaw(&d);
	for (int i = 0; i < 10; i++)
		must_be(rc_put(&honest, "honest", 4096, 1, &draft), 0);
	for (int i = 0; i < BAD; i++) {
		close(slow[i].peer);
		rc_close(&bad[i]);
	}
	/* whoever closes those descriptors does not keep the ledgers of others mapped */
	must(rc_hold(&honest, draft.ref));
	rc_goodbye(&honest);
	eventually(td_status(&d).clients == 0);
}

/* Those that it had not read when it dropped the connection are closed with its socket. */
TEST(a_descriptor_that_was_not_read_holds_nobody_up_either)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw honest = rc_open(&d), bad = rc_open(&d);
	static const char nonsense[24] = "this is not a message";
	struct slow_fd slow;

	td_freeze(&d);
	must_be(rc_send_bytes(&bad, nonsense, sizeof(nonsense), -1, 0), 0);
	send_slow(&bad, &slow);
	td_thaw(&d);
	for (int i = 0; i < 10; i++)
		must_be(rc_put(&honest, "honest", 4096, 1, NULL), 0);
	close(slow.peer);
	rc_close(&bad);
	rc_goodbye(&honest);
}

/* The kernel would close those for which the daemon has no number when it takes the message. */
TEST(a_descriptor_for_which_there_is_no_number_holds_nobody_up_either)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw honest = rc_open(&d), bad = rc_open(&d);
	struct rlimit limit, former;
	struct conn_message m;
	struct slow_fd slow;

	must_be(rc_put(&honest, "honest", 4096, 1, NULL), 0);
	must_be(prlimit(d.pid, RLIMIT_NOFILE, NULL, &former), 0);
	limit = former;
	limit.rlim_cur = 3;
	td_freeze(&d);
	send_slow(&bad, &slow);
	must_be(prlimit(d.pid, RLIMIT_NOFILE, &limit, NULL), 0);
	td_thaw(&d);
	while (rc_receive(&bad, &m) != -ECONNRESET)
		;
	must_be(prlimit(d.pid, RLIMIT_NOFILE, &former, NULL), 0);
	for (int i = 0; i < 10; i++)
		must_be(rc_put(&honest, "honest", 4096, 1, NULL), 0);
	close(slow.peer);
	rc_close(&bad);
	rc_goodbye(&honest);
}

/* Sends files that cannot be closed, one on each connection. While as many wait as may, she is
 * served. She has them herself, and so does not end before their server. */
static int alice_sends_files(const struct test_daemon *d, void *arg)
{
	struct wire_plain sync = {
		.header = { .type = WIRE_SYNC, .length = sizeof(sync), .serial = 1 }
	};
	int fds[STUCK_FDS];
	pid_t server = stuck_fds_make(fds, FUSE_FLUSH);
	struct conn_message m;
	struct raw rc;

	(void)arg;
	must_be(setresuid(ALICE, ALICE, ALICE), 0);
	for (int i = 0; i <= CLOSER_STUCK_MAX; i++) {
		rc = rc_open(d); /* with all that was sent before closed, or set aside */
		must_be(rc_put(&rc, "alice", 8, 1, NULL), 0);
		must_be(rc_send_bytes(&rc, &sync, sizeof(sync), fds[i], 1), 0);
		while (rc_receive(&rc, &m) != -ECONNRESET)
			;
	}
	pause_at((uint64_t)server);
	return 0;
}

TEST(files_that_cannot_be_closed_hold_up_only_their_sender)
{
	struct test_child alice;
	struct raw root;
	pid_t server;

	NEEDS_ROOT;
	NEEDS_FUSE;
	cleanup_td struct test_daemon d = td_start(.for_others = true);
	alice = child_start(&d, alice_sends_files, NULL);
	server = (pid_t)child_await(&alice);
	bob_must_publish(&d);
	root = rc_open(&d);
	must_be(kill(server, SIGKILL), 0);
	rc_sync(&root);
	rc_goodbye(&root);
	child_kill(&alice);
}

/* ---- waiting ---- */

/* S: it sleeps; Z: it has ended. */
static char state_of(pid_t pid)
{
	char path[40], text[256] = "", *end;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	f = fopen(path, "re");
	must(f);
	(void)!fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	end = strrchr(text, ')');
	return end && end[1] == ' ' ? end[2] : '?';
}

static int bob_waits_for_versions(const struct test_daemon *d, void *arg)
{
	tl_get_options options = { .size = sizeof(options), .timeout_ns = WAIT_S * SECOND };
	tl_info info = { .size = sizeof(info) };
	DLManagedTensorVersioned *tensor;
	tl_client *client = td_connect(d);
	const unsigned *rounds = arg;

	for (unsigned i = 0; i < *rounds; i++) {
		must_be(tl_get(client, "watched", &options, &tensor), 0);
		must_be(tl_tensor_info(tensor, &info), 0);
		options.newer_than = info.version;
		tensor->deleter(tensor);
		parent_tell(info.version);
	}
	must_be(tl_close(client), 0);
	return 0;
}

/* Moves all who sleep on a wake word to a word of her own, where nobody wakes them. */
static int alice_moves_sleepers(const struct test_daemon *d, void *arg)
{
	static uint32_t elsewhere;
	_Atomic unsigned *rounds = arg;
	struct raw rc = rc_open(d);

	for (;;) {
		syscall(SYS_futex, rc_name_word(&rc, "watched"), FUTEX_REQUEUE, 0,
			(void *)(uintptr_t)INT32_MAX, &elsewhere, 0);
		atomic_fetch_add(rounds, 1);
	}
	return 0;
}

TEST(who_waits_for_a_version_cannot_be_kept_asleep)
{
	NEEDS_ROOT;
	_Atomic unsigned *moved = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
				       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cleanup_td struct test_daemon d = td_start(.for_others = true);
	struct raw root = rc_open(&d);
	unsigned rounds = 5, before;
	struct test_child alice, bob;

	must(moved != MAP_FAILED);
	alice = child_start_as(ALICE, &d, alice_moves_sleepers, (void *)moved);
	bob = child_start_as(BOB, &d, bob_waits_for_versions, &rounds);
	for (unsigned i = 1; i <= rounds; i++) {
		eventually(state_of(bob.pid) == 'S');
		before = atomic_load(moved);
		eventually(atomic_load(moved) - before >= 2);
		must_be(rc_put(&root, "watched", 8, 1, NULL), 0);
		must_be(child_await(&bob), i);
	}
	child_must_succeed(&bob);
	child_kill(&alice);
	munmap((void *)moved, 4096);
	rc_goodbye(&root);
}

/* ---- memory that another user wrote ---- */

struct exposed {
	_Atomic bool over;
	_Atomic unsigned passes; /* how often Bob has read all of it */
	struct wire_draft draft;
};

static int bob_reads(const struct test_daemon *d, void *arg)
{
	struct exposed *exposed = arg;
	struct raw rc = rc_open(d);
	const volatile unsigned char *bytes;

	must(rc_hold(&rc, exposed->draft.ref));
	bytes = rc_view(&rc, &exposed->draft);
	parent_tell(1);
	for (; !atomic_load(&exposed->over); atomic_fetch_add(&exposed->passes, 1))
		for (size_t i = 0; i < MIB; i += 4096)
			must(bytes[i] == 7 || bytes[i] == 0);
	rc_drop(&rc, exposed->draft.ref);
	rc_goodbye(&rc);
	return 0;
}

static int alice_cuts_off(const struct test_daemon *d, void *arg)
{
	struct exposed *exposed = arg;
	struct raw rc = rc_open(d);
	int fd;

	must_be(rc_put(&rc, "alice", MIB, 7, &exposed->draft), 0);
	fd = rc_writable(&rc, &exposed->draft);
	pause_at(1);
	(void)!ftruncate(fd, 0); /* she may not be allowed to */
	pause_at(2);
	return 0;
}

/* The daemon would set the size right, but it cannot be faster than a reader. */
TEST(who_reads_a_tensor_is_not_harmed_by_its_producer)
{
	static const char *const sealed[] = { "--storage", "memfd", NULL };

	NEEDS_ROOT;
	struct exposed *exposed = mmap(NULL, sizeof(*exposed), PROT_READ | PROT_WRITE,
				       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cleanup_td struct test_daemon d = td_start(.for_others = true, .extra = sealed);
	struct test_child alice, bob;
	unsigned before;

	must(exposed != MAP_FAILED);
	alice = child_start_as(ALICE, &d, alice_cuts_off, exposed);
	must_be(child_await(&alice), 1);
	bob = child_start_as(BOB, &d, bob_reads, exposed);
	must_be(child_await(&bob), 1);
	td_freeze(&d);
	must_be(child_step(&alice), 2);
	before = atomic_load(&exposed->passes);
	eventually(atomic_load(&exposed->passes) - before >= 2 || state_of(bob.pid) == 'Z');
	td_thaw(&d);
	atomic_store(&exposed->over, true);
	child_must_succeed(&bob);
	child_kill(&alice);
	munmap(exposed, sizeof(*exposed));
}

int main(void)
{
	return suite_run();
}
