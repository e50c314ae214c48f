/* SPDX-License-Identifier: Apache-2.0 */
/* Raw protocol connections: what a client could do that does not use the library. */
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>

#include "proto/name_key.h"
#include "tests/harness/harness.h"

enum { LET_GO_MS = 10, FDS_AT_ONCE = 32 };

/* The kernel makes us wait while as many connections as it holds wait to be accepted. */
static int try_connect(struct raw *rc, const char *path)
{
	struct timeval wait = { .tv_sec = rc->wait_ms / 1000,
				.tv_usec = (suseconds_t)rc->wait_ms % 1000 * 1000 };
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	rc->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (rc->fd < 0)
		return -errno;
	if (rc->wait_ms && setsockopt(rc->fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait)))
		return -errno;
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	return connect(rc->fd, (struct sockaddr *)&a, sizeof(a)) ? -errno : 0;
}

struct raw rc_connect(const struct test_daemon *d)
{
	struct raw rc = { .catalog_fd = -1, .ledger_fd = -1 };

	must_be(try_connect(&rc, d->socket), 0);
	return rc;
}

int rc_send(struct raw *rc, enum wire_type type, void *message, size_t length, int fd_peek)
{
	struct wire_header *h = message;

	h->type = (uint16_t)type;
	h->length = (uint32_t)length;
	h->life = rc->life;
	h->serial = h->serial ? h->serial : ++rc->serial;
	return conn_send(rc->fd, message, fd_peek, 0);
}

