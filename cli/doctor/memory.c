/* SPDX-License-Identifier: Apache-2.0 */
/* doctor: shared memory: its size, its pages, and objects that belong to no process any more, which
 * --clean removes. */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <mntent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "cli/doctor/doctor.h"
#include "cli/format.h"
#include "util/fd.h"
#include "util/leftovers.h"
#include "util/memory_limit.h"
#include "util/shm_space.h"

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

/* Returns what is to be done about /dev/shm, or NULL. */
static const char *size_advice(const struct shm_space *shm, uint64_t capacity)
{
	struct statfs kind;

	if (statfs("/dev/shm", &kind) || (uint64_t)kind.f_type != TMPFS_MAGIC)
		return "tensors there go to a disk: mount a tmpfs at /dev/shm";
	if (shm->limited && shm->size < 1 << 30)
		return "for a daemon in this place make it larger: docker run --shm-size=8g; in Kubernetes mount an emptyDir with medium: Memory at /dev/shm; else mount -o remount,size=8G /dev/shm. Clients of a daemon elsewhere need only the directory of its socket";
	if (shm->limited && shm->left < capacity)
		return "less is free than a daemon may use by default: see who fills it (ls -lS /dev/shm), or start tensorleased with a smaller --capacity";
	return NULL;
}

static bool say_size(struct doctor *d)
{
	char options[400], *size, *left, *most;
	uint64_t limit = memory_limit(), capacity;
	struct shm_space shm;
	const char *advice;

	if (shm_space_find(&shm)) {
		doctor_say(d, DOCTOR_FAIL, "/dev/shm",
			   "tensors are stored there: mount -t tmpfs tmpfs /dev/shm", "%m");
		return false;
	}
	capacity = (limit < shm.size ? limit : shm.size) / 2;
	advice = size_advice(&shm, capacity);
	mount_options(options, sizeof(options));
	size = format_size(shm.size, true);
	left = format_size(shm.left, true);
	most = format_size(capacity, true);
	doctor_say(d, advice ? DOCTOR_WARN : DOCTOR_OK, "/dev/shm", advice,
		   "%s%s%s; a daemon's capacity is %s by default%s (%s)",
		   shm.limited ? size : "it has no limit", shm.limited ? ", free: " : "",
		   shm.limited ? left : "", most,
		   limit < shm.size ? ", half of its control group's memory" : "", options);
	free(size);
	free(left);
	free(most);
	return true;
}

/* ---- An object ---- */

enum { PROBE = 16 << 20 };

static const char *object_advice(int error)
{
	switch (error) {
	case ENOSPC:
		return "it is full: remove what is not needed (ls -lS /dev/shm), or make it larger";
	case EACCES:
	case EPERM:
		return "it should have mode 1777: chmod 1777 /dev/shm";
	case EROFS:
		return "it is mounted read-only: mount -o remount,rw /dev/shm";
	default:
		return "see which file system it is (df -T /dev/shm), and the limits (ulimit -a)";
	}
}

