/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes and their objects: POSIX shm objects, segments and the extents in them. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "daemon/store/memfd.h"
#include "daemon/store/segment.h"
#include "daemon/store/shm.h"
#include "tests/harness/harness.h"
#include "util/fault.h"

enum { PAGE = 4096, EXTENTS = 4096 };

static uint64_t instance; /* the running test's */

static unsigned objects_of(uint64_t id)
{
	char prefix[64];
	unsigned count = 0;
	struct dirent *e;
	DIR *dir = opendir("/dev/shm");

	assert_non_null(dir);
	snprintf(prefix, sizeof(prefix), "tensorlease-%016llx-", (unsigned long long)id);
	while ((e = readdir(dir)))
		count += !strncmp(e->d_name, prefix, strlen(prefix));
	closedir(dir);
	return count;
}

static int store_setup(void **state)
{
	return test_setup(state) || object_random(&instance) ? -1 : 0;
}

static int store_teardown(void **state)
{
	unsigned left = shm_object_destroy_instance(instance);

	if (left)
		print_error("left behind: %u objects\n", left);
	return test_teardown(state) || left ? -1 : 0;
}

#define STORE_TEST(name) TEST_WITH(name, store_setup, store_teardown)

/* ---- objects ---- */

static struct object object_new(void)
{
	struct object o = { .instance = instance, .fd = -1 };

	assert_int_equal(object_random(&o.key), 0);
	return o;
}

STORE_TEST(objects_are_allocated_private_and_exclusive)
{
	struct object o = object_new();
	int fd = -1, second = -1;
	char path[OBJECT_PATH_MAX];
	struct stat st;

	assert_int_equal(shm_object_create(&o, 3 * PAGE, NULL, &fd), 0);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	shm_object_path(&o, path);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_int_equal(st.st_size, 3 * PAGE);
	assert_int_equal(st.st_blocks * 512, 3 * PAGE); /* not sparse: no SIGBUS later */
	assert_int_equal(shm_object_create(&o, PAGE, NULL, &second), -EEXIST);
	assert_int_equal(second, -1);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, 3 * PAGE); /* the first one is unharmed */
	shm_object_destroy(&o);
	assert_int_equal(stat(path, &st), -1);
	shm_object_destroy(&o); /* twice is harmless */
	assert_int_equal(shm_object_open(&o, O_RDONLY, &second), -ENOENT);
	close(fd);
}

STORE_TEST(object_names_are_random)
{
	uint64_t keys[256];

	for (unsigned i = 0; i < 256; i++) {
		assert_int_equal(object_random(&keys[i]), 0);
		assert_true(keys[i] != 0);
		for (unsigned j = 0; j < i; j++)
			assert_true(keys[i] != keys[j]);
	}
}

