/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "tests/harness/liar.h"
#include "tests/harness/limit.h"
#include "util/clock.h"

#define check(condition) ((condition) ? (void)0 : check_failed(#condition))

_Noreturn static void check_failed(const char *what)
{
	fprintf(stderr, "tests/harness/liar.c: not true: %s\n", what);
	abort();
}

/* ---- What it hands out ---- */

static int object_new(size_t size, void **mapped)
{
	int fd = memfd_create("liar", MFD_CLOEXEC);

	check(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
	*mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	check(*mapped != MAP_FAILED);
	return fd;
}

static void catalog_fill(struct liar_catalog *c)
{
	memset(c, 0, sizeof(*c));
	c->header = (struct catalog_header){
		.magic = CATALOG_MAGIC,
		.layout = CATALOG_LAYOUT,
		.size = sizeof(*c),
		.instance = 1,
		.max_tensors = LIAR_SLOTS,
		.max_names = LIAR_NAMES,
		.max_chunks = LIAR_CHUNKS,
		.max_clients = LIAR_CLIENTS,
		.bucket_mask = LIAR_BUCKETS - 1,
		.daemon_pid = 1,
		.off_wakes = offsetof(struct liar_catalog, wakes),
		.off_watches = offsetof(struct liar_catalog, watches),
		.off_clients = offsetof(struct liar_catalog, clients),
		.off_identities = offsetof(struct liar_catalog, identities),
		.off_buckets = offsetof(struct liar_catalog, buckets),
		.off_named = offsetof(struct liar_catalog, named),
		.off_names = offsetof(struct liar_catalog, names),
		.off_rows = offsetof(struct liar_catalog, rows),
		.off_segments = offsetof(struct liar_catalog, segments),
		.off_chunks = offsetof(struct liar_catalog, chunks),
		.off_members = offsetof(struct liar_catalog, members),
		.off_streams = offsetof(struct liar_catalog, streams),
		.slots_high = LIAR_SLOTS,
	};
	for (unsigned i = 0; i < LIAR_CLIENTS; i++)
		c->clients[i] = live_word(1);
	for (unsigned i = 0; i < LIAR_BUCKETS; i++)
		c->buckets[i] = CATALOG_NONE;
	c->named[0] = UINT64_MAX;
	for (unsigned i = 0; i < LIAR_NAMES; i++)
		c->names[i].next = CATALOG_NONE;
	for (unsigned i = 0; i < LIAR_SLOTS; i++)
		c->segments[i] = (struct catalog_segment){ .word = live_word(1),
							   .size = LIAR_SEGMENT_BYTES };
	for (unsigned i = 0; i < LIAR_CHUNKS; i++)
		c->chunks[i].next = CATALOG_NONE;
}

void liar_repent(struct liar *liar)
{
	pthread_mutex_lock(&liar->lock);
	catalog_fill(liar->catalog);
	check(ftruncate(liar->catalog_fd, sizeof(struct liar_catalog)) == 0);
	liar->welcome = (struct wire_welcome){
		.version = WIRE_VERSION,
		.client_generation = 1,
		.max_tensors = LIAR_SLOTS,
		.catalog_size = sizeof(struct liar_catalog),
		.catalog_layout = CATALOG_LAYOUT,
		.instance = 1,
	};
	liar->draft = (struct wire_draft){
		.ref = ref_make(1, 5),
		.segment_size = LIAR_SEGMENT_BYTES,
		.segment_generation = 1,
		.flags = WIRE_DRAFT_FD,
	};
	atomic_store(&liar->segment_size, LIAR_SEGMENT_BYTES);
	atomic_store(&liar->descriptor, -1);
	liar->answer = NULL;
	pthread_mutex_unlock(&liar->lock);
}

void liar_set_answer(struct liar *liar, liar_answer *answer)
{
	pthread_mutex_lock(&liar->lock);
	liar->answer = answer;
	pthread_mutex_unlock(&liar->lock);
}

struct catalog_row *liar_publish(struct liar *liar, uint32_t slot, const char *name, unsigned ndim,
				 const int64_t *shape, uint32_t segment, uint64_t offset)
{
	struct liar_catalog *c = liar->catalog;
	uint64_t hash = XXH3_64bits(name, strlen(name)), nbytes = 1;
	uint32_t bucket = (uint32_t)(hash >> 32) & (LIAR_BUCKETS - 1);
	struct catalog_row *row = &c->rows[slot];
	struct catalog_name *entry = &c->names[slot];

	check(ndim <= CATALOG_INLINE_NDIM && strlen(name) <= CATALOG_INLINE_NAME);
	for (unsigned i = 0; i < ndim; i++) {
		row->shape[i] = (uint32_t)shape[i];
		nbytes *= (uint64_t)shape[i];
	}
	row->offset = offset;
	row->segment = segment;
	row->segment_generation = 1;
	row->name = slot;
	row->chunk = CATALOG_NONE;
	row->dtype_code = kDLUInt;
	row->dtype_bits = 8;
	row->dtype_lanes = 1;
	row->meta_len = 0;
	row->ndim = (uint8_t)ndim;
	row->flags = 0;
	row->version = 1;
	row->nbytes = nbytes;
	row->word = row_word(1, ROW_LIVE);
	entry->hash = (uint32_t)hash;
	entry->len = (uint16_t)strlen(name);
	entry->chunk = CATALOG_NONE;
	memcpy(entry->text, name, strlen(name));
	entry->version = 1;
	entry->current = ref_make(1, slot);
	entry->next = c->buckets[bucket];
	c->buckets[bucket] = slot;
	return row;
}

/* ---- Answers ---- */

void liar_send(int socket, const struct conn_message *request, unsigned type, void *message,
	       size_t length, int fd_peek)
{
	struct wire_header *h = message;

	*h = (struct wire_header){ .type = (uint16_t)type,
				   .length = (uint32_t)length,
				   .serial = request->header.serial };
	conn_send(socket, message, fd_peek, MSG_DONTWAIT);
}

static int descriptor_of(const struct liar *liar, uint32_t segment)
{
	int other = atomic_load(&liar->descriptor);

	return other >= 0 ? other : liar->segment_fds[segment % LIAR_SEGMENTS];
}

static void answer_draft(struct liar *liar, int socket, const struct conn_message *request)
{
	struct wire_draft draft = liar->draft;
	int fd = draft.flags & WIRE_DRAFT_FD ? descriptor_of(liar, draft.segment) : -1;

	liar_send(socket, request, WIRE_DRAFT, &draft, sizeof(draft), fd);
}

static void answer(struct liar *liar, int socket, struct conn_message *m)
{
	const struct wire_map *map = (const void *)m->bytes;
	const struct catalog_row *row;
	struct wire_segment segment = { .size = atomic_load(&liar->segment_size) };
	struct wire_welcome welcome = liar->welcome;
	struct wire_committed committed = { .version = 1 };
	struct wire_plain plain;

	if (liar->answer && liar->answer(liar, socket, m))
		return;
	switch (m->header.type) {
	case WIRE_HELLO:
		welcome.mono_ns = (uint64_t)now_mono_ns();
		liar_send(socket, m, WIRE_WELCOME, &welcome, sizeof(welcome), liar->catalog_fd);
		break;
	case WIRE_LEDGER:
		liar_send(socket, m, WIRE_READY, &plain, sizeof(plain), -1);
		break;
	case WIRE_CREATE:
		answer_draft(liar, socket, m);
		break;
	case WIRE_MAP:
		row = &liar->catalog->rows[ref_slot(map->ref) % LIAR_SLOTS];
		segment.segment = row->segment;
		segment.segment_generation = row->segment_generation;
		liar_send(socket, m, WIRE_SEGMENT, &segment, sizeof(segment),
			  descriptor_of(liar, row->segment));
		break;
	case WIRE_WATCH: {
		struct wire_watch_ref watched = { .generation = atomic_load(
							  &liar->catalog->watches[0].generation) };

		liar_send(socket, m, WIRE_WATCHED, &watched, sizeof(watched), -1);
		break;
	}
	case WIRE_COMMIT:
	case WIRE_LINK:
		liar_send(socket, m, WIRE_COMMITTED, &committed, sizeof(committed), -1);
		break;
	case WIRE_ABORT:
	case WIRE_RELEASED:
	case WIRE_MEMBER:
		break;
	default:
		liar_send(socket, m, WIRE_DONE, &plain, sizeof(plain), -1);
	}
}

/* ---- The thread ---- */

static void peer_end(struct liar *liar, unsigned i)
{
	close(liar->peers[i]);
	liar->peers[i] = liar->peers[--liar->npeers];
}

static void accept_one(struct liar *liar)
{
	int fd = accept4(liar->listener, NULL, NULL, SOCK_CLOEXEC);

	if (fd < 0)
		return;
	if (liar->npeers == LIAR_PEERS)
		peer_end(liar, 0);
	liar->peers[liar->npeers++] = fd;
}

static void read_one(struct liar *liar, unsigned i)
{
	struct conn_message m;

	if (conn_receive(liar->peers[i], WIRE_TO_DAEMON, &m, MSG_DONTWAIT)) {
		peer_end(liar, i);
		return;
	}
	pthread_mutex_lock(&liar->lock);
	answer(liar, liar->peers[i], &m);
	pthread_mutex_unlock(&liar->lock);
	if (m.fd >= 0)
		close(m.fd);
}

static void *work(void *arg)
{
	struct liar *liar = arg;

	for (;;) {
		struct pollfd p[LIAR_PEERS + 2] = { { .fd = liar->wake[0], .events = POLLIN },
						    { .fd = liar->listener, .events = POLLIN } };

		for (unsigned i = 0; i < liar->npeers; i++)
			p[2 + i] = (struct pollfd){ .fd = liar->peers[i], .events = POLLIN };
		check(poll(p, 2 + liar->npeers, -1) > 0);
		if (p[0].revents)
			return NULL;
		for (unsigned i = liar->npeers; i-- > 0;)
			if (p[2 + i].revents)
				read_one(liar, i);
		if (p[1].revents)
			accept_one(liar);
	}
}

void liar_start(struct liar *liar)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	const char *tmp = getenv("TMPDIR");
	void *p;

	memset(liar, 0, sizeof(*liar));
	snprintf(liar->dir, sizeof(liar->dir), "%s/liar.XXXXXX", tmp ? tmp : "/tmp");
	check(mkdtemp(liar->dir));
	snprintf(liar->socket, sizeof(liar->socket), "%s/socket", liar->dir);
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", liar->socket);
	liar->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	check(liar->listener >= 0 && !bind(liar->listener, (struct sockaddr *)&a, sizeof(a)) &&
	      !listen(liar->listener, 8));
	check(!pipe2(liar->wake, O_CLOEXEC));
	liar->catalog_fd = object_new(sizeof(struct liar_catalog), &p);
	liar->catalog = p;
	for (unsigned i = 0; i < LIAR_SEGMENTS; i++) {
		liar->segment_fds[i] = object_new(LIAR_SEGMENT_BYTES, &p);
		liar->segments[i] = p;
		memset(p, (int)i + 1, LIAR_SEGMENT_BYTES);
	}
	check(!pthread_mutex_init(&liar->lock, NULL));
	liar_repent(liar);
	check(!pthread_create(&liar->thread, NULL, work, liar));
}

void liar_stop(struct liar *liar)
{
	check(write(liar->wake[1], "", 1) == 1 && !pthread_join(liar->thread, NULL));
	while (liar->npeers)
		peer_end(liar, 0);
	close(liar->wake[0]);
	close(liar->wake[1]);
	pthread_mutex_destroy(&liar->lock);
	close(liar->listener);
	unlink(liar->socket);
	rmdir(liar->dir);
	munmap(liar->catalog, sizeof(struct liar_catalog));
	close(liar->catalog_fd);
	for (unsigned i = 0; i < LIAR_SEGMENTS; i++) {
		munmap(liar->segments[i], LIAR_SEGMENT_BYTES);
		close(liar->segment_fds[i]);
	}
}

int liar_try_connect(const struct liar *liar, int64_t timeout_ns, tl_client **client)
{
	tl_connect_options o = { .size = sizeof(o),
				 .address = liar->socket,
				 .timeout_ns = timeout_ns };

	return tl_connect(&o, client);
}

tl_client *liar_connect(const struct liar *liar)
{
	tl_client *client = NULL;

	check(liar_try_connect(liar, test_limit(60) * NS_PER_SEC, &client) == 0);
	return client;
}
