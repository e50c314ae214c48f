/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handshake: HELLO and WELCOME, LEDGER and READY. The connecting thread does it, while no other
 * thread knows the socket. fork() makes a child's connection in the same way.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/connection/answer.h"
#include "client/connection/handshake.h"
#include "client/error.h"
#include "proto/catalog_layout.h"
#include "proto/conn.h"
#include "proto/ledger_layout.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/fd.h"

/* Waits for one message of the handshake. */
static int receive_until(int socket, struct conn_message *m, int64_t deadline)
{
	for (;;) {
		int r = conn_receive(socket, WIRE_TO_CLIENT, m, MSG_DONTWAIT);

		if (r != -EAGAIN)
			return !r && m->fd_lost ? -EMFILE : r;
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
	case -ENOBUFS:
	case -ETOOMANYREFS:
		return send_refused(r, address);
	default:
		return tl_fail(r, "talking to the daemon at %s: %m", address);
	}
}

static int send_until(const struct handshake *handshake, const void *message, int fd_peek,
		      int64_t deadline)
{
	int r;

	for (;;) {
		r = conn_send(handshake->socket, message, fd_peek, MSG_DONTWAIT);
		if (r == -EAGAIN) {
			r = socket_wait(handshake->socket, POLLOUT, deadline);
			if (r)
				return r;
		} else if ((r != -ENOBUFS && r != -ETOOMANYREFS) || pause_until(deadline)) {
			return r; /* no event reports the end of these two: hence the pause */
		}
	}
}

/* Sends one message of the handshake and takes the answer of type @expected. */
static int exchange(const struct handshake *handshake, const void *message, int fd_peek,
		    unsigned expected, struct conn_message *answer, int64_t deadline)
{
	int r;

	answer->fd = -1;
	answer->why[0] = '\0';
	r = send_until(handshake, message, fd_peek, deadline);
	if (!r || r == -EPIPE || r == -ECONNRESET) /* a daemon that hung up may have said why */
		r = receive_until(handshake->socket, answer, deadline);
	if (r)
		return handshake_failure(r, handshake->address, answer);
	if (expected == WIRE_READY && answer->header.type == WIRE_ADOPTED)
		return 0; /* its daemon died before it could say READY */
	return answer_expect(answer, expected, handshake->address);
}

/* Another thread may fork at any time, and the child then ends its copy of the handshake. So each
 * member is cleared before its descriptor is closed or its memory unmapped: then the number or the
 * address could be somebody else's. */
void handshake_deinit(struct handshake *handshake)
{
	void *ledger = handshake->ledger;

	handshake->ledger = NULL;
	if (ledger) /* before the socket is closed: see session_deinit() */
		munmap(ledger, ledger_size(handshake->welcome.max_tensors));
	fd_close(take_fd(&handshake->socket));
	fd_close(take_fd(&handshake->ledger_fd));
	fd_close(take_fd(&handshake->catalog_fd));
}

/*
 * Makes the ledger: a memfd of the size that the protocol asks for, sealed against any other size,
 * mapped, and with its header filled in.
 */
static int ledger_new(struct handshake *handshake)
{
	uint32_t slots = handshake->welcome.max_tensors;
	size_t size = ledger_size(slots);
	void *p;

	handshake->ledger_fd = fd_raise(
		memfd_create("tensorlease-ledger", MFD_CLOEXEC | MFD_ALLOW_SEALING));
	if (handshake->ledger_fd < 0)
		return tl_fail(-errno, "memfd_create for the ledger: %m");
	/* the program alone decides what SIGXFSZ does, so we must not cause it */
	if (size > fd_size_limit())
		return tl_fail(
			-EFBIG,
			"making a ledger of %zu bytes: this process may make files of at most "
			"%llu bytes; raise its RLIMIT_FSIZE (ulimit -f)",
			size, (unsigned long long)fd_size_limit());
	if (ftruncate(handshake->ledger_fd, (off_t)size))
		return tl_fail(-errno, "making a ledger of %zu bytes: %m", size);
	/* the address is noted before the ledger is mapped there: else a child that is forked in
	 * between keeps the mapping */
	p = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return tl_fail_mmap("no addresses for a ledger of %zu bytes", size);
	handshake->ledger = p;
	p = mmap(p, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, handshake->ledger_fd, 0);
	if (p == MAP_FAILED)
		return tl_fail_mmap("mapping the ledger of %zu bytes", size);
	if (fcntl(handshake->ledger_fd, F_ADD_SEALS, LEDGER_SEALS))
		return tl_fail(-errno, "sealing the ledger: %m%s",
			       errno == EINVAL ? "; F_SEAL_FUTURE_WRITE needs Linux 5.1" : "");
	handshake->ledger->magic = LEDGER_MAGIC;
	handshake->ledger->layout = LEDGER_LAYOUT;
	handshake->ledger->slots = slots;
	return 0;
}