STORE_TEST(a_read_only_descriptor_cannot_write)
{
	struct object o = object_new();
	int rw = -1, ro = -1;
	char path[64];

	assert_int_equal(shm_object_create(&o, PAGE, NULL, &rw), 0);
	assert_int_equal(shm_object_open(&o, O_RDONLY, &ro), 0);
	assert_true(fcntl(ro, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(write(ro, "x", 1), -1);
	assert_ptr_equal(mmap(NULL, PAGE, PROT_WRITE, MAP_SHARED, ro, 0), MAP_FAILED);
	assert_int_equal(ftruncate(ro, 0), -1);
	assert_int_equal(fallocate(ro, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE), -1);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", ro);
	assert_int_equal(access(path, F_OK), 0);
	close(ro);
	close(rw);
	shm_object_destroy(&o);
}

/* Destroys an object of ones that somebody maps. Returns how many blocks are left, and its size. */
static blkcnt_t destroyed_while_mapped(bool discard, off_t *size, unsigned char *seen)
{
	struct object o = object_new();
	unsigned char *map;
	struct stat st;
	int fd = -1;

	assert_int_equal(shm_object_create(&o, 4 * PAGE, NULL, &fd), 0);
	map = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(map, MAP_FAILED);
	memset(map, 1, 4 * PAGE);
	if (discard)
		must_be(shm_object_trim(&o, 0), 0);
	shm_object_destroy(&o);
	assert_int_equal(fstat(fd, &st), 0);
	*size = st.st_size;
	*seen = discard ? 0 : map[3 * PAGE];
	munmap(map, 4 * PAGE);
	close(fd);
	return st.st_blocks;
}

STORE_TEST(discarding_gives_the_memory_back_though_it_is_mapped)
{
	unsigned char seen;
	off_t size;

	assert_int_equal(destroyed_while_mapped(true, &size, &seen), 0);
	assert_int_equal(size, 0); /* nobody can fill it by reading */
}

STORE_TEST(without_discarding_a_mapping_keeps_its_bytes)
{
	unsigned char seen;
	off_t size;

	assert_int_equal(destroyed_while_mapped(false, &size, &seen) * 512, 4 * PAGE);
	assert_int_equal(size, 4 * PAGE);
	assert_int_equal(seen, 1);
}

STORE_TEST(a_stale_instance_goes_and_leaves_others_alone)
{
	struct object stale = { 0 }, ours = object_new(), foreign, trap;
	char path[OBJECT_PATH_MAX], trap_path[128];
	int fds[5];

	assert_int_equal(object_random(&stale.instance), 0);
	for (stale.key = 0; stale.key < 3; stale.key++)
		assert_int_equal(shm_object_create(&stale, PAGE, NULL, &fds[stale.key]), 0);
	assert_int_equal(shm_object_create(&ours, PAGE, NULL, &fds[3]), 0);
	foreign = trap = stale;
	foreign.key = 77;
	trap.key = 78;
	assert_int_equal(shm_object_create(&foreign, PAGE, NULL, &fds[4]), 0);
	shm_object_path(&foreign, path);
	shm_object_path(&trap, trap_path);
	assert_int_equal(symlink("/dev/null", trap_path), 0);
	if (geteuid() == 0)
		assert_int_equal(chown(path, 12345, 12345), 0);

	/* neither the link nor the other user's file, which only root can make, is touched */
	assert_int_equal(shm_object_destroy_instance(stale.instance), geteuid() == 0 ? 3 : 4);
	assert_int_equal(objects_of(stale.instance), geteuid() == 0 ? 2 : 1);
	assert_int_equal(objects_of(instance), 1);
	assert_int_equal(shm_object_destroy_instance(stale.instance), 0);
	unlink(path);
	unlink(trap_path);
	shm_object_destroy(&ours);
	for (int i = 0; i < 5; i++)
		close(fds[i]);
}

/* Nobody but us can remove our files, unless logind does (RemoveIPC). Then others may make files of
 * the same names. */
static void check_not_ours(const struct object *o, const char *file)
{
	struct stat st;
	int fd = -1;

	assert_int_equal(shm_object_open(o, O_RDONLY, &fd), -ENOENT);
	assert_int_equal(shm_object_open(o, O_RDWR, &fd), -ENOENT);
	assert_int_equal(shm_object_is_written(o), -ENOENT);
	assert_true(shm_object_has_size(o, PAGE));
	assert_int_equal(shm_object_trim(o, 0), 0);
	assert_int_equal(shm_object_destroy(o), 0);
	assert_int_equal(lstat(file, &st), 0);
	assert_int_equal(st.st_size, 2 * PAGE);
}

STORE_TEST(a_file_that_another_made_in_place_of_an_object_is_left_alone)
{
	struct object o = object_new(), target = object_new();
	char path[OBJECT_PATH_MAX], target_path[OBJECT_PATH_MAX];
	int fd = -1;

	shm_object_path(&o, path);
	shm_object_path(&target, target_path);
	if (geteuid() == 0) { /* only root can make files of others */
		assert_int_equal(shm_object_create(&o, 2 * PAGE, NULL, &fd), 0);
		assert_int_equal(fchown(fd, 12345, 12345), 0);
		close(fd);
		check_not_ours(&o, path);
		unlink(path);
	}
	assert_int_equal(shm_object_create(&target, 2 * PAGE, NULL, &fd), 0);
	close(fd);
	assert_int_equal(symlink(target_path, path), 0);
	check_not_ours(&o, target_path);
	unlink(path);
	shm_object_destroy(&target);
}

STORE_TEST(a_cancelled_object_leaves_nothing)
{
	struct object o = object_new();
	atomic_bool cancel = true;
	int fd = -1;

	assert_int_equal(shm_object_create(&o, PAGE, &cancel, &fd), -ECANCELED);
	assert_int_equal(fd, -1);
	assert_int_equal(objects_of(instance), 0);
	atomic_store(&cancel, false);
	assert_int_equal(shm_object_create(&o, PAGE, &cancel, &fd), 0);
	shm_object_destroy(&o);
	close(fd);
}

STORE_TEST(object_create_unwinds_at_every_step)
{
	struct object o = object_new();
	unsigned n, fds = count_fds(0);
	int fd = -1, r;

	for (n = 1;; n++) {
		/* allocation takes two steps, and the second fails when the first is done */
		r = fault_nth(n, shm_object_create(&o, (64 << 20) + PAGE, NULL, &fd));
		if (!fault_fired())
			break;
		assert_true(r < 0);
		assert_int_equal(fd, -1);
		assert_int_equal(count_fds(0), fds);
		assert_int_equal(objects_of(instance), 0);
	}
	assert_int_equal(r, 0);
	assert_true(n > 3);
	shm_object_destroy(&o);
	close(fd);
}

/* ---- segments ---- */

static struct segment_store store;
static struct segment_totals totals;
static struct accounts accounts;
static struct account *user;

static void store_start(uint64_t capacity, unsigned fds_max)
{
	accounts_init(&accounts, 1000, NULL, 0);
	segment_store_init(&store, &accounts, capacity, fds_max);
	totals.pool = store.pool;
	totals.pool.above = &store.pool;
	totals.storage = &storage_shm;
	user = account_ref(&accounts, 1000);
	assert_non_null(user);
}

static void store_end(void)
{
	assert_int_equal(store.pool.used, 0);
	assert_int_equal(store.going, 0);
	assert_int_equal(store.warm_count, 0);
	assert_int_equal(store.warm_bytes, 0);
	assert_int_equal(totals.pool.used, 0);
	assert_int_equal(totals.warm, 0);
	assert_int_equal(store.fds_cached, 0);
	assert_true(list_empty(&store.warm) && list_empty(&store.to_destroy));
	user = account_unref(user);
	assert_int_equal(accounts.count, 0);
	accounts_deinit(&accounts);
	segment_store_deinit(&store);
}

static struct segment *new_segment(struct account *of, uint64_t size, bool small)
{
	struct segment *seg = NULL;

	assert_int_equal(segment_new(&seg, &store, &totals, instance, of, size, small), 0);
	segment_live(seg);
	return seg;
}

STORE_TEST(segment_new_unwinds_at_every_step)
{
	store_start(1 << 20, 0);
	for (unsigned n = 1;; n++) {
		struct segment *seg = NULL;
		int r = fault_nth(n,
				  segment_new(&seg, &store, &totals, instance, user, PAGE, n & 1));

		if (!fault_fired()) {
			assert_int_equal(r, 0);
			assert_int_equal(store.pool.used, PAGE);
			segment_free(seg);
			break;
		}
		assert_true(r < 0 && !seg && store.pool.used == 0 && user->refs == 1);
	}
	store_end();
}

STORE_TEST(segments_are_charged_until_they_are_freed)
{
	struct segment *a, *b = NULL;

	store_start(4 * PAGE, 0);
	a = new_segment(user, 3 * PAGE, false);
	assert_int_equal(segment_new(&b, &store, &totals, instance, user, 2 * PAGE, false),
			 CHARGE_E_FULL | SHARE_BYTES);
	assert_null(b);
	segment_to_destroy(a);
	segment_to_destroy(a); /* twice is harmless */
	assert_int_equal(store.going, 1);
	assert_int_equal(store.pool.used, 3 * PAGE); /* its object still exists */
	assert_null(segment_free(a));
	assert_int_equal(store.pool.used, 0);
	assert_null(segment_free(NULL));
	b = new_segment(user, 4 * PAGE, false);
	assert_true(b->object.key && b->object.instance == instance);
	segment_free(b);
	store_end();
}

static uint64_t random_next(uint64_t *x) /* xorshift64 */
{
	*x ^= *x << 13;
	*x ^= *x >> 7;
	*x ^= *x << 17;
	return *x;
}

struct extent {
	uint64_t offset, nbytes;
};

/* A model of a segment's units, one byte for each. */
struct reference {
	unsigned char used[EXTENTS];
	uint32_t units;
};

static uint32_t units_for(uint64_t nbytes)
{
	return (uint32_t)((nbytes + 255) / 256);
}

static bool reference_has_space(const struct reference *r, uint32_t length)
{
	uint32_t run = 0;

	for (uint32_t i = 0; i < r->units && run < length; i++)
		run = r->used[i] ? 0 : run + 1;
	return run >= length;
}

static void reference_mark(struct reference *r, const struct extent *p, unsigned char value)
{
	uint32_t from = (uint32_t)(p->offset / 256);

	assert_true(from + units_for(p->nbytes) <= r->units);
	for (uint32_t i = from; i < from + units_for(p->nbytes); i++) {
		assert_int_equal(r->used[i], !value); /* no overlap */
		r->used[i] = value;
	}
}

static void take_and_give_at_random(uint64_t size, uint64_t seed, unsigned steps)
{
	struct segment *seg = new_segment(user, size, true);
	struct reference ref = { .units = (uint32_t)(size / 256) };
	static struct extent extents[EXTENTS];
	unsigned count = 0, refused = 0;
	struct extent p;

	for (unsigned i = 0; i < steps; i++) {
		/* it fills and empties in turns */
		if (random_next(&seed) % 100 < (i / 1000 % 2 ? 35 : 65)) {
			p.nbytes = 1 + random_next(&seed) % (random_next(&seed) % 8 ? 3000 : 65536);
			if (segment_extent_take(seg, p.nbytes, &p.offset)) {
				assert_false(reference_has_space(&ref, units_for(p.nbytes)));
				refused++;
				continue;
			}
			assert_int_equal(p.offset % 256, 0);
			reference_mark(&ref, &p, 1);
			extents[count++] = p;
		} else if (count) {
			unsigned which = (unsigned)(random_next(&seed) % count);

			p = extents[which];
			extents[which] = extents[--count];
			reference_mark(&ref, &p, 0);
			segment_extent_give(seg, p.offset, p.nbytes);
		}
	}
	assert_true(refused > 0);
	while (count) {
		p = extents[--count];
		segment_extent_give(seg, p.offset, p.nbytes);
	}
	/* the whole segment is one run again */
	assert_int_equal(segment_extent_take(seg, size < 65536 ? size : 65536, &p.offset), 0);
	segment_free(seg);
}

STORE_TEST(small_extents_never_overlap)
{
	store_start(16 << 20, 0);
	take_and_give_at_random(64 << 10, 0x9e3779b97f4a7c15, 60000);
	take_and_give_at_random(1 << 20, 12345, 60000);
	take_and_give_at_random(9 * PAGE, 777, 60000); /* its units are not a multiple of 64 */
	store_end();
}

STORE_TEST(a_segment_fills_to_its_last_byte)
{
	struct segment *seg;
	uint64_t offset;

	store_start(1 << 20, 0);
	seg = new_segment(user, PAGE, true);
	for (uint64_t i = 0; i < PAGE / 256; i++) {
		assert_int_equal(segment_extent_take(seg, i ? 1 : 256, &offset), 0);
		assert_int_equal(offset, i * 256);
	}
	assert_int_equal(segment_extent_take(seg, 1, &offset), SEGMENT_E_NO_SPACE);
	segment_extent_give(seg, 512, 256);
	assert_int_equal(segment_extent_take(seg, 257, &offset), SEGMENT_E_NO_SPACE);
	assert_int_equal(segment_extent_take(seg, 256, &offset), 0);
	assert_int_equal(offset, 512);
	segment_free(seg);
	seg = new_segment(user, PAGE, true);
	assert_int_equal(segment_extent_take(seg, PAGE + 1, &offset), SEGMENT_E_NO_SPACE);
	assert_int_equal(segment_extent_take(seg, PAGE, &offset), 0);
	segment_extent_give(seg, offset, PAGE);
	segment_free(seg);
	seg = new_segment(user, 1 << 19, false); /* this is for one large tensor */
	assert_int_equal(segment_extent_take(seg, 1, &offset), SEGMENT_E_NO_SPACE);
	segment_free(seg);
	store_end();
}

STORE_TEST(who_has_an_object_open_for_writing_is_seen)
{
	struct object o = object_new();
	int rw = -1, ro = -1;
	void *map;

	assert_int_equal(shm_object_create(&o, 4 * PAGE, NULL, &rw), 0);
	assert_int_equal(shm_object_is_written(&o), 1);
	assert_int_equal(shm_object_open(&o, O_RDONLY, &ro), 0);
	map = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, rw, 0);
	assert_ptr_not_equal(map, MAP_FAILED);
	close(rw);
	assert_int_equal(shm_object_is_written(&o), 1); /* the mapping is left */
	munmap(map, PAGE);
	assert_int_equal(shm_object_is_written(&o), 0);
	map = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, ro, 0);
	assert_int_equal(shm_object_is_written(&o), 0); /* readers do not count */
	munmap(map, PAGE);
	close(ro);
	shm_object_destroy(&o);
	assert_int_equal(shm_object_is_written(&o), -ENOENT);
}

