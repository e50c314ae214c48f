/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helpers; see helper.h. A helper that trims has no descriptors and no mappings that must be closed
 * soon (catalogs, ledgers and the like are not for forked processes). SIGKILL does not end a wait
 * for an inode's lock, so a stuck helper keeps everything that it has until the client lets go.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/store/helper.h"
#include "util/clock.h"
#include "util/fault.h"
#include "util/list.h"

#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE 2U
#endif

#define TRIM_BYTES_PER_S ((uint64_t)256 << 20)
#define BEGIN_NS ((int64_t)(10 * NS_PER_SEC)) /* a client cannot delay that */

/* The daemon handles signals, never the process. */
HELPER_CODE pid_t helper_start(const char *name, void (*run)(void *context, pid_t parent),
			       void *context)
{
	pid_t parent = getpid(), pid;
	sigset_t all, before;

	if (fault("helper"))
		return 0;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pid = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, NULL, NULL, NULL, NULL);
	if (pid == 0) {
		syscall(SYS_prctl, PR_SET_NAME, name);
		syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL);
		run(context, parent);
		syscall(SYS_exit_group, 0);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return pid < 0 ? 0 : pid;
}

void *helper_mmap(int fd, uint64_t size, int prot)
{
	void *map = mmap(NULL, size, prot, MAP_SHARED, fd, 0);

	if (map == MAP_FAILED)
		return NULL;
	madvise(map, size, MADV_DONTFORK);
	return map;
}

/* ---- trimming ------------------------------------------------------------------------------- */

struct ask {
	_Atomic uint32_t asked; /* we write it, and the process sleeps on it */
	_Atomic uint32_t done;	/* the process writes it, and we sleep on it */
	_Atomic int64_t begun;	/* when the process began with it, by now_mono_ns(); 0: not yet */
	_Atomic bool last;	/* nobody waits: the process ends after the current request */
	int result;
	bool remove;
	uint64_t size;
	char path[HELPER_PATH_MAX];
};

struct trimmer {
	struct list link; /* in idle, busy or stuck */
	struct ask *ask;  /* shared with the process */
	pid_t pid;
	uint32_t uid; /* the owner of its object, unless it is idle */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct list idle = LIST_INIT(idle);   /* they wait for a request */
static struct list busy = LIST_INIT(busy);   /* a thread waits for them */
static struct list stuck = LIST_INIT(stuck); /* no thread waits for them, and they end when they are
						done */
static pid_t owner;			     /* of the lists: a forked process has no trimmers */

/* Runs in the process. Without close_range() a stuck process keeps our descriptors open after our
 * end. */
HELPER_CODE static void trim_all(void *context, pid_t parent)
{
	struct ask *ask = context;
	struct timespec now = { 0 };
	uint32_t next = 0;

	syscall(SYS_close_range, 0U, UINT_MAX, CLOSE_RANGE_UNSHARE);
	while (getppid() == parent) {
		if (next == atomic_load(&ask->asked)) {
			syscall(SYS_futex, &ask->asked, FUTEX_WAIT, next, NULL, NULL, 0);
			continue;
		}
		if (atomic_load(&ask->last))
			return;
		syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
		atomic_store(&ask->begun, now.tv_sec * NS_PER_SEC + now.tv_nsec);
		ask->result = syscall(SYS_truncate, ask->path, ask->size) ? -errno : 0;
		if (!ask->result && ask->remove)
			ask->result = syscall(SYS_unlink, ask->path) ? -errno : 0;
		atomic_store(&ask->done, ++next);
		syscall(SYS_futex, &ask->done, FUTEX_WAKE, 1, NULL, NULL, 0);
	}
}

static struct trimmer *trimmer_free(struct trimmer *t)
{
	if (t->ask)
		munmap(t->ask, sizeof(*t->ask));
	free(t);
	return NULL;
}

static struct trimmer *trimmer_new(void)
{
	struct trimmer *t = calloc(1, sizeof(*t));
	void *p;

