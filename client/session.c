/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions: how one is made, and when it ends.
 *
 * Lifetime. A session's resources (catalog, ledger, mappings, socket) are used by calls, by leases
 * and by drafts. Each of them holds one count (users.h): a call from users_enter() to
 * users_leave(), a lease and a draft from being taken until they are released, on whatever thread.
 * The struct itself stays allocated until the client is freed. So:
 * (1) When users_close() was called and the counts are 0, exactly one thread calls
 *     session_drained(), and nobody touches the resources any more. It destroys them and drops the
 *     session's reference to the client.
 * (2) The client's own reference is dropped by tl_close(). users_enter() is only used by calls on
 *     the client, and there is none then; leases and drafts only leave. So when both have been
 *     dropped nobody is left who could touch a session's struct, and the client is freed with all
 *     of them.
 *
 * A session whose connection is gone (`lost`) goes on serving gets of what is mapped, until the
 * daemon or its successor says in the catalog that the ledger is read no more.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/address.h"
#include "client/client.h"
#include "client/cuda/session.h"
#include "client/error.h"
#include "client/fork.h"
#include "client/mapping.h"
#include "client/produce.h"
#include "client/request.h"
#include "client/session.h"
#include "proto/conn.h"
#include "util/checked.h"
#include "util/clock.h"
#include "util/fd.h"

/* ---- The end ---- */

void session_unmap_ledger(struct session *s)
{
	if (s->ledger)
		munmap(s->ledger, s->ledger_bytes);
	s->ledger = NULL;
	s->held = NULL;
	s->touched = NULL;
}

/* Alone with @s. Its struct stays, marked as drained. */
static void session_destroy(struct session *s)
{
	cuda_session_end(s);
	pthread_mutex_lock(&s->client->mutex); /* fork() finds all of it, or nothing */
	produce_deinit(s);
	mappings_deinit(s);
	fork_forget_pins(s);
	s->heir = fd_close(s->heir);
	session_unmap_ledger(s); /* before the socket: that nobody has it mapped says that nothing
				    is used */
	s->socket = fd_close(s->socket);
	if (s->catalog)
		munmap((void *)s->catalog, s->catalog_size);
	s->catalog = NULL;
	atomic_store(&s->drained, true);
	pthread_mutex_unlock(&s->client->mutex);
}

void session_drained(struct session *s)
{
	struct tl_client *client = s->client;

	session_destroy(s);
	client_unref(client);
}

void session_close(struct session *s)
{
	users_close(&s->users);
}

/* ---- Hello ---- */

/* Waits for one message of the handshake. */
static int receive_until(int socket, struct conn_message *m, int64_t deadline)
{
	for (;;) {
		int r = conn_receive(socket, WIRE_TO_CLIENT, m, MSG_DONTWAIT);

		if (r != -EAGAIN)
			return r;
		r = socket_wait(socket, POLLIN, deadline);
		if (r)
			return r;
	}
}

static int handshake_failure(int r, const char *address, const struct conn_message *m)
{
	switch (r) {
	case -ETIMEDOUT:
		return tl_fail(r, "the daemon at %s did not answer in time", address);
	case -EBADMSG:
		return tl_fail(-EPROTO, "the daemon at %s broke the protocol: %s", address, m->why);
	case -ECONNRESET:
	case -EPIPE:
		return tl_fail(-ENOTCONN, "the daemon at %s ended the connection", address);
	default:
		return tl_fail(r, "talking to the daemon at %s: %m", address);
	}
}

/* Sends one message of the handshake and takes the answer of type @want. */
static int handshake(const struct session_peer *peer, const void *message, int fd_peek,
		     unsigned want, struct conn_message *answer, int64_t deadline)
{
	int r;

	answer->fd = -1;
	answer->why[0] = '\0';
	while ((r = conn_send(peer->socket, message, fd_peek, MSG_DONTWAIT)) == -EAGAIN) {
		r = socket_wait(peer->socket, POLLOUT, deadline);
		if (r)
			return handshake_failure(r, peer->address, answer);
	}
	if (!r || r == -EPIPE || r == -ECONNRESET) /* it may have said why */
		r = receive_until(peer->socket, answer, deadline);
	if (r)
		return handshake_failure(r, peer->address, answer);
	return answer_expect(answer, want, peer->address);
}

