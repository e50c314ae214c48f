/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attacker's connections. None of its steps waits long for the daemon, which may refuse it and
 * end its connections. The attack continues with the connections that it has.
 */
#include <sys/socket.h>

#include "bench/hostile/hostile.h"
#include "tests/harness/process.h"

enum { REFUSALS = 8, BATCH = 32 };

void attacker_note(struct attacker *a, int r, const struct conn_message *m)
{
	struct wire_error_reply e;

	if (m && m->header.type == WIRE_ERROR)
		atomic_fetch_add(&a->board->errors, 1);
	if (a->board->why[0] || (r == 0 && !m))
		return;
	if (m && m->header.type == WIRE_ERROR) {
		memcpy(&e, m->bytes, sizeof(e));
		snprintf(a->board->why, WHY_SIZE, "%.*s", (int)e.text_len,
			 (const char *)m->bytes + sizeof(e));
	} else if (r < 0) {
		snprintf(a->board->why, WHY_SIZE, "%s", strerror(-r));
	} else if (r > 0) {
		snprintf(a->board->why, WHY_SIZE, "error %d of the protocol", r);
	}
}

static int open_one(struct attacker *a, unsigned i, enum raw_stage stage)
{
	int r = rc_try_open(&a->raws[i], a->setup->socket, stage, ATTACKER_WAIT_MS);

	if (r)
		attacker_note(a, r, NULL);
	else
		atomic_fetch_add(&a->board->connections, 1);
	return r;
}

void attacker_open(struct attacker *a, unsigned n, enum raw_stage stage)
{
	unsigned refused = 0;

	atomic_store(&a->board->wanted, n);
	while (a->n < n && refused < REFUSALS) {
		if (open_one(a, a->n, stage) == 0) {
			a->n++;
			refused = 0;
		} else {
			refused++;
		}
	}
}

static void close_one(struct attacker *a, unsigned i)
{
	rc_close(&a->raws[i]);
	atomic_fetch_sub(&a->board->connections, 1);
	atomic_fetch_add(&a->board->ended, 1);
}

bool attacker_reopen(struct attacker *a, unsigned i, enum raw_stage stage)
{
	return a->raws[i].fd >= 0 || open_one(a, i, stage) == 0;
}

int attacker_send(struct attacker *a, unsigned i, enum wire_type type, void *message, size_t length,
		  int fd_peek)
{
	struct raw *rc = &a->raws[i];
	struct wire_header *h = message;
	int r;

	if (rc->fd < 0)
		return -ENOTCONN;
	h->type = (uint16_t)type;
	h->length = (uint32_t)length;
	h->serial = ++rc->serial;
	r = conn_send(rc->fd, message, fd_peek, MSG_DONTWAIT);
	if (r == -EPIPE || r == -ECONNRESET) {
		attacker_drain(a, i); /* the daemon's last messages */
		if (rc->fd >= 0)
			close_one(a, i);
	}
	return r;
}

bool attacker_take(struct attacker *a, unsigned i, struct conn_message *m)
{
	struct raw *rc = &a->raws[i];
	int r;

	if (rc->fd < 0)
		return false;
	m->fd = -1;
	r = conn_receive(rc->fd, WIRE_TO_CLIENT, m, MSG_DONTWAIT);
	if (r && r != -EAGAIN)
		close_one(a, i);
	if (r)
		return false;
	if (m->fd >= 0)
		close(m->fd);
	m->fd = -1;
	atomic_fetch_add(&a->board->answers, 1);
	attacker_note(a, 0, m);
	return true;
}

void attacker_drain(struct attacker *a, unsigned i)
{
	struct conn_message m;

	while (attacker_take(a, i, &m))
		;
}

unsigned attacker_turn(struct attacker *a)
{
	for (unsigned k = 0; k < a->n; k++) {
		a->next = (a->next + 1) % a->n;
		if (a->raws[a->next].fd >= 0)
			return a->next;
	}
	return a->n;
}

/* ---- many empty tensors ---- */

static void commit_empty(struct attacker *a, unsigned i, uint64_t ref, const char *name)
{
	struct {
		struct wire_commit fixed;
		char tail[64];
	} c = { .fixed = { .ref = ref,
			   .tensor = { .dtype_code = 1,
				       .dtype_bits = 8,
				       .dtype_lanes = 1,
				       .ndim = 1,
				       .name_len = (uint16_t)strlen(name) } } };

	memcpy(c.tail + 8, name, c.fixed.tensor.name_len);
	attacker_send(a, i, WIRE_COMMIT, &c, sizeof(c.fixed) + 8 + c.fixed.tensor.name_len, -1);
}

/* Receives the answers to @n requests. Returns how many drafts came. */
static unsigned take_drafts(struct attacker *a, unsigned i, unsigned n, uint64_t *refs)
{
	int64_t end = now_ns() + ATTACKER_WAIT_MS * 1000000LL;
	struct wire_draft draft;
	struct conn_message m;
	unsigned got = 0;

	while (n > 0 && a->raws[i].fd >= 0 && now_ns() < end) {
		if (!attacker_take(a, i, &m)) {
			sched_yield();
			continue;
		}
		if (m.header.type == WIRE_DRAFT) {
			memcpy(&draft, m.bytes, sizeof(draft));
			refs[got++] = draft.ref;
		}
		n--;
	}
	return got;
}

unsigned attacker_publish(struct attacker *a, unsigned i, unsigned n, bool one_name, bool held)
{
	unsigned made = 0, asked, got;
	uint64_t refs[BATCH];
	char name[32];

	while (made < n && a->raws[i].fd >= 0) {
		for (asked = 0; asked < BATCH && made + asked < n; asked++) {
			struct wire_create c = { .nbytes = 0 };

			if (attacker_send(a, i, WIRE_CREATE, &c, sizeof(c), -1))
				break;
		}
		got = take_drafts(a, i, asked, refs);
		for (unsigned k = 0; k < got; k++) {
			if (held)
				atomic_fetch_add(rc_held(&a->raws[i], ref_slot(refs[k])), 1);
			snprintf(name, sizeof(name), "a/%u/%u", i, one_name ? 0 : made + k);
			commit_empty(a, i, refs[k], name);
		}
		made += got;
		atomic_fetch_add(&a->board->things, got);
		if (got < asked)
			break;
	}
	return made;
}

/* ---- the process ---- */

void start_ready(struct attacker *a)
{
	attacker_open(a, a->setup->connections, RAW_READY);
}

void step_drain(struct attacker *a)
{
	for (unsigned i = 0; i < a->n; i++)
		attacker_drain(a, i);
}

void attacker_run(const struct setup *setup, const struct attack *attack)
{
	struct setup mine = *setup;
	struct attacker a = { .setup = &mine, .board = setup->board };

	process_is_child(); /* so that must() ends this process only */
	if (attack->connections)
		mine.connections = attack->connections;
	a.raws = calloc(mine.connections + ATTACKER_SPARE, sizeof(*a.raws));
	a.refs = calloc(mine.connections + ATTACKER_SPARE, sizeof(*a.refs));
	must(a.raws && a.refs);
	for (unsigned i = 0; i < mine.connections + ATTACKER_SPARE; i++)
		a.raws[i] = (struct raw){ .fd = -1, .catalog_fd = -1, .ledger_fd = -1 };
	attack->start(&a);
	atomic_store(&a.board->ready, true);
	for (;;)
		attack->step(&a);
}
