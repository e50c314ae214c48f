/* SPDX-License-Identifier: Apache-2.0 */
/* doctor: the system calls that the library needs, limits, and namespaces. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/doctor/doctor.h"
#include "util/clock.h"
#include "util/fd.h"

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

static const char blocked[] =
	"the kernel is too old, or a seccomp filter forbids the call: update the kernel or the container runtime, or allow the call";

/* ---- Surroundings ---- */

static void say_kernel(struct doctor *d)
{
	struct utsname u;
	char version[256];

	uname(&u);
	doctor_read("/proc/version", version, sizeof(version));
	d->wsl = strcasestr(version, "microsoft") != NULL;
	d->tegra = !access("/etc/nv_tegra_release", F_OK) || !access("/dev/nvmap", F_OK);
	if (strcmp(u.machine, "x86_64") != 0)
		doctor_say(
			d, DOCTOR_WARN, "kernel",
			"tensorlease should work on this processor but is not tested on it: run make test",
			"Linux %s, %s%s", u.release, u.machine, d->tegra ? ", Tegra" : "");
	else
		doctor_say(d, DOCTOR_OK, "kernel", NULL, "Linux %s, %s%s", u.release, u.machine,
			   d->wsl ? ", WSL" : "");
}

static uint64_t namespace_of(const char *kind)
{
	char path[64];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/self/ns/%s", kind);
	return stat(path, &st) ? 0 : st.st_ino;
}

static void say_namespaces(struct doctor *d)
{
	/* The kernel's ABI fixes the numbers of the initial namespaces. */
	const uint64_t first_pid = 0xeffffffc, first_user = 0xeffffffd, first_ipc = 0xefffffff;
	char map[128], ids[128] = "", line[256];
	unsigned depth = 0;
	FILE *f = fopen("/proc/self/status", "re");

	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, "NSpid:", 6))
			for (const char *p = line; *p; p++)
				depth += *p == '\t';
	if (f)
		fclose(f);
	doctor_read("/proc/self/uid_map", map, sizeof(map));
	if (namespace_of("user") != first_user)
		snprintf(ids, sizeof(ids), ", own user namespace (uid_map %.80s)", map);
	doctor_say(d, DOCTOR_OK, "namespaces", NULL,
		   "%s PID namespace (depth %u), %s IPC namespace%s%s%s",
		   namespace_of("pid") == first_pid ? "the machine's" : "own", depth,
		   namespace_of("ipc") == first_ipc ? "the machine's" : "own", ids,
		   access("/.dockerenv", F_OK) ? "" : ", Docker",
		   access("/run/.containerenv", F_OK) ? "" : ", Podman");
}

/* ---- memfd ---- */

static void say_memfd(struct doctor *d)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
	int fd = memfd_create("tensorlease-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	char *at;

	if (fd < 0) {
		doctor_say(d, DOCTOR_FAIL, "memfd", blocked, "memfd_create (Linux 3.17): %m");
		return;
	}
	if (ftruncate(fd, 4096) || fcntl(fd, F_ADD_SEALS, seals) || !ftruncate(fd, 0) ||
	    errno != EPERM || !ftruncate(fd, 8192) || errno != EPERM) {
		doctor_say(d, DOCTOR_FAIL, "memfd",
			   "clients need seals to connect: update the kernel",
			   "a memfd can be resized although it was sealed against that");
	} else {
		doctor_say(d, DOCTOR_OK, "memfd", NULL,
			   "sealed against shrinking and growing, and the seals hold");
	}
	at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED || fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE))
		doctor_say(d, DOCTOR_FAIL, "seal future writes",
			   "clients need it to connect: use Linux 5.1 or newer, or another sandbox",
			   "F_SEAL_FUTURE_WRITE: %m");
	else if (mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED)
		doctor_say(d, DOCTOR_WARN, "seal future writes",
			   "report it to the vendor of this kernel",
			   "F_SEAL_FUTURE_WRITE is accepted but does not hold");
	else
		doctor_say(d, DOCTOR_OK, "seal future writes", NULL,
			   "no new writable mapping after F_SEAL_FUTURE_WRITE");
	if (at != MAP_FAILED)
		munmap(at, 4096);
	fd_close(fd);
}