/* ---- memfds ---- */

static struct object memfd_new(uint64_t size, int *fd_rw)
{
	struct object o = object_new();

	assert_int_equal(storage_memfd.create(&o, size, NULL, fd_rw), 0);
	return o;
}

STORE_TEST(memfds_are_sealed_private_and_allocated)
{
	const int size_seals = F_SEAL_SHRINK | F_SEAL_GROW;
	int rw = -1, ro = -1;
	struct stat s;
	struct object o = memfd_new(3 * PAGE, &rw);

	assert_int_equal(fstat(rw, &s), 0);
	assert_int_equal(s.st_size, 3 * PAGE);
	assert_int_equal(s.st_blocks * 512, 3 * PAGE);
	assert_int_equal(s.st_mode & 07777, 0600);
	assert_int_equal(fcntl(rw, F_GET_SEALS) & size_seals, size_seals);
	assert_int_equal(pwrite(rw, "x", 1, 0), 1);
	assert_int_equal(fcntl(rw, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
	assert_true(storage_memfd.is_sealed(&o));
	assert_int_equal(pwrite(rw, "x", 1, 0), -1);
	assert_int_equal(storage_memfd.open(&o, O_RDONLY, &ro), 0);
	assert_int_equal(fcntl(ro, F_GETFL) & O_ACCMODE, O_RDONLY);
	assert_int_equal(storage_memfd.discard(&o), 0);
	assert_int_equal(o.fd, -1);
	storage_memfd.destroy(&o); /* twice is harmless */
	close(ro);
	close(rw);
}

STORE_TEST(only_a_memfd_that_its_writer_has_sealed_is_sealed)
{
	int rw = -1;
	struct object o = memfd_new(PAGE, &rw);

	assert_false(storage_memfd.is_sealed(&o));
	assert_int_equal(fcntl(rw, F_ADD_SEALS, F_SEAL_SEAL), 0);
	assert_false(storage_memfd.is_sealed(&o));
	close(rw);
	storage_memfd.destroy(&o);

	o = memfd_new(PAGE, &rw);
	assert_int_equal(fcntl(rw, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL), 0);
	assert_true(storage_memfd.is_sealed(&o)); /* nobody can write it already */
	close(rw);
	storage_memfd.destroy(&o);
}

STORE_TEST(memfd_create_unwinds_at_every_step)
{
	unsigned n, fds = count_fds(0);
	struct object o = object_new();
	int r, rw = -1;

	for (n = 1;; n++) {
		r = fault_nth(n, storage_memfd.create(&o, (64 << 20) + PAGE, NULL, &rw));
		if (!fault_fired())
			break;
		assert_true(r < 0);
		assert_int_equal(o.fd, -1);
		assert_int_equal(count_fds(0), fds);
	}
	assert_int_equal(r, 0);
	assert_int_equal(n, 6);
	close(rw);
	storage_memfd.destroy(&o);
}

static bool is_over(struct memfd_watches *e, const struct memfd_watch *w)
{
	unsigned max = 8;

	return memfd_watch_next(e, &max) == w;
}

STORE_TEST(the_end_of_a_memfd_comes_when_nobody_has_it)
{
	struct memfd_watch w = { 0 };
	struct memfd_watches e;
	struct object o;
	char path[32];
	int rw, ro, nothing;
	void *map;

	assert_int_equal(memfd_watches_init(&e), 0);
	o = memfd_new(PAGE, &rw);
	assert_int_equal(memfd_watch_begin(&e, &w, o.fd), 0);
	assert_int_equal(storage_memfd.open(&o, O_RDONLY, &ro), 0);
	map = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, ro, 0);
	assert_ptr_not_equal(map, MAP_FAILED);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", ro);
	nothing = open(path, O_PATH | O_CLOEXEC);
	assert_true(nothing >= 0);
	close(rw);
	close(ro);
	storage_memfd.destroy(&o);
	assert_false(is_over(&e, &w));
	munmap(map, PAGE);
	assert_false(is_over(&e, &w));
	close(nothing);
	assert_true(is_over(&e, &w));
	assert_int_equal(w.watch, 0);
	assert_false(is_over(&e, &w));
	memfd_watch_end(&e, &w); /* harmless */
	memfd_watches_deinit(&e);
}

/* Two events for each, and the kernel's queue is too short for all of them. */
STORE_TEST(ends_that_nobody_was_told_of_are_found)
{
	unsigned long queued = 0, count, over = 0;
	FILE *f = fopen("/proc/sys/fs/inotify/max_queued_events", "re");
	struct memfd_watch *all, kept = { 0 };
	struct memfd_watches e;
	struct object o;
	unsigned max;
	int rw;

	assert_non_null(f);
	assert_int_equal(fscanf(f, "%lu", &queued), 1);
	fclose(f);
	count = queued / 2 + 100;
	SKIP_UNLESS(count <= 20000, "the kernel queues too many events");
	all = calloc(count, sizeof(*all));
	assert_non_null(all);
	assert_int_equal(memfd_watches_init(&e), 0);
	for (unsigned long i = 0; i < count; i++) {
		o = memfd_new(PAGE, &rw);
		close(rw);
		assert_int_equal(memfd_watch_begin(&e, &all[i], o.fd), 0);
		storage_memfd.destroy(&o);
	}
	o = memfd_new(PAGE, &rw);
	assert_int_equal(memfd_watch_begin(&e, &kept, o.fd), 0);
	for (;;) {
		struct memfd_watch *w;

		max = 100;
		w = memfd_watch_next(&e, &max);
		assert_ptr_not_equal(w, &kept);
		over += w != NULL;
		if (!w && max)
			break;
	}
	assert_int_equal(over, count);
	close(rw);
	storage_memfd.destroy(&o);
	assert_true(is_over(&e, &kept));
	free(all);
	memfd_watches_deinit(&e);
}

STORE_TEST(an_extent_not_given_back_is_never_handed_out)
{
	uint64_t quarantined, offset;
	struct segment *seg;

	store_start(1 << 20, 0);
	seg = new_segment(user, 16 * PAGE, true);
	assert_int_equal(segment_extent_take(seg, 5000, &offset), 0);
	assert_int_equal(segment_extent_take(seg, 1000, &quarantined), 0);
	segment_extent_give(seg, offset, 5000);
	for (unsigned i = 0; i < 1000; i++) {
		uint64_t nbytes = 1 + i * 37 % 9000;

		assert_int_equal(segment_extent_take(seg, nbytes, &offset), 0);
		assert_true(offset + nbytes <= quarantined || offset >= quarantined + 1024);
		segment_extent_give(seg, offset, nbytes);
	}
	segment_free(seg);
	store_end();
}

STORE_TEST(warm_segments_go_to_whom_they_may)
{
	struct segment *mine, *left, *other;
	struct account *stranger;

	store_start(64 * PAGE, 0);
	stranger = account_ref(&accounts, 1001);
	mine = new_segment(user, 8 * PAGE, false);
	mine->writer = 7;
	segment_keep_warm(mine, 1);
	/* another user never gets it, another client of the user only when its writer has left */
	assert_null(segment_take_warm(&store, &totals, stranger, 7, 8 * PAGE));
	assert_null(segment_take_warm(&store, &totals, user, 8, 8 * PAGE));
	/* a segment must not be too small, nor waste more than an eighth */
	assert_null(segment_take_warm(&store, &totals, user, 7, 8 * PAGE + 1));
	assert_null(segment_take_warm(&store, &totals, user, 7, 6 * PAGE));
	assert_ptr_equal(segment_take_warm(&store, &totals, user, 7, 8 * PAGE - 100), mine);
	assert_null(segment_take_warm(&store, &totals, user, 7, 8 * PAGE));
	segment_keep_warm(mine, 2);

	left = new_segment(user, 8 * PAGE, false); /* its writer has ended */
	segment_keep_warm(left, 3);
	other = new_segment(user, 8 * PAGE, false);
	other->writer = 7;
	segment_keep_warm(other, 4);
	assert_int_equal(store.warm_bytes, 24 * PAGE);
	/* a client gets its own before others', and the most recently used first */
	assert_ptr_equal(segment_take_warm(&store, &totals, user, 7, 8 * PAGE), other);
	assert_ptr_equal(segment_take_warm(&store, &totals, user, 7, 8 * PAGE), mine);
	assert_ptr_equal(segment_take_warm(&store, &totals, user, 7, 8 * PAGE), left);
	assert_int_equal(store.warm_count, 0);
	segment_free(mine);
	segment_free(left);
	segment_free(other);
	account_unref(stranger);
	store_end();
}

STORE_TEST(the_least_recently_used_warm_segment_goes_first)
{
	struct account *stranger;
	struct segment *segs[3];

	store_start(64 * PAGE, 0);
	stranger = account_ref(&accounts, 1001);
	for (unsigned i = 0; i < 3; i++) {
		segs[i] = new_segment(i == 1 ? stranger : user, PAGE * (i + 1), false);
		segment_keep_warm(segs[i], i);
	}
	assert_ptr_equal(segment_pop_warm(&store, NULL, stranger), segs[1]);
	assert_null(segment_pop_warm(&store, NULL, stranger));
	assert_ptr_equal(segment_pop_warm(&store, NULL, NULL), segs[0]);
	segment_to_destroy(segs[2]); /* this takes it from the warm ones */
	assert_null(segment_pop_warm(&store, NULL, NULL));
	for (unsigned i = 0; i < 3; i++)
		segment_free(segs[i]);
	account_unref(stranger);
	store_end();
}

STORE_TEST(descriptors_are_cached_within_their_bound)
{
	struct segment *segs[3];
	int fds[3][3], made;
	unsigned before;

	store_start(64 * PAGE, 2);
	before = count_fds(0);
	for (int i = 0; i < 3; i++) {
		segs[i] = new_segment(user, PAGE, false);
		assert_int_equal(shm_object_create(&segs[i]->object, PAGE, NULL, &made), 0);
		close(made);
		segment_cache(segs[i]);
		segment_cache(segs[i]);
		assert_int_equal(segment_descriptor(segs[i], false, &fds[i][0]), 0);
		assert_int_equal(segment_descriptor(segs[i], false, &fds[i][1]), 0);
		assert_int_equal(segment_descriptor(segs[i], true, &fds[i][2]), 0);
		assert_int_equal(write(fds[i][0], "x", 1), -1);
		assert_int_equal(write(fds[i][2], "x", 1), 1);
	}
	assert_int_equal(store.fds_cached, 2);
	assert_int_equal(count_fds(0), before + 9 + 2);
	for (int i = 0; i < 3; i++) {
		for (int j = 0; j < 3; j++)
			assert_int_equal(close(fds[i][j]), 0);
		segment_to_destroy(segs[i]);
		shm_object_destroy(&segs[i]->object);
		assert_true(segment_descriptor(segs[i], true, &made) < 0);
		segment_free(segs[i]);
	}
	assert_int_equal(count_fds(0), before);
	store_end();
}

STORE_TEST(a_descriptor_that_cannot_be_opened_is_an_error)
{
	struct segment *seg;
	int fd = -1, made = -1;
	unsigned before;

	store_start(64 * PAGE, 2);
	before = count_fds(0);
	seg = new_segment(user, PAGE, false);
	assert_int_equal(shm_object_create(&seg->object, PAGE, NULL, &made), 0);
	close(made);
	for (int writable = 0; writable < 2; writable++) {
		assert_true(fault_nth(1, segment_descriptor(seg, writable, &fd)) < 0);
		assert_non_null(fault_fired());
		assert_int_equal(fd, -1);
		assert_int_equal(count_fds(0), before);
	}
	segment_to_destroy(seg);
	shm_object_destroy(&seg->object);
	segment_free(seg);
	store_end();
}

int main(void)
{
	return suite_run();
}
