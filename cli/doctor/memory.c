/* SPDX-License-Identifier: Apache-2.0 */
/* doctor: shared memory: its size, whether an object can be made, and the size of its pages. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <mntent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "cli/doctor/doctor.h"
#include "cli/format.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/memory_limit.h"
#include "util/shm_space.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { HUGE = 2 << 20, PROBE = 16 << 20 };

static const char bigger[] =
	"make it larger: docker run --shm-size=8g (or --ipc=host); in Kubernetes mount an emptyDir with medium: Memory at /dev/shm; else mount -o remount,size=8G /dev/shm";

/* ---- Size ---- */

/* Writes the mount options of /dev/shm to @out. */
static void mount_options(char *out, size_t size)
{
	FILE *f = setmntent("/proc/self/mounts", "re");
	const struct mntent *m;

	snprintf(out, size, "not a mount of its own");
	while (f && (m = getmntent(f)))
		if (!strcmp(m->mnt_dir, "/dev/shm"))
			snprintf(out, size, "%s, %s", m->mnt_type, m->mnt_opts);
	if (f)
		endmntent(f);
}

/* Counts the objects of all daemons. */
static void count_objects(unsigned *count, uint64_t *bytes)
{
	DIR *dir = opendir("/dev/shm");
	struct dirent *entry;
	struct stat st;

	*count = 0;
	*bytes = 0;
	while (dir && (entry = readdir(dir))) {
		if (strncmp(entry->d_name, "tensorlease", 11) != 0 ||
		    fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW))
			continue;
		++*count;
		*bytes += (uint64_t)st.st_blocks * 512;
	}
	if (dir)
		closedir(dir);
}

static bool say_size(struct doctor *d)
{
	char options[400];
	struct shm_space shm;
	struct statfs kind;
	uint64_t limit = memory_limit(), capacity, bytes;
	char *a, *b, *c, *most;
	unsigned count;

	if (shm_space_find(&shm) || statfs("/dev/shm", &kind)) {
		doctor_say(d, DOCTOR_FAIL, "/dev/shm",
			   "tensors are stored there: mount -t tmpfs tmpfs /dev/shm", "%m");
		return false;
	}
	mount_options(options, sizeof(options));
	count_objects(&count, &bytes);
	a = format_size(shm.size, true);
	b = format_size(shm.left, true);
	c = format_size(bytes, true);
	capacity = (limit < shm.size ? limit : shm.size) / 2;
	most = format_size(capacity, true);
	if ((uint64_t)kind.f_type != TMPFS_MAGIC)
		doctor_say(d, DOCTOR_WARN, "/dev/shm",
			   "tensors there go to a disk: mount a tmpfs at /dev/shm",
			   "%s, %s free; not a tmpfs (%s)", a, b, options);
	else if (!shm.limited)
		doctor_say(d, DOCTOR_OK, "/dev/shm", NULL,
			   "it has no limit; a daemon's capacity is %s by default; %u objects of "
			   "tensorlease, %s (%s)",
			   most, count, c, options);
	else if (shm.size < 1 << 30)
		doctor_say(d, DOCTOR_WARN, "/dev/shm", bigger,
			   "only %s, so that a daemon takes at most %s of tensors (%s)", a, most,
			   options);
	else if (shm.left < capacity)
		doctor_say(d, DOCTOR_WARN, "/dev/shm",
			   "less is free than a daemon may use by default: see who fills it (ls "
			   "-lS /dev/shm), or start tensorleased with a smaller --capacity",
			   "%s, only %s free; %u objects of tensorlease, %s (%s)", a, b, count, c,
			   options);
	else
		doctor_say(d, DOCTOR_OK, "/dev/shm", NULL,
			   "%s, %s free; a daemon's capacity is %s by default; %u objects of "
			   "tensorlease, %s (%s)",
			   a, b, most, count, c, options);
	free(a);
	free(b);
	free(c);
	free(most);
	return true;
}

/* ---- An object ---- */

/* Returns a new object of @size bytes, allocated and already unlinked, or a negative errno. */
static int object_new(size_t size)
{
	char name[64];
	int fd, r;

	snprintf(name, sizeof(name), "/tensorlease-doctor-%d", (int)getpid());
	fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
	if (fd < 0)
		return -errno;
	shm_unlink(name);
	if (ftruncate(fd, (off_t)size)) {
		r = -errno;
		fd_close(fd);
		return r;
	}
	r = posix_fallocate(fd, 0, (off_t)size);
	if (!r)
		return fd;
	fd_close(fd);
	return -r;
}

