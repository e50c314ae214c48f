/* SPDX-License-Identifier: Apache-2.0 */
/* Attacks on the daemon's resources in the kernel: connections, descriptors, pages, futexes. */
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "bench/hostile/hostile.h"
#include "proto/name_key.h"
#include "tests/harness/sleeper.h"

/* ---- connections ---- */

void start_silent(struct attacker *a)
{
	attacker_open(a, a->setup->connections, RAW_CONNECTED);
}

/* Connections that the daemon ends come back at once. */
void step_silent(struct attacker *a)
{
	for (unsigned i = 0; i < a->n; i++) {
		attacker_drain(a, i);
		if (a->raws[i].fd < 0)
			attacker_reopen(a, i, RAW_CONNECTED);
	}
	if (a->n < a->setup->connections && !attacker_reopen(a, a->n, RAW_CONNECTED))
		a->n++;
	usleep(1000);
}

void start_storm(struct attacker *a)
{
	atomic_store(&a->board->wanted, a->setup->connections);
}

/* Opens a hundred connections; some say hello, some get as far as being served, and all end. */
void step_storm(struct attacker *a)
{
	for (unsigned i = 0; i < 100 && i < a->setup->connections; i++)
		attacker_reopen(a, i, (enum raw_stage)(a->numbers[0]++ % 3));
	for (unsigned i = 0; i < 100 && i < a->setup->connections; i++) {
		if (a->raws[i].fd < 0)
			continue;
		rc_close(&a->raws[i]);
		atomic_fetch_sub(&a->board->connections, 1);
		atomic_fetch_add(&a->board->things, 1);
	}
}

void start_kills(struct attacker *a)
{
	(void)a;
}

/* Children publish, hold and are killed. */
void step_kills(struct attacker *a)
{
	pid_t pids[8];

	for (unsigned k = 0; k < 8; k++) {
		pids[k] = fork();
		if (pids[k] < 0)
			continue;
		if (pids[k] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			attacker_open(a, 8, RAW_READY);
			for (unsigned i = 0; i < a->n; i++)
				attacker_publish(a, i, 32, true, true);
			kill(getpid(), SIGKILL);
		}
	}
	for (unsigned k = 0; k < 8; k++) {
		if (pids[k] > 0 && waitpid(pids[k], NULL, 0) == pids[k])
			atomic_fetch_add(&a->board->things, 1);
	}
}

/* ---- messages that are wrong ---- */

void start_malformed(struct attacker *a)
{
	attacker_open(a, a->setup->connections, RAW_CONNECTED);
}

void step_malformed(struct attacker *a)
{
	static const char nonsense[24] = "this is not a message";
	unsigned i = (unsigned)(a->numbers[0]++ % (a->n ? a->n : 1));

	if (!a->n || !attacker_reopen(a, i, RAW_CONNECTED))
		return;
	if (rc_send_bytes(&a->raws[i], nonsense, sizeof(nonsense), -1, 0) == 0)
		atomic_fetch_add(&a->board->things, 1);
	attacker_drain(a, i);
}

void start_floods(struct attacker *a)
{
	attacker_open(a, a->setup->connections, RAW_READY);
}

/* Each message comes with 32 descriptors that it must not have. */
void step_floods(struct attacker *a)
{
	unsigned i = (unsigned)(a->numbers[0]++ % (a->n ? a->n : 1));
	struct wire_plain sync = {
		.header = { .type = WIRE_SYNC, .length = sizeof(sync), .serial = 1 }
	};

	if (!a->n || !attacker_reopen(a, i, RAW_READY))
		return;
	if (rc_send_bytes(&a->raws[i], &sync, sizeof(sync), a->raws[i].ledger_fd, 32) == 0)
		atomic_fetch_add(&a->board->things, 32);
	attacker_drain(a, i);
}

/* ---- futexes ---- */

static uint32_t *wake_word(const struct attacker *a, const char *name)
{
	return rc_name_word(&a->raws[0], name);
}