int rc_send_bytes(struct raw *rc, const void *bytes, size_t length, int fd_peek, unsigned nfds)
{
	alignas(struct cmsghdr) char control[CMSG_SPACE(FDS_AT_ONCE * sizeof(int))] = { 0 };
	struct iovec iov = { .iov_base = (void *)bytes, .iov_len = length };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

	must(nfds <= FDS_AT_ONCE);
	if (nfds) {
		struct cmsghdr *c = (struct cmsghdr *)(void *)control;

		msg.msg_control = control;
		msg.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(nfds * sizeof(int));
		for (unsigned i = 0; i < nfds; i++)
			memcpy(CMSG_DATA(c) + i * sizeof(int), &fd_peek, sizeof(int));
	}
	return sendmsg(rc->fd, &msg, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

int rc_receive(struct raw *rc, struct conn_message *m)
{
	struct pollfd p = { .fd = rc->fd, .events = POLLIN };
	int64_t until = now_ns() + (rc->wait_ms ? rc->wait_ms : WAIT_MS) * (SECOND / 1000);

	m->fd = -1;
	while (poll(&p, 1, LET_GO_MS) == 0) { /* the daemon may wait for us to let go */
		if (now_ns() > until)
			return -ETIMEDOUT;
		rc_let_go(rc);
	}
	return conn_receive(rc->fd, WIRE_TO_CLIENT, m, MSG_DONTWAIT);
}

/* Keeps what the daemon says of its own accord for rc_notice(), and drops everything else. */
static void put_aside(struct raw *rc, const struct conn_message *m)
{
	struct raw_notice *notice = &rc->notices[rc->nnotices];
	struct wire_segment_ref unmap;
	struct wire_freed freed;

	if (m->fd >= 0)
		close(m->fd);
	if (m->header.type != WIRE_FREED && m->header.type != WIRE_UNMAP)
		return;
	must_be(m->header.serial, 0);
	must(rc->nnotices < RAW_NOTICES_MAX);
	rc->nnotices++;
	*notice = (struct raw_notice){ .type = m->header.type };
	if (m->header.type == WIRE_FREED) {
		memcpy(&freed, m->bytes, sizeof(freed));
		notice->ref = freed.ref;
		notice->cookie = freed.cookie;
	} else {
		memcpy(&unmap, m->bytes, sizeof(unmap));
		notice->segment = unmap.segment;
		notice->generation = unmap.segment_generation;
	}
}

/* Receives until the message with that serial comes. */
static int rc_await(struct raw *rc, uint32_t serial, struct conn_message *answer)
{
	int r;

	for (;;) {
		r = rc_receive(rc, answer);
		if (r || answer->header.serial == serial)
			return r;
		put_aside(rc, answer);
	}
}

int rc_call(struct raw *rc, enum wire_type type, void *message, size_t length,
	    struct conn_message *answer)
{
	struct wire_header *h = message;
	int r = rc_send(rc, type, message, length, -1);

	if (!r)
		r = rc_await(rc, h->serial, answer);
	rc_let_go(rc);
	return r;
}

static void segment_close(struct raw_segment *w)
{
	if (w->map)
		munmap(w->map, w->size);
	if (w->fd >= 0)
		close(w->fd);
}

static const struct catalog_segment *segment_entry(const struct raw *rc, uint32_t segment)
{
	const char *base = (const char *)rc->catalog;

	return (const struct catalog_segment *)(const void *)(base + rc->catalog->off_segments) +
	       segment;
}

static void segments_let_go(const struct raw *rc, struct raw_segment *list, unsigned *n, bool all)
{
	unsigned left = 0;

	for (unsigned i = 0; i < *n; i++) {
		if (all || (list[i].map && segment_entry(rc, list[i].segment)->word !=
						   live_word(list[i].generation)))
			segment_close(&list[i]);
		else
			list[left++] = list[i];
	}
	*n = left;
}

void rc_let_go(struct raw *rc)
{
	segments_let_go(rc, rc->writable, &rc->writable_n, false);
	segments_let_go(rc, rc->views, &rc->views_n, false);
}

static int try_hello(struct raw *rc)
{
	struct {
		struct wire_hello hello;
		char name[TENSOR_NAMESPACE_MAX + 1];
	} first = { .hello = { .version_min = WIRE_VERSION_MIN,
			       .version_max = WIRE_VERSION,
			       .label = "raw" } };
	struct conn_message m;
	void *p;
	int r;

	if (rc->name_space)
		first.hello.namespace_len = (uint16_t)snprintf(first.name, sizeof(first.name), "%s",
							       rc->name_space);
	r = rc_send(rc, WIRE_HELLO, &first, sizeof(first.hello) + first.hello.namespace_len, -1);
	if (r == 0 || r == -EPIPE) /* the daemon may have said why it does not want us */
		r = rc_receive(rc, &m);
	if (r == 0)
		r = rc_judge(&m, WIRE_WELCOME);
	if (r)
		return r;
	memcpy(&rc->welcome, m.bytes, sizeof(rc->welcome));
	rc->catalog_fd = m.fd;
	p = mmap(NULL, rc->welcome.catalog_size, PROT_READ, MAP_SHARED, m.fd, 0);
	if (p == MAP_FAILED)
		return -errno;
	rc->catalog = p;
	return 0;
}

void rc_hello(struct raw *rc)
{
	must_be(try_hello(rc), 0);
}

int ledger_new(uint32_t slots, uint64_t magic)
{
	struct ledger header = { .magic = magic, .layout = LEDGER_LAYOUT, .slots = slots };
	int fd = memfd_create("tensorlease-ledger", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	must(fd >= 0);
	must_be(ftruncate(fd, (off_t)ledger_size(slots)), 0);
	must_be(pwrite(fd, &header, sizeof(header), 0), sizeof(header));
	return fd;
}

int ledger_seal(int fd)
{
	return fcntl(fd, F_ADD_SEALS, LEDGER_SEALS);
}

static int try_ledger(struct raw *rc)
{
	struct wire_ledger ledger = { .size = ledger_size(rc->welcome.max_tensors),
				      .layout = LEDGER_LAYOUT };
	struct conn_message m;
	void *p;
	int r;

	rc->ledger_size = ledger.size;
	if (rc->ledger_fd < 0)
		rc->ledger_fd = ledger_new(rc->welcome.max_tensors, LEDGER_MAGIC);
	p = mmap(NULL, rc->ledger_size, PROT_READ | PROT_WRITE, MAP_SHARED, rc->ledger_fd, 0);
	if (p == MAP_FAILED)
		return -errno;
	must_be(ledger_seal(rc->ledger_fd), 0);
	rc->ledger = p;
	r = rc_send(rc, WIRE_LEDGER, &ledger, sizeof(ledger), rc->ledger_fd);
	r = r ? r : rc_receive(rc, &m);
	return r ? r : rc_judge(&m, WIRE_READY);
}

void rc_ledger(struct raw *rc)
{
	must_be(try_ledger(rc), 0);
}

struct raw rc_open(const struct test_daemon *d)
{
	struct raw rc = rc_connect(d);

	rc_hello(&rc);
	rc_ledger(&rc);
	return rc;
}

int rc_try_open(struct raw *rc, const char *socket, enum raw_stage stage, int wait_ms)
{
	int r;

	*rc = (struct raw){ .catalog_fd = -1, .ledger_fd = -1, .wait_ms = wait_ms };
	r = try_connect(rc, socket);
	if (r == 0 && stage >= RAW_GREETED)
		r = try_hello(rc);
	if (r == 0 && stage >= RAW_READY)
		r = try_ledger(rc);
	if (r)
		rc_close(rc);
	return r;
}

void rc_close(struct raw *rc)
{
	segments_let_go(rc, rc->writable, &rc->writable_n, true);
	segments_let_go(rc, rc->views, &rc->views_n, true);
	if (rc->catalog)
		munmap((void *)rc->catalog, rc->welcome.catalog_size);
	if (rc->ledger)
		munmap(rc->ledger, rc->ledger_size);
	if (rc->catalog_fd >= 0)
		close(rc->catalog_fd);
	if (rc->ledger_fd >= 0)
		close(rc->ledger_fd);
	if (rc->fd >= 0)
		close(rc->fd);
	*rc = (struct raw){ .fd = -1, .catalog_fd = -1, .ledger_fd = -1 };
}

void rc_goodbye(struct raw *rc)
{
	struct conn_message m;
	int r;

	if (rc->ledger)
		munmap(rc->ledger, rc->ledger_size);
	rc->ledger = NULL;
	segments_let_go(rc, rc->writable, &rc->writable_n, true);
	must_be(shutdown(rc->fd, SHUT_WR), 0);
	do { /* notices that came and were not read */
		r = rc_receive(rc, &m);
	} while (r == 0 && (m.header.type == WIRE_FREED || m.header.type == WIRE_UNMAP));
	must_be(r, -ECONNRESET);
	rc_close(rc);
}

static void must_not_name_memory(const char *text, size_t length)
{
	must(!memmem(text, length, "/dev/shm/", 9));
	must(!memmem(text, length, "tensorlease-", 12));
	must(!memmem(text, length, "/proc", 5));
}

void rc_must_fail(const struct conn_message *m, enum wire_error code)
{
	struct wire_error_reply e;

	must_be(m->header.type, WIRE_ERROR);
	memcpy(&e, m->bytes, sizeof(e));
	must_be(e.code, code);
	must(e.text_len > 0);
	must_not_name_memory((const char *)m->bytes + sizeof(e), e.text_len);
}

void rc_must_end(struct raw *rc)
{
	struct conn_message m;
	int r = rc_receive(rc, &m);

	if (r == 0) {
		rc_must_fail(&m, WIRE_E_PROTOCOL);
		r = rc_receive(rc, &m);
	}
	must_be(r, -ECONNRESET);
}

int rc_judge(const struct conn_message *m, enum wire_type expected)
{
	struct wire_error_reply e;

	if (m->header.type == expected)
		return 0;
	must_be(m->header.type, WIRE_ERROR);
	memcpy(&e, m->bytes, sizeof(e));
	must_not_name_memory((const char *)m->bytes + sizeof(e), e.text_len);
	return (int)e.code;
}

static int judge(int r, const struct conn_message *m, enum wire_type expected)
{
	return r ? r : rc_judge(m, expected);
}

void rc_sync(struct raw *rc)
{
	struct wire_plain sync = { 0 };
	struct conn_message m;

	must_be(judge(rc_call(rc, WIRE_SYNC, &sync, sizeof(sync), &m), &m, WIRE_DONE), 0);
}

static void keep_writable(struct raw *rc, const struct wire_draft *draft, int fd)
{
	struct raw_segment *w;

	if (fd < 0)
		return;
	if (rc->writable_n == RAW_SEGMENTS_MAX) { /* forget the oldest one */
		segment_close(&rc->writable[0]);
		memmove(rc->writable, rc->writable + 1, sizeof(rc->writable) - sizeof(*w));
		rc->writable_n--;
	}
	w = &rc->writable[rc->writable_n++];
	*w = (struct raw_segment){ draft->segment, draft->segment_generation, fd };
	if (!(segment_entry(rc, draft->segment)->flags & SEGMENT_SEALED))
		return;
	w->size = draft->segment_size;
	w->map = mmap(NULL, w->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	must(w->map != MAP_FAILED);
	if (!rc->unsealed)
		must_be(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
}

static const struct raw_segment *writable_find(const struct raw *rc, const struct wire_draft *draft)
{
	for (unsigned i = 0; i < rc->writable_n; i++)
		if (rc->writable[i].segment == draft->segment &&
		    rc->writable[i].generation == draft->segment_generation)
			return &rc->writable[i];
	return NULL;
}

int rc_writable(const struct raw *rc, const struct wire_draft *draft)
{
	const struct raw_segment *w = writable_find(rc, draft);

	return w ? w->fd : -1;
}

int rc_create(struct raw *rc, const char *name, uint64_t nbytes, int64_t timeout_ns,
	      struct wire_draft *draft)
{
	struct {
		struct wire_create fixed;
		char name[256];
	} c = { .fixed = { .nbytes = nbytes, .timeout_ns = timeout_ns } };
	struct conn_message m;
	int r;

	c.fixed.name_len = (uint16_t)(name ? strlen(name) : 0);
	memcpy(c.name, name ? name : "", c.fixed.name_len);
	r = rc_call(rc, WIRE_CREATE, &c, sizeof(c.fixed) + c.fixed.name_len, &m);
	r = judge(r, &m, WIRE_DRAFT);
	if (r == 0) {
		memcpy(draft, m.bytes, sizeof(*draft));
		keep_writable(rc, draft, m.fd);
	}
	return r;
}

int rc_commit(struct raw *rc, uint64_t ref, const char *name, uint64_t nbytes)
{
	return rc_commit_as(rc, ref, name, nbytes, 0, 0);
}

int rc_commit_as(struct raw *rc, uint64_t ref, const char *name, uint64_t nbytes, unsigned lifetime,
		 uint64_t ttl_ns)
{
	struct {
		struct wire_commit fixed;
		char tail[264];
	} c = { .fixed = { .ref = ref,
			   .tensor = { .dtype_code = 1,
				       .dtype_bits = 8,
				       .dtype_lanes = 1,
				       .ndim = 1,
				       .name_len = (uint16_t)strlen(name),
				       .lifetime = (uint8_t)lifetime,
				       .ttl_ns = ttl_ns } } };
	struct conn_message m;
	int r;

	memcpy(c.tail, &nbytes, 8);
	memcpy(c.tail + 8, name, c.fixed.tensor.name_len);
	r = rc_call(rc, WIRE_COMMIT, &c, sizeof(c.fixed) + 8 + c.fixed.tensor.name_len, &m);
	return judge(r, &m, WIRE_COMMITTED);
}

int rc_ref(struct raw *rc, enum wire_type type, uint64_t ref)
{
	struct wire_ref m = { .ref = ref };

	return rc_send(rc, type, &m, sizeof(m), -1);
}

int rc_map(struct raw *rc, uint64_t ref, int *fd)
{
	struct wire_map map = { .ref = ref, .name = CATALOG_NONE };
	struct conn_message m;
	int r = judge(rc_call(rc, WIRE_MAP, &map, sizeof(map), &m), &m, WIRE_SEGMENT);

	if (r == 0)
		*fd = m.fd;
	return r;
}

int rc_delete(struct raw *rc, const char *name)
{
	struct {
		struct wire_delete fixed;
		char name[256];
	} c = { .fixed = { .name_len = (uint16_t)strlen(name) } };
	struct conn_message m;
	int r;

	memcpy(c.name, name, c.fixed.name_len);
	r = rc_call(rc, WIRE_DELETE, &c, sizeof(c.fixed) + c.fixed.name_len, &m);
	return judge(r, &m, WIRE_DONE);
}

int rc_link(struct raw *rc, uint64_t ref, const char *name)
{
	struct {
		struct wire_link fixed;
		char name[256];
	} c = { .fixed = { .ref = ref, .name_len = (uint16_t)strlen(name) } };
	struct conn_message m;
	int r;

	memcpy(c.name, name, c.fixed.name_len);
	r = rc_call(rc, WIRE_LINK, &c, sizeof(c.fixed) + c.fixed.name_len, &m);
	return judge(r, &m, WIRE_COMMITTED);
}

int rc_put_as(struct raw *rc, const char *name, uint64_t nbytes, unsigned lifetime, uint64_t ttl_ns,
	      struct wire_draft *draft)
{
	struct wire_draft mine = { 0 };
	int r;

	draft = draft ? draft : &mine;
	r = rc_create(rc, name, nbytes, 0, draft);
	return r ? r : rc_commit_as(rc, draft->ref, name, nbytes, lifetime, ttl_ns);
}

int rc_put(struct raw *rc, const char *name, uint64_t nbytes, int byte, struct wire_draft *draft)
{
	const struct raw_segment *w;
	unsigned char block[64 * KIB];
	struct wire_draft mine = { 0 };
	int r, fd;

	draft = draft ? draft : &mine;
	r = rc_create(rc, name, nbytes, 0, draft);
	if (r)
		return r;
	memset(block, byte, sizeof(block));
	fd = rc_writable(rc, draft);
	w = writable_find(rc, draft);
	if (w && w->map) {
		memset((char *)w->map + draft->offset, byte, nbytes);
		return rc_commit(rc, draft->ref, name, nbytes);
	}
	for (uint64_t at = 0, n; at < nbytes; at += n) {
		n = nbytes - at < sizeof(block) ? nbytes - at : sizeof(block);
		must_be(pwrite(fd, block, n, (off_t)(draft->offset + at)), n);
	}
	return rc_commit(rc, draft->ref, name, nbytes);
}

/* ---- memory on devices ---- */

int rc_answer(struct raw *rc, uint32_t serial, enum wire_type type)
{
	struct conn_message m;

	must_be(rc_await(rc, serial, &m), 0);
	return rc_judge(&m, type);
}

int rc_export(struct raw *rc, enum segment_kind kind, uint16_t device, uint64_t size,
	      uint64_t part_size, uint32_t parts, int fd_peek, struct wire_segment_ref *seg)
{
	struct wire_export e = {
		.size = size, .part_size = part_size, .kind = kind, .parts = parts
	};
	struct conn_message m;
	int r;

	memcpy(e.device, &device, sizeof(device));
	memset(e.handle, kind == SEGMENT_CUDA_VMM ? 0 : 0x68, sizeof(e.handle));
	must_be(rc_send(rc, WIRE_EXPORT, &e, sizeof(e), fd_peek), 0);
	must_be(rc_await(rc, e.header.serial, &m), 0);
	r = rc_judge(&m, WIRE_EXPORTED);
	if (r == 0)
		memcpy(seg, m.bytes, sizeof(*seg));
	return r;
}

uint32_t rc_part(struct raw *rc, const struct wire_segment_ref *seg, uint32_t part, uint64_t size,
		 int fd_peek)
{
	struct wire_part m = { .segment = seg->segment,
			       .segment_generation = seg->segment_generation,
			       .part = part,
			       .part_size = size };

	must_be(rc_send(rc, WIRE_PART, &m, sizeof(m), fd_peek), 0);
	return m.header.serial;
}

static uint32_t send_segment_ref(struct raw *rc, enum wire_type type,
				 const struct wire_segment_ref *seg)
{
	struct wire_segment_ref m = { .segment = seg->segment,
				      .segment_generation = seg->segment_generation };

	must_be(rc_send(rc, type, &m, sizeof(m), -1), 0);
	return m.header.serial;
}

uint32_t rc_unexport(struct raw *rc, const struct wire_segment_ref *seg)
{
	return send_segment_ref(rc, WIRE_UNEXPORT, seg);
}

void rc_unmapped(struct raw *rc, const struct wire_segment_ref *seg)
{
	send_segment_ref(rc, WIRE_UNMAPPED, seg);
	for (unsigned i = 0; i < rc->imports_n; i++) {
		if (rc->imports[i].segment == seg->segment &&
		    rc->imports[i].generation == seg->segment_generation)
			rc->imports[i--] = rc->imports[--rc->imports_n];
	}
}

static bool has_imported(const struct raw *rc, const struct wire_segment_ref *seg)
{
	for (unsigned i = 0; i < rc->imports_n; i++) {
		if (rc->imports[i].segment == seg->segment &&
		    rc->imports[i].generation == seg->segment_generation)
			return true;
	}
	return false;
}

int rc_import(struct raw *rc, const struct wire_segment_ref *seg, uint32_t part,
	      struct wire_export *imported, int *fd)
{
	struct wire_import import = { .segment = seg->segment,
				      .segment_generation = seg->segment_generation,
				      .part = part };
	struct conn_message m = { .fd = -1 };
	int r;

	r = judge(rc_call(rc, WIRE_IMPORT, &import, sizeof(import), &m), &m, WIRE_IMPORTED);
	if (r == 0 && imported)
		memcpy(imported, m.bytes, sizeof(*imported));
	if (r == 0 && rc->imports_n < RAW_SEGMENTS_MAX && !has_imported(rc, seg))
		rc->imports[rc->imports_n++] = (struct raw_import){ seg->segment,
								    seg->segment_generation };
	if (r == 0 && fd)
		*fd = m.fd;
	else if (m.fd >= 0)
		close(m.fd);
	return r;
}

int rc_place_as(struct raw *rc, const struct wire_segment_ref *seg, struct wire_placed *placed,
		const struct raw_place *place)
{
	struct {
		struct wire_place fixed;
		unsigned char tail[WIRE_MAX];
	} p = { .fixed = { .offset = place->offset,
			   .cookie = place->cookie,
			   .segment = seg->segment,
			   .segment_generation = seg->segment_generation,
			   .flags = place->event ? WIRE_PLACE_EVENT : 0,
			   .tensor = { .dtype_code = 1,
				       .dtype_bits = 8,
				       .dtype_lanes = 1,
				       .ndim = place->ndim ? place->ndim : 1,
				       .name_len = (uint16_t)strlen(place->name),
				       .meta_len = place->meta_len,
				       .lifetime = (uint8_t)place->lifetime,
				       .ttl_ns = place->ttl_ns } } };
	struct conn_message m;
	unsigned char *at = p.tail;
	uint64_t size;
	int r;

	for (unsigned i = 0; i < p.fixed.tensor.ndim; i++, at += sizeof(size)) {
		size = i + 1 < p.fixed.tensor.ndim ? 1 : place->nbytes;
		memcpy(at, &size, sizeof(size));
	}
	at = (unsigned char *)mempcpy(at, place->name, p.fixed.tensor.name_len);
	at = (unsigned char *)mempcpy(at, place->meta ? place->meta : "", place->meta_len);
	if (place->event)
		at = (unsigned char *)mempcpy(at, place->event, WIRE_HANDLE_BYTES);
	r = judge(rc_call(rc, WIRE_PLACE, &p, (size_t)(at - (unsigned char *)&p), &m), &m,
		  WIRE_PLACED);
	if (r == 0 && placed)
		memcpy(placed, m.bytes, sizeof(*placed));
	return r;
}

void rc_finished(struct raw *rc, uint64_t ref, bool failed)
{
	struct wire_finished m = { .ref = ref, .failed = failed };

	must_be(rc_send(rc, WIRE_FINISHED, &m, sizeof(m), -1), 0);
}

bool rc_device(struct raw *rc, uint32_t from, struct wire_device *device)
{
	struct wire_devices ask = { .from = from };
	struct conn_message m;

	must_be(rc_call(rc, WIRE_DEVICES, &ask, sizeof(ask), &m), 0);
	if (m.header.type == WIRE_DONE)
		return false;
	must_be(m.header.type, WIRE_DEVICE);
	memcpy(device, m.bytes, sizeof(*device));
	return true;
}

struct raw_notice rc_notice(struct raw *rc, enum wire_type type)
{
	struct conn_message m;
	struct raw_notice notice;

	for (unsigned i = 0;; i++) {
		if (i == rc->nnotices) {
			must_be(rc_receive(rc, &m), 0);
			put_aside(rc, &m);
			must(i < rc->nnotices); /* otherwise it was an answer to nothing */
		}
		if (rc->notices[i].type != type)
			continue;
		notice = rc->notices[i];
		rc->nnotices--;
		memmove(&rc->notices[i], &rc->notices[i + 1], (rc->nnotices - i) * sizeof(notice));
		return notice;
	}
}

bool rc_told_nothing(struct raw *rc)
{
	rc_sync(rc); /* the daemon sends notices before it answers that */
	return rc->nnotices == 0;
}

void rc_become_holder(struct raw *rc, uint64_t ref)
{
	const struct catalog_row *row = rc_row(rc, ref);
	struct wire_segment_ref seg = { .segment = row->segment,
					.segment_generation = row->segment_generation };
	bool open = has_imported(rc, &seg);
	int fd = -1;

	if (seg.segment == CATALOG_NONE)
		return;
	if (!(row->flags & ROW_ON_DEVICE)) {
		if (!rc_map(rc, ref, &fd))
			close(fd);
		return;
	}
	if (!rc_import(rc, &seg, 0, NULL, NULL) && !open)
		rc_unmapped(rc, &seg);
}

bool rc_hold(struct raw *rc, uint64_t ref)
{
	uint64_t live = row_word(ref_generation(ref), ROW_LIVE);

	atomic_fetch_add(rc_held(rc, ref_slot(ref)), 1);
	if (atomic_load(&rc_row(rc, ref)->word) == live) {
		rc_become_holder(rc, ref);
		if ((atomic_load(&rc_row(rc, ref)->word) | 1) == (live | 1)) /* G4 */
			return true;
	}
	rc_drop(rc, ref);
	return false;
}

void rc_drop(struct raw *rc, uint64_t ref)
{
	if (atomic_fetch_sub(rc_held(rc, ref_slot(ref)), 1) == 1 &&
	    row_word_state(atomic_load(&rc_row(rc, ref)->word)) == ROW_RETIRED)
		must_be(rc_ref(rc, WIRE_RELEASED, ref), 0);
}

const unsigned char *rc_view(struct raw *rc, const struct wire_draft *draft)
{
	bool held = rc_hold(rc, draft->ref);
	int fd = -1;
	void *p;

	must_be(rc_map(rc, draft->ref, &fd), 0);
	if (held)
		rc_drop(rc, draft->ref);
	p = mmap(NULL, draft->segment_size, PROT_READ, MAP_SHARED, fd, 0);
	must(p != MAP_FAILED);
	close(fd);
	if (segment_entry(rc, draft->segment)->flags & SEGMENT_SEALED &&
	    rc->views_n < RAW_SEGMENTS_MAX) {
		rc->views[rc->views_n++] = (struct raw_segment){ draft->segment,
								 draft->segment_generation, -1, p,
								 draft->segment_size };
	}
	return (const unsigned char *)p + draft->offset;
}

void bytes_must_be(const unsigned char *bytes, int byte, size_t n)
{
	if (n == 0 || (bytes[0] == (unsigned char)byte && memcmp(bytes, bytes + 1, n - 1) == 0))
		return;
	for (size_t i = 0; i < n; i++)
		must_be(bytes[i], (unsigned char)byte);
}

void rc_fill_bucket(struct raw *rc, const char *beside)
{
	const struct catalog_header *h = rc->catalog;
	struct name_key key = name_key(beside, strlen(beside));
	uint32_t bucket = name_hash_bucket(name_hash(&key, h->name_seed), h->bucket_mask);
	char name[24];
	int r = 0;

	for (unsigned n = 0; !r; n++) {
		key = name_key(name, (size_t)snprintf(name, sizeof(name), "fill/%x", n));
		if (name_hash_bucket(name_hash(&key, h->name_seed), h->bucket_mask) == bucket)
			r = rc_put(rc, name, 0, 0, NULL);
	}
	must_be(r, WIRE_E_LIMIT);
}
