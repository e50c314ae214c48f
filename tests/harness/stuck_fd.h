/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that make whoever closes them (or calls fstat()) wait for ever, even after SIGKILL: they
 * are on a FUSE file system whose server, a process of its own, does not answer FLUSH (or GETATTR).
 * Every process that has one waits in that way, at its end too, until the server has ended. A
 * server ends by itself after a while, whatever becomes of the test.
 */
#pragma once

#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness/harness.h"
#include "tests/harness/process.h"

#define NEEDS_FUSE SKIP_UNLESS(may_serve_files(), "may not mount a FUSE file system")

enum { STUCK_FDS = 8, STUCK_S = 300, FUSE_REQUEST = 64 * KIB };

struct stuck_files {
	pid_t pid;
	int fds[STUCK_FDS];
};

/* In a mount namespace of its own. The file's path is that of /dev/null there. Returns the
 * descriptor by which requests come, or -1. */
static inline int fuse_mount(void)
{
	int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	char options[96];

	snprintf(options, sizeof(options), "fd=%d,rootmode=100000,user_id=0,group_id=0", fd);
	if (fd < 0 || unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("tl-test", "/dev/null", "fuse", MS_NOSUID | MS_NODEV, options))
		return -1;
	return fd;
}

static inline bool may_serve_files(void)
{
	int status;
	pid_t pid = fork();

	if (!pid)
		_exit(fuse_mount() < 0);
	must(pid > 0);
	must_be(waitpid(pid, &status, 0), pid);
	return status == 0;
}

static inline void fuse_answer(int fd, uint64_t unique, const void *body, size_t size)
{
	struct fuse_out_header header = { .len = (uint32_t)(sizeof(header) + size),
					  .error = body ? 0 : -ENOSYS,
					  .unique = unique };
	struct iovec parts[2] = { { &header, sizeof(header) }, { (void *)body, size } };

	(void)!writev(fd, parts, body ? 2 : 1);
}

/* Answers no such request when all files have been opened. */
static inline _Noreturn void fuse_serve(int fd, uint32_t unanswered)
{
	static uint64_t buffer[FUSE_REQUEST / sizeof(uint64_t)];
	struct fuse_init_out init = { .major = FUSE_KERNEL_VERSION,
				      .minor = FUSE_KERNEL_MINOR_VERSION,
				      .max_write = 4096 };
	struct fuse_attr_out attr = { .attr = { .ino = 1, .mode = S_IFREG | 0600, .nlink = 1 } };
	struct fuse_open_out opened = { .fh = 1 };
	const struct fuse_in_header *in = (const void *)buffer;
	int opens = 0;

	while (read(fd, buffer, sizeof(buffer)) > 0) {
		if (in->opcode == unanswered && opens == STUCK_FDS)
			continue;
		switch (in->opcode) {
		case FUSE_INIT:
			fuse_answer(fd, in->unique, &init, sizeof(init));
			break;
		case FUSE_GETATTR:
			fuse_answer(fd, in->unique, &attr, sizeof(attr));
			break;
		case FUSE_OPEN:
			opens++;
			fuse_answer(fd, in->unique, &opened, sizeof(opened));
			break;
		case FUSE_INTERRUPT:
		case FUSE_FORGET:
			break;
		default:
			fuse_answer(fd, in->unique, NULL, 0);
		}
	}
	_exit(0);
}

/* The server must have none of its files: it would wait for itself when it is killed. So a child
 * opens them. */
static inline _Noreturn void fuse_run(int to, uint32_t unanswered)
{
	struct stuck_files files = { .pid = 0 };
	int fd = fuse_mount();
	pid_t opener;

	must(fd >= 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	opener = fork();
	must(opener >= 0);
	if (opener) {
		alarm(STUCK_S);
		fuse_serve(fd, unanswered);
	}
	close(fd);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	files.pid = getpid();
	for (int i = 0; i < STUCK_FDS; i++) {
		files.fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
		must(files.fds[i] >= 0);
	}
	must_be(write(to, &files, sizeof(files)), sizeof(files));
	for (;;)
		pause();
}

/* Opens that many of them, each for itself. @unanswered: FUSE_FLUSH or FUSE_GETATTR. Returns their
 * server. */
static inline pid_t stuck_fds_make(int fds[STUCK_FDS], uint32_t unanswered)
{
	struct stuck_files files;
	int ends[2], pidfd;
	pid_t pid;

	must_be(pipe2(ends, O_CLOEXEC), 0);
	pid = fork();
	must(pid >= 0);
	if (!pid) {
		process_is_child();
		fuse_run(ends[1], unanswered);
	}
	process_remember(pid);
	close(ends[1]);
	must_be(read(ends[0], &files, sizeof(files)), sizeof(files));
	close(ends[0]);
	pidfd = process_pidfd(files.pid);
	for (int i = 0; i < STUCK_FDS; i++) {
		fds[i] = (int)syscall(SYS_pidfd_getfd, pidfd, files.fds[i], 0);
		must(fds[i] >= 0);
	}
	close(pidfd);
	return pid;
}

/* From now on they are closed at once. */
static inline void stuck_fds_free(pid_t server)
{
	int status;

	must_be(kill(server, SIGKILL), 0);
	must_be(process_wait(server, &status), 0);
}
