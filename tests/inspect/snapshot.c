/* SPDX-License-Identifier: Apache-2.0 */
/* A copy of a catalog and of its facts; see inspect.h. */
#include <errno.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/recover/snapshot.h"
#include "tests/inspect/inspect.h"

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
	catalog_at(cat, map, &plan);
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
