/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mappings. A get finds one with one load. Everything else happens under the mutex, which is never
 * held over a request. Invariants:
 *
 * (1) A read-only mapping of generation g is removed only if the segment's word was no longer
 * live_word(g) while the daemon served us. Our leases keep the segment alive. Since a daemon may
 * break that rule, we also make sure that no lease lies in the mapping.
 * (2) The same holds for writable mappings and our drafts, which count themselves.
 * (3) Every segment with a mapping or a descriptor is in `known`, once.
 * (4) An object's size is checked with fstat() before it is mapped.
 *
 * A process may have only so many mappings (vm.max_map_count), and needs some for other things. So
 * beyond half of that, mappings of living segments that nobody uses are let go, whichever they are.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "client/checks.h"
#include "client/error.h"
#include "client/memory/lease_objects.h"
#include "client/memory/mapping.h"
#include "client/memory/use_count.h"
#include "client/memory/vm.h"
#include "util/cancel.h"
#include "util/checked.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/page.h"

/* How long a thread may need for the few steps after which it finds out that its row was torn. */
#define TORN_NS (10 * NS_PER_SEC)

#define HUGE ((size_t)2 << 20)

enum {
	LET_GO = 2,	  /* idle mappings for a new one, so that there are fewer in time */
	LET_GO_MANY = 64, /* when the process has no mapping left */
	LET_GO_LOOKS = 8, /* at mappings, for each that is let go */
};

/* Size of the table, and of `known` for all of its segments: a received descriptor must never be
 * lost for want of memory. */
static size_t table_size(const struct mappings *ms)
{
	return (size_t)ms->catalog->slots * (sizeof(struct mapping) + sizeof(*ms->known));
}

void mappings_init(struct mappings *ms)
{
	*ms = (struct mappings){ 0 };
	list_init(&ms->write_maps);
	pthread_mutex_init(&ms->mutex, NULL);
}

