/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Closes descriptors that clients sent; see closer.h. Invariants: (1) a number is in the queue or
 * held from closer_take() until the process has begun with it, and so is not given to anything else
 * before it is closed; (2) a number with which the process has begun is never tried again, since
 * close() frees it before it waits. Loop thread only.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/store/account.h"
#include "daemon/store/closer.h"
#include "daemon/store/helper.h"
#include "util/fd.h"

enum { CLOSER_BLOCKS = 2048 }; /* in blocks of 512 bytes, which take no time to be freed */

struct closer_queue {
	_Atomic uint32_t taken; /* we write it, and the process sleeps on it */
	_Atomic uint32_t begun; /* the process writes these two */
	_Atomic uint32_t done;
	_Atomic uint32_t told; /* changes after @forgotten, and the process sleeps on it too */
	_Atomic uint64_t forgotten;
	int fds[CLOSER_MAX];
	uint64_t forgets[CLOSER_MAX]; /* each may be closed once @forgotten is that much */
};

struct closer_stuck {
	struct closer_stuck *next;
	struct account *account; /* of the user that sent what it closes; a reference, or NULL */
	pid_t pid;
};

/* ---- the process ---------------------------------------------------------------------------- */

HELPER_CODE static void await_forgotten(struct closer_queue *q, uint64_t forgets)
{
	uint32_t told;

	while (told = atomic_load(&q->told), atomic_load(&q->forgotten) < forgets)
		syscall(SYS_futex, &q->told, FUTEX_WAIT, told, NULL, NULL, 0);
}

HELPER_CODE static void close_all(void *queue, pid_t parent)
{
	struct closer_queue *q = queue;
	uint32_t next;

	while (getppid() == parent) {
		next = atomic_load(&q->done);
		if (next == atomic_load(&q->taken)) {
			syscall(SYS_futex, &q->taken, FUTEX_WAIT, next, NULL, NULL, 0);
			continue;
		}
		await_forgotten(q, q->forgets[next % CLOSER_MAX]);
		atomic_store(&q->begun, next + 1);
		syscall(SYS_close, q->fds[next % CLOSER_MAX]);
		atomic_store(&q->done, next + 1);
	}
}

static void process_make(struct closer *c)
{
	c->pid = helper_start("tl-closer", close_all, c->queue);
	c->killed = false;
}

/* ---- the queue ------------------------------------------------------------------------------ */

static void queue_make(struct closer *c)
{
	void *p = mmap(NULL, sizeof(*c->queue), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		       -1, 0);

	if (p == MAP_FAILED)
		return;
	c->queue = p;
	atomic_store(&c->queue->forgotten, c->forgotten);
}

/* True for a memfd that is not large: it is on no client's file system, and nobody else can delay
 * it. A file of a tmpfs has F_SEAL_SEAL, and may be the last one of a tmpfs that a client has
 * mounted. */
static bool closes_at_once(int fd)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;

	return seals >= 0 && !(seals & F_SEAL_SEAL) && !fstat(fd, &st) &&
	       st.st_blocks <= CLOSER_BLOCKS;
}

/* True if a signal ends the wait for its closing in any case. Descriptors that nobody has received
 * may lie in an AF_UNIX socket, and no signal ends the wait for these. */
static bool can_be_ended(int fd)
{
	int domain;
	socklen_t size = sizeof(domain);

	return !getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) && domain != AF_UNIX;
}

/* True if as many processes as one user may cause are stuck with what that user sent. */
static bool is_at_limit(const struct closer *c, const struct account *account)
{
	unsigned n = 0;

	for (const struct closer_stuck *s = c->stuck; s; s = s->next)
		n += s->account == account;
	return n >= CLOSER_STUCK_MAX;
}

static void hold(struct closer *c, const struct closer_entry *e)
{
	c->held[c->held_count++] = *e;
}

static bool has_place(const struct account *account)
{
	return !account || account->closing_next < CLOSER_PLACES;
}

