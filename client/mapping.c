/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mappings. A get finds one with one load; everything else happens under the session's mapping
 * mutex, which is never held over a request. Invariants: (1) a read-only mapping of generation g is
 * only removed when the segment's word no longer is live_word(g) while the daemon still served us.
 * Our leases keep it live; but the daemon need not keep to that, so it is also seen to that no
 * lease lies in it. (2) The same holds for writable ones and our drafts, which count themselves.
 * (3) Every segment with a mapping or a descriptor is in `known`, once. (4) What the daemon says of
 * an object's size is held against fstat() before the object is mapped.
 */
#include <errno.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "client/error.h"
#include "client/lease_objects.h"
#include "client/mapping.h"
#include "client/request.h"
#include "util/checked.h"
#include "util/cleanup.h"
#include "util/fd.h"

enum { SWEEP_STEP = 4, PAGE = 4096 };

#define HUGE ((size_t)2 << 20)

/* The table, and room to know all of it: what a descriptor came for must never be lost for want of
 * memory. */
static size_t table_size(const struct session *s)
{
	return (size_t)s->slots * (sizeof(struct mapping) + sizeof(*s->known));
}

int mappings_init(struct session *s)
{
	void *p = mmap(NULL, table_size(s), PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		return tl_fail(-errno, "a table of %u mappings: %m", s->slots);
	s->mappings = p;
	s->known = (void *)(s->mappings + s->slots);
	return 0;
}

/* ---- Single mappings; the mutex is held, or @s is nobody else's ---- */

/*
 * False: a lease lies in it, and it stays as it was. Then the daemon broke the protocol.
 *
 * ORDER: the generation is taken away, all threads are ordered, then their leases are looked at.
 * Who takes a lease says that it uses the mapping, then looks at the generation (lease.c): one of
 * the two sees the other.
 */
static bool drop_read(struct mapping *m)
{
	uint32_t generation = atomic_load_explicit(&m->generation, memory_order_relaxed);

	if (!generation)
		return true;
	atomic_store(&m->generation, 0);
	users_barrier();
	if (lease_objects_use(m)) {
		atomic_store_explicit(&m->generation, generation, memory_order_release);
		return false;
	}
	munmap((void *)m->base, m->size);
	m->base = NULL;
	return true;
}

static struct write_map *write_map_unref(struct write_map *map)
{
	if (map && --map->refs == 0) {
		if (map->base)
			munmap(map->base, map->size);
		free(map);
	}
	return NULL;
}

static void drop_write(struct mapping *m)
{
	m->write_fd = fd_close(m->write_fd - 1) + 1;
	m->write = write_map_unref(m->write);
	m->write_generation = 0;
}

static void drop_cow(struct session *s, struct mapping *m)
{
	if (!m->cow_fd)
		return;
	m->cow_fd = fd_close(m->cow_fd - 1) + 1;
	s->cow_fds--;
}

void mappings_deinit(struct session *s)
{
	for (uint32_t i = 0; i < s->nknown; i++) {
		struct mapping *m = &s->mappings[s->known[i]];

		drop_read(m);
		drop_write(m);
		drop_cow(s, m);
	}
	s->known = NULL;
	s->nknown = 0;
	if (s->mappings)
		munmap(s->mappings, table_size(s));
	s->mappings = NULL;
}

void mappings_forget_writable(struct session *s)
{
	for (uint32_t i = 0; i < s->nknown; i++) {
		struct mapping *m = &s->mappings[s->known[i]];

		if (m->write)
			m->write->base = NULL; /* MADV_DONTFORK: there is nothing to unmap */
		drop_write(m);
	}
}

/*
 * Enters @segment into `known`. Done before anything is kept for it, so that nothing can be lost.
 */
static void know(struct session *s, uint32_t segment)
{
	if (s->mappings[segment].known)
		return;
	s->known[s->nknown++] = segment;
	s->mappings[segment].known = true;
}

static bool segment_lives(const struct session *s, uint32_t segment, uint32_t generation)
{
	return atomic_load(&s->segments[segment].word) == live_word(generation);
}

/*
 * Looks at a few of the known mappings and drops those whose segment is gone.
 *
 * ORDER: the segment's word is read before our own. When the daemon drops us it clears our word
 * first (D1), so if a segment went because we are not served any more, which says nothing about our
 * leases, that is seen here.
 */
static void sweep(struct session *s)
{
	uint32_t n = s->nknown < SWEEP_STEP ? s->nknown : SWEEP_STEP;

	while (n--) {
		uint32_t segment = s->known[s->sweep++ % s->nknown];
		struct mapping *m = &s->mappings[segment];
		uint32_t generation = atomic_load_explicit(&m->generation, memory_order_relaxed);
		bool read_gone = generation && !segment_lives(s, segment, generation);
		bool write_gone = m->write_generation &&
				  !segment_lives(s, segment, m->write_generation);
		bool cow_gone = m->cow_fd && !segment_lives(s, segment, m->cow_generation);

		if (!session_served(s))
			return;
		if (read_gone)
			drop_read(m);
		if (write_gone)
			drop_write(m);
		if (cow_gone)
			drop_cow(s, m);
	}
}

/* ---- mmap ---- */

/*
 * At a 2 MiB boundary, so that the kernel may use huge pages: in a reservation that is larger, then
 * cut to size.
 */
static void *map_aligned(int fd, size_t size, int prot)
{
	size_t reserved = size + HUGE;
	size_t rounded = (size + PAGE - 1) & ~(size_t)(PAGE - 1);
	char *room = mmap(NULL, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
			  -1, 0);
	char *at, *end;

	if (room == MAP_FAILED)
		return MAP_FAILED;
	at = (char *)(((uintptr_t)room + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
	end = room + ((reserved + PAGE - 1) & ~(size_t)(PAGE - 1));
	if (mmap(at, size, prot, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
		int saved = errno;

		munmap(room, reserved);
		errno = saved;
		return MAP_FAILED;
	}
	if (at > room)
		munmap(room, (size_t)(at - room));
	if (end > at + rounded)
		munmap(at + rounded, (size_t)(end - (at + rounded)));
	madvise(at, size, MADV_HUGEPAGE);
	return at;
}

int mapping_check_fd(int fd, uint64_t size, const char *what)
{
	struct statfs fs;
	struct stat st;

	if (fstat(fd, &st) || fstatfs(fd, &fs))
		return tl_fail(-errno, "looking at the descriptor of %s: %m", what);
	if (!S_ISREG(st.st_mode))
		return tl_fail(-EPROTO, "the daemon's descriptor of %s is not of a regular file",
			       what);
	/* The kernel rounds such a mapping up: with MAP_FIXED over what lies behind it. */
	if (fs.f_type == HUGETLBFS_MAGIC)
		return tl_fail(-EPROTO, "the daemon's descriptor of %s is of hugetlbfs", what);
	if (st.st_size < 0 || (uint64_t)st.st_size < size)
		return tl_fail(-EPROTO, "%s has %lld bytes; the daemon says %llu", what,
			       (long long)st.st_size, (unsigned long long)size);
	return 0;
}

/* All of a segment, which has the size that the daemon says. */
static int map_segment(int fd, uint64_t size, int prot, void **out)
{
	int r = mapping_check_fd(fd, size, "a segment");
	void *p;

	*out = NULL;
	if (r)
		return r;
	p = size >= HUGE ? map_aligned(fd, size, prot) : mmap(NULL, size, prot, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return tl_fail(-errno, "mapping a segment of %llu bytes: %m",
			       (unsigned long long)size);
	*out = p;
	return 0;
}

/* ---- Reading ---- */

/* Asks the daemon for a read-only descriptor. */
static int request_fd(struct session *s, uint64_t ref, int64_t deadline, uint64_t *size, int *fd)
{
	struct wire_ref m = { .header = { .type = WIRE_MAP, .length = sizeof(m) }, .ref = ref };
	struct conn_message answer;
	int r;

	session_drain_expected(s); /* the daemon counts descriptors that we leave unread */
	r = session_call(s, &m, deadline, &answer);
	if (r)
		return r;
	r = answer_expect(&answer, WIRE_SEGMENT, "mapping a segment");
	if (r)
		return r;
	*size = ((const struct wire_segment *)(const void *)answer.bytes)->size;
	*fd = answer.fd;
	return 0;
}

/*
 * Puts a mapping in its place, or drops it because another thread was faster. -EBUSY: a lease lies
 * in the segment's life before.
 */
static int install(struct session *s, uint32_t segment, uint32_t generation, void *base,
		   uint64_t size)
{
	struct mapping *m = &s->mappings[segment];

	if (atomic_load_explicit(&m->generation, memory_order_relaxed) == generation) {
		munmap(base, size);
		return 0;
	}
	if (!drop_read(m)) /* of a generation that is gone: ours is a later one */
		return -EBUSY;
	m->base = base;
	m->size = size;
	atomic_store_explicit(&m->generation, generation, memory_order_release); /* ORDER: see
										    mapping_find()
										  */
	return 0;
}

int mapping_read(struct session *s, uint64_t ref, uint32_t segment, uint32_t generation,
		 int64_t deadline)
{
	cleanup_(fd_closep) int fd = -1;
	uint64_t size;
	void *p;
	int r;

	if (segment >= s->slots || !generation)
		return tl_fail(-EPROTO, "the catalog names segment %u of %u, generation %u",
			       segment, s->slots, generation);
	if (mapping_find(&s->mappings[segment], generation, &size))
		return 0;
	r = request_fd(s, ref, deadline, &size, &fd);
	if (r)
		return r;
	r = map_segment(fd, size, PROT_READ, &p);
	if (r)
		return r;

	pthread_mutex_lock(&s->mapping_mutex);
	know(s, segment);
	r = install(s, segment, generation, p, size);
	if (!r)
		sweep(s);
	pthread_mutex_unlock(&s->mapping_mutex);
	if (!r)
		return 0;
	munmap(p, size);
	return tl_fail(-EPROTO,
		       "the daemon gave segment %u to another while we use what lies in it",
		       segment);
}

/* ---- Copy-on-write ---- */

static int map_private(int fd, uint64_t offset, uint64_t size, struct private_map *out)
{
	uint64_t start = offset & ~(uint64_t)(PAGE - 1), end;
	void *p;
	int r;

	if (!checked_add_u64(&end, offset, size) || !size)
		return tl_fail(-EPROTO, "the catalog has a tensor of %llu bytes at %llu",
			       (unsigned long long)size, (unsigned long long)offset);
	r = mapping_check_fd(fd, end, "a segment");
	if (r)
		return r;
	out->map_size = (size_t)(offset - start + size);
	p = mmap(NULL, out->map_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd,
		 (off_t)start);
	if (p == MAP_FAILED)
		return tl_fail(-errno, "a private mapping of %zu bytes: %m", out->map_size);
	out->map = p;
	out->data = (char *)p + (offset - start);
	return 0;
}

/*
 * Keeps the descriptor for the next copy-on-write get, if there is room; else it stays the
 * caller's.
 */
static void keep_cow_fd_locked(struct session *s, uint32_t segment, uint32_t generation,
			       int *fd_take)
{
	struct mapping *m = &s->mappings[segment];

	know(s, segment);
	drop_cow(s, m);
	if (s->cow_fds == SESSION_COW_FDS)
		return;
	m->cow_fd = take_fd(fd_take) + 1;
	m->cow_generation = generation;
	s->cow_fds++;
}

int mapping_private(struct session *s, uint64_t ref, uint32_t segment, uint32_t generation,
		    uint64_t offset, uint64_t size, int64_t deadline, struct private_map *out)
{
	cleanup_(fd_closep) int fd = -1;
	struct mapping *m;
	uint64_t segment_size;
	bool kept;
	int r = 0;

	if (segment >= s->slots || !generation)
		return tl_fail(-EPROTO, "the catalog names segment %u of %u, generation %u",
			       segment, s->slots, generation);
	m = &s->mappings[segment];
	pthread_mutex_lock(&s->mapping_mutex);
	kept = m->cow_fd && m->cow_generation == generation;
	if (kept)
		r = map_private(m->cow_fd - 1, offset, size, out);
	pthread_mutex_unlock(&s->mapping_mutex);
	if (kept)
		return r;

	r = request_fd(s, ref, deadline, &segment_size, &fd);
	if (r)
		return r;
	r = map_private(fd, offset, size, out);
	if (r)
		return r;
	pthread_mutex_lock(&s->mapping_mutex);
	keep_cow_fd_locked(s, segment, generation, &fd);
	sweep(s);
	pthread_mutex_unlock(&s->mapping_mutex);
	return 0;
}

/* ---- Writing ---- */

void mapping_keep_draft_fd(struct session *s, const struct wire_draft *draft, int fd_take)
{
	struct mapping *m;

	if (draft->segment >= s->slots) {
		fd_close(fd_take);
		return;
	}
	m = &s->mappings[draft->segment];
	pthread_mutex_lock(&s->mapping_mutex);
	know(s, draft->segment);
	drop_write(m); /* of an earlier generation */
	m->write_generation = draft->segment_generation;
	m->write_size = draft->segment_size;
	m->write_fd = fd_take + 1;
	pthread_mutex_unlock(&s->mapping_mutex);
}

/* *@out: a new one, which holds all of @m's write_fd. */
static int write_map_new(struct mapping *m, struct write_map **out)
{
	struct write_map *map = malloc(sizeof(*map));
	int r;

	if (!map)
		return tl_fail(-ENOMEM, "no memory to remember a mapping");
	r = map_segment(m->write_fd - 1, m->write_size, PROT_READ | PROT_WRITE, &map->base);
	if (r) {
		free(map);
		return r;
	}
	madvise(map->base, m->write_size, MADV_DONTFORK); /* drafts stay the parent's */
	map->size = m->write_size;
	map->refs = 1; /* the segment's */
	m->write_fd = fd_close(m->write_fd - 1) + 1;
	*out = map;
	return 0;
}

static int write_base_locked(struct session *s, const struct wire_draft *draft, struct mapping *m)
{
	int r;

	if (!draft->segment_generation || m->write_generation != draft->segment_generation)
		return tl_fail(-EPROTO, "a draft in segment %u came without its descriptor",
			       draft->segment);
	if (m->write_size != draft->segment_size)
		return tl_fail(-EPROTO, "a draft in segment %u, which has %llu bytes, not %llu",
			       draft->segment, (unsigned long long)m->write_size,
			       (unsigned long long)draft->segment_size);
	if (m->write)
		return 0;
	r = write_map_new(m, &m->write);
	if (!r)
		sweep(s);
	return r;
}

int mapping_write(struct session *s, const struct wire_draft *draft, struct write_map **out)
{
	struct write_map *map;
	int r;

	if (draft->segment >= s->slots)
		return tl_fail(-EPROTO, "a draft in segment %u of %u", draft->segment, s->slots);
	pthread_mutex_lock(&s->mapping_mutex);
	r = write_base_locked(s, draft, &s->mappings[draft->segment]);
	map = s->mappings[draft->segment].write; /* unless the sweep took it away again */
	if (!r && !map)
		r = tl_fail(-EPROTO, "segment %u went while there is a draft in it",
			    draft->segment);
	if (!r && map) {
		map->refs++;
		*out = map;
	}
	pthread_mutex_unlock(&s->mapping_mutex);
	return r;
}

void mapping_write_end(struct session *s, struct write_map *map)
{
	if (!map)
		return;
	pthread_mutex_lock(&s->mapping_mutex);
	write_map_unref(map);
	pthread_mutex_unlock(&s->mapping_mutex);
}

/* ---- Whose is this pointer ---- */

bool mapping_locate(struct session *s, const void *p, uint32_t *segment, uint32_t *generation,
		    uint64_t *offset)
{
	bool found = false;

	pthread_mutex_lock(&s->mapping_mutex);
	for (uint32_t i = 0; i < s->nknown && !found; i++) {
		const struct mapping *m = &s->mappings[s->known[i]];
		uintptr_t base = (uintptr_t)m->base, at = (uintptr_t)p;

		found = m->base && at >= base && at - base < m->size;
		if (!found)
			continue;
		*segment = s->known[i];
		*generation = atomic_load_explicit(&m->generation, memory_order_relaxed);
		*offset = at - base;
	}
	pthread_mutex_unlock(&s->mapping_mutex);
	return found;
}