int mappings_alloc(struct mappings *ms, const struct catalog_view *catalog)
{
	uint32_t slots = catalog->slots;
	void *p;

	ms->catalog = catalog;
	ms->most = map_count_max() / 2;
	dumps_prepare();
	p = mmap(NULL, table_size(ms), PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return tl_fail_mmap("a table of %u mappings", slots);
	ms->table = p;
	ms->known = (void *)(ms->table + slots);
	return 0;
}

/* ---- Single mappings; the mutex is held, or nobody else uses them ---- */

/*
 * Removes a read-only mapping. Returns false if a lease lies in it, and leaves it as it was. Then
 * the daemon broke the protocol.
 *
 * ORDER: the generation is taken away, all threads are ordered, then their leases are looked at. A
 * thread that takes a lease says that it uses the mapping, then looks at the generation
 * (read/shared_lease.h), so that one of the two sees the other.
 */
static bool drop_read(struct mappings *ms, struct mapping *m)
{
	uint32_t generation = atomic_load_explicit(&m->generation, memory_order_relaxed);

	if (!generation)
		return true;
	atomic_store(&m->generation, 0);
	use_count_barrier();
	if (lease_objects_use(&m->leased)) {
		atomic_store_explicit(&m->generation, generation, memory_order_release);
		return false;
	}
	munmap((void *)m->base, m->size);
	m->base = NULL;
	ms->count--;
	return true;
}

static struct write_map *write_map_unref(struct write_map *map)
{
	if (map && --map->refs == 0) {
		list_del(&map->link);
		if (map->base)
			munmap(map->base, map->size);
		free(map);
	}
	return NULL;
}

static void drop_write(struct mappings *ms, struct mapping *m)
{
	m->write_fd = fd_close(m->write_fd - 1) + 1;
	ms->count -= m->write != NULL;
	m->write = write_map_unref(m->write);
	m->write_generation = 0;
	m->let_go = false;
}

static void drop_cow(struct mappings *ms, struct mapping *m)
{
	if (!m->cow_fd)
		return;
	m->cow_fd = fd_close(m->cow_fd - 1) + 1;
	ms->cow_fds--;
}

void mappings_deinit(struct mappings *ms)
{
	for (uint32_t i = 0; i < ms->nknown; i++) {
		struct mapping *m = &ms->table[ms->known[i]];

		drop_read(ms, m);
		drop_write(ms, m);
		drop_cow(ms, m);
	}
	ms->known = NULL;
	ms->nknown = 0;
	if (ms->table)
		munmap(ms->table, table_size(ms));
	ms->table = NULL;
}

static void lose_descriptors(struct mappings *ms)
{
	for (uint32_t i = 0; i < ms->nknown; i++) {
		struct mapping *m = &ms->table[ms->known[i]];

		m->write_fd = 0;
		m->cow_fd = 0;
	}
	ms->cow_fds = 0;
}

void mappings_lose_descriptors(struct mappings *ms)
{
	pthread_mutex_lock(&ms->mutex);
	lose_descriptors(ms);
	pthread_mutex_unlock(&ms->mutex);
}

void mappings_free(struct mappings *ms)
{
	pthread_mutex_destroy(&ms->mutex);
}

/* ---- fork() ---- */

void mapping_inherit_locked(struct write_map *map, enum write_view view)
{
	if (map->left_out || map->inherit >= view)
		return;
	if (!map->inherit && madvise(map->base, map->size, MADV_DOFORK))
		return; /* then it is left out like other mappings */
	map->inherit = view;
}

void mappings_fork_parent(struct mappings *ms)
{
	struct write_map *map;

	list_for_each_entry(map, &ms->write_maps, link) {
		if (map->inherit)
			madvise(map->base, map->size, MADV_DONTFORK);
		map->inherit = WRITE_VIEW_NONE;
	}
}

/*
 * Reserves the address range of a mapping that was not inherited. The range is free, unless a
 * handler that ran before ours has mapped something of its own there. So existing mappings are
 * never replaced.
 */
static void leave_out(struct write_map *map, void *address)
{
	void *p = mmap(address, map->size, PROT_NONE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);

	if (p == address)
		map->base = p;
	else if (p != MAP_FAILED) /* a kernel without MAP_FIXED_NOREPLACE */
		munmap(p, map->size);
}

/* Grandchildren do not inherit drafts: a parent keeps drafts only for its own children. The child's
 * program may close all descriptors, and their numbers be others' then, so none is kept. */
void mappings_fork_child(struct mappings *ms, bool lost)
{
	struct write_map *map;

	if (lost)
		lose_descriptors(ms);
	for (uint32_t i = 0; i < ms->nknown; i++) {
		struct mapping *m = &ms->table[ms->known[i]];

		if (m->write && !m->write->inherit && !m->write->left_out && m->write->refs == 1)
			m->write->base = NULL; /* MADV_DONTFORK: there is nothing to unmap */
		drop_write(ms, m);
		drop_cow(ms, m);
	}
	list_for_each_entry(map, &ms->write_maps, link) {
		void *address = map->base;

		if (map->left_out)
			continue;
		if (map->inherit) {
			if (map->inherit == WRITE_VIEW_READ)
				mprotect(map->base, map->size, PROT_READ);
			madvise(map->base, map->size, MADV_DONTFORK);
			map->inherit = WRITE_VIEW_NONE;
			continue;
		}
		map->base = NULL;
		map->left_out = true;
		leave_out(map, address);
	}
}

/* Enters @segment into `known`. To be called before anything is kept for it, so that nothing can be
 * lost. */
static void know(struct mappings *ms, uint32_t segment)
{
	if (ms->table[segment].known)
		return;
	ms->known[ms->nknown++] = segment;
	ms->table[segment].known = true;
}

static bool segment_lives(const struct mappings *ms, uint32_t segment, uint32_t generation)
{
	return atomic_load(&ms->catalog->segments[segment].word) == live_word(generation);
}

/*
 * Looks at @max of the known mappings and drops those whose segment has ended, unless they are
 * larger than @largest.
 *
 * ORDER: the segment's word is read before our own. When the daemon drops us it clears our word
 * first (D1). A segment may have ended because we are not served any more, which says nothing about
 * our leases; in that case our word shows it here.
 */
static void sweep(struct mappings *ms, unsigned max, uint64_t largest)
{
	uint32_t n = ms->nknown < max ? ms->nknown : max;

	while (n--) {
		uint32_t segment = ms->known[ms->sweep++ % ms->nknown];
		struct mapping *m = &ms->table[segment];
		uint32_t generation = atomic_load_explicit(&m->generation, memory_order_relaxed);
		bool read_ended = generation && m->size <= largest &&
				  !segment_lives(ms, segment, generation);
		bool write_ended = m->write_generation && m->write_size <= largest &&
				   !segment_lives(ms, segment, m->write_generation);
		bool cow_ended = m->cow_fd && largest == UINT64_MAX &&
				 !segment_lives(ms, segment, m->cow_generation);

		if (!catalog_served(ms->catalog))
			return;
		if (read_ended || write_ended || cow_ended)
			atomic_fetch_add(&ms->let_gone, 1);
		if (read_ended)
			drop_read(ms, m);
		if (write_ended)
			drop_write(ms, m);
		if (cow_ended)
			drop_cow(ms, m);
	}
}

void mappings_let_ended_go(struct mappings *ms, unsigned max, uint64_t largest)
{
	if (!atomic_load_explicit(&ms->sealed, memory_order_relaxed) ||
	    pthread_mutex_trylock(&ms->mutex))
		return;
	sweep(ms, max, largest);
	pthread_mutex_unlock(&ms->mutex);
}

bool mappings_let_go_since(struct mappings *ms, uint64_t before)
{
	if (!atomic_load_explicit(&ms->sealed, memory_order_relaxed))
		return false;
	pthread_mutex_lock(&ms->mutex);
	sweep(ms, MAPPINGS_ALL, UINT64_MAX);
	pthread_mutex_unlock(&ms->mutex);
	return atomic_load(&ms->let_gone) != before;
}

/* Any number; which mappings go is of no account, as long as not all of a loop over many do. */
static uint32_t any_number(struct mappings *ms)
{
	ms->any = ms->any * 1664525 + 1013904223;
	return ms->any >> 8;
}

/* The daemon goes on taking us for one that has the segment mapped: for a get we ask for it again,
 * and if it grants a draft there, it is told (MAPPING_E_LET_GO). */
static unsigned let_go_one(struct mappings *ms, struct mapping *m)
{
	unsigned n = 0;

	if (m->base && !lease_objects_use(&m->leased))
		n += drop_read(ms, m);
	if (m->write && m->write->refs == 1) {
		m->write = write_map_unref(m->write);
		m->let_go = true;
		ms->count--;
		n++;
	}
	return n;
}

/* Lets about so many idle mappings go, if that many are found soon. */
static void let_go_idle(struct mappings *ms, unsigned most)
{
	for (unsigned looks = most * LET_GO_LOOKS, n = 0; ms->nknown && looks && n < most; looks--)
		n += let_go_one(ms, &ms->table[ms->known[any_number(ms) % ms->nknown]]);
}

static void let_go_for_another(struct mappings *ms)
{
	if (ms->count >= ms->most)
		let_go_idle(ms, LET_GO);
}

/* ---- mmap ---- */

/* Maps at a 2 MiB boundary, so that the kernel may use huge pages: in a larger reservation, which
 * is then cut to size. */
static void *map_aligned(int fd, size_t size, int prot)
{
	size_t reserved = size + HUGE;
	size_t rounded = page_ceil(size);
	char *space = mmap(NULL, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
			   -1, 0);
	char *at, *end;

	if (space == MAP_FAILED)
		return MAP_FAILED;
	at = (char *)(((uintptr_t)space + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
	end = space + page_ceil(reserved);
	if (mmap(at, size, prot, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
		int saved = errno;

		munmap(space, reserved);
		errno = saved;
		return MAP_FAILED;
	}
	if (at > space)
		munmap(space, (size_t)(at - space));
	if (end > at + rounded)
		munmap(at + rounded, (size_t)(end - (at + rounded)));
	madvise(at, size, MADV_HUGEPAGE);
	return at;
}

/* Returns the catalog's flags of the segment's memory. A descriptor must match them. */
static uint32_t segment_flags(struct mappings *ms, uint32_t segment)
{
	uint32_t flags = load_once(&ms->catalog->segments[segment].flags);

	if (flags & SEGMENT_SEALED && !atomic_load_explicit(&ms->sealed, memory_order_relaxed))
		atomic_store(&ms->sealed, true);
	return flags;
}

/* Maps all of a segment, whose size must be as the daemon says. */
static int map_segment(int fd, uint64_t size, uint32_t flags, int prot, void **out)
{
	int r = descriptor_check_segment(fd, size, flags, !(prot & PROT_WRITE));
	void *p;

	*out = NULL;
	if (r)
		return r;
	p = size >= HUGE ? map_aligned(fd, size, prot) : mmap(NULL, size, prot, MAP_SHARED, fd, 0);
	p = undumped(p, size);
	if (p == MAP_FAILED)
		return tl_fail_mmap("mapping a segment of %llu bytes", (unsigned long long)size);
	if (flags & SEGMENT_SEALED && prot & PROT_WRITE)
		r = descriptor_seal_segment(fd);
	if (r)
		munmap(p, size);
	else
		*out = p;
	return r;
}

/* ---- Reading ---- */

/* Installs a mapping, or drops it if a later one is there. -EBUSY: a lease lies in the former. */
static int install(struct mappings *ms, uint32_t segment, uint32_t generation, void *base,
		   uint64_t size)
{
	struct mapping *m = &ms->table[segment];

	if (atomic_load_explicit(&m->generation, memory_order_relaxed) >= generation) {
		munmap(base, size);
		return 0;
	}
	if (!drop_read(ms, m))
		return -EBUSY;
	let_go_for_another(ms);
	m->base = base;
	m->size = size;
	ms->count++;
	atomic_store_explicit(&m->generation, generation, memory_order_release); /* ORDER: see
										    mapping_find()
										  */
	return 0;
}

static int check_segment(const struct mappings *ms, uint32_t segment, uint32_t generation)
{
	if (segment < ms->catalog->slots && generation)
		return 0;
	return tl_fail(-EPROTO, "the catalog names segment %u of %u, generation %u", segment,
		       ms->catalog->slots, generation);
}

int mapping_known(struct mappings *ms, uint32_t segment, uint32_t generation)
{
	int r = check_segment(ms, segment, generation);

	return r ? r : atomic_load(&ms->table[segment].generation) != generation;
}

int mapping_install(struct mappings *ms, uint32_t segment, uint32_t generation, int fd_peek,
		    uint64_t size, int64_t deadline)
{
	int64_t torn = deadline_after(TORN_NS);
	void *p;
	int r;

	r = map_segment(fd_peek, size, segment_flags(ms, segment), PROT_READ, &p);
	if (r == -ENOMEM) {
		pthread_mutex_lock(&ms->mutex);
		let_go_idle(ms, LET_GO_MANY);
		pthread_mutex_unlock(&ms->mutex);
		r = map_segment(fd_peek, size, segment_flags(ms, segment), PROT_READ, &p);
	}
	if (r)
		return r;

	for (;;) {
		pthread_mutex_lock(&ms->mutex);
		know(ms, segment);
		r = install(ms, segment, generation, p, size);
		if (!r)
			sweep(ms, MAPPINGS_FEW, UINT64_MAX);
		pthread_mutex_unlock(&ms->mutex);
		if (!r)
			return 0;
		if (deadline_passed(deadline) || deadline_passed(torn))
			break;
		/* the lease may be of a get that read a torn row, and has not noticed yet (G4) */
		nap(NS_PER_MS);
	}
	munmap(p, size);
	if (!deadline_passed(torn))
		return tl_fail(-ETIMEDOUT,
			       "segment %u is not mapped before another thread's get ends",
			       segment);
	return tl_fail(-EPROTO,
		       "the daemon gave segment %u to another while we use what lies in it",
		       segment);
}

/* ---- Copy-on-write ---- */

static int map_private(int fd, uint32_t flags, uint64_t offset, uint64_t size,
		       struct private_map *out)
{
	uint64_t start = page_floor(offset), end;
	void *p;
	int r;

	if (!checked_add_u64(&end, offset, size) || !size)
		return tl_fail(-EPROTO, "the catalog has a tensor of %llu bytes at %llu",
			       (unsigned long long)size, (unsigned long long)offset);
	r = descriptor_check_segment(fd, end, flags, true);
	if (r)
		return r;
	out->map_size = (size_t)(offset - start + size);
	p = undumped(mmap(NULL, out->map_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE,
			  fd, (off_t)start),
		     out->map_size);
	if (p == MAP_FAILED)
		return tl_fail_mmap("a private mapping of %zu bytes", out->map_size);
	out->map = p;
	out->data = (char *)p + (offset - start);
	return 0;
}

/* Keeps the descriptor for the next copy-on-write get, if there is space. Otherwise the caller
 * still owns it. */
static void keep_cow_fd_locked(struct mappings *ms, uint32_t segment, uint32_t generation,
			       int *fd_take)
{
	struct mapping *m = &ms->table[segment];

	know(ms, segment);
	drop_cow(ms, m);
	if (ms->cow_fds == MAPPINGS_COW_FDS)
		return;
	m->cow_fd = take_fd(fd_take) + 1;
	m->cow_generation = generation;
	ms->cow_fds++;
}

void mapping_keep_cow(struct mappings *ms, uint32_t segment, uint32_t generation, int fd_take)
{
	cleanup_(fd_closep) int fd = fd_take;

	pthread_mutex_lock(&ms->mutex);
	keep_cow_fd_locked(ms, segment, generation, &fd);
	pthread_mutex_unlock(&ms->mutex);
}

int mapping_private(struct mappings *ms, uint32_t segment, uint32_t generation, uint64_t offset,
		    uint64_t size, struct private_map *out)
{
	struct mapping *m;
	int r;

	r = check_segment(ms, segment, generation);
	if (r)
		return r;
	m = &ms->table[segment];
	pthread_mutex_lock(&ms->mutex);
	if (m->cow_fd && m->cow_generation == generation)
		r = map_private(m->cow_fd - 1, segment_flags(ms, segment), offset, size, out);
	else
		r = 1;
	pthread_mutex_unlock(&ms->mutex);
	return r;
}

int mapping_private_new(struct mappings *ms, uint32_t segment, uint32_t generation, int fd_take,
			uint64_t offset, uint64_t size, struct private_map *out)
{
	cleanup_(fd_closep) int fd = fd_take;
	int r = map_private(fd, segment_flags(ms, segment), offset, size, out);

	if (r)
		return r;
	pthread_mutex_lock(&ms->mutex);
	keep_cow_fd_locked(ms, segment, generation, &fd);
	sweep(ms, MAPPINGS_FEW, UINT64_MAX);
	pthread_mutex_unlock(&ms->mutex);
	return 0;
}

/* Copies under the mutex, so that no other thread unmaps the segment meanwhile. */
static int copy_locked(struct mappings *ms, uint32_t segment, uint32_t generation, uint64_t offset,
		       uint64_t size, struct private_map *out)
{
	const unsigned char *from;
	uint64_t mapped, end;

	from = mapping_find(&ms->table[segment], generation, &mapped);
	if (!from)
		return 1;
	if (!checked_add_u64(&end, offset, size) || !size || end > mapped)
		return tl_fail(-EPROTO, "the catalog has a tensor of %llu bytes at %llu",
			       (unsigned long long)size, (unsigned long long)offset);
	out->map_size = (size_t)size;
	out->map = undumped(mmap(NULL, out->map_size, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0),
			    out->map_size);
	if (out->map == MAP_FAILED)
		return tl_fail_mmap("no memory to copy a tensor of %llu bytes",
				    (unsigned long long)size);
	out->data = memcpy(out->map, from + offset, out->map_size);
	out->copied = true;
	return 0;
}

int mapping_copied(struct mappings *ms, uint32_t segment, uint32_t generation, uint64_t offset,
		   uint64_t size, struct private_map *out)
{
	int r = check_segment(ms, segment, generation);

	if (r)
		return r;
	pthread_mutex_lock(&ms->mutex);
	r = copy_locked(ms, segment, generation, offset, size, out);
	pthread_mutex_unlock(&ms->mutex);
	return r;
}

/* ---- Writing ---- */

void mapping_keep_draft_fd(struct mappings *ms, const struct wire_draft *draft, int fd_take)
{
	struct mapping *m;

	if (draft->segment >= ms->catalog->slots) {
		fd_close(fd_take);
		return;
	}
	m = &ms->table[draft->segment];
	pthread_mutex_lock(&ms->mutex);
	know(ms, draft->segment);
	drop_write(ms, m); /* of an earlier generation */
	m->write_generation = draft->segment_generation;
	m->write_size = draft->segment_size;
	m->write_fd = fd_take + 1;
	pthread_mutex_unlock(&ms->mutex);
}

/* Makes a new writable mapping of all of the segment's write_fd, which goes to @fd_move. */
static int write_map_new(struct mappings *ms, uint32_t segment, struct write_map **out,
			 int *fd_move)
{
	struct mapping *m = &ms->table[segment];
	struct write_map *map = malloc(sizeof(*map));
	uint32_t flags = segment_flags(ms, segment);
	int fd = m->write_fd - 1, r;

	if (!map)
		return tl_fail(-ENOMEM, "no memory to remember a mapping");
	let_go_for_another(ms);
	r = map_segment(fd, m->write_size, flags, PROT_READ | PROT_WRITE, &map->base);
	if (r == -ENOMEM) {
		let_go_idle(ms, LET_GO_MANY);
		r = map_segment(fd, m->write_size, flags, PROT_READ | PROT_WRITE, &map->base);
	}
	if (r) {
		free(map);
		return r;
	}
	madvise(map->base, m->write_size, MADV_DONTFORK); /* but see mapping_inherit_locked() */
	map->size = m->write_size;
	map->refs = 1; /* the segment's reference */
	map->inherit = WRITE_VIEW_NONE;
	map->left_out = false;
	list_add_tail(&ms->write_maps, &map->link);
	ms->count++;
	m->write_fd = 0;
	if (fd_move && !(flags & SEGMENT_SEALED))
		*fd_move = fd;
	else
		fd_close(fd);
	*out = map;
	return 0;
}

static int write_base_locked(struct mappings *ms, const struct wire_draft *draft, int *fd_move)
{
	struct mapping *m = &ms->table[draft->segment];
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
	if (m->let_go)
		return MAPPING_E_LET_GO;
	r = write_map_new(ms, draft->segment, &m->write, fd_move);
	if (!r)
		sweep(ms, MAPPINGS_FEW, UINT64_MAX);
	return r;
}

int mapping_write(struct mappings *ms, const struct wire_draft *draft, struct write_map **out,
		  int *fd_move)
{
	struct write_map *map;
	int r;

	if (draft->segment >= ms->catalog->slots)
		return tl_fail(-EPROTO, "a draft in segment %u of %u", draft->segment,
			       ms->catalog->slots);
	pthread_mutex_lock(&ms->mutex);
	r = write_base_locked(ms, draft, fd_move);
	map = ms->table[draft->segment].write; /* unless the sweep took it away again */
	if (!r && !map)
		r = tl_fail(-EPROTO, "segment %u went while there is a draft in it",
			    draft->segment);
	if (!r && map) {
		map->refs++;
		*out = map;
	}
	pthread_mutex_unlock(&ms->mutex);
	return r;
}

void mapping_write_again(struct mappings *ms, struct write_map *map)
{
	pthread_mutex_lock(&ms->mutex);
	map->refs++;
	pthread_mutex_unlock(&ms->mutex);
}

void mapping_write_end(struct mappings *ms, struct write_map *map)
{
	if (!map)
		return;
	pthread_mutex_lock(&ms->mutex);
	write_map_unref(map);
	pthread_mutex_unlock(&ms->mutex);
}

void mappings_end_writes(struct mappings *ms)
{
	pthread_mutex_lock(&ms->mutex);
	for (uint32_t i = 0; i < ms->nknown; i++) {
		struct mapping *m = &ms->table[ms->known[i]];

		if (!m->write || m->write->refs == 1)
			drop_write(ms, m);
	}
	pthread_mutex_unlock(&ms->mutex);
}

void mapping_write_forked(struct write_map *map)
{
	if (map && map->refs == 1 && !map->inherit && !map->left_out)
		map->base = NULL; /* MADV_DONTFORK: there is nothing to unmap */
	write_map_unref(map);
}

/* ---- All mappings ---- */

int mappings_each_locked(const struct mappings *ms,
			 int (*visit)(void *context, uint32_t segment, uint32_t generation),
			 void *context)
{
	int r = 0;

	for (uint32_t i = 0; !r && i < ms->nknown; i++) {
		uint32_t segment = ms->known[i];
		const struct mapping *m = &ms->table[segment];
		uint32_t generation = atomic_load_explicit(&m->generation, memory_order_relaxed);

		if (generation)
			r = visit(context, segment, generation);
		if (!r && m->cow_fd && m->cow_generation != generation)
			r = visit(context, segment, m->cow_generation);
	}
	return r;
}

/* ---- The segment of a pointer ---- */

bool mapping_locate(struct mappings *ms, const void *p, uint32_t *segment, uint32_t *generation,
		    uint64_t *offset)
{
	bool found = false;

	pthread_mutex_lock(&ms->mutex);
	for (uint32_t i = 0; i < ms->nknown && !found; i++) {
		const struct mapping *m = &ms->table[ms->known[i]];
		uintptr_t base = (uintptr_t)m->base, at = (uintptr_t)p;

		found = m->base && at >= base && at - base < m->size;
		if (!found)
			continue;
		*segment = ms->known[i];
		*generation = atomic_load_explicit(&m->generation, memory_order_relaxed);
		*offset = at - base;
	}
	pthread_mutex_unlock(&ms->mutex);
	return found;
}