/* Fills new shared memory as a producer does. Returns 0 or an errno. */
static int fill_object(char **at)
{
	char name[64];
	int fd, r;

	snprintf(name, sizeof(name), "/tensorlease-doctor-%d", (int)getpid());
	fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
	if (fd < 0)
		return errno;
	shm_unlink(name);
	r = posix_fallocate(fd, 0, PROBE);
	*at = r ? MAP_FAILED : mmap(NULL, PROBE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (!r && *at == MAP_FAILED)
		r = errno;
	fd_close(fd);
	if (r)
		return r;
	madvise(*at, PROBE, MADV_HUGEPAGE);
	memset(*at, 1, PROBE);
	return 0;
}

static void say_object(struct doctor *d)
{
	static const char shmem[] = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
	char enabled[128], huge[32], *at = NULL;
	int r = fill_object(&at);
	long kib;

	if (r) {
		doctor_say(d, DOCTOR_FAIL, "shm object", object_advice(r), "16 MiB: %s",
			   strerror(r));
		return;
	}
	doctor_say(d, DOCTOR_OK, "shm object", NULL, "16 MiB were allocated, mapped and filled");
	kib = atol(doctor_read("/proc/self/smaps_rollup", "ShmemPmdMapped:", huge, sizeof(huge)));
	munmap(at, PROBE);
	doctor_read(shmem, "", enabled, sizeof(enabled));
	doctor_say(
		d, kib ? DOCTOR_OK : DOCTOR_WARN, "huge pages",
		*enabled
			? "large tensors are filled several times faster the first time with 2 MiB pages: as root, mount -o remount,huge=within_size /dev/shm (and huge=within_size in /etc/fstab to keep it)"
			: "this kernel has no transparent huge pages in shared memory",
		"%ld of 8 pages of 2 MiB in a new object (shmem_enabled: %s)", kib / 2048,
		*enabled ? enabled : "not there");
}

/* ---- What killed daemons left ---- */

static const char lease_advice
	[] = "run it with CAP_LEASE (docker run --cap-add LEASE), or as the user they belong to";

struct remains {
	struct leftovers left, aside;
	/* In words; NULL if there are none. */
	char *left_text, *aside_text, *unexamined_text;
};

static const char *plural(unsigned n)
{
	return n == 1 ? "" : "s";
}

/* Root may look for, and remove, anybody's. */
static struct remains remains_find(bool remove)
{
	uid_t whose = geteuid() ? geteuid() : LEFTOVERS_OF_ALL;
	struct remains r = { .left = leftovers_find(whose, remove),
			     .aside = leftovers_aside(whose, remove) };
	char *left = format_size(r.left.bytes, true), *aside = format_size(r.aside.bytes, true);

	if (r.left.objects)
		r.left_text = cli_text("%u object%s with %u catalog%s of killed daemons, %s",
				       r.left.objects, plural(r.left.objects), r.left.catalogs,
				       plural(r.left.catalogs), left);
	if (r.aside.objects)
		r.aside_text = cli_text("%u file%s that daemons have set aside as damaged, %s",
					r.aside.objects, plural(r.aside.objects), aside);
	/* Also of living daemons: the kernel does not even tell these from the dead. */
	if (r.left.unexamined)
		r.unexamined_text = cli_text("%u object%s of other users could not be examined",
					     r.left.unexamined, plural(r.left.unexamined));
	free(left);
	free(aside);
	return r;
}

static void remains_deinit(struct remains *r)
{
	free(r->left_text);
	free(r->aside_text);
	free(r->unexamined_text);
}

static void say_remains(struct doctor *d)
{
	struct remains r = remains_find(false);

	if (r.left_text)
		doctor_say(d, DOCTOR_WARN, "left behind",
			   "no process uses them; tensorlease doctor --clean removes them", "%s",
			   r.left_text);
	if (r.aside_text)
		doctor_say(d, DOCTOR_WARN, "set aside",
			   "examine them, if you want to; tensorlease doctor --clean removes them",
			   "%s", r.aside_text);
	if (r.unexamined_text)
		doctor_say(d, DOCTOR_WARN, "left behind", lease_advice, "%s", r.unexamined_text);
	remains_deinit(&r);
}

/* Returns whether they may be removed. */
static bool clean_ask(const struct remains *r)
{
	char line[16] = "";

	if (!r->left_text && !r->aside_text)
		return true;
	printf("%s%s%s; remove them? [y/N] ", r->left_text ? r->left_text : "",
	       r->left_text && r->aside_text ? ", and " : "", r->aside_text ? r->aside_text : "");
	cli_flush();
	return fgets(line, sizeof(line), stdin) && (*line == 'y' || *line == 'Y');
}

static void say_cleaned(const struct remains *r, bool json)
{
	cJSON *object;

	if (json) {
		object = json_object();
		json_u64(object, "catalogs", r->left.catalogs);
		json_u64(object, "objects", r->left.objects);
		json_u64(object, "bytes", r->left.bytes + r->aside.bytes);
		json_u64(object, "set_aside", r->aside.objects);
		json_u64(object, "unexamined", r->left.unexamined);
		json_print(object);
		return;
	}
	if (r->left_text)
		printf("removed %s\n", r->left_text);
	if (r->aside_text)
		printf("removed %s\n", r->aside_text);
	if (r->unexamined_text)
		printf("%s; %s\n", r->unexamined_text, lease_advice);
	if (!r->left_text && !r->aside_text && !r->unexamined_text)
		printf("nothing to remove: killed daemons have left nothing\n");
}

int doctor_clean(struct cli *cli)
{
	struct remains r;
	bool may = cli->given & OPTION_YES;

	if (cli->json && !may)
		return cli_fail(cli, CLI_USAGE, "with --json, --clean needs --yes: it cannot ask");
	if (!may) {
		r = remains_find(false);
		may = clean_ask(&r);
		remains_deinit(&r);
	}
	if (!may)
		return cli_fail(
			cli, CLI_FAILURE,
			"nothing was removed, since the answer was not y (--yes does not ask)");
	r = remains_find(true);
	say_cleaned(&r, cli->json);
	remains_deinit(&r);
	return CLI_OK;
}

void doctor_memory(struct doctor *d)
{
	if (say_size(d)) {
		say_remains(d);
		say_object(d);
	}
}
