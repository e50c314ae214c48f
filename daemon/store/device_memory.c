/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices and the memory on them. Invariants: (1) device.segments counts the memory charged to it,
 * and only an entry without any is given to another device; (2) a descriptor is charged from
 * device_memory_new() on, before it arrives, so that no part is refused for want of one. Loop
 * thread only.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "daemon/store/closer.h"
#include "daemon/store/device_memory.h"
#include "util/cleanup.h"
#include "util/fault.h"

void device_table_init(struct device_table *table, struct accounts *accounts, struct pool *fds,
		       struct closer *closer, uint64_t capacity)
{
	*table = (struct device_table){
		.accounts = accounts, .fds = fds, .closer = closer, .capacity = capacity
	};
}

struct device *device_find(struct device_table *table, const uint8_t id[DEVICE_ID])
{
	for (unsigned i = 0; i < DEVICES_MAX; i++) {
		struct device *device = &table->list[i];

		if (device->segments && !memcmp(device->id, id, DEVICE_ID))
			return device;
	}
	return NULL;
}

/* True if the user may have memory on one more device. The daemon does not know which devices
 * exist, so a user could claim memory on every entry. */
static bool may_have_another(struct device_table *table, struct account *account)
{
	unsigned n = 0;

	for (unsigned i = 0; i < DEVICES_MAX; i++) {
		struct device *device = &table->list[i];

		n += device->segments && account_used(account, &device->pool);
	}
	return account->privileged || n < DEVICES_USER_MAX;
}

/* Finds the entry of that device, or gives the device a free one. */
static struct device *device_take(struct device_table *table, const uint8_t id[DEVICE_ID],
				  struct account *account)
{
	struct device *device = device_find(table, id);

	if (device)
		return device;
	if (!may_have_another(table, account))
		return NULL;
	for (unsigned i = 0; i < DEVICES_MAX; i++) {
		device = &table->list[i];
		if (device->segments)
			continue;
		device->pool = pool_make(table->accounts, SHARE_DEVICE + i, table->capacity);
		memcpy(device->id, id, DEVICE_ID);
		return device;
	}
	return NULL;
}

typedef int take(struct charge *charge, struct account *account, struct pool *pool,
		 uint64_t amount);

static int segments_charge(struct device_memory *m, struct device_table *table,
			   const uint8_t id[DEVICE_ID], struct account *account, uint64_t size,
			   uint32_t fds, take *charge)
{
	struct device *device;
	int r = 0;

	if (fds)
		r = charge(&m->fds, account, table->fds, fds);
	if (r)
		return r;
	device = device_take(table, id, account);
	if (!device)
		return DEVICE_E_DEVICES;
	r = charge(&m->bytes, account, &device->pool, size);
	/* report the user's maximum only if no other limit is in the way */
	if (r & CHARGE_E_USER && size > pool_left(&device->pool))
		r = CHARGE_E_FULL | (int)device->pool.share;
	if (r)
		return r;
	m->device = device;
	device->segments++;
	return 0;
}

static int segments_make(struct device_memory **mp, struct device_table *table,
			 const uint8_t id[DEVICE_ID], struct account *account, uint64_t size,
			 uint32_t parts, bool has_fds, take *charge)
{
	struct device_memory *m;
	int r;

	if (fault("device_memory_new"))
		return -ENOMEM;
	m = calloc(1, sizeof(*m) + parts * sizeof(m->part[0]));
	if (!m)
		return -ENOMEM;
	m->parts = parts;
	m->closer = table->closer;
	list_init(&m->importers);
	list_init(&m->ending);
	r = segments_charge(m, table, id, account, size, has_fds ? parts : 0, charge);
	if (r) {
		device_memory_free(m);
		return r;
	}
	*mp = m;
	return 0;
}

int device_memory_new(struct device_memory **mp, struct device_table *table,
		      const uint8_t id[DEVICE_ID], struct account *account, uint64_t size,
		      uint32_t parts, bool has_fds)
{
	return segments_make(mp, table, id, account, size, parts, has_fds, charge_take);
}

int device_memory_adopt(struct device_memory **mp, struct device_table *table,
			const uint8_t id[DEVICE_ID], struct account *account, uint64_t size,
			uint32_t parts)
{
	return segments_make(mp, table, id, account, size, parts, true, charge_adopt);
}

static int hold_make(struct device_hold **hp, struct device_table *table,
		     const uint8_t id[DEVICE_ID], struct account *account, int fd_take,
		     take *charge)
{
	struct device_hold *hold = fault("device_hold_new") ? NULL : calloc(1, sizeof(*hold));
	int r;

	if (!hold)
		return -ENOMEM;
	r = charge(&hold->charge, account, table->fds, 1);
	if (r) {
		free(hold);
		return r;
	}
	list_init(&hold->link);
	hold->refs = 1;
	hold->fd = fd_take;
	hold->closer = table->closer;
	memcpy(hold->id, id, DEVICE_ID);
	*hp = hold;
	return 0;
}

int device_hold_new(struct device_hold **hp, struct device_table *table,
		    const uint8_t id[DEVICE_ID], struct account *account, int fd_take)
{
	return hold_make(hp, table, id, account, fd_take, charge_take);
}

