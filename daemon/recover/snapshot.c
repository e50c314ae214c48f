/* SPDX-License-Identifier: Apache-2.0 */
/* A copy of another daemon's catalog, and the versions of its layout. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
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

/* A copy of a catalog; see snapshot.h. */

/* Copies only data, not holes: a catalog is much larger than its contents. */
static int file_copy(int fd, char *to, uint64_t size)
{
	off_t at = 0, end;
	ssize_t n;

	while ((at = lseek(fd, at, SEEK_DATA)) >= 0 && (uint64_t)at < size) {
		end = lseek(fd, at, SEEK_HOLE);
		for (; at < end && (uint64_t)at < size; at += n) {
			n = pread(fd, to + at, (size_t)(end - at), at);
			if (n <= 0)
				return n ? -errno : 0;
		}
	}
	return 0;
}

static int object_copy(int fd, uint64_t size, void **copy)
{
	void *map = mmap(NULL, size, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	int r;

	if (map == MAP_FAILED)
		return -ENOMEM;
	r = file_copy(fd, map, size);
	if (r)
		munmap(map, size);
	else
		*copy = map;
	return r;
}

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

static int catalog_copy(struct snapshot *s, int fd, struct catalog_array *arrays[FACTS_ARRAYS],
			const char **why)
{
	struct catalog *cat = &s->catalog;
	struct catalog_header plan;
	void *map;
	int r = snapshot_shape(cat, fd, &plan, arrays, &s->facts_size, why);

	if (r)
		return r;
	r = object_copy(fd, plan.size, &map);
	if (r)
		return r;
	s->size = plan.size;
	cat->header = map;
	cat->wakes = (void *)((char *)map + plan.off_wakes);
	cat->watches = (void *)((char *)map + plan.off_watches);
	cat->client_words = (void *)((char *)map + plan.off_clients);
	cat->buckets = (void *)((char *)map + plan.off_buckets);
	for (unsigned i = 0; i < FACTS_ARRAYS; i++) {
		arrays[i]->base = (unsigned char *)map + arrays[i]->offset;
		arrays[i]->high = arrays[i]->max;
		arrays[i]->allocated = (uint64_t)arrays[i]->max * arrays[i]->entry_size;
	}
	return 0;
}

static int facts_copy(struct snapshot *s, int fd, struct catalog_array *arrays[FACTS_ARRAYS],
		      const char **why)
{
	struct facts_header *f;
	void *map;
	int r;

	*why = "its facts have another size";
	if (!has_size(fd, s->facts_size))
		return CATALOG_E_STRANGE;
	r = object_copy(fd, s->facts_size, &map);
	if (r)
		return r;
	s->catalog.facts = f = map;
	*why = "its facts are of another layout or another catalog";
	if (f->magic != FACTS_MAGIC || f->layout != FACTS_LAYOUT || f->size != s->facts_size ||
	    f->instance != s->catalog.instance)
		return CATALOG_E_STRANGE;
	*why = "the facts say that an array has more entries than it has space";
	for (unsigned i = 0; i < FACTS_ARRAYS; i++) {
		if (!array_fact_fits(arrays[i], &f->arrays[i]))
			return CATALOG_E_STRANGE;
		arrays[i]->high = (uint32_t)f->arrays[i].high;
		arrays[i]->allocated = f->arrays[i].allocated;
		arrays[i]->facts = (char *)map + (uintptr_t)arrays[i]->facts;
	}
	return 0;
}

int snapshot_take(struct snapshot *s, int catalog_fd, int facts_fd, const char **why)
{
	struct catalog_array *arrays[FACTS_ARRAYS];
	int r;

	*s = (struct snapshot){ .size = 0 };
	*why = NULL;
	r = catalog_copy(s, catalog_fd, arrays, why);
	if (!r && facts_fd >= 0)
		r = facts_copy(s, facts_fd, arrays, why);
	else if (!r && s->catalog.header->slots_high < s->catalog.rows.high)
		s->catalog.rows.high = s->catalog.header->slots_high;
	if (r)
		snapshot_free(s);
	return r;
}

void snapshot_free(struct snapshot *s)
{
	if (s->catalog.header)
		munmap(s->catalog.header, s->size);
	if (s->catalog.facts)
		munmap(s->catalog.facts, s->facts_size);
	*s = (struct snapshot){ .size = 0 };
}

/* Another process of our user may have written the catalog, or may truncate it now. So it is read
 * and not mapped. Only numbers in it are believed, and those are bounded. */

static void raise_to(uint64_t *highest, uint64_t version)
{
	if (version > *highest)
		*highest = version;
}

/* A commit stores `current` first: the name's version may be one behind. */
static uint64_t name_version(const struct catalog_name *name)
{
	uint64_t version = name->version;

	return version + (name->current && version < UINT64_MAX);
}

/* Holes are skipped, since no name was ever in them. False: the names cannot be read. */
static bool read_names(int fd, const struct catalog_header *h, uint64_t *highest)
{
	const off_t end = (off_t)(h->off_names + h->max_names * sizeof(struct catalog_name));
	off_t at = (off_t)h->off_names;
	struct catalog_name names[64];
	ssize_t n;

	while (at < end && (at = lseek(fd, at, SEEK_DATA)) >= 0 && at < end) {
		n = pread(fd, names, sizeof(names), at) / (ssize_t)sizeof(*names);
		if (n <= 0)
			return false;
		for (ssize_t i = 0; i < n && at < end; i++, at += (off_t)sizeof(*names))
			raise_to(highest, name_version(&names[i]));
	}
	return at >= 0 || errno == ENXIO; /* nothing but a hole is left */
}

/*
 * The pages of rings went with the daemon and its keeper. `commits` counts tensors published in
 * rings only when their slots are asked back. Nothing is read from another layout, since its
 * clients cannot talk to us. False: the catalog is damaged.
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
	return read_names(fd, &h, highest);
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
