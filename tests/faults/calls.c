/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions that the interposer stands in for, except those for memory, each with the errnos it
 * may fail with. A function that cannot fail in glibc or the kernel is not here.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/faults/interpose.h"

/* ---- All the rest, by the number of arguments; -1 and errno ---- */

#define REAL(type) ((type)real_of(&f))
#define CALL0(name, ...)                                                                           \
	EXPORT int name(void)                                                                      \
	{                                                                                          \
		static struct function f = { #name, { __VA_ARGS__ } };                             \
		return fails(&f) ? -1 : REAL(int (*)(void))();                                     \
	}
#define CALL1(result, name, A, ...)                                                                \
	EXPORT result name(A a)                                                                    \
	{                                                                                          \
		static struct function f = { #name, { __VA_ARGS__ } };                             \
		return fails(&f) ? (result)-1 : REAL(result(*)(A))(a);                             \
	}
#define CALL2(result, name, A, B, ...)                                                             \
	EXPORT result name(A a, B b)                                                               \
	{                                                                                          \
		static struct function f = { #name, { __VA_ARGS__ } };                             \
		return fails(&f) ? (result)-1 : REAL(result(*)(A, B))(a, b);                       \
	}
#define CALL3(result, name, A, B, C, ...)                                                          \
	EXPORT result name(A a, B b, C c)                                                          \
	{                                                                                          \
		static struct function f = { #name, { __VA_ARGS__ } };                             \
		return fails(&f) ? (result)-1 : REAL(result(*)(A, B, C))(a, b, c);                 \
	}
#define CALL4(result, name, A, B, C, D, ...)                                                       \
	EXPORT result name(A a, B b, C c, D d)                                                     \
	{                                                                                          \
		static struct function f = { #name, { __VA_ARGS__ } };                             \
		return fails(&f) ? (result)-1 : REAL(result(*)(A, B, C, D))(a, b, c, d);           \
	}
#define CALL5(result, name, A, B, C, D, E, ...)                                                    \
	EXPORT result name(A a, B b, C c, D d, E e)                                                \
	{                                                                                          \
		static struct function f = { #name, { __VA_ARGS__ } };                             \
		return fails(&f) ? (result)-1 : REAL(result(*)(A, B, C, D, E))(a, b, c, d, e);     \
	}

CALL3(int, socket, int, int, int, EMFILE, ENOBUFS)
CALL3(int, connect, int, const struct sockaddr *, socklen_t, EINTR, ENOMEM)
CALL4(int, accept4, int, struct sockaddr *, socklen_t *, int, EMFILE, ENOMEM, ECONNABORTED, EINTR,
      EAGAIN)
CALL3(int, bind, int, const struct sockaddr *, socklen_t, ENOMEM, ENOSPC)
CALL2(int, listen, int, int, EADDRINUSE)
CALL5(int, getsockopt, int, int, int, void *, socklen_t *, ENOMEM)
CALL5(int, setsockopt, int, int, int, const void *, socklen_t, ENOMEM)
CALL3(int, getsockname, int, struct sockaddr *, socklen_t *, ENOBUFS)
CALL4(ssize_t, recv, int, void *, size_t, int, EINTR, EAGAIN, ENOMEM)
CALL3(int, poll, struct pollfd *, nfds_t, int, EINTR, EAGAIN, ENOMEM)
CALL4(int, ppoll, struct pollfd *, nfds_t, const struct timespec *, const sigset_t *, EINTR, ENOMEM)
CALL1(int, epoll_create1, int, EMFILE, ENOMEM)
CALL4(int, epoll_wait, int, struct epoll_event *, int, int, EINTR)
CALL5(int, epoll_pwait, int, struct epoll_event *, int, int, const sigset_t *, EINTR)
CALL2(int, eventfd, unsigned, int, EMFILE, ENOMEM)
CALL2(int, timerfd_create, int, int, EMFILE)
CALL1(int, inotify_init1, int, EMFILE)
CALL3(int, inotify_add_watch, int, const char *, uint32_t, ENOSPC, ENOMEM)
CALL2(int, memfd_create, const char *, unsigned, EMFILE, ENOMEM)
CALL1(int, dup, int, EMFILE)
CALL2(int, dup2, int, int, EBUSY)
CALL3(int, dup3, int, int, int, EBUSY)
CALL2(int, flock, int, int, EINTR, ENOLCK)
CALL3(int, madvise, void *, size_t, int, ENOMEM)
CALL3(int, shm_open, const char *, int, mode_t, EMFILE, ENOMEM)
CALL1(int, shm_unlink, const char *, ENOMEM)
CALL1(int, unlink, const char *, ENOMEM)
CALL3(int, unlinkat, int, const char *, int, ENOMEM)
CALL2(int, rename, const char *, const char *, ENOSPC, EIO)
CALL5(int, linkat, int, const char *, int, const char *, int, ENOSPC, ENOENT)
CALL2(int, fchmod, int, mode_t, EPERM)
CALL3(int, fchown, int, uid_t, gid_t, EPERM)
CALL1(int, fsync, int, EIO, EINTR)
CALL2(int, mkdir, const char *, mode_t, ENOSPC)
CALL1(int, rmdir, const char *, ENOMEM)
CALL1(int, chdir, const char *, ENOMEM)
CALL0(fork, EAGAIN, ENOMEM)
CALL0(setsid, EPERM)
CALL3(ssize_t, getrandom, void *, size_t, unsigned, EINTR, EAGAIN)
CALL3(pid_t, waitpid, pid_t, int *, int, EINTR)
CALL2(int, nanosleep, const struct timespec *, struct timespec *, EINTR)
CALL3(ssize_t, readlink, const char *, char *, size_t, ENOMEM)
CALL2(int, access, const char *, int, ENOMEM)
CALL2(int, ftruncate, int, off_t, ENOSPC, EINTR)
CALL2(int, truncate, const char *, off_t, ENOMEM, EINTR)
CALL4(ssize_t, pread, int, void *, size_t, off_t, EIO)
CALL4(ssize_t, pwrite, int, const void *, size_t, off_t, ENOSPC, EIO)
CALL4(int, fallocate, int, int, off_t, off_t, ENOSPC, EINTR)
CALL3(off_t, lseek, int, off_t, int, EIO)
CALL2(int, fstat, int, struct stat *, ENOMEM)
CALL2(int, stat, const char *, struct stat *, ENOMEM)
CALL2(int, lstat, const char *, struct stat *, ENOMEM)
CALL4(int, fstatat, int, const char *, struct stat *, int, ENOMEM)
CALL2(int, fstatfs, int, struct statfs *, ENOMEM)
CALL2(int, statvfs, const char *, struct statvfs *, ENOMEM)

EXPORT int pipe2(int fds[2], int flags)
{
	static struct function f = { "pipe2", { EMFILE } };

	return fails(&f) ? -1 : REAL(int (*)(int *, int))(fds, flags);
}

#define CALL_RLIMIT(name, A, B)                                                                    \
	EXPORT int name(A a, B b)                                                                  \
	{                                                                                          \
		static struct function f = { #name, { EPERM } };                                   \
		return fails(&f) ? -1 : REAL(int (*)(A, B))(a, b);                                 \
	}
CALL_RLIMIT(getrlimit, __rlimit_resource_t, struct rlimit *)
CALL_RLIMIT(setrlimit, __rlimit_resource_t, const struct rlimit *)

EXPORT int ftruncate64(int fd, off_t size) ALIAS(ftruncate);
EXPORT int truncate64(const char *path, off_t size) ALIAS(truncate);
EXPORT ssize_t pread64(int fd, void *to, size_t n, off_t at) ALIAS(pread);
EXPORT ssize_t pwrite64(int fd, const void *from, size_t n, off_t at) ALIAS(pwrite);
EXPORT int fallocate64(int fd, int mode, off_t at, off_t n) ALIAS(fallocate);
EXPORT off_t lseek64(int fd, off_t to, int from) ALIAS(lseek);

/* Functions that return the error and leave errno alone. */
#define RETURNS(name, PARAMETERS, ARGUMENTS, ...)                                                  \
	EXPORT int name PARAMETERS                                                                 \
	{                                                                                          \
		static struct function f = { #name, { __VA_ARGS__ } };                             \
		int saved = errno;                                                                 \
		int r = fails(&f);                                                                 \
		errno = saved;                                                                     \
		return r ? r : REAL(int(*) PARAMETERS) ARGUMENTS;                                  \
	}

RETURNS(posix_fallocate, (int fd, off_t at, off_t n), (fd, at, n), ENOSPC, EINTR)
EXPORT int posix_fallocate64(int fd, off_t at, off_t n) ALIAS(posix_fallocate);
RETURNS(pthread_create,
	(pthread_t * t, const pthread_attr_t *attr, void *(*run)(void *), void *arg),
	(t, attr, run, arg), EAGAIN)
RETURNS(pthread_key_create, (pthread_key_t * key, void (*end)(void *)), (key, end), EAGAIN)
RETURNS(pthread_setspecific, (pthread_key_t key, const void *value), (key, value), ENOMEM)
int __register_atfork(void (*before)(void), void (*parent)(void), void (*child)(void), void *dso);
RETURNS(__register_atfork,
	(void (*before)(void), void (*parent)(void), void (*child)(void), void *dso),
	(before, parent, child, dso), ENOMEM)
RETURNS(posix_spawn,
	(pid_t * pid, const char *path, const posix_spawn_file_actions_t *actions,
	 const posix_spawnattr_t *attr, char *const *argv, char *const *env),
	(pid, path, actions, attr, argv, env), EAGAIN, ENOMEM)

/* ---- The ones that are different ---- */

EXPORT void *mmap(void *at, size_t size, int prot, int flags, int fd, off_t offset)
{
	static struct function f = { "mmap", { ENOMEM } };

	if (fails(&f))
		return MAP_FAILED;
	return (void *)syscall(SYS_mmap, at, size, prot, flags, fd, offset);
}
EXPORT void *mmap64(void *at, size_t size, int prot, int flags, int fd, off_t offset) ALIAS(mmap);

EXPORT int open(const char *path, int flags, ...)
{
	static struct function f = { "open", { EMFILE, ENOMEM } };
	mode_t mode;
	va_list args;

	va_start(args, flags);
	mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;
	va_end(args);
	return fails(&f) ? -1 : REAL(int (*)(const char *, int, ...))(path, flags, mode);
}
EXPORT int open64(const char *path, int flags, ...) ALIAS(open);
int __open_2(const char *path, int flags);
EXPORT int __open_2(const char *path, int flags)
{
	return open(path, flags, 0);
}
int __open64_2(const char *path, int flags);
EXPORT int __open64_2(const char *path, int flags)
{
	return open(path, flags, 0);
}

EXPORT int openat(int dir, const char *path, int flags, ...)
{
	static struct function f = { "openat", { EMFILE, ENOMEM } };
	mode_t mode;
	va_list args;

	va_start(args, flags);
	mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;
	va_end(args);
	return fails(&f) ? -1 : REAL(int (*)(int, const char *, int, ...))(dir, path, flags, mode);
}

/* Reading and changing a descriptor's flags cannot fail. */
EXPORT int fcntl(int fd, int command, ...)
{
	static struct function f = { "fcntl", { EMFILE, EBUSY } };
	unsigned hows = command == F_DUPFD || command == F_DUPFD_CLOEXEC ? 1 << 0
			: command == F_ADD_SEALS			 ? 1 << 1
									 : 0;
	va_list args;
	void *arg;

	va_start(args, command);
	arg = va_arg(args, void *);
	va_end(args);
	return hows && fails_if(&f, hows) ? -1 : REAL(int (*)(int, int, ...))(fd, command, arg);
}
EXPORT int fcntl64(int fd, int command, ...) ALIAS(fcntl);

EXPORT int ioctl(int fd, unsigned long request, ...)
{
	static struct function f = { "ioctl", { ENOMEM } };
	va_list args;
	void *arg;

	va_start(args, request);
	arg = va_arg(args, void *);
	va_end(args);
	return fails(&f) ? -1 : REAL(int (*)(int, unsigned long, ...))(fd, request, arg);
}

/*
 * Only a new entry needs space in the kernel. Whether an entry is new shows only once it has been
 * made, so it is made first and then removed.
 */
EXPORT int epoll_ctl(int fd, int operation, int of, struct epoll_event *event)
{
	static struct function f = { "epoll_ctl", { ENOMEM, ENOSPC } };
	int r = REAL(int (*)(int, int, int, struct epoll_event *))(fd, operation, of, event);

	if (r || operation != EPOLL_CTL_ADD || !fails(&f))
		return r;
	r = errno;
	REAL(int (*)(int, int, int, struct epoll_event *))(fd, EPOLL_CTL_DEL, of, event);
	errno = r;
	return -1;
}

static bool is_file(int fd)
{
	struct stat st;

	return !syscall(SYS_fstat, fd, &st) && S_ISREG(st.st_mode);
}

EXPORT ssize_t read(int fd, void *to, size_t n)
{
	static struct function f = { "read", { EINTR, EIO } };

	if (fails_if(&f, is_file(fd) ? 1 << 1 : 1 << 0))
		return -1;
	return REAL(ssize_t(*)(int, void *, size_t))(fd, to, n);
}

EXPORT ssize_t write(int fd, const void *from, size_t n)
{
	static struct function f = { "write", { EINTR, ENOSPC } };

	if (fails_if(&f, is_file(fd) ? 1 << 1 : 1 << 0))
		return -1;
	return REAL(ssize_t(*)(int, const void *, size_t))(fd, from, n);
}

/* The descriptor is closed even if this fails, as on Linux. */
EXPORT int close(int fd)
{
	static struct function f = { "close", { EINTR, EIO } };
	int r = fails_if(&f, is_file(fd) ? ALL_HOWS : 1 << 0);

	if (!r)
		return REAL(int (*)(int))(fd);
	syscall(SYS_close, fd);
	errno = r;
	return -1;
}

static bool carries_fd(const struct msghdr *m)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR((struct msghdr *)m, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
			return true;
	return false;
}

EXPORT ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
	static struct function f = { "sendmsg", { EAGAIN, EINTR, ENOBUFS, ENOMEM, ETOOMANYREFS } };

	if (fails_if(&f, m->msg_controllen && carries_fd(m) ? ALL_HOWS : ALL_HOWS & ~(1 << 4)))
		return -1;
	return REAL(ssize_t(*)(int, const struct msghdr *, int))(fd, m, flags);
}

static void lose_fds(struct msghdr *m)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		int fd;

		for (size_t i = 0; c->cmsg_type == SCM_RIGHTS && i < n; i++) {
			memcpy(&fd, CMSG_DATA(c) + i * sizeof(fd), sizeof(fd));
			syscall(SYS_close, fd);
		}
	}
	m->msg_controllen = 0;
	m->msg_flags |= MSG_CTRUNC;
}

/*
 * A call that fails before it takes the message finds it again the next time. Descriptors can be
 * lost alone, and for good.
 */
EXPORT ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
	/* no EAGAIN: from a socket that holds a message the kernel never returns that, and the
	 * daemon's edge-triggered epoll relies on it */
	static struct function before = { "recvmsg", { EINTR, ENOMEM } };
	static struct function f = { "recvmsg_fd", { REPORT_CTRUNC } };
	ssize_t n;

	if (fails(&before))
		return -1;
	n = ((ssize_t(*)(int, struct msghdr *, int))real_of(&before))(fd, m, flags);
	if (n > 0 && m->msg_controllen && carries_fd(m)) {
		int saved = errno;

		if (fails(&f))
			lose_fds(m);
		errno = saved;
	}
	return n;
}

EXPORT DIR *opendir(const char *path)
{
	static struct function f = { "opendir", { EMFILE } };

	return fails(&f) ? NULL : REAL(DIR * (*)(const char *))(path);
}

EXPORT struct dirent *readdir(DIR *dir)
{
	static struct function f = { "readdir", { EIO } };

	return fails(&f) ? NULL : REAL(struct dirent * (*)(DIR *))(dir);
}

EXPORT FILE *fopen(const char *path, const char *mode)
{
	static struct function f = { "fopen", { EMFILE } };

	return fails(&f) ? NULL : REAL(FILE * (*)(const char *, const char *))(path, mode);
}

/* futex(), futex_waitv() and membarrier() have no wrapper in libc. */
EXPORT long syscall(long number, ...)
{
	static struct function futex = { "syscall_futex", { EINTR, EAGAIN } };
	static struct function waitv = { "syscall_futex_waitv", { EINTR, EAGAIN, ENOMEM, ENOSYS } };
	static struct function barrier = { "syscall_membarrier", { ENOMEM, ENOSYS } };
	static void *real;
	bool was = inside;
	long a[6];
	va_list args;

	va_start(args, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	if ((number == SYS_futex && (a[1] & 127) == 0 && fails(&futex)) ||
	    (number == 449 && fails(&waitv)) || (number == SYS_membarrier && fails(&barrier)))
		return -1;
	inside = true;
	if (!real)
		real = dlsym(RTLD_NEXT, "syscall");
	inside = was;
	return ((long (*)(long, ...))real)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