int device_hold_adopt(struct device_hold **hp, struct device_table *table,
		      const uint8_t id[DEVICE_ID], struct account *account, int fd_take)
{
	return hold_make(hp, table, id, account, fd_take, charge_adopt);
}

struct device_hold *device_hold_ref(struct device_hold *hold)
{
	if (hold)
		hold->refs++;
	return hold;
}

struct device_hold *device_hold_unref(struct device_hold *hold, uint64_t forgets)
{
	if (!hold || --hold->refs)
		return NULL;
	list_del(&hold->link);
	/* the last one that closes a device may wait until its driver has shut it down */
	closer_take_after(hold->closer, hold->fd, hold->charge.account, forgets);
	charge_give(&hold->charge);
	free(hold);
	return NULL;
}

void device_memory_add(struct device_memory *m, uint64_t size, int fd_take)
{
	m->part[m->arrived++] = (struct device_part){ .size = size, .fd = fd_take };
	m->size_arrived += size;
}

void device_memory_close_part(struct device_memory *m, uint64_t forgets)
{
	if (m->arrived)
		closer_take_after(m->closer, m->part[--m->arrived].fd, m->fds.account, forgets);
	if (m->arrived)
		return;
	charge_give(&m->fds);
	m->hold = device_hold_unref(m->hold, forgets);
	list_del(&m->ending);
	m->ender = account_unref(m->ender);
}

void device_memory_close(struct device_memory *m)
{
	do
		device_memory_close_part(m, 0);
	while (m->arrived);
}

void device_memory_discharge(struct device_memory *m)
{
	charge_give(&m->bytes);
	if (m->device)
		m->device->segments--;
	m->device = NULL;
}

struct device_memory *device_memory_free(struct device_memory *m)
{
	if (!m)
		return NULL;
	device_memory_close(m);
	device_memory_discharge(m);
	free(m);
	return NULL;
}

/* ---- descriptors ---------------------------------------------------------------------------- */

/* True if the driver is the tests' fake one, whose memory is the host's. The keeper passes the
 * variable on. */
static bool fake_gpu(void)
{
	const char *fake = secure_getenv("TENSORLEASE_FAKE_GPU");

	return fake && !strcmp(fake, "1");
}

/*
 * Only tests may have us take a memfd: it is host memory that would stay after its owner's end, and
 * that no account counts. Pages beyond its end do not show in its size. Those that it got before it
 * was sealed stay, and only its blocks show them.
 */
static const char *memfd_check(int fd, const struct stat *st, uint64_t size, bool pool)
{
	const int sealed = F_SEAL_SHRINK | F_SEAL_GROW;
	int seals = fcntl(fd, F_GET_SEALS);
	uint64_t whole = (uint64_t)st->st_size, blocks = (uint64_t)st->st_blocks * 512;

	if (seals < 0 || st->st_nlink) /* under a name, other processes could find and change it */
		return "the descriptor is neither a memfd nor a character device";
	if ((seals & sealed) != sealed)
		return "the memfd is not sealed with F_SEAL_SHRINK and F_SEAL_GROW";
	if (pool ? whole < size : whole != size)
		return "the memfd does not have the size that the message says";
	if (blocks > whole && blocks - whole >= (uint64_t)st->st_blksize)
		return "the memfd has pages beyond its end";
	return NULL;
}

/*
 * Accepts NVIDIA's number, and the ranges from which Linux gives numbers to drivers that have none
 * (NVIDIA's others, those of WSL and Tegra). All other numbers belong to something else, such as
 * terminals, /dev/zero or /dev/fuse, and must not be kept open. /proc/devices knows more, but a
 * service may not have it.
 */
bool device_number_fits(dev_t number)
{
	enum { MISC = 10, NVIDIA = 195 };
	unsigned major_ = major(number), minor_ = minor(number);

	if (major_ == MISC)
		return minor_ < 128 || minor_ > 254; /* those between are assigned */
	return major_ == NVIDIA || (major_ >= 234 && major_ <= 254) ||
	       (major_ >= 384 && major_ <= 511);
}

/* A file may be on a file system that the client itself serves, and that never answers. So the
 * kernel is asked only for attributes that it has already. */
static const char *file_check(int fd)
{
	struct statx x;

	if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &x))
		return "the descriptor's file cannot be examined";
	if (!S_ISCHR(x.stx_mode))
		return "the descriptor is no character device, so it opens no GPU's memory";
	return device_number_fits(makedev(x.stx_rdev_major, x.stx_rdev_minor))
		       ? NULL
		       : "the descriptor's character device is no GPU's";
}

const char *device_descriptor_check(int fd, uint64_t size, bool pool)
{
	struct stat st;
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0)
		return "the descriptor's file cannot be examined";
	if (flags & O_PATH)
		return "the descriptor was opened with O_PATH, which opens no memory";
	if (fcntl(fd, F_GET_SEALS) < 0)
		return file_check(fd);
	if (!fake_gpu())
		return "the descriptor is of the host's memory, not of a GPU's: drivers hand out "
		       "character devices; a daemon takes a memfd only with TENSORLEASE_FAKE_GPU=1 "
		       "in its environment, which is for tests";
	if (fstat(fd, &st))
		return "the descriptor's file cannot be examined";
	return memfd_check(fd, &st, size, pool);
}
