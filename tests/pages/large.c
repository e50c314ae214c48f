/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loaded with LD_PRELOAD, this makes a program see a machine with pages of 64 KiB, as kernels for
 * aarch64 have them: addresses of mappings are multiples of that, and those in calls must be. What
 * libc and the kernel do by themselves stays as it is, and so do the sizes of files.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE ((size_t)64 << 10)
#define EXPORT __attribute__((visibility("default")))

static size_t ceil_page(size_t size)
{
	return (size + PAGE - 1) & ~(PAGE - 1);
}

static int refuses(const void *address)
{
	if ((uintptr_t)address % PAGE == 0)
		return 0;
	errno = EINVAL;
	return -1;
}

static void *map(void *address, size_t size, int prot, int flags, int fd, off_t offset)
{
	/* NOLINTNEXTLINE(performance-no-int-to-ptr) */
	return (void *)syscall(SYS_mmap, address, size, prot, flags, fd, offset);
}

EXPORT void *mmap(void *addr, size_t len, int prot, int flags, int fd, off_t offset)
{
	char *space, *at;
	void *p;

	if ((uint64_t)offset % PAGE ||
	    ((flags & (MAP_FIXED | MAP_FIXED_NOREPLACE)) && refuses(addr))) {
		errno = EINVAL;
		return MAP_FAILED;
	}
	if (!len || flags & (MAP_FIXED | MAP_FIXED_NOREPLACE))
		return map(addr, len, prot, flags, fd, offset);
	space = map(NULL, ceil_page(len) + PAGE, PROT_NONE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (space == MAP_FAILED)
		return MAP_FAILED;
	at = space + (PAGE - (uintptr_t)space % PAGE) % PAGE;
	p = map(at, len, prot, flags | MAP_FIXED, fd, offset);
	if (p == MAP_FAILED) {
		int saved = errno;

		syscall(SYS_munmap, space, ceil_page(len) + PAGE);
		errno = saved;
		return MAP_FAILED;
	}
	if (at > space)
		syscall(SYS_munmap, space, at - space);
	syscall(SYS_munmap, at + ceil_page(len), space + PAGE - at);
	return p;
}

EXPORT void *mmap64(void *addr, size_t len, int prot, int flags, int fd, off_t offset)
	__attribute__((alias("mmap")));

EXPORT int munmap(void *addr, size_t len)
{
	return refuses(addr) ? -1 : (int)syscall(SYS_munmap, addr, ceil_page(len));
}

EXPORT int mprotect(void *addr, size_t len, int prot)
{
	return refuses(addr) ? -1 : (int)syscall(SYS_mprotect, addr, len, prot);
}

EXPORT int madvise(void *addr, size_t len, int advice)
{
	return refuses(addr) ? -1 : (int)syscall(SYS_madvise, addr, len, advice);
}

EXPORT long sysconf(int name)
{
	static long (*next)(int);

	if (name == _SC_PAGESIZE)
		return PAGE;
	if (!next)
		next = dlsym(RTLD_NEXT, "sysconf");
	return next(name);
}
