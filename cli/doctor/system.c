/* SPDX-License-Identifier: Apache-2.0 */
/* doctor: the system calls that the library needs, and limits. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/membarrier.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "cli/doctor/doctor.h"
#include "util/fd.h"

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

static void say_kernel(struct doctor *d)
{
	struct utsname u;

	uname(&u);
	doctor_say(
		d, strcmp(u.machine, "x86_64") != 0 ? DOCTOR_WARN : DOCTOR_OK, "kernel",
		"tensorlease should work on this processor but is not tested on it: run make test",
		"Linux %s, %s%s%s", u.release, u.machine,
		access("/.dockerenv", F_OK) ? "" : ", Docker",
		access("/run/.containerenv", F_OK) ? "" : ", Podman");
}

/* Reports whether a system call @works, whose errno is that of now. */
static void say_call(struct doctor *d, const char *call, bool works, enum doctor_result without,
		     const char *missing)
{
	if (works)
		doctor_say(d, DOCTOR_OK, call, NULL, "works");
	else
		doctor_say(
			d, without, call,
			"the kernel is too old, or a seccomp filter forbids the call: update the kernel or the container runtime, or allow the call",
			"%s: %m", missing);
}

static bool memfd_is_sealed(void)
{
	int fd = memfd_create("tensorlease-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	bool sealed = fd >= 0 && !ftruncate(fd, 4096) &&
		      !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE);

	fd_close(fd);
	return sealed;
}

static bool has_futex_waitv(void)
{
	return syscall(SYS_futex_waitv, NULL, 0, 0, NULL, 0) && errno == EINVAL;
}

static bool has_membarrier(void)
{
	return !syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) &&
	       !syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
}

static void say_limits(struct doctor *d)
{
	struct rlimit files;
	char maps[32];

	getrlimit(RLIMIT_NOFILE, &files);
	doctor_say(
		d, files.rlim_max < 4096 ? DOCTOR_WARN : DOCTOR_OK, "limits",
		"a daemon needs a descriptor for each client and each segment: raise the hard limit (ulimit -Hn 65536; docker run --ulimit nofile=65536; LimitNOFILE= in its unit)",
		"descriptors %ju (hard %ju), vm.max_map_count %s (half of it for tensors over 64 KiB that a process has used)",
		(uintmax_t)files.rlim_cur, (uintmax_t)files.rlim_max,
		doctor_read("/proc/sys/vm/max_map_count", "", maps, sizeof(maps)));
}

void doctor_system(struct doctor *d)
{
	say_kernel(d);
	say_call(d, "memfd", memfd_is_sealed(), DOCTOR_FAIL,
		 "clients cannot connect without its seals (Linux 5.1)");
	say_call(d, "futex_waitv", has_futex_waitv(), DOCTOR_WARN,
		 "waits for several names look every 5 ms instead of sleeping (Linux 5.16)");
	say_call(d, "membarrier", has_membarrier(), DOCTOR_WARN,
		 "gets and releases take a quarter longer without it (Linux 4.14)");
	say_limits(d);
}