/* What to do about a daemon of another version. */
#define OTHER_VERSION                                                                              \
	"use the tensorlease that it is of, or replace the daemon, which loses its tensors: "      \
	"systemctl restart tensorleased, or SIGUSR2 to the daemon"

/* Returns how far the daemon's clock is ahead of ours, if HELLO was sent and WELCOME came at these
 * times. The daemon's time lies between them unless it is in another time namespace. */
static uint64_t clock_ahead(uint64_t daemon, uint64_t sent, uint64_t came)
{
	return daemon - sent <= came - sent ? 0 : daemon - came;
}

int handshake_hello(struct handshake *handshake, const struct address *address, int64_t deadline)
{
	struct {
		struct wire_hello hello;
		char name_space[TENSOR_NAMESPACE_MAX];
	} m = { .hello = { .header = { .type = WIRE_HELLO, .serial = 1 },
			   .version_min = WIRE_VERSION_MIN,
			   .version_max = WIRE_VERSION,
			   .namespace_len = (uint16_t)strlen(address->name_space) } };
	uint64_t sent = (uint64_t)now_mono_ns();
	struct conn_message answer;
	int r;

	handshake->address = address->path;
	m.hello.header.length = (uint32_t)sizeof(m.hello) + m.hello.namespace_len;
	memcpy(m.name_space, address->name_space, m.hello.namespace_len);
	memcpy(m.hello.label, address->label, sizeof(m.hello.label));
	r = exchange(handshake, &m, -1, WIRE_WELCOME, &answer, deadline);
	if (r == -EPROTONOSUPPORT)
		return tl_fail(r, "%s; " OTHER_VERSION, tl_failure_text());
	if (r)
		return r;
	handshake->catalog_fd = answer.fd;
	memcpy(&handshake->welcome, answer.bytes, sizeof(handshake->welcome));
	handshake->clock_ns = clock_ahead(handshake->welcome.mono_ns, sent,
					  (uint64_t)now_mono_ns());
	if (handshake->welcome.catalog_layout != CATALOG_LAYOUT)
		return tl_fail(
			-EPROTONOSUPPORT,
			"the daemon at %s is of another version: its catalog has the layout %#llx, ours "
			"is %#llx; " OTHER_VERSION,
			handshake->address, (unsigned long long)handshake->welcome.catalog_layout,
			(unsigned long long)CATALOG_LAYOUT);
	return ledger_new(handshake);
}

int handshake_hold(struct handshake *handshake, uint32_t segment, uint32_t generation,
		   int64_t deadline)
{
	struct wire_segment_ref m = {
		.header = { .type = WIRE_HOLD, .length = sizeof(m) },
		.segment = segment,
		.segment_generation = generation,
	};

	return send_until(handshake, &m, -1, deadline);
}

int handshake_ledger(struct handshake *handshake, int64_t deadline)
{
	struct wire_ledger m = {
		.header = { .type = WIRE_LEDGER, .length = sizeof(m), .serial = 2 },
		.size = ledger_size(handshake->welcome.max_tensors),
		.layout = LEDGER_LAYOUT,
	};
	struct conn_message answer;
	int r = exchange(handshake, &m, handshake->ledger_fd, WIRE_READY, &answer, deadline);

	if (r)
		return r;
	fd_close(take_fd(&handshake->ledger_fd)); /* see handshake_deinit() */
	handshake->life = answer.header.life;
	return 0;
}
