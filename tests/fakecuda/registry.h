/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes that use one fake GPU share a file `registry` in $FAKECUDA_DIR, which all of them
 * map. It has the legacy allocations, the processes that have them open, interprocess events, what
 * each process has alive, and what rules were broken. One robust lock guards all but the words of
 * events. No process needs to end well: the first to look after a death removes what the dead one
 * left (fake_reap).
 */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The kinds of objects that a process can have alive. */
enum fake_kind {
	FAKE_CONTEXT,
	FAKE_ALLOCATION, /* cuMemAlloc */
	FAKE_MANAGED,
	FAKE_IMPORT, /* cuIpcOpenMemHandle */
	FAKE_EVENT,
	FAKE_EVENT_IMPORT,
	FAKE_STREAM,
	FAKE_RESERVATION,
	FAKE_VMM_HANDLE, /* each create, import and retain until its release */
	FAKE_VMM_MAPPING,
	FAKE_POOL, /* made or imported */
	FAKE_POOL_ALLOCATION,
	FAKE_POOL_IMPORT, /* an imported pointer */
	FAKE_CLOSING,	  /* calls that wait for the device before they close something */
	FAKE_FULL,	  /* calls that wait for space in a stream's queue */
	FAKE_KINDS,
};

enum fake_violation {
	FAKE_FREED_WHILE_OPEN, /* memory was freed that another process had open; it is poisoned */
	FAKE_EVENT_DESTROYED_EARLY, /* destroyed while open elsewhere, or used there after that */
	FAKE_BAD_ACCESS, /* work on a stream met memory that is not mapped, or not for its device */
	FAKE_LATE_CALL,	 /* a call was made when the driver's own function at exit had run */
	FAKE_DEAD_EVENT, /* an event was used whose context was reset */
	FAKE_DEAD_STREAM, /* a stream was used that its owner had destroyed */
	FAKE_ORPHANED,	  /* no rule was broken: an owner died while others had its memory open */
	FAKE_VIOLATIONS,
};

enum {
	FAKE_MAGIC = 0x46414b45,
	FAKE_PROCESSES = 128,
	FAKE_ALLOCATIONS = 8192,
	FAKE_OPENS = 8192,
	FAKE_EVENTS = 24000, /* of all processes */
	FAKE_QUEUE = 1000,   /* pieces of work that a stream's queue holds */
	FAKE_DEVICES = 8,
	FAKE_POISON = 0xdb,
};

struct fake_process {
	int pid; /* 0: free */
	unsigned long long start;
	bool apart; /* in another PID namespace than the registry's */
	long long live[FAKE_KINDS];
	unsigned long long used[FAKE_DEVICES]; /* bytes, by physical device */
	unsigned devices;		       /* set of physical ones that it has open */
};

/* What a GPU holds goes when nobody has it open any more, and the next user finds a new life. */
struct fake_device {
	unsigned life;
	bool has_memory; /* of cuMemCreate, made in that life */
};

/* Memory that another process may open: legacy, and what was exported from pools (block is 0 for
 * those). */
struct fake_allocation {
	uint64_t id; /* 0: free; never reused */
	int owner;
	int device;
	uint64_t block;
	uint64_t offset;
	uint64_t size;
};

/* Says that a process has an allocation or event open. */
struct fake_open {
	uint64_t id;
	int process;
};

enum fake_end { FAKE_EVENT_LIVES, FAKE_EVENT_DESTROYED, FAKE_EVENT_ORPHANED };

struct fake_event {
	_Atomic uint64_t id; /* 0: free */
	_Atomic uint32_t recorded;
	_Atomic uint32_t completed; /* also a futex */
	_Atomic int end;	    /* enum fake_end */
	int owner; /* -1: it has let go; the event stays for those who have it open */
};

struct fake_registry {
	_Atomic uint32_t magic;
	_Atomic uint32_t held; /* pid of the process whose streams are held; also a futex */
	pthread_mutex_t lock;
	uint64_t next_id;
	ino_t pid_namespace; /* of the test */
	unsigned long long violations[FAKE_VIOLATIONS];
	struct fake_device devices[FAKE_DEVICES];
	struct fake_process processes[FAKE_PROCESSES];
	struct fake_allocation allocations[FAKE_ALLOCATIONS];
	struct fake_open opens[FAKE_OPENS];
	struct fake_event events[FAKE_EVENTS];
};

static inline const char *fake_dir(void)
{
	return getenv("FAKECUDA_DIR");
}

static inline void fake_block_path(char path[PATH_MAX], uint64_t block)
{
	snprintf(path, PATH_MAX, "%s/mem-%llu", fake_dir(), (unsigned long long)block);
}

static inline ino_t fake_pid_namespace(void)
{
	struct stat st = { 0 };

	stat("/proc/self/ns/pid", &st);
	return st.st_ino;
}

/* Maps the registry of $FAKECUDA_DIR, and makes it if need be. NULL: that failed. Keeps no
 * descriptor. */
static inline struct fake_registry *fake_registry_map(void)
{
	struct fake_registry *reg = MAP_FAILED;
	pthread_mutexattr_t attributes;
	char path[PATH_MAX];
	int fd;

	if (!fake_dir())
		return NULL;
	snprintf(path, sizeof(path), "%s/registry", fake_dir());
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return NULL;
	flock(fd, LOCK_EX);
	if (!ftruncate(fd, sizeof(*reg)))
		reg = mmap(NULL, sizeof(*reg), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (reg != MAP_FAILED && reg->magic != FAKE_MAGIC) {
		pthread_mutexattr_init(&attributes);
		pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
		pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
		pthread_mutex_init(&reg->lock, &attributes);
		pthread_mutexattr_destroy(&attributes);
		reg->pid_namespace = fake_pid_namespace();
		reg->magic = FAKE_MAGIC;
	}
	flock(fd, LOCK_UN); /* a mapping keeps the file open */
	close(fd);
	return reg == MAP_FAILED ? NULL : reg;
}

static inline void fake_lock(struct fake_registry *reg)
{
	if (pthread_mutex_lock(&reg->lock) == EOWNERDEAD)
		pthread_mutex_consistent(&reg->lock);
}

static inline void fake_unlock(struct fake_registry *reg)
{
	pthread_mutex_unlock(&reg->lock);
}