void session_peer_deinit(struct session_peer *peer)
{
	if (peer->ledger) /* before the socket, as in session_destroy() */
		munmap(peer->ledger, ledger_size(peer->welcome.max_tensors));
	peer->ledger = NULL;
	peer->socket = fd_close(peer->socket);
	peer->ledger_fd = fd_close(peer->ledger_fd);
	peer->catalog_fd = fd_close(peer->catalog_fd);
}

/*
 * A memfd of the size that the protocol asks for, mapped and filled, sealed against any other size.
 */
static int ledger_new(struct session_peer *peer)
{
	uint32_t slots = peer->welcome.max_tensors;
	size_t size = ledger_size(slots);
	void *p;

	peer->ledger_fd = memfd_create("tensorlease-ledger", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (peer->ledger_fd < 0)
		return tl_fail(-errno, "memfd_create for the ledger: %m");
	if (ftruncate(peer->ledger_fd, (off_t)size) ||
	    fcntl(peer->ledger_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
		return tl_fail(-errno, "making a ledger of %zu bytes: %m", size);
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, peer->ledger_fd, 0);
	if (p == MAP_FAILED)
		return tl_fail(-errno, "mapping the ledger of %zu bytes: %m", size);
	peer->ledger = p;
	peer->ledger->magic = LEDGER_MAGIC;
	peer->ledger->layout = LEDGER_LAYOUT;
	peer->ledger->slots = slots;
	return 0;
}

int session_peer_hello(struct session_peer *peer, const char *address, int64_t deadline)
{
	struct wire_hello hello = {
		.header = { .type = WIRE_HELLO, .length = sizeof(hello), .serial = 1 },
		.version_min = WIRE_VERSION_MIN,
		.version_max = WIRE_VERSION,
	};
	struct conn_message answer;
	int r;

	peer->address = address;
	strncpy(hello.label, program_invocation_short_name, sizeof(hello.label) - 1);
	r = handshake(peer, &hello, -1, WIRE_WELCOME, &answer, deadline);
	if (r)
		return r;
	peer->catalog_fd = answer.fd;
	memcpy(&peer->welcome, answer.bytes, sizeof(peer->welcome));
	if (peer->welcome.catalog_layout != CATALOG_LAYOUT)
		return tl_fail(
			-EPROTONOSUPPORT,
			"the daemon at %s has another layout of the catalog (%#llx, ours is %#llx)",
			address, (unsigned long long)peer->welcome.catalog_layout,
			(unsigned long long)CATALOG_LAYOUT);
	return ledger_new(peer);
}

int session_peer_ledger(struct session_peer *peer, int64_t deadline)
{
	struct wire_ledger m = {
		.header = { .type = WIRE_LEDGER, .length = sizeof(m), .serial = 2 },
		.size = ledger_size(peer->welcome.max_tensors),
		.layout = LEDGER_LAYOUT,
	};
	struct conn_message answer;
	int r = handshake(peer, &m, peer->ledger_fd, WIRE_READY, &answer, deadline);

	if (r)
		return r;
	peer->ledger_fd = fd_close(peer->ledger_fd);
	return 0;
}

/* ---- The beginning ---- */

static bool array_fits(const struct catalog_header *c, uint64_t offset, uint64_t n, uint64_t size,
		       uint64_t align)
{
	uint64_t bytes, end;

	return checked_mul_u64(&bytes, n, size) && checked_add_u64(&end, offset, bytes) &&
	       end <= c->size && offset >= sizeof(*c) && offset % align == 0;
}

/* @c is a copy: the daemon may change its own at any time. */
static bool catalog_good(const struct catalog_header *c, const struct wire_welcome *w)
{
	return c->magic == CATALOG_MAGIC && c->layout == CATALOG_LAYOUT &&
	       c->size == w->catalog_size && c->instance == w->instance &&
	       c->max_tensors == w->max_tensors && c->max_tensors <= CATALOG_MAX_TENSORS &&
	       w->client_index < c->max_clients &&
	       (c->bucket_mask & ((uint64_t)c->bucket_mask + 1)) == 0 &&
	       array_fits(c, c->off_clients, c->max_clients, 8, 8) &&
	       array_fits(c, c->off_buckets, (uint64_t)c->bucket_mask + 1, 4, 4) &&
	       array_fits(c, c->off_names, c->max_names, sizeof(struct catalog_name), 8) &&
	       array_fits(c, c->off_rows, c->max_tensors, sizeof(struct catalog_row), 64) &&
	       array_fits(c, c->off_segments, c->max_tensors, sizeof(struct catalog_segment), 8) &&
	       array_fits(c, c->off_chunks, c->max_chunks, sizeof(struct catalog_chunk), 4);
}

static void catalog_adopt(struct session *s, const char *base, const struct catalog_header *c)
{
	s->clients = (const void *)(base + c->off_clients);
	s->buckets = (const void *)(base + c->off_buckets);
	s->names = (const void *)(base + c->off_names);
	s->rows = (const void *)(base + c->off_rows);
	s->segments = (const void *)(base + c->off_segments);
	s->chunks = (const void *)(base + c->off_chunks);
	s->slots = c->max_tensors;
	s->max_names = c->max_names;
	s->max_chunks = c->max_chunks;
	s->max_clients = c->max_clients;
	s->bucket_mask = c->bucket_mask;
	s->instance = c->instance;
}

/* Maps the catalog that came with WELCOME. Its descriptor is not needed any longer. */
static int catalog_map(struct session *s, struct session_peer *peer)
{
	const struct wire_welcome *w = &peer->welcome;
	struct catalog_header c;
	void *p;
	int r;

	if (w->catalog_size < sizeof(c))
		return tl_fail(-EPROTO, "the daemon's catalog has %llu bytes, of %zu at least",
			       (unsigned long long)w->catalog_size, sizeof(c));
	r = mapping_check_fd(peer->catalog_fd, w->catalog_size, "the catalog");
	if (r)
		return r;
	p = mmap(NULL, w->catalog_size, PROT_READ, MAP_SHARED, peer->catalog_fd, 0);
	if (p == MAP_FAILED)
		return tl_fail(-errno, "mapping the catalog of %llu bytes: %m",
			       (unsigned long long)w->catalog_size);
	s->catalog = p;
	s->catalog_size = w->catalog_size;
	memcpy(&c, p, sizeof(c));
	if (!catalog_good(&c, w))
		return tl_fail(-EPROTO, "the daemon's catalog contradicts its WELCOME or itself");
	catalog_adopt(s, p, &c);
	peer->catalog_fd = fd_close(peer->catalog_fd);
	return 0;
}

void session_adopt_peer(struct session *s, struct session_peer *peer)
{
	s->socket = peer->socket;
	s->ledger = peer->ledger;
	s->ledger_bytes = ledger_size(peer->welcome.max_tensors);
	s->held = ledger_held(peer->ledger, s->slots);
	s->touched = peer->ledger->touched;
	s->mine = &s->clients[peer->welcome.client_index];
	s->mine_live = live_word(peer->welcome.client_generation);
	atomic_store(&s->serial, 2); /* those of the handshake */
	peer->socket = -1;
	peer->ledger = NULL;
}

static struct session *session_alloc(struct tl_client *client)
{
	struct session *s = aligned_alloc(64, (sizeof(*s) + 63) / 64 * 64);

	if (!s)
		return NULL;
	memset(s, 0, sizeof(*s));
	s->client = client;
	s->socket = -1;
	s->heir = -1;
	list_init(&s->pins);
	pthread_mutex_init(&s->receive_mutex, NULL);
	pthread_mutex_init(&s->mapping_mutex, NULL);
	pthread_mutex_init(&s->produce_mutex, NULL);
	list_init(&s->pending);
	list_init(&s->drafts);
	return s;
}

static int session_set_up(struct session *s, struct session_peer *peer, int64_t deadline)
{
	int r;

	r = session_peer_hello(peer, s->client->address, deadline);
	if (r)
		return r;
	r = catalog_map(s, peer);
	if (r)
		return r;
	r = mappings_init(s);
	if (r)
		return r;
	return session_peer_ledger(peer, deadline);
}

int session_new(struct session **out, struct tl_client *client, struct session_peer *peer,
		int64_t deadline)
{
	struct session *s = session_alloc(client);
	int r;

	if (!s)
		return tl_fail(-ENOMEM, "no memory for a session");
	r = session_set_up(s, peer, deadline);
	if (r) {
		mappings_deinit(s);
		if (s->catalog)
			munmap((void *)s->catalog, s->catalog_size);
		session_free(s);
		return r;
	}
	*out = s;
	return 0;
}

struct session *session_free(struct session *s)
{
	if (!s)
		return NULL;
	pthread_mutex_destroy(&s->receive_mutex);
	pthread_mutex_destroy(&s->mapping_mutex);
	pthread_mutex_destroy(&s->produce_mutex);
	free(s->aborts);
	free(s);
	return NULL;
}