/* ---- futex ---- */

/* Runs in a child: wakes a waiter on the word as soon as there is one. */
static _Noreturn void wake(int fd, int64_t deadline)
{
	uint32_t *word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	while (word != MAP_FAILED && !deadline_passed(deadline)) {
		if (syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0) > 0)
			_exit(0);
		sched_yield();
	}
	_exit(1);
}

static int wait_on(const void *word, int64_t deadline)
{
	struct timespec left = { .tv_sec = deadline_left_ns(deadline) / NS_PER_SEC + 1 };

	while (syscall(SYS_futex, word, FUTEX_WAIT, 0, &left, NULL, 0))
		if (errno != EINTR)
			return -errno;
	return 0;
}

static void say_futex(struct doctor *d)
{
	int fd = memfd_create("tensorlease-doctor", MFD_CLOEXEC);
	int64_t deadline = deadline_after(5 * NS_PER_SEC);
	void *word = MAP_FAILED;
	int status = 1, r = -EIO;
	pid_t pid = -1;

	if (fd >= 0 && !ftruncate(fd, 4096))
		word = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
	if (word != MAP_FAILED)
		pid = fork();
	if (!pid)
		wake(fd, deadline);
	if (pid > 0) {
		r = wait_on(word, deadline);
		waitpid(pid, &status, 0);
	}
	if (r || status)
		doctor_say(
			d, DOCTOR_FAIL, "futex, read-only",
			"waiting gets would not be woken: use an ordinary Linux kernel (some sandboxes emulate futexes incompletely)",
			"another process could not wake a wait on a read-only mapping: %s",
			r ? strerror(-r) : "nobody was woken");
	else
		doctor_say(d, DOCTOR_OK, "futex, read-only", NULL,
			   "another process woke a wait on a read-only mapping");
	if (word != MAP_FAILED)
		munmap(word, 4096);
	fd_close(fd);
}

static void say_futex_waitv(struct doctor *d)
{
	if (syscall(SYS_futex_waitv, NULL, 0, 0, NULL, 0) && errno == EINVAL)
		doctor_say(d, DOCTOR_OK, "futex_waitv", NULL, "waits for several names sleep");
	else
		doctor_say(
			d, DOCTOR_WARN, "futex_waitv", blocked,
			"missing (Linux 5.16), so that waits for several names look every 5 ms instead of sleeping: %m");
}

static void say_membarrier(struct doctor *d)
{
	if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) ||
	    syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0))
		doctor_say(
			d, DOCTOR_WARN, "membarrier", blocked,
			"membarrier (Linux 4.14): %m; gets and releases take a quarter longer without it");
	else
		doctor_say(d, DOCTOR_OK, "membarrier", NULL, "private, expedited");
}

/* ---- Limits ---- */

static const char *limit_text(rlim_t value, char text[24])
{
	if (value == RLIM_INFINITY)
		snprintf(text, 24, "no limit");
	else
		snprintf(text, 24, "%ju", (uintmax_t)value);
	return text;
}

static void say_limits(struct doctor *d)
{
	char soft[24], hard[24], locked[24], maps[32];
	struct rlimit files, memory;

	getrlimit(RLIMIT_NOFILE, &files);
	getrlimit(RLIMIT_MEMLOCK, &memory);
	doctor_read("/proc/sys/vm/max_map_count", maps, sizeof(maps));
	doctor_say(
		d, files.rlim_max < 4096 ? DOCTOR_WARN : DOCTOR_OK, "limits",
		"a daemon needs a descriptor for each client and each segment: raise the hard limit (ulimit -Hn 65536; docker run --ulimit nofile=65536; LimitNOFILE= in its unit)",
		"descriptors %s (hard %s), locked memory %s bytes (not needed), "
		"vm.max_map_count %s (half of it for tensors over 64 KiB that a process has used)",
		limit_text(files.rlim_cur, soft), limit_text(files.rlim_max, hard),
		limit_text(memory.rlim_cur, locked), *maps ? maps : "unknown");
}

void doctor_kernel(struct doctor *d)
{
	say_kernel(d);
	say_namespaces(d);
	say_memfd(d);
	say_futex(d);
	say_futex_waitv(d);
	say_membarrier(d);
	say_limits(d);
}
