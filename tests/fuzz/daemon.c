/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of several clients, with and without descriptors, go through the daemon's own event loop
 * and handlers, in a daemon so small that there is never enough of anything. After each input every
 * count must agree with what is there. When all clients have ended, everything must have been given
 * back.
 *
 * An input is a sequence of steps: a byte that selects the connection and the step, and then its
 * arguments.
 */
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "daemon/serve/handlers.h"
#include "daemon/serve/peer.h"
#include "daemon/serve/run.h"
#include "tests/fuzz/target.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/log.h"

enum { CONNS = 3, TENSORS = 24, STEPS_MAX = 200, HELD_MAX = 5 };

struct conn {
	int fd; /* -1 if there is none */
	uint32_t serial;
	struct ledger *ledger;
};

static struct server server;
static struct conn conns[CONNS];
static int lent[3]; /* descriptors to send with messages */

/* ---- The loop ---- */

/* Runs until only requests that wait for space are left. */
static void run(void)
{
	while (server_step(&server, server.space.jobs.count || server.peers.looking ||
					    !list_empty(&server.peers.stalled)))
		;
}

static struct state *the_state(void)
{
	return &namespace_default(&server.namespaces)->state;
}

static void start(void)
{
	const struct namespace_config everything = {
		.name = NAMESPACE_DEFAULT,
		.mode = 0777,
		.limits = { .capacity = 1 << 20, .max_tensors = TENSORS, .max_clients = CONNS + 1 }
	};
	static struct keeper_link nobody = { .fd = -1 };
	struct server_options o = {
		.keeper = &nobody,
		.listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0),
		.common = { .capacity = 1 << 20,
			    .max_tensors = TENSORS,
			    .fds_max = 2,
			    .device_capacity = 1 << 20,
			    .device_fds_max = 4,
			    .flight_fds_max = 24,
			    .warm_ns = (uint64_t)3600 * NS_PER_SEC },
		.namespaces = &everything,
		.count = 1,
		.idle_exit_ns = -1,
		.hello_ns = 3600 * NS_PER_SEC,
	};
	const struct sockaddr any = { .sa_family = AF_UNIX };
	uint64_t instance;

	/* Nobody connects to this socket, and the kernel chooses its name. */
	fuzz_check(o.listen_fd >= 0 && !bind(o.listen_fd, &any, sizeof(any.sa_family)) &&
		   !listen(o.listen_fd, 1));
	fuzz_check(!object_random(&instance));
	fuzz_check(!server_init(&server, instance, &o));
	for (unsigned i = 0; i < CONNS; i++)
		conns[i] = (struct conn){ .fd = -1 };
	run();
}

/* ---- Connections ---- */

static void drop(struct conn *c)
{
	if (c->ledger)
		munmap(c->ledger, ledger_size(TENSORS));
	c->ledger = NULL;
	c->fd = fd_close(c->fd);
}

static void receive(struct conn *c)
{
	struct conn_message m;
	int r = -ECONNRESET;

	/* Everything the daemon says must be a valid message. */
	while (c->fd >= 0 && !(r = conn_receive(c->fd, WIRE_TO_CLIENT, &m, MSG_DONTWAIT)))
		fd_close(m.fd);
	fuzz_check(r != -EBADMSG);
	if (r != -EAGAIN)
		drop(c);
}

static void send_bytes(struct conn *c, unsigned type, void *bytes, size_t length, int fd_peek)
{
	struct wire_header *h = bytes;

	h->type = (uint16_t)type;
	h->length = (uint32_t)length;
	if (!h->serial)
		h->serial = ++c->serial;
	if (c->fd >= 0)
		conn_send(c->fd, bytes, fd_peek, MSG_DONTWAIT);
}

static int ledger_make(struct ledger **out)
{
	size_t size = ledger_size(TENSORS);
	int fd = memfd_create("fuzz-ledger", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	fuzz_check(fd >= 0 && !ftruncate(fd, (off_t)size));
	*out = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (*out != MAP_FAILED) /* the closer's process is a child here, and must not have it */
		madvise(*out, size, MADV_DONTFORK);
	fuzz_check(*out != MAP_FAILED);
	(*out)->magic = LEDGER_MAGIC;
	(*out)->layout = LEDGER_LAYOUT;
	(*out)->slots = TENSORS;
	fuzz_check(!fcntl(fd, F_ADD_SEALS, LEDGER_SEALS));
	return fd;
}

static void shake_hands(struct conn *c)
{
	struct wire_hello hello = { .version_min = WIRE_VERSION_MIN, .version_max = WIRE_VERSION };
	struct wire_ledger ledger = { .size = ledger_size(TENSORS), .layout = LEDGER_LAYOUT };
	int fd;

	send_bytes(c, WIRE_HELLO, &hello, sizeof(hello), -1);
	run();
	receive(c);
	if (c->fd < 0 || c->ledger)
		return;
	fd = ledger_make(&c->ledger);
	send_bytes(c, WIRE_LEDGER, &ledger, sizeof(ledger), fd);
	close(fd);
	run();
	receive(c);
}

static void connect_as(struct conn *c, bool politely)
{
	int pair[2];

	drop(c);
	run();
	peers_look(&server.peers);
	run();
	if (server.peers.count == CONNS + 1)
		return; /* a worker may still have a segment of one of them */
	fuzz_check(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair));
	c->fd = pair[0];
	if (greet_new(&server.greeting, pair[1]))
		drop(c);
	else if (politely)
		shake_hands(c);
}

