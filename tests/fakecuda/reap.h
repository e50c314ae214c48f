/* SPDX-License-Identifier: Apache-2.0 */
/* The end of allocations and events, also by the death of their process. All of this is called
 * under the registry's lock. */
#pragma once

#include "tests/fakecuda/registry.h"

/* Returns when a process started, in the kernel's ticks, or 0 if it has ended, even as a zombie. */
static inline unsigned long long fake_process_start(int pid)
{
	char path[64], text[1024] = "", *p, state = 'Z';
	unsigned long long start = 0;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	p = n > 0 ? strrchr(text, ')') : NULL; /* the name, which comes before it, may contain
						  anything */
	if (!p ||
	    sscanf(p + 1,
		   " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
		   &state, &start) != 2)
		return 0;
	return state == 'Z' || state == 'X' ? 0 : start;
}

/*
 * A process in another PID namespace is seen by no /proc but its own: it locks its byte of this
 * file until it ends.
 */
static inline int fake_apart_open(void)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/apart", fake_dir());
	return open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
}

static inline bool fake_apart_alive(int process)
{
	struct flock lock = { .l_type = F_WRLCK, .l_start = process, .l_len = 1 };
	int fd = fake_apart_open();
	bool free = fd >= 0 && !fcntl(fd, F_OFD_GETLK, &lock) && lock.l_type == F_UNLCK;

	if (fd >= 0)
		close(fd);
	return !free;
}

static inline bool fake_process_alive(const struct fake_registry *reg, int process)
{
	const struct fake_process *p = &reg->processes[process];

	if (p->apart)
		return fake_apart_alive(process);
	if (reg->pid_namespace != fake_pid_namespace())
		return true; /* as far as can be seen from here */
	return p->start && fake_process_start(p->pid) == p->start; /* 0: it was killed while it
								      registered */
}

/* Counts the processes other than @process that have it open. */
static inline unsigned fake_opens(const struct fake_registry *reg, uint64_t id, int process)
{
	unsigned n = 0;

	for (int i = 0; i < FAKE_OPENS; i++)
		n += reg->opens[i].id == id && reg->opens[i].process != process;
	return n;
}

static inline void fake_event_wake(struct fake_event *event)
{
	syscall(SYS_futex, &event->completed, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Called when the owner, or a process that had it open, has let go. */
static inline void fake_event_free_if_unused(struct fake_registry *reg, struct fake_event *event)
{
	if (event->owner < 0 && !fake_opens(reg, event->id, -1))
		event->id = 0;
}

/* Poisons its bytes for processes that still have it open. @fd is the file of its block. */
static inline void fake_poison(int fd, uint64_t offset, uint64_t size)
{
	unsigned char bytes[1 << 16];

	memset(bytes, FAKE_POISON, sizeof(bytes));
	while (size) {
		size_t n = size < sizeof(bytes) ? size : sizeof(bytes);

		if (pwrite(fd, bytes, n, (off_t)offset) != (ssize_t)n)
			return;
		offset += n;
		size -= n;
	}
}

/* Ends an allocation. If a process has it open it is poisoned, and counted as @violation. */
static inline void fake_allocation_end(struct fake_registry *reg, struct fake_allocation *a,
				       enum fake_violation violation)
{
	char path[PATH_MAX];

	if (fake_opens(reg, a->id, a->owner)) {
		int fd = -1;

		reg->violations[violation]++;
		if (a->block) {
			fake_block_path(path, a->block);
			fd = open(path, O_RDWR | O_CLOEXEC);
		}
		if (fd >= 0) {
			fake_poison(fd, a->offset, a->size);
			close(fd);
		}
	}
	a->id = 0;
}

static inline void fake_bury(struct fake_registry *reg, int dead)
{
	char path[PATH_MAX];

	for (int i = 0; i < FAKE_OPENS; i++)
		if (reg->opens[i].id && reg->opens[i].process == dead)
			reg->opens[i].id = 0;
	for (int i = 0; i < FAKE_ALLOCATIONS; i++) {
		struct fake_allocation *a = &reg->allocations[i];

		if (!a->id || a->owner != dead)
			continue;
		fake_allocation_end(reg, a, FAKE_ORPHANED);
	}
	for (int i = 0; i < FAKE_ALLOCATIONS; i++) {
		struct fake_allocation *a = &reg->allocations[i];

		if (a->owner != dead || !a->block)
			continue;
		fake_block_path(path, a->block);
		unlink(path); /* processes that have it mapped can keep reading it */
		a->block = 0;
	}
	for (int i = 0; i < FAKE_EVENTS; i++) {
		struct fake_event *event = &reg->events[i];

		if (!event->id)
			continue;
		if (event->owner == dead) {
			event->owner = -1;
			event->end = FAKE_EVENT_ORPHANED;
			fake_event_wake(event);
		}
		fake_event_free_if_unused(reg, event);
	}
	memset(&reg->processes[dead], 0, sizeof(reg->processes[dead]));
}

/* Removes what dead processes have left in the registry. Called under the lock. */
static inline void fake_reap(struct fake_registry *reg)
{
	for (int i = 0; i < FAKE_PROCESSES; i++)
		if (reg->processes[i].pid && !fake_process_alive(reg, i))
			fake_bury(reg, i);
}
