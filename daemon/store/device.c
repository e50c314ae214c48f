/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices and the memory on them. Invariants: (1) device.segments counts the memory charged to it,
 * and only an entry without any is given to another device; (2) a descriptor is charged from
 * device_memory_new() on, before it has come, so that no part is refused for want of one. Loop
 * thread only.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "daemon/store/device.h"
#include "util/cleanup.h"
#include "util/fault.h"
#include "util/fd.h"

void device_table_init(struct device_table *table, uint64_t capacity, uint64_t user_capacity,
		       unsigned fds_max)
{
	*table = (struct device_table){
		.capacity = capacity,
		.user_capacity = user_capacity,
		.fds = { .capacity = fds_max, .user_capacity = fds_max - fds_max / 2 },
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

/* Finds the entry of that device, or gives it a free one. */
static struct device *device_take(struct device_table *table, const uint8_t id[DEVICE_ID])
{
	struct device *device = device_find(table, id);

	if (device)
		return device;
	for (unsigned i = 0; i < DEVICES_MAX; i++) {
		device = &table->list[i];
		if (device->segments)
			continue;
		device->quota = (struct quota){ .capacity = table->capacity,
						.user_capacity = table->user_capacity };
		memcpy(device->id, id, DEVICE_ID);
		return device;
	}
	return NULL;
}

static int charge(struct quota_charge *charge, struct quota *quota, uint32_t uid, uint64_t amount)
{
	struct quota_user *user = quota_user_ref(quota, uid);
	int r = user ? quota_charge(charge, user, amount) : -ENOMEM;

	quota_user_unref(user); /* the charge has a reference of its own */
	return r;
}

static int memory_charge(struct device_memory *m, struct device_table *table,
			 const uint8_t id[DEVICE_ID], uint32_t uid, uint64_t size, uint32_t fds)
{
	struct device *device;
	int r;

	if (fds) {
		r = charge(&m->fds, &table->fds, uid, fds);
		if (r)
			return r < 0 ? r : DEVICE_E_FDS;
	}
	device = device_take(table, id);
	if (!device)
		return DEVICE_E_DEVICES;
	r = charge(&m->bytes, &device->quota, uid, size);
	/* blame the user's quota only if nothing else is in the way */
	if (r == QUOTA_E_USER && size > device->quota.capacity - device->quota.used)
		r = QUOTA_E_FULL;
	if (r)
		return r;
	m->device = device;
	device->segments++;
	return 0;
}

int device_memory_new(struct device_memory **mp, struct device_table *table,
		      const uint8_t id[DEVICE_ID], uint32_t uid, uint64_t size, uint32_t parts,
		      bool has_fds)
{
	struct device_memory *m;
	int r;

	if (fault("device_memory_new"))
		return -ENOMEM;
	m = calloc(1, sizeof(*m) + parts * sizeof(m->part[0]));
	if (!m)
		return -ENOMEM;
	m->parts = parts;
	list_init(&m->importers);
	r = memory_charge(m, table, id, uid, size, has_fds ? parts : 0);
	if (r) {
		device_memory_free(m);
		return r;
	}
	*mp = m;
	return 0;
}

void device_memory_add(struct device_memory *m, uint64_t size, int fd_take)
{
	m->part[m->arrived++] = (struct device_part){ .size = size, .fd = fd_take };
	m->size_arrived += size;
}

void device_memory_close(struct device_memory *m)
{
	while (m->arrived)
		fd_close(m->part[--m->arrived].fd);
	quota_charge_deinit(&m->fds);
}

void device_memory_discharge(struct device_memory *m)
{
	quota_charge_deinit(&m->bytes);
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

/*
 * A memfd is the host's memory, which we would keep. Pages beyond its end are in no size: those
 * that it got before it was sealed stay, and only its blocks show them.
 */
static const char *memfd_check(int fd, const struct stat *st, uint64_t size, bool pool)
{
	const int sealed = F_SEAL_SHRINK | F_SEAL_GROW;
	int seals = fcntl(fd, F_GET_SEALS);
	uint64_t whole = (uint64_t)st->st_size, blocks = (uint64_t)st->st_blocks * 512;

	if (seals < 0 || st->st_nlink) /* under a name, others could find and change it */
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
 * Accepts NVIDIA's number and the ranges from which Linux gives numbers to drivers that have none
 * (NVIDIA's others, those of WSL and Tegra). All other numbers belong to something else, such as
 * terminals, /dev/zero or /dev/fuse, which we would keep alive. /proc/devices knows more, but a
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

const char *device_descriptor_check(int fd, uint64_t size, bool pool)
{
	struct stat st;
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0 || fstat(fd, &st))
		return "the descriptor's file cannot be examined";
	if (flags & O_PATH)
		return "the descriptor was opened with O_PATH, which opens no memory";
	if (S_ISREG(st.st_mode))
		return memfd_check(fd, &st, size, pool);
	if (!S_ISCHR(st.st_mode))
		return "the descriptor is neither a memfd nor a character device";
	return device_number_fits(st.st_rdev) ? NULL
					      : "the descriptor's character device is no GPU's";
}