/* ---- Steps ---- */

static void step_message(struct conn *c, struct input_bytes *in)
{
	union {
		struct wire_header header;
		unsigned char bytes[WIRE_MAX];
	} m = { .bytes = { 0 } };
	unsigned type = take_u8(in), flags = take_u8(in);
	size_t n = take_u16(in) % (WIRE_MAX - sizeof(m.header) + 1);
	const uint8_t *p;

	if (n > in->left)
		n = in->left;
	p = take_bytes(in, n);
	if (n)
		memcpy(m.bytes + sizeof(m.header), p, n);
	send_bytes(c, 1 + type % (WIRE_REQUEST_END - 1), m.bytes, sizeof(m.header) + n,
		   flags & 1 ? lent[(flags >> 1) % 3] : -1);
	if (flags & 64)
		return; /* the daemon reads only after the next step */
	run();
	if (!(flags & 128))
		receive(c);
}

/* Counts a lease as the library does, or as it never would. */
static void step_ledger(struct conn *c, struct input_bytes *in)
{
	unsigned slot = take_u8(in) % TENSORS, held = take_u8(in);

	if (c->ledger) {
		ledger_touch(c->ledger->touched, slot);
		atomic_store(&ledger_held(c->ledger, TENSORS)[slot],
			     held == 255 ? UINT32_MAX : held % HELD_MAX);
	}
	if (c->ledger && held & 64)
		atomic_fetch_add(&c->ledger->rescan, 1);
}

static void step(struct input_bytes *in)
{
	unsigned what = take_u8(in);
	struct conn *c = &conns[what % CONNS];

	switch (what / CONNS % 8) {
	case 0:
		connect_as(c, true);
		break;
	case 1:
		step_ledger(c, in);
		break;
	case 2:
		if (what > 200)
			connect_as(c, false);
		else if (what > 150)
			drop(c);
		else if (what > 100) /* it becomes an orphan if it holds something */
			c->fd = fd_close(c->fd);
		run();
		break;
	case 3:
		receive(c);
		run();
		break;
	default:
		step_message(c, in);
	}
}

/* ---- What must be true ---- */

static void check_segments(const struct state *st)
{
	uint32_t segments = 0;
	uint64_t charged = 0;

	for (uint32_t i = 0; i < st->catalog.segments.high; i++) {
		const struct segment *seg = st->segments.segments[i];
		uint32_t slots = 0;

		if (!seg)
			continue;
		segments++;
		charged += seg->charge.amount;
		fuzz_check(seg->index == i);
		for (uint32_t slot = 0; slot < st->catalog.rows.high; slot++) {
			const struct tensor *t = &st->tensors[slot];

			slots += t->segment == seg;
			if (t->segment == seg && t->moved && segment_is_small(seg))
				charged += (uint64_t)t->units * SEGMENT_UNIT;
		}
		/* several tensors may share an extent */
		fuzz_check(seg->extents <= slots && !seg->extents == !slots);
		fuzz_check(seg->state != SEGMENT_WARM || !seg->extents);
	}
	fuzz_check(segments == st->catalog.segments.in_use);
	fuzz_check(charged == st->common->store.pool.used);
}

static void check_users(const struct state *st)
{
	uint64_t used[SHARE_COUNT] = { 0 };
	const struct account *account;

	for (unsigned i = 0; i < st->accounts.count; i++) {
		account = st->accounts.list[i];
		for (unsigned share = 0; share < SHARE_CONNECTIONS; share++)
			used[share] += account->used[share];
	}
	for (unsigned i = 0; i < st->common->accounts.count; i++) {
		account = st->common->accounts.list[i];
		for (unsigned share = SHARE_CONNECTIONS; share < SHARE_COUNT; share++)
			used[share] += account->used[share];
	}
	for (unsigned share = 0; share < SHARE_COUNT; share++) {
		const struct pool *pool = state_pool((struct state *)st, share);

		fuzz_check(used[share] == pool->used && pool->used <= pool->capacity);
	}
}

