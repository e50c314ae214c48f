/* SPDX-License-Identifier: Apache-2.0 */
/* Reads another daemon's catalog; see snapshot.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/recover/snapshot.h"
#include "daemon/state/name.h"
#include "daemon/store/shm.h"
#include "proto/ring_layout.h"
#include "proto/wire.h"
#include "util/cleanup.h"
#include "util/fd.h"

static bool has_size(int fd, uint64_t size)
{
	struct stat st;

	return !fstat(fd, &st) && (uint64_t)st.st_size == size;
}

int snapshot_shape(struct catalog *cat, int fd, struct catalog_header *h,
		   struct catalog_array *arrays[FACTS_ARRAYS], uint64_t *facts_size,
		   const char **why)
{
	struct catalog_header plan;

	*why = "it has no header";
	if (pread(fd, h, sizeof(*h), 0) != sizeof(*h))
		return CATALOG_E_STRANGE;
	*why = "its header has another magic or layout, or a size that there is not";
	if (h->magic != CATALOG_MAGIC || h->layout != CATALOG_LAYOUT ||
	    h->max_tensors >= CATALOG_MAX_TENSORS || h->max_clients > WIRE_CLIENTS_MAX)
		return CATALOG_E_STRANGE;
	catalog_shape(cat, h, &plan, arrays, facts_size);
	*why = "its header does not fit its limits";
	if (!catalog_header_is(h, &plan))
		return CATALOG_E_STRANGE;
	*why = "it does not have the size that its header says";
	return has_size(fd, h->size) ? 0 : CATALOG_E_STRANGE;
}

/* Another process of our user may have written the catalog, or may truncate it now. So it is read
 * and not mapped. Only numbers in it are believed, and those are bounded. */

static void raise_to(uint64_t *highest, uint64_t version)
{
	if (version > *highest)
		*highest = version;
}

/*
 * Raises *@highest to the highest version in @max entries of @size bytes, which begin at @from and
 * have their versions at @offset. Skips holes, which were never written. False: reading failed.
 */
static bool read_versions(int fd, off_t from, uint32_t max, size_t size, size_t offset,
			  uint64_t *highest)
{
	const off_t end = from + (off_t)(max * size);
	off_t at = from;
	char entries[8192];
	uint64_t version;
	ssize_t n;

	while (at < end && (at = lseek(fd, at, SEEK_DATA)) >= 0 && at < end) {
		n = pread(fd, entries, sizeof(entries), at) / (ssize_t)size;
		if (n <= 0)
			return false;
		for (ssize_t i = 0; i < n && at < end; i++, at += (off_t)size) {
			memcpy(&version, entries + (size_t)i * size + offset, sizeof(version));
			raise_to(highest, version);
		}
	}
	return at >= 0 || errno == ENXIO; /* only a hole is left */
}

/*
 * Raises *@highest to the highest version that the catalog may have given out. The pages of rings
 * ended with the daemon and its keeper, and `commits` counts tensors published in rings only when
 * their slots are asked back. A catalog of another layout is not read, since its clients cannot
 * talk to us. False: the catalog is damaged.
 */
static bool read_catalog(int fd, uint64_t limit, uint64_t *highest)
{
	struct catalog_array *arrays[FACTS_ARRAYS];
	struct catalog_header h = { 0 };
	uint64_t facts_size;
	struct catalog cat;
	const char *why;
	struct stat st;

	if (fstat(fd, &st) || st.st_uid != geteuid())
		return false;
	if (snapshot_shape(&cat, fd, &h, arrays, &facts_size, &why))
		return h.magic == CATALOG_MAGIC && h.layout != CATALOG_LAYOUT;
	if (h.rings)
		raise_to(highest,
			 h.commits < limit ? *highest + h.commits + RING_SLOTS_MAX : limit);
	raise_to(highest, h.names_floor);
	/* a commit stores the row's version, then `current`, then the name's version */
	return read_versions(fd, (off_t)h.off_names, h.max_names, sizeof(struct catalog_name),
			     offsetof(struct catalog_name, version), highest) &&
	       read_versions(fd, (off_t)h.off_rows, h.max_tensors, sizeof(struct catalog_row),
			     offsetof(struct catalog_row, version), highest);
}

uint64_t former_versions(uint64_t instance, bool expected, uint64_t known, uint64_t since)
{
	const struct object object = shm_object_of_catalog(instance);
	uint64_t highest = known, limit = version_limit(known, since);
	cleanup_(fd_closep) int fd = -1;

	if (shm_object_open(&object, O_RDONLY, &fd) == -ENOENT && !expected)
		return known;
	if (fd < 0 || !read_catalog(fd, limit, &highest) || highest > limit)
		highest = limit;
	return highest > known ? highest : known;
}
