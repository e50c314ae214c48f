/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of a full /dev/shm, the one of a daemon with td_options.shm_size, and of creates that
 * wait for space. */
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>

#include "tests/harness/harness.h"

static inline bool may_mount(void)
{
	int status;
	pid_t pid = fork();

	must(pid >= 0);
	if (pid == 0) /* the daemon will do the same */
		_exit(unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
		      mount("tl-test", "/dev/shm", "tmpfs", 0, "size=64k"));
	must_be(waitpid(pid, &status, 0), pid);
	return status == 0;
}

static inline int shm_of(const struct test_daemon *d)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/root/dev/shm", (int)d->pid);
	fd = open(path, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
	must(fd >= 0);
	return fd;
}

/* Fills all but @leave bytes. */
static inline void fill_shm(const struct test_daemon *d, off_t leave)
{
	int dir = shm_of(d), fd = openat(dir, "filler", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	off_t at = 0;

	must(fd >= 0);
	for (off_t step = (off_t)MIB; step >= 4096; step /= 2)
		while (fallocate(fd, 0, at, step) == 0)
			at += step;
	must_be(errno, ENOSPC);
	if (leave)
		must_be(ftruncate(fd, at - leave), 0);
	close(fd);
	close(dir);
}

static inline void empty_shm(const struct test_daemon *d)
{
	int dir = shm_of(d);

	must_be(unlinkat(dir, "filler", 0), 0);
	close(dir);
}

/* With false it can make no more files, though it may have bytes left. */
static inline void allow_files(const struct test_daemon *d, bool allowed)
{
	struct statvfs shm;
	char text[64];
	int status, r;
	pid_t pid;

	snprintf(text, sizeof(text), "/proc/%d/ns/mnt", (int)d->pid);
	/* not fork(), after which ThreadSanitizer starts a thread: setns() allows no other one */
	pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
	must(pid >= 0);
	if (pid == 0) {
		if (setns(open(text, O_RDONLY | O_CLOEXEC), CLONE_NEWNS))
			_exit(1);
		do { /* the daemon may have made one since they were counted */
			if (statvfs("/dev/shm", &shm))
				_exit(2);
			snprintf(text, sizeof(text), "nr_inodes=%llu",
				 (unsigned long long)(shm.f_files - shm.f_ffree) +
					 (allowed ? 1000 : 0));
			r = mount(NULL, "/dev/shm", NULL, MS_REMOUNT, text);
		} while (r && errno == EINVAL);
		_exit(r != 0);
	}
	must_be(waitpid(pid, &status, 0), pid);
	must_be(status, 0);
}

/* Sends CREATE without waiting for the answer. Returns its serial. */
static inline uint32_t ask_for(struct raw *rc, uint64_t nbytes, int64_t timeout_ns)
{
	struct wire_create c = { .nbytes = nbytes, .timeout_ns = timeout_ns };

	must_be(rc_send(rc, WIRE_CREATE, &c, sizeof(c), -1), 0);
	return c.header.serial;
}

static inline int answer_to(struct raw *rc, uint32_t serial, struct wire_draft *draft)
{
	struct conn_message m;
	int r;

	do {
		must_be(rc_receive(rc, &m), 0);
		if (m.fd >= 0)
			close(m.fd);
	} while (m.header.serial != serial);
	r = rc_judge(&m, WIRE_DRAFT);
	if (r == 0 && draft)
		memcpy(draft, m.bytes, sizeof(*draft));
	return r;
}

static inline bool has_answer(const struct raw *rc)
{
	struct pollfd p = { .fd = rc->fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

/* The same as ask_for(), without a timeout. It must wait. */
static inline uint32_t ask_and_wait(const struct test_daemon *d, struct raw *rc, uint64_t nbytes)
{
	uint32_t serial = ask_for(rc, nbytes, -1);

	td_sync(d);
	must(!has_answer(rc));
	return serial;
}

/* Returns the CPU time of a process in clock ticks. */
static inline long ticks_of(pid_t pid)
{
	unsigned long user, system;
	char path[64];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	f = fopen(path, "re");
	must(f);
	must_be(fscanf(f, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
		       &system),
		2);
	fclose(f);
	return (long)(user + system);
}

/*
 * Looks on for a while. A daemon that spins takes all the time that it gets, which is more than
 * half even beside others; one that sleeps takes next to nothing, however slow the machine is.
 * Returns the time in units of 0.4 s, rounded up.
 */
static inline unsigned must_not_spin(pid_t pid)
{
	long ticks = ticks_of(pid), elapsed;
	int64_t start = now_ns(), ns;

	must_be(poll(NULL, 0, 400), 0);
	ticks = ticks_of(pid) - ticks;
	ns = now_ns() - start;
	elapsed = (long)(ns * sysconf(_SC_CLK_TCK) / SECOND);
	print_message("%ld of %ld ticks of CPU\n", ticks, elapsed);
	must(ticks * 2 <= elapsed);
	return (unsigned)(ns / (SECOND * 2 / 5)) + 1;
}