static void check_clients(const struct state *st)
{
	uint32_t drafts = 0, clients = 0, count = 0;
	struct peer *peer;

	list_for_each_entry(peer, &server.peers.list, link) {
		drafts += peer->client.drafts;
		clients += peer->client.index != CATALOG_NONE; /* it has said HELLO */
		count++;
	}
	fuzz_check(drafts == st->catalog.header->drafts);
	fuzz_check(clients == st->catalog.header->clients);
	fuzz_check(count == server.peers.count);
}

static void check_rows(const struct state *st)
{
	const struct catalog_header *h = st->catalog.header;
	uint32_t live = 0, draft = 0, retired = 0, prefetched = 0;

	for (uint32_t slot = 0; slot < st->catalog.rows.high; slot++) {
		const struct catalog_row *row = catalog_row(&st->catalog, slot);
		enum row_state state = row_word_state(row->word);

		live += state == ROW_LIVE;
		draft += state == ROW_DRAFT;
		retired += state == ROW_RETIRED;
		prefetched += state == ROW_DRAFT && st->tensors[slot].prefetch;
		if (state == ROW_LIVE)
			fuzz_check(row->name < h->max_names && st->names.info[row->name].pins);
	}
	fuzz_check(live + draft + retired <= st->catalog.rows.in_use);
	fuzz_check(h->tensors == live);
	fuzz_check(h->retired == retired);
	fuzz_check(prefetched == st->prefetched);
}

static void check_all(void)
{
	const struct state *st = the_state();

	run();
	check_rows(st);
	check_segments(st);
	check_users(st);
	check_clients(st);
}

/* Deletes everything that is published, as a client that may. */
static void delete_all(struct conn *c)
{
	const struct catalog *cat = &the_state()->catalog;

	connect_as(c, true);
	for (uint32_t i = 0; i < cat->names.high; i++) {
		struct {
			struct wire_delete m;
			char text[TENSOR_NAME_MAX];
		} m = { .m = { .reserved = 0 } };

		if (!catalog_name(cat, i)->current)
			continue;
		m.m.name_len = name_text(&the_state()->names, i, m.text);
		send_bytes(c, WIRE_DELETE, &m, sizeof(m.m) + m.m.name_len, -1);
		run();
		receive(c);
	}
	drop(c);
	run();
}

static void end(void)
{
	struct state *st = the_state();
	uint64_t instance = st->instance;

	for (unsigned i = 0; i < CONNS; i++)
		drop(&conns[i]);
	run();
	peers_look(&server.peers);
	run();
	check_all();
	fuzz_check(!server.peers.count);
	fuzz_check(!server.space.waiting && !server.space.due.top &&
		   list_empty(&server.syncs.list));
	fuzz_check(!st->catalog.header->drafts && !st->prefetched);
	delete_all(&conns[0]);
	while (segments_trim(st->common, UINT64_MAX))
		;
	run();
	check_all();
	fuzz_check(!st->catalog.rows.in_use && !st->catalog.segments.in_use &&
		   !st->catalog.chunks_reserved && !st->common->store.pool.used &&
		   !st->common->store.going && !st->common->store.warm_bytes && !st->lost &&
		   !st->common->accounts.count);
	raise(SIGTERM);
	server_run(&server);
	server_deinit(&server);
	signal(SIGTERM, SIG_DFL);
	signal(SIGINT, SIG_DFL);
	fuzz_check(!shm_object_destroy_instance(instance));
}

static void lend(void)
{
	static bool done;

	if (done)
		return;
	done = true;
	log_set_level(LOG_LEVEL_ERROR);
	setenv("TENSORLEASE_FAKE_GPU", "1", 1); /* the memfd is taken for a device's memory */
	lent[0] = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	lent[1] = open("/dev/null", O_RDWR | O_CLOEXEC);
	lent[2] = open("/", O_RDONLY | O_CLOEXEC);
	fuzz_check(lent[0] >= 0 && !ftruncate(lent[0], 4096) &&
		   !fcntl(lent[0], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input_bytes in = { data, size };

	lend();
	start();
	for (unsigned n = 0; in.left && n < STEPS_MAX; n++)
		step(&in);
	check_all();
	end();
	return 0;
}

#ifndef TL_LIBFUZZER
PLAIN_TEST(messages_of_the_corpus_leave_nothing_behind)
{
	assert_true(replay("daemon") > 0);
}

int main(void)
{
	return suite_run();
}
#endif
