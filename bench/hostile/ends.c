/* SPDX-License-Identifier: Apache-2.0 */
/* Attacks by things that do not end, or take long to end. */
#include <sys/time.h>

#include "bench/hostile/hostile.h"
#include "tests/harness/slow_fd.h"

/* ---- descriptors that are slow to close ---- */

enum { SLOW = 32 };

static struct slow_fd slow[SLOW];

static void on_alarm(int number)
{
	(void)number;
}

/* If the daemon closed it first, we are the one that waits; a signal ends that. */
static void close_slow(int fd)
{
	struct itimerval soon = { .it_value.tv_usec = 5000 }, never = { .it_value.tv_usec = 0 };

	setitimer(ITIMER_REAL, &soon, NULL);
	close(fd);
	setitimer(ITIMER_REAL, &never, NULL);
}

void start_linger(struct attacker *a)
{
	struct sigaction act = { .sa_handler = on_alarm };

	attacker_open(a, a->setup->connections < SLOW ? a->setup->connections : SLOW, RAW_GREETED);
	sigaction(SIGALRM, &act, NULL);
	for (unsigned i = 0; i < SLOW; i++)
		slow[i].peer = -1;
}

/* The process that closes the descriptor last waits for an hour, and that is not the attacker. */
void step_linger(struct attacker *a)
{
	unsigned i = (unsigned)(a->numbers[0]++ % (a->n ? a->n : 1));
	struct wire_plain sync = {
		.header = { .type = WIRE_SYNC, .length = sizeof(sync), .serial = 1 }
	};

	if (!a->n || !attacker_reopen(a, i, RAW_GREETED))
		return;
	if (slow[i].peer >= 0)
		close(slow[i].peer);
	slow[i] = slow_fd_make(3600);
	if (rc_send_bytes(&a->raws[i], &sync, sizeof(sync), slow[i].fd, 1) == 0)
		atomic_fetch_add(&a->board->things, 1);
	close_slow(slow[i].fd);
	attacker_drain(a, i);
}

/* ---- ledgers that stay ---- */

void start_orphans(struct attacker *a)
{
	struct wire_draft draft;

	attacker_open(a, 1, RAW_READY);
	if (!a->n || rc_put(&a->raws[0], "a/held", 4096, 1, &draft))
		return;
	a->numbers[0] = draft.ref;
	attacker_open(a, a->setup->connections, RAW_READY);
}

/* Closes the socket of a connection that holds a tensor, and keeps the ledger mapped. */
void step_orphans(struct attacker *a)
{
	unsigned i = 1 + (unsigned)(a->numbers[1]++ % (a->n ? a->n : 1));

	if (i >= a->n || !attacker_reopen(a, i, RAW_READY))
		return;
	if (!rc_hold(&a->raws[i], a->numbers[0]))
		return;
	a->raws[i].ledger = NULL; /* its mapping stays for good */
	rc_close(&a->raws[i]);
	atomic_fetch_add(&a->board->things, 1);
	atomic_fetch_sub(&a->board->connections, 1);
}

/* Holds every tensor that exists or will exist, so that nothing is ever reclaimed. */
void start_hoard(struct attacker *a)
{
	attacker_open(a, a->setup->connections, RAW_READY);
	for (unsigned i = 0; i < a->n && i < 2; i++) {
		for (uint32_t slot = 0; slot < a->raws[i].welcome.max_tensors; slot++)
			atomic_store(rc_held(&a->raws[i], slot), 1);
	}
}

void step_hoard(struct attacker *a)
{
	step_drain(a);
	usleep(1000);
}

/* ---- connections that end with much ---- */

static void send_described(struct raw *rc, enum wire_type type, void *message, size_t fixed,
			   struct wire_description *d, unsigned n)
{
	unsigned char m[256];
	uint64_t one = 1;

	*d = (struct wire_description){
		.dtype_code = 1, .dtype_bits = 8, .dtype_lanes = 1, .ndim = 1
	};
	d->name_len = (uint16_t)snprintf((char *)m + fixed + 8, sizeof(m) - fixed - 8, "e/%u", n);
	((struct wire_header *)message)->serial = 0;
	memcpy(m, message, fixed); /* @d is a part of it */
	memcpy(m + fixed, &one, sizeof(one));
	rc_send(rc, type, m, fixed + 8 + d->name_len, -1);
}

void start_members(struct attacker *a)
{
	attacker_open(a, 1, RAW_READY);
}

/* Builds a group, which is given up with its connection. */
void step_members(struct attacker *a)
{
	struct wire_member m = { .offset = 0 };
	struct wire_draft draft;

	if (!attacker_reopen(a, 0, RAW_READY) || rc_create(&a->raws[0], NULL, 4096, 0, &draft))
		return;
	m.ref = draft.ref;
	for (unsigned n = 0; n < 60000 && a->raws[0].fd >= 0; n++) {
		send_described(&a->raws[0], WIRE_MEMBER, &m, sizeof(m), &m.tensor, n);
		if (n % 64 == 0)
			attacker_drain(a, 0);
		atomic_fetch_add(&a->board->things, 1);
	}
	rc_close(&a->raws[0]);
	atomic_fetch_sub(&a->board->connections, 1);
}

void start_placed(struct attacker *a)
{
	attacker_open(a, 1, RAW_READY);
}

/* Publishes tensors on a device, which are lost with their producer. */
void step_placed(struct attacker *a)
{
	struct wire_place p = { .cookie = 1 };
	struct wire_segment_ref seg;

	if (!attacker_reopen(a, 0, RAW_READY) ||
	    rc_export(&a->raws[0], SEGMENT_CUDA_IPC, 7, MIB, MIB, 1, -1, &seg)) {
		usleep(1000);
		return;
	}
	p.segment = seg.segment;
	p.segment_generation = seg.segment_generation;
	for (unsigned n = 0; n < 60000 && a->raws[0].fd >= 0; n++) {
		send_described(&a->raws[0], WIRE_PLACE, &p, sizeof(p), &p.tensor, n);
		if (n % 16 == 0)
			attacker_drain(a, 0);
		atomic_fetch_add(&a->board->things, 1);
	}
	if (a->raws[0].fd < 0)
		return;
	rc_close(&a->raws[0]);
	atomic_fetch_sub(&a->board->connections, 1);
}