static void put(struct closer *c, const struct closer_entry *e)
{
	uint32_t taken = atomic_load(&c->queue->taken);

	if (e->account)
		e->account->closing_next++;
	c->queue->fds[taken % CLOSER_MAX] = e->fd;
	c->queue->forgets[taken % CLOSER_MAX] = e->forgets;
	c->accounts[taken % CLOSER_MAX] = e->account;
	atomic_store(&c->queue->taken, taken + 1);
	syscall(SYS_futex, &c->queue->taken, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void put_or_hold(struct closer *c, const struct closer_entry *e)
{
	if (!c->queue || !has_place(e->account) ||
	    (is_at_limit(c, e->account) && !can_be_ended(e->fd)))
		hold(c, e);
	else
		put(c, e);
}

static void held_look(struct closer *c)
{
	unsigned count = c->held_count;

	c->held_count = 0;
	for (unsigned i = 0; i < count; i++)
		put_or_hold(c, &c->held[i]);
}

void closer_take(struct closer *c, int fd_take, struct account *account)
{
	closer_take_after(c, fd_take, account, 0);
}

void closer_take_after(struct closer *c, int fd_take, struct account *account, uint64_t forgets)
{
	const struct closer_entry e = { .fd = fd_take, .account = account, .forgets = forgets };

	if (fd_take < 0)
		return;
	if (closes_at_once(fd_take)) {
		close(fd_take);
		return;
	}
	if (!c->queue)
		queue_make(c);
	if (!c->pid && c->queue)
		process_make(c);
	if (c->held_count + (c->queue ? atomic_load(&c->queue->taken) - c->seen : 0) >= CLOSER_MAX)
		return;
	if (account) {
		account->refs++;
		account->closing++;
	}
	put_or_hold(c, &e);
}

void closer_forgotten(struct closer *c, uint64_t forgotten)
{
	c->forgotten = forgotten;
	if (!c->queue)
		return;
	atomic_store(&c->queue->forgotten, forgotten);
	atomic_fetch_add(&c->queue->told, 1);
	syscall(SYS_futex, &c->queue->told, FUTEX_WAKE, 1, NULL, NULL, 0);
}

bool closer_waits(const struct closer *c)
{
	return c->queue && c->seen != atomic_load(&c->queue->taken);
}

bool closer_holds(const struct closer *c)
{
	return closer_waits(c) && c->held_count;
}

bool closer_looks(const struct closer *c)
{
	return closer_waits(c) || c->held_count || c->stuck;
}

static void entry_over(struct account *account)
{
	if (account)
		account->closing--;
	account_unref(account);
}

/* To be called when the first in the queue is done with. True: others of its user are held. */
static bool first_over(struct closer *c)
{
	struct account *account = c->accounts[c->seen++ % CLOSER_MAX];
	bool more = false;

	if (account) {
		account->closing_next--;
		more = account->closing > account->closing_next + 1;
	}
	entry_over(account);
	return more;
}

void closer_note(struct closer *c)
{
	bool more = false;

	if (!c->queue)
		return;
	while (c->seen != atomic_load(&c->queue->done))
		more |= first_over(c);
	if (more)
		held_look(c);
}

/* ---- what is stuck -------------------------------------------------------------------------- */

/* True if the process waits in close(). A process that is about to call it must not be killed. */
static bool is_stuck(const struct closer *c)
{
	char path[32], text[256];
	const char *end;
	ssize_t n;
	int fd;

	if (atomic_load(&c->queue->begun) == atomic_load(&c->queue->done))
		return false;
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)c->pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	fd_close(fd);
	if (n < 0)
		return true; /* without /proc that cannot be told, and is assumed */
	text[n] = '\0';
	end = strrchr(text, ')');
	return !end || strncmp(end, ") R", 3) != 0;
}

/* To be called when the process has ended or is set aside. The number that it had begun with is
 * free, and may be another descriptor's by now. */
static void process_gone(struct closer *c)
{
	atomic_store(&c->queue->done, atomic_load(&c->queue->begun));
	closer_note(c);
	c->pid = 0;
}

/* Puts all that waits in the queue, while there is no process, into the queue again, or holds
 * it. */
static void queue_sort(struct closer *c)
{
	struct closer_queue *q = c->queue;
	uint32_t taken = atomic_load(&q->taken);

	atomic_store(&q->taken, c->seen);
	for (uint32_t i = c->seen; i != taken; i++) {
		const struct closer_entry e = { .fd = q->fds[i % CLOSER_MAX],
						.account = c->accounts[i % CLOSER_MAX],
						.forgets = q->forgets[i % CLOSER_MAX] };
		if (e.account)
			e.account->closing_next--;
		put_or_hold(c, &e);
	}
}

/* Sets the process aside, since SIGKILL has not ended its wait. Its descriptor is closed as far as
 * others can tell. */
static void set_aside(struct closer *c)
{
	struct closer_stuck *s = malloc(sizeof(*s));
	struct account *account = c->accounts[c->seen % CLOSER_MAX];

	if (!s)
		return;
	*s = (struct closer_stuck){ .next = c->stuck, .account = account, .pid = c->pid };
	if (account)
		account->refs++;
	c->stuck = s;
	process_gone(c);
	queue_sort(c);
}

static void stuck_free(struct closer_stuck **at)
{
	struct closer_stuck *s = *at;

	*at = s->next;
	account_unref(s->account);
	free(s);
}

/* Frees the stuck processes that have ended. True: there were some. */
static bool stuck_look(struct closer *c)
{
	struct closer_stuck **at = &c->stuck;
	bool ended = false;

	while (*at) {
		if (waitpid((*at)->pid, NULL, WNOHANG)) {
			stuck_free(at);
			ended = true;
		} else {
			at = &(*at)->next;
		}
	}
	return ended;
}

void closer_look(struct closer *c)
{
	uint32_t begun;

	if (!c->queue)
		queue_make(c);
	if (!c->queue)
		return;
	if (stuck_look(c) || !c->stuck)
		held_look(c);
	closer_note(c);
	begun = atomic_load(&c->queue->begun);
	if (c->pid && waitpid(c->pid, NULL, WNOHANG) == c->pid) { /* others may kill it, too */
		process_gone(c);
	} else if (c->pid && begun == c->begun && is_stuck(c)) {
		if (c->killed)
			set_aside(c);
		else
			kill(c->pid, SIGKILL);
		c->killed = true;
	}
	if (!c->pid && closer_waits(c))
		process_make(c);
	c->begun = begun;
}

void closer_deinit(struct closer *c)
{
	if (c->pid)
		kill(c->pid, SIGKILL);
	for (unsigned ms = 0; c->pid && ms < CLOSER_LOOK_MS; ms++) {
		if (waitpid(c->pid, NULL, WNOHANG))
			c->pid = 0;
		else
			usleep(1000);
	}
	while (c->stuck)
		stuck_free(&c->stuck);
	while (c->held_count)
		entry_over(c->held[--c->held_count].account);
	if (c->queue) {
		while (c->seen != atomic_load(&c->queue->taken))
			first_over(c);
		munmap(c->queue, sizeof(*c->queue));
	}
	*c = (struct closer){ .queue = NULL };
}