static void *sleep_always(void *arg)
{
	uint32_t *word = arg;

	for (;;)
		syscall(SYS_futex, word, FUTEX_WAIT, __atomic_load_n(word, __ATOMIC_RELAXED), NULL,
			NULL, 0);
	return NULL;
}

void start_sleepers(struct attacker *a)
{
	unsigned n = a->setup->quick ? 200 : 2000;
	pthread_attr_t attr;
	pthread_t thread;

	attacker_open(a, 1, RAW_READY);
	if (!a->n)
		return;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 64 * KIB);
	for (unsigned i = 0; i < n; i++)
		if (!pthread_create(&thread, &attr, sleep_always, wake_word(a, victim_name)))
			atomic_fetch_add(&a->board->things, 1);
}

void step_sleepers(struct attacker *a)
{
	(void)a;
	usleep(100000);
}

/* ---- ledgers ---- */

void start_holes(struct attacker *a)
{
	attacker_open(a, a->setup->connections, RAW_READY);
	for (unsigned i = 0; i < a->n; i++)
		atomic_store(rc_held(&a->raws[i], a->raws[i].welcome.max_tensors - 1), 1);
}

/* Punches holes into ledgers, so that the daemon has to fault in every page that it reads. */
void step_holes(struct attacker *a)
{
	unsigned i = attacker_turn(a);

	if (i == a->n)
		return;
	memset((void *)a->raws[i].ledger->touched, 1, 1);
	fallocate(a->raws[i].ledger_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
		  (off_t)a->raws[i].ledger_size);
}

void start_pins(struct attacker *a)
{
	unsigned n = a->setup->connections;

	attacker_open(a, n < 512 ? n : 512, RAW_READY);
}

/* Puts a page of the ledger into a pipe before its connection ends. The kernel waits for such pages
 * when it is asked whether a process may still write them. */
void step_pins(struct attacker *a)
{
	unsigned i = (unsigned)(a->numbers[0]++ % (a->n ? a->n : 1));
	struct iovec page;
	int ends[2];

	if (!a->n || !attacker_reopen(a, i, RAW_READY))
		return;
	if (a->refs[i]) {
		close((int)(a->refs[i] >> 32));
		close((int)(uint32_t)a->refs[i]);
		a->refs[i] = 0;
	}
	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK))
		return;
	atomic_store(rc_held(&a->raws[i], 5), 1);
	page = (struct iovec){ .iov_base = a->raws[i].ledger, .iov_len = 4096 };
	if (vmsplice(ends[1], &page, 1, 0) > 0)
		atomic_fetch_add(&a->board->things, 1);
	a->refs[i] = (uint64_t)ends[0] << 32 | (unsigned)ends[1];
	rc_close(&a->raws[i]);
	atomic_fetch_sub(&a->board->connections, 1);
}

/* ---- sizes of segments ---- */

void start_truncate(struct attacker *a)
{
	struct wire_draft draft;

	attacker_open(a, a->setup->connections, RAW_READY);
	for (unsigned i = 0; i < a->n; i++)
		rc_create(&a->raws[i], NULL, 4096, 0, &draft);
}

/* Truncates memory that it shares with the daemon, is disconnected, and comes back. */
void step_truncate(struct attacker *a)
{
	unsigned i = (unsigned)(a->numbers[0]++ % (a->n ? a->n : 1));
	struct wire_draft draft;
	int fd;

	if (!a->n)
		return;
	attacker_drain(a, i);
	if (a->raws[i].fd < 0) {
		if (!attacker_reopen(a, i, RAW_READY) ||
		    rc_create(&a->raws[i], NULL, 4096, 0, &draft))
			return;
	}
	if (!a->raws[i].writable_n)
		return;
	fd = a->raws[i].writable[0].fd;
	if (ftruncate(fd, 0) == 0 || ftruncate(fd, 64 * MIB) == 0)
		atomic_fetch_add(&a->board->things, 1);
}