	if (!t)
		return NULL;
	p = mmap(NULL, sizeof(*t->ask), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	t->ask = p == MAP_FAILED ? NULL : p;
	t->pid = t->ask ? helper_start("tl-trimmer", trim_all, t->ask) : 0;
	list_init(&t->link);
	return t->pid ? t : trimmer_free(t);
}

static unsigned count_of(const struct list *list, uint32_t uid)
{
	const struct trimmer *t;
	unsigned n = 0;

	list_for_each_entry(t, list, link)
		n += t->uid == uid;
	return n;
}

/* Frees stuck helpers that have ended by now. */
static void stuck_look(void)
{
	struct trimmer *t, *next;

	list_for_each_entry_safe(t, next, &stuck, link) {
		if (waitpid(t->pid, NULL, WNOHANG) == 0)
			continue;
		list_del(&t->link);
		trimmer_free(t);
	}
}

static bool is_stuck_at(const char *path)
{
	const struct trimmer *t;

	list_for_each_entry(t, &stuck, link) {
		if (!strcmp(t->ask->path, path))
			return true;
	}
	return false;
}

static bool may_wait(uint32_t uid)
{
	unsigned n = count_of(&stuck, uid);

	return !n || n + count_of(&busy, uid) < HELPERS_STUCK_MAX;
}

static int trimmer_take(struct trimmer **out, uint32_t uid, const char *path)
{
	struct trimmer *t = NULL;
	int r = 0;

	pthread_mutex_lock(&lock);
	if (owner != getpid()) {
		list_init(&idle);
		list_init(&busy);
		list_init(&stuck);
		owner = getpid();
	}
	stuck_look();
	if (is_stuck_at(path))
		r = -EALREADY;
	else if (!may_wait(uid))
		r = -EBUSY;
	else if (!list_empty(&idle))
		t = list_first_entry(&idle, struct trimmer, link);
	else if (!(t = trimmer_new()))
		r = -EAGAIN;
	if (!r) {
		t->uid = uid;
		list_del(&t->link);
		list_add_tail(&busy, &t->link);
	}
	pthread_mutex_unlock(&lock);
	*out = t;
	return r;
}

/* Waits until the request is done. False: it is not. On a busy machine the process may begin late,
 * and its time starts then. */
static bool trimmer_wait(struct trimmer *t, uint32_t asked, int64_t allowed)
{
	int64_t now = now_mono_ns(), latest = now + BEGIN_NS, begun, end, ns;
	struct timespec left;
	uint32_t done;

	for (; (done = atomic_load(&t->ask->done)) != asked; now = now_mono_ns()) {
		begun = atomic_load(&t->ask->begun);
		end = begun ? begun + allowed : latest;
		if (now >= end || waitpid(t->pid, NULL, WNOHANG))
			return false;
		ns = end - now < allowed ? end - now : allowed;
		left = (struct timespec){ ns / NS_PER_SEC, ns % NS_PER_SEC };
		syscall(SYS_futex, &t->ask->done, FUTEX_WAIT, done, &left, NULL, 0);
	}
	return true;
}

static void ask_send(struct ask *ask)
{
	atomic_fetch_add(&ask->asked, 1);
	syscall(SYS_futex, &ask->asked, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* Gives the helper back. A stuck one is not killed, since that would not end every wait: it gets
 * the lock in the end. */
static void trimmer_give(struct trimmer *t, bool is_stuck)
{
	if (is_stuck) {
		atomic_store(&t->ask->last, true);
		ask_send(t->ask);
	}
	pthread_mutex_lock(&lock);
	list_del(&t->link);
	list_add_tail(is_stuck ? &stuck : &idle, &t->link);
	pthread_mutex_unlock(&lock);
}

int helper_trim(const char *path, uint32_t uid, uint64_t size, bool remove)
{
	int64_t allowed = NS_PER_SEC, end;
	struct trimmer *t;
	struct stat st;
	bool is_done;
	int r;

	if (strlen(path) >= HELPER_PATH_MAX)
		return -ENAMETOOLONG;
	if (stat(path, &st))
		return -errno;
	allowed += (int64_t)((uint64_t)st.st_blocks * 512 / TRIM_BYTES_PER_S) * NS_PER_SEC;
	end = now_mono_ns() + allowed;
	/* Nobody removes the file later. So a helper that was stuck at it is waited for: it may be
	 * at work by now. */
	while ((r = trimmer_take(&t, uid, path)) == -EALREADY && remove && now_mono_ns() < end)
		poll(NULL, 0, 1);
	if (r)
		return r;
	memcpy(t->ask->path, path, strlen(path) + 1);
	t->ask->size = size;
	t->ask->remove = remove;
	atomic_store(&t->ask->begun, 0);
	ask_send(t->ask);
	is_done = trimmer_wait(t, atomic_load(&t->ask->asked), allowed);
	r = is_done ? t->ask->result : -ETIMEDOUT;
	trimmer_give(t, !is_done);
	return r;
}

/* Ends the helpers in @list. Stuck ones end at an unknown time. */
static void trimmers_end(struct list *list)
{
	struct trimmer *t, *next;

	list_for_each_entry_safe(t, next, list, link) {
		if (owner == getpid())
			kill(t->pid, SIGKILL);
		if (owner == getpid() && list == &idle)
			waitpid(t->pid, NULL, 0);
		list_del(&t->link);
		trimmer_free(t);
	}
}

void helpers_end(void)
{
	pthread_mutex_lock(&lock);
	trimmers_end(&idle);
	trimmers_end(&stuck);
	pthread_mutex_unlock(&lock);
}
