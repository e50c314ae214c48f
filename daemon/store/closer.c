/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Closes descriptors that clients sent; see closer.h. Invariants: (1) a number is in the queue from
 * closer_take() until the process has begun with it, and so is not given to anything else before it
 * is closed; (2) a number with which the process has begun is never tried again, since close()
 * frees it before it waits. Loop thread only.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
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
	uint64_t forgets[CLOSER_MAX]; /* may be closed when @forgotten is that much */
};

static void await_forgotten(struct closer_queue *q, uint64_t forgets)
{
	uint32_t told;

	while (told = atomic_load(&q->told), atomic_load(&q->forgotten) < forgets)
		syscall(SYS_futex, &q->told, FUTEX_WAIT, told, NULL, NULL, 0);
}

/* Runs in the process. */
static void close_all(void *queue, pid_t parent)
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
		close(q->fds[next % CLOSER_MAX]);
		atomic_store(&q->done, next + 1);
	}
}

static bool process_make(struct closer *c)
{
	c->pid = helper_start("tl-closer", close_all, c->queue);
	c->killed = false;
	return c->pid;
}

static bool closer_begin(struct closer *c)
{
	void *p;

	if (!c->queue) {
		p = mmap(NULL, sizeof(*c->queue), PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		if (p == MAP_FAILED)
			return false;
		c->queue = p;
		atomic_store(&c->queue->forgotten, c->forgotten);
	}
	return c->pid || process_make(c);
}

/* True for a memfd that is not large: it is on no client's file system, and nobody else can delay
 * it. */
static bool closes_at_once(int fd)
{
	struct stat st;

	return fcntl(fd, F_GET_SEALS) >= 0 && !fstat(fd, &st) && st.st_blocks <= CLOSER_BLOCKS;
}

void closer_take(struct closer *c, int fd_take, struct account *account)
{
	closer_take_after(c, fd_take, account, 0);
}

void closer_take_after(struct closer *c, int fd_take, struct account *account, uint64_t forgets)
{
	uint32_t taken;

	if (fd_take < 0)
		return;
	if (closes_at_once(fd_take) || !closer_begin(c) ||
	    atomic_load(&c->queue->taken) - c->seen == CLOSER_MAX) {
		fd_close(fd_take);
		return;
	}
	taken = atomic_load(&c->queue->taken);
	c->queue->fds[taken % CLOSER_MAX] = fd_take;
	c->queue->forgets[taken % CLOSER_MAX] = forgets;
	c->accounts[taken % CLOSER_MAX] = account;
	if (account) {
		account->refs++;
		account->closing++;
	}
	atomic_store(&c->queue->taken, taken + 1);
	syscall(SYS_futex, &c->queue->taken, FUTEX_WAKE, 1, NULL, NULL, 0);
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

void closer_note(struct closer *c)
{
	struct account *account;

	if (!c->queue)
		return;

	for (; c->seen != atomic_load(&c->queue->done); c->seen++) {
		account = c->accounts[c->seen % CLOSER_MAX];
		if (account)
			account->closing--;
		account_unref(account);
	}
}

/* True if the process waits in close(). One that is about to call that must not be killed. */
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

void closer_look(struct closer *c)
{
	uint32_t begun;

	if (!c->queue)
		return;
	if (c->pid && waitpid(c->pid, NULL, WNOHANG) == c->pid) { /* others may kill it, too */
		/* the number that it had begun with is free, and may be another descriptor's
		 * by now */
		atomic_store(&c->queue->done, atomic_load(&c->queue->begun));
		c->pid = 0;
	}
	begun = atomic_load(&c->queue->begun);
	closer_note(c);
	if (!c->pid && closer_waits(c)) {
		process_make(c);
	} else if (c->pid && !c->killed && begun == c->begun && is_stuck(c)) {
		kill(c->pid, SIGKILL);
		c->killed = true;
	}
	c->begun = begun;
}

void closer_deinit(struct closer *c)
{
	if (c->pid) {
		kill(c->pid, SIGKILL);
		for (unsigned ms = 0; ms < CLOSER_LOOK_MS && !waitpid(c->pid, NULL, WNOHANG); ms++)
			usleep(1000);
	}
	if (c->queue) {
		for (; c->seen != atomic_load(&c->queue->taken); c->seen++)
			account_unref(c->accounts[c->seen % CLOSER_MAX]);
		munmap(c->queue, sizeof(*c->queue));
	}
	*c = (struct closer){ .queue = NULL };
}