static const char *object_advice(int r)
{
	switch (r) {
	case -ENOSPC:
		return "it is full: remove what is not needed (ls -lS /dev/shm), or make it larger";
	case -EACCES:
	case -EPERM:
		return "it should have mode 1777: chmod 1777 /dev/shm";
	case -EROFS:
		return "it is mounted read-only: mount -o remount,rw /dev/shm";
	default:
		return "see which file system it is: df -T /dev/shm";
	}
}

/* Returns, in bytes, the line @key of this process's smaps for the mapping that begins at @at. */
static uint64_t smaps_value(const void *at, const char *key)
{
	FILE *f = fopen("/proc/self/smaps", "re");
	uint64_t kib = 0;
	char line[512], begin[32];
	bool in = false;

	snprintf(begin, sizeof(begin), "%" PRIxPTR "-", (uintptr_t)at);
	while (f && fgets(line, sizeof(line), f)) {
		if (strchr(line, '-') && strspn(line, "0123456789abcdef") >= 6)
			in = !strncmp(line, begin, strlen(begin));
		else if (in && !strncmp(line, key, strlen(key)))
			kib = strtoull(line + strlen(key) + 1, NULL, 10);
	}
	if (f)
		fclose(f);
	return kib << 10;
}

static void say_pages(struct doctor *d, char *at, double gbps)
{
	static const char advice[] =
		"large tensors are filled several times faster the first time with 2 MiB pages: as root, mount -o remount,huge=within_size /dev/shm (and huge=within_size in /etc/fstab to keep it)";
	char enabled[128], shmem[128];
	uint64_t huge = smaps_value(at, "ShmemPmdMapped:");
	bool collapses;

	doctor_read("/sys/kernel/mm/transparent_hugepage/enabled", enabled, sizeof(enabled));
	doctor_read("/sys/kernel/mm/transparent_hugepage/shmem_enabled", shmem, sizeof(shmem));
	if (huge) {
		doctor_say(d, DOCTOR_OK, "huge pages", NULL,
			   "%d of %d pages of 2 MiB in a new object; filled at %.1f GB/s",
			   (int)(huge / HUGE), PROBE / HUGE, gbps);
		return;
	}
	collapses = !madvise(at, PROBE, MADV_COLLAPSE) && smaps_value(at, "ShmemPmdMapped:");
	doctor_say(d, DOCTOR_WARN, "huge pages",
		   *shmem ? advice : "this kernel has no transparent huge pages in shared memory",
		   "none in a new object, filled at %.1f GB/s (enabled: %s; shmem_enabled: %s; "
		   "MADV_COLLAPSE %s)",
		   gbps, *enabled ? enabled : "not there", *shmem ? shmem : "not there",
		   collapses ? "works" : "does not");
}

/* Makes and maps an object as the daemon and a producer do: at a multiple of 2 MiB, with advice. */
static void say_object(struct doctor *d)
{
	int fd = object_new(PROBE);
	char *space, *at;
	int64_t begin;
	double gbps;

	if (fd < 0) {
		doctor_say(d, DOCTOR_FAIL, "shm object", object_advice(fd), "16 MiB: %s",
			   strerror(-fd));
		return;
	}
	space = mmap(NULL, PROBE + HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	at = (char *)(((uintptr_t)space + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
	if (space == MAP_FAILED ||
	    mmap(at, PROBE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
		doctor_say(d, DOCTOR_FAIL, "shm object",
			   "raise the limit on address space: ulimit -v", "mapping it: %m");
		fd_close(fd);
		return;
	}
	madvise(at, PROBE, MADV_HUGEPAGE);
	begin = now_mono_ns();
	memset(at, 1, PROBE);
	gbps = (double)PROBE / (double)(now_mono_ns() - begin);
	doctor_say(d, DOCTOR_OK, "shm object", NULL,
		   "16 MiB were allocated, mapped, filled and unlinked");
	say_pages(d, at, gbps);
	munmap(space, PROBE + HUGE);
	fd_close(fd);
}

/* ---- Limits of the group ---- */

static void say_limit(struct doctor *d)
{
	uint64_t limit = memory_limit();
	uint64_t ram = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	char *memory = format_size(ram, true), *most;

	if (limit >= ram) {
		doctor_say(d, DOCTOR_OK, "memory limit", NULL, "none; the machine has %s", memory);
		free(memory);
		return;
	}
	most = format_size(limit, true);
	doctor_say(d, DOCTOR_OK, "memory limit", NULL,
		   "%s for this control group, of which a daemon takes at most half for tensors; "
		   "the machine has %s",
		   most, memory);
	free(most);
	free(memory);
}

void doctor_memory(struct doctor *d)
{
	if (say_size(d)) {
		doctor_orphans(d);
		say_object(d);
	}
	say_limit(d);
}
