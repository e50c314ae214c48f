/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A state that another process left, which was stopped before each of its stores to shared memory
 * in turn (state_stop.h).
 */
#include <sys/stat.h>

#include "daemon/recover/check.h"
#include "daemon/recover/recover.h"
#include "daemon/state/claim.h"
#include "daemon/state/expire.h"
#include "daemon/state/namespace.h"
#include "daemon/state/ring.h"
#include "daemon/state/survive.h"
#include "tests/harness/process.h"
#include "tests/unit/state_adopt.h"

enum { NAMES = 8, RING = 6, ENDED = 7, RING_BYTES = 5000, LARGE = 100000, CLAIMS = 4, NOBODY = 9 };
static const char *const names[NAMES] = {
	"a",	"b",
	"c",	"d",
	"e",	"a name that is so long that it lies in chunks/and not in the entry of the name",
	"ring", "a ring that is over",
};

/* What the child that ends says of what it has done; shared with it. */
static struct progress {
	struct dead dead;
	bool finished, adopted;
	uint64_t committed[NAMES]; /* the version of what must be there; 0: that is not certain */
	uint64_t highest[NAMES];   /* the highest version that was ever committed */
	uint64_t held;		   /* a ref on which the second client has a lease, or 0 */
	uint32_t tensors;
	uint64_t versions[NAMES];
	bool placed;		   /* "g/kept" is there, and finished */
	unsigned claimant[CLAIMS]; /* which client, or NOBODY; 0: that is not certain */
	uint64_t group[2];	   /* the versions of "a" and "c" that came in one step, or 0 */
	bool deletes;		   /* and "e", which was there, goes in that step */
} * progress;

/* ---- the daemon that ends ---- */

static void put(struct tester *t, int name, uint64_t nbytes, unsigned lifetime)
{
	char meta[200];
	int64_t n = (int64_t)nbytes;
	struct tensor_description d = fx_bytes(names[name], &n);
	const char *why = NULL;
	uint64_t version;
	uint32_t slot;

	memset(meta, (int)(progress->highest[name] + 1), sizeof(meta));
	d.meta = meta;
	d.meta_len = name % 2 ? 1 : sizeof(meta);
	d.lifetime.flags = (uint8_t)lifetime;
	assert_int_equal(fx_create(t, nbytes, &slot), 0);
	memset(fx_writable(st.tensors[slot].segment) + catalog_row(&st.catalog, slot)->offset,
	       meta[0], nbytes);
	assert_int_equal(tensor_commit(&st, &t->c, fx_ref(slot), &d, &version, &why), 0);
	progress->highest[name] = version;
	progress->committed[name] = lifetime ? 0 : version;
	fx_drain();
}

/* Deletes @third in the same step, unless that is 0. */
static void put_group(struct tester *t, int first, int second, int third)
{
	const struct tensor_description deletes = { .name = name_key(names[third],
								     strlen(names[third])) };
	static const int64_t nbytes = 100;
	struct tensor_description d[2] = { fx_bytes(names[first], &nbytes),
					   fx_bytes(names[second], &nbytes) };
	const char *why = NULL;
	uint32_t slot;

	assert_int_equal(fx_create(t, 1000, &slot), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(tensor_member(&st, &t->c, fx_ref(slot), i * 512U, &d[i], &why), 0);
	if (third)
		assert_int_equal(tensor_member(&st, &t->c, fx_ref(slot), 0, &deletes, &why), 0);
	progress->group[0] = progress->highest[first] + 1;
	progress->group[1] = progress->highest[second] + 1;
	progress->committed[third] = third ? 0 : progress->committed[third];
	progress->deletes = third;
	assert_int_equal(fx_group(t, fx_ref(slot), third ? 3 : 2), 0);
	progress->highest[first] = progress->committed[first] = progress->group[0];
	progress->highest[second] = progress->committed[second] = progress->group[1];
	fx_drain();
}

static void forget(struct tester *t, int name)
{
	progress->committed[name] = 0;
	assert_int_equal(fx_delete(t, names[name]), 0);
}

static uint64_t current(const char *name)
{
	struct name_key key = name_key(name, strlen(name));
	uint32_t index = name_find(&st.names, &key);

	return index == CATALOG_NONE ? 0 : name_meaning(&st, index);
}

/* What a producer knows of its ring. */
static struct {
	struct ring_page *page;
	uint64_t refs[4], word;
	uint64_t version;
	int name;
} mine;

static void ring_start(struct tester *t, int name)
{
	static const int64_t nbytes = RING_BYTES;
	struct tensor_description d = fx_bytes(names[name], &nbytes);
	struct tensor_ring ask = { .refs = mine.refs + 1, .count = 3 };
	const char *why = NULL;
	uint32_t slot;

	for (int i = 0; i < 4; i++) {
		assert_int_equal(fx_create(t, RING_BYTES, &slot), 0);
		mine.refs[i] = fx_ref(slot);
	}
	assert_int_equal(
		tensor_commit_ring(&st, &t->c, mine.refs[0], &d, &ask, &mine.version, &why), 0);
	assert_non_null(ask.ring);
	watch_pages();
	progress->highest[name] = progress->committed[name] = mine.version;
	mine.name = name;
	mine.page = mmap(NULL, RING_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, ask.ring->fd_rw,
			 0);
	must(mine.page != MAP_FAILED);
	mine.word = ring_word(ref_generation(mine.refs[0]), 0);
	fx_drain();
}

/* K1 to P1. */
static void ring_write(struct tester *t, unsigned index)
{
	mine.refs[index] = fx_ref(ref_slot(mine.refs[index]));
	assert_true(fx_hold(t, mine.refs[index]));
	mine.page->entries[index].version = mine.version + 1;
}

/* P2; a name of which this is the last tensor has it whatever becomes of the daemon. */
static void ring_put(struct tester *t, unsigned index)
{
	ring_write(t, index);
	assert_int_equal(mine.page->word, mine.word);
	mine.word = ring_word(ref_generation(mine.refs[index]), index);
	mine.page->word = mine.word;
	progress->highest[mine.name] = progress->committed[mine.name] = ++mine.version;
	fx_drop(t, mine.refs[index]);
}

/* What is published too late for a ring that has ended. */
static void ring_put_late(struct tester *t, unsigned index)
{
	static const int64_t nbytes = RING_BYTES;
	struct tensor_description d = fx_bytes(names[RING], &nbytes);
	const char *why = NULL;
	uint64_t version;

	assert_int_equal(tensor_commit(&st, &t->c, mine.refs[index], &d, &version, &why), 0);
	progress->highest[RING] = progress->committed[RING] = version;
	fx_drop(t, mine.refs[index]);
}

static void live_with_ring(struct tester *a, struct tester *b)
{
	uint64_t refs[2];

	ring_start(a, RING);
	ring_put(a, 1);
	assert_true(fx_hold(b, mine.refs[1])); /* for good: it is RETIRED, and has no ring */
	assert_true(rings_free_space(&st, a->c.account, false));
	ring_start(a, ENDED);
	ring_put(a, 1);
	assert_true(rings_free_space(&st, a->c.account, false));
	assert_null(st.rings[CATALOG_STREAMS]); /* the name means its last tensor all the same */
	put(a, RING, 10, 0);
	ring_start(a, RING);
	ring_put(a, 1);
	assert_true(fx_hold(b, mine.refs[1]));
	ring_put(a, 2);
	refs[0] = mine.refs[0];
	refs[1] = mine.refs[1]; /* which stays RETIRED as long as it is held */
	ring_retire(&st, &a->c, ring_ref(st.tensors[ref_slot(refs[0])].ring), refs, 2);
	fx_drain();
	ring_put(a, 0);
	ring_write(a, 3);
	put(a, RING, 20, 0); /* which ends it */
	ring_put_late(a, 3);
	fx_drop(b, refs[1]);
	ring_start(a, RING);
	forget(a, RING); /* which ends it */
	ring_start(a, RING);
	ring_put(a, 1);
	ring_put(a, 2);
}

static void link_to(struct tester *t, int from, int name)
{
	struct name_key key = name_key(names[name], strlen(names[name]));
	uint64_t version, ref = current(names[from]);

	assert_true(fx_hold(t, ref));
	assert_int_equal(fx_link(t, ref, &key, "", &version), 0);
	progress->highest[name] = progress->committed[name] = version;
	fx_drop(t, ref);
}

static unsigned claim(struct client *c, unsigned id, struct claim_request rq)
{
	static const char *const claims[CLAIMS] = { "", "a claim", "b", "a third/claim" };
	struct name_key name = name_key(claims[id], strlen(claims[id]));
	enum claim_outcome what = CLAIM_OTHERS;

	if (rq.serial)
		must_be(claim_new(&st, c, &name, &rq, &what), 0);
	else
		claim_end(&st, c, &name);
	return what;
}

/* Asks with the claim's number for a serial. */
static void claim_is(struct client *c, unsigned id, unsigned expected)
{
	must_be(claim(c, id, (struct claim_request){ .serial = id, .wait = true }), expected);
}

static void unclaim(struct client *c, unsigned id, unsigned claimant)
{
	progress->claimant[id] = 0;
	claim(c, id, (struct claim_request){ 0 });
	progress->claimant[id] = claimant;
}

static void claims_live(struct client *b, struct client *c)
{
	claim_is(c, 1, CLAIM_YOURS);
	progress->claimant[1] = 2;
	claim_is(c, 2, CLAIM_YOURS);
	claim_is(b, 2, 0);
	claim_is(b, 3, CLAIM_YOURS);
	progress->claimant[3] = 1;
	claim_is(c, 3, 0);
	unclaim(c, 2, 1);
	unclaim(b, 3, 2);
}

/* The first two lie in memory that its descriptors keep; who wrote the second has not finished. */
static const char *const on_devices[] = { "g/kept", "g/unwritten", "g/mortal" };

static void export_end_now(struct tester *t, const struct segment *seg)
{
	struct wire_segment_ref m = { .header = { .serial = 1 },
				      .segment = seg->index,
				      .segment_generation = seg->generation };
	uint32_t extents;

	must_be(export_end(&st, &t->c, &m, &extents), 0);
}

static void devices_live(struct tester *t)
{
	struct wire_part part = { .part = 1, .part_size = PAGE };
	struct segment *vmm, *ipc, *gone;
	int fd = fx_memory(PAGE);
	const char *why;

	must_be(fx_keep(t, GPU, fx_memory(0)), 0);
	must_be(fx_export(t, SEGMENT_CUDA_VMM, 2 * PAGE, 2, &vmm), 0);
	part.segment = vmm->index;
	part.segment_generation = vmm->generation;
	must_be(export_part(&st, &t->c, &part, &fd, &why), 0);
	must_be(fx_place(t, vmm, on_devices[0], false, NULL), 0);
	progress->placed = true;
	must_be(fx_place(t, vmm, on_devices[1], true, NULL), 0);
	must_be(fx_export(t, SEGMENT_CUDA_VMM, PAGE, 1, &gone), 0);
	must_be(fx_export(t, SEGMENT_CUDA_IPC, PAGE, 1, &ipc), 0);
	must_be(fx_place(t, ipc, on_devices[2], false, NULL), 0);
	must_be(fx_place(t, gone, "g/gone", false, NULL), 0);
	must_be(fx_delete(t, "g/gone"), 0);
	export_end_now(t, gone);
}

static void live(struct tester *a, struct tester *b)
{
	const struct tensor_request prefetch = { .nbytes = 10, .extra = 8, .prefetch = true };
	struct eviction eviction = { 0 };
	uint32_t slot;

	put(a, 0, 1000, 0);
	put(a, 0, 2000, 0);
	assert_true(fx_hold(b, current("a")));
	progress->held = current("a");
	put(a, 0, 3000, 0); /* the one before is RETIRED, and held */
	progress->claimant[2] = 0;
	put(a, 1, LARGE, 0);
	progress->claimant[2] = NOBODY;
	put(a, 5, 300, 0);
	put_group(a, 0, 2, 0);
	link_to(a, 5, 4);
	forget(a, 1);
	put(a, 3, 500, WIRE_LIFETIME_EVICTABLE);
	assert_int_equal(fx_create_once(a, &prefetch, &slot), 0);
	assert_int_equal(evict_one(&st, &a->c, NULL, false, &eviction), EVICTED_ONE);
	assert_true(tensor_free_space(&st, a->c.account, 1 << 20, 0));
	fx_drain();
	while (name_evict(&st.names))
		;
	put(a, 1, LARGE, 0);
	assert_int_equal(fx_create(a, 100, &slot), 0); /* what it leaves behind */
	put_group(a, 0, 2, 4);
}

static void live_and_end(struct keeper_link *k)
{
	struct tester a, b, c;

	dead_start(k);
	fx_connect(&a, 71000);
	fx_connect(&b, 71001);
	fx_connect(&c, 71001);
	if (stop_at)
		watch();
	claims_live(&b.c, &c.c);
	devices_live(&a);
	live(&a, &b);
	live_with_ring(&a, &b);
	unclaim(&c.c, 1, NOBODY);
	progress->finished = true;
	_exit(0);
}

static void adopt_and_end(struct keeper_link *k)
{
	char why[ADOPT_WHY_MAX] = "";

	must_be(adopt(k, why), 0);
	progress->adopted = true;
	_exit(0);
}

static void place_must_be(uint32_t slot, int value)
{
	const struct catalog_row *row = catalog_row(&st.catalog, slot);
	struct segment *seg = st.tensors[slot].segment;
	unsigned char *map;
	int fd;

	must(seg);
	must_be(segment_descriptor(seg, false, &fd), 0);
	map = mmap(NULL, seg->size, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	must(map != MAP_FAILED);
	for (uint64_t i = 0; i < row->nbytes; i++)
		must_be(map[row->offset + i], value);
	munmap(map, seg->size);
}

static uint64_t version_of(int name)
{
	uint64_t ref = current(names[name]);

	if (!ref)
		return 0;
	must_be(fx_state(ref_slot(ref)), ROW_LIVE);
	must_be(fx_ref(ref_slot(ref)), ref);
	return ring_row_version(&st, ref_slot(ref));
}

/* Rows of rings that are not published. */
static uint32_t granted_rows(void)
{
	uint32_t granted = 0;

	for (uint32_t slot = 0; slot < st.catalog.rows.high; slot++)
		granted += fx_state(slot) == ROW_LIVE && adopt_is_slot(&st, slot);
	return granted - st.catalog.header->rings;
}

/* Who had a claim has it, and asks for it once more if it was not told. */
static void claims_must_be_there(void)
{
	for (unsigned id = 1; id < CLAIMS; id++) {
		for (unsigned i = 1; progress->claimant[id] && i <= 2; i++) {
			const struct claim_request rq = { .serial = 70 + id, .again = id };
			unsigned what = claim(&adopted[i], id, rq);

			if (progress->claimant[id] == NOBODY)
				must(what != CLAIM_OTHERS);
			else
				must_be(what == CLAIM_YOURS, progress->claimant[id] == i);
			if (progress->claimant[id] == NOBODY)
				claim(&adopted[i], id, (struct claim_request){ 0 });
		}
	}
}

static bool damaged; /* how far a tensor on a device is written is in no sum, since it changes */

static void devices_must_be_there(void)
{
	for (int i = 0; i < 3; i++) {
		uint64_t ref = current(on_devices[i]);
		const struct catalog_row *row = catalog_row(&st.catalog, ref_slot(ref));
		const struct segment *seg = ref ? st.tensors[ref_slot(ref)].segment : NULL;
		struct stat part;

		must(i || ref || !progress->placed);
		must(!ref || row->progress == (i ? ROW_LOST : ROW_FINISHED) || damaged);
		must(!seg || (!i && seg->device->hold && device_memory_complete(seg->device)));
		must(seg || !ref || row->progress == ROW_LOST);
		for (uint32_t n = 0; seg && n < seg->device->parts; n++) {
			must_be(fstat(seg->device->part[n].fd, &part), 0);
			must_be(part.st_size, PAGE);
		}
	}
}

static void all_must_be_there(void)
{
	const struct catalog_header *h = st.catalog.header;
	struct check check;
	uint64_t held = progress->held, word;

	must_be(check_init(&check, &st.catalog), 0);
	check_deinit(&check);
	for (int i = 0; i < NAMES; i++)
		must(version_of(i) >= progress->committed[i]);
	must(!progress->group[0] || version_of(0) < progress->group[0] ||
	     version_of(2) >= progress->group[1]);
	must(!progress->deletes || (version_of(0) >= progress->group[0]) == !current("e"));
	for (int i = 0; i < NAMES; i++) {
		uint32_t slot = ref_slot(current(names[i]));
		const struct catalog_row *row = catalog_row(&st.catalog, slot);

		if (current(names[i]) && row->meta_len == 1)
			place_must_be(slot, row->meta[0]);
	}
	if (held) {
		word = catalog_row(&st.catalog, ref_slot(held))->word;
		must(word == row_word(ref_generation(held), ROW_LIVE) ||
		     word == row_word(ref_generation(held), ROW_RETIRED));
		place_must_be(ref_slot(held), 2);
	}
	must_be(h->tensors + h->retired + h->drafts + granted_rows(), st.catalog.rows.in_use);
	claims_must_be_there();
	devices_must_be_there();
}

/* Versions go on, and nothing is left in the end. */
static void it_must_work(void)
{
	struct tester t;
	uint64_t ref;

	clients_go();
	must_be(st.catalog.header->retired + st.catalog.header->drafts, 0);
	fx_connect(&t, 71000);
	for (int i = 0; i < NAMES; i++) {
		ref = fx_put(&t, names[i], 10);
		must(catalog_row(&st.catalog, ref_slot(ref))->version > progress->highest[i]);
	}
	for (int i = 0; i < NAMES; i++)
		must_be(fx_delete(&t, names[i]), 0);
	for (int i = 0; i < 3; i++)
		fx_delete(&t, on_devices[i]);
	fx_delete(&t, "g/gone");
	fx_leave(&t);
	must_be(st.catalog.rows.in_use, 0);
	must_be(st.catalog.chunks_reserved, 0);
	must_be(st.catalog.claims.in_use, 0);
	while (name_evict(&st.names))
		;
	must_be(st.catalog.chunks.in_use, 0);
	must_be(st.catalog.names.in_use, 0);
	fx_stop();
}

static void adopt_and_use(void)
{
	all_must_be_there();
	it_must_work();
}

static void progress_begin(void)
{
	progress = mmap(NULL, sizeof(*progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			-1, 0);
	must(progress != MAP_FAILED);
	dead = &progress->dead;
}

TEST(a_state_is_adopted)
{
	progress_begin();
	run(live_and_end, 0);
	must(progress->finished);
	adopt_here(adopt_and_use);
	munmap(progress, sizeof(*progress));
}

/* With TL_TEST_STOPS=all daemons stop before each store. Else either storage has a part of them. */
static unsigned every(unsigned step)
{
	return getenv("TL_TEST_STOPS") ? 1 : step;
}

TEST(a_daemon_that_stops_before_any_store_is_adopted)
{
	SKIP_UNLESS(CAN_STOP, "needs x86-64 without sanitizers, to stop before a store");
	test_timeout(400 * 10 / every(10));
	progress_begin();
	for (unsigned n = 1 + 9 * test_on_memfds(); !progress->finished; n += every(18)) {
		memset(progress, 0, sizeof(*progress));
		run(live_and_end, n);
		adopt_here(adopt_and_use);
	}
	munmap(progress, sizeof(*progress));
}

/* The first one stops at a few moments, the one that adopts at many. */
TEST(a_daemon_that_stops_while_it_adopts_is_adopted)
{
	SKIP_UNLESS(CAN_STOP, "needs x86-64 without sanitizers, to stop before a store");
	test_timeout(400 * 10 / every(10));
	progress_begin();
	for (unsigned first = 290; first < 1900; first += 610) {
		memset(progress, 0, sizeof(*progress));
		for (unsigned n = 1; !progress->adopted; n += every(15)) {
			memset(progress, 0, sizeof(*progress));
			run(live_and_end, first);
			run(adopt_and_end, n);
			adopt_here(adopt_and_use);
		}
	}
	munmap(progress, sizeof(*progress));
}

/* ---- damage ---- */

/* One of the two objects that are adopted, as it was left. */
struct left {
	unsigned char *map, *copy;
	size_t size;
};

static struct left left_map(int fd)
{
	struct left l;
	struct stat s;

	must(fd >= 0);
	must_be(fstat(fd, &s), 0);
	l.size = (size_t)s.st_size;
	l.map = mmap(NULL, l.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	must(l.map != MAP_FAILED);
	l.copy = malloc(l.size);
	must(l.copy);
	memcpy(l.copy, l.map, l.size);
	return l;
}

static void left_unmap(struct left *l)
{
	munmap(l->map, l->size);
	free(l->copy);
}

/* Exits with 0: all is there; 1: it was refused. */
static _Noreturn void adopt_damaged(void)
{
	struct keeper_link k = { .here = true, .fd = -1, .list = kept };
	char why[ADOPT_WHY_MAX] = "";

	process_is_child();
	damaged = true;
	if (adopt(&k, why))
		_exit(1);
	all_must_be_there();
	must_be(st.catalog.header->tensors, progress->tensors);
	for (int i = 0; i < NAMES; i++)
		must_be(version_of(i), progress->versions[i]);
	_exit(0);
}

/* Returns whether it was refused. */
static bool damage_is_harmless(const struct left *l, size_t at, unsigned char pattern)
{
	int status;
	pid_t pid;

	l->map[at] ^= pattern;
	pid = fork();
	must(pid >= 0);
	if (pid == 0)
		adopt_damaged();
	must_be(process_wait(pid, &status), 0);
	if (!WIFEXITED(status) || WEXITSTATUS(status) > 1) {
		print_error("byte %zu of %zu, ^ %02x: status %x\n", at, l->size, pattern, status);
		must(!"a damaged object was adopted");
	}
	return WEXITSTATUS(status);
}

static bool is_used(const struct left *l, size_t at)
{
	size_t from = at / 64 * 64;

	for (size_t i = from; i < from + 64 && i < l->size; i++) {
		if (l->copy[i])
			return true;
	}
	return false;
}

/* Flips the bytes that are not in the midst of zeros, every @step of them. */
static void flip(struct left *both, struct left *l, unsigned step)
{
	static const unsigned char patterns[] = { 0x01, 0x80, 0xff, 0x02 };
	unsigned n = 0, flips = 0, refused = 0;

	for (size_t at = 0; at < l->size; at++) {
		if (!is_used(l, at))
			continue;
		for (unsigned p = 0; p < sizeof(patterns); p++) {
			if (n++ % step)
				continue;
			refused += damage_is_harmless(l, at, patterns[p]);
			flips++;
			for (int i = 0; i < 2; i++)
				memcpy(both[i].map, both[i].copy, both[i].size);
		}
	}
	print_message("%u flips, %u refused\n", flips, refused);
}

static void versions_note(void)
{
	progress->tensors = st.catalog.header->tensors;
	for (int i = 0; i < NAMES; i++)
		progress->versions[i] = version_of(i);
}

static _Noreturn void adopt_undamaged(struct keeper_link *k)
{
	char why[ADOPT_WHY_MAX] = "";

	must_be(adopt(k, why), 0);
	versions_note();
	_exit(0);
}

/* All of them with TL_TEST_FLIPS=all, which takes minutes. */
TEST(damage_is_refused_or_harmless)
{
	unsigned step = getenv("TL_TEST_FLIPS") ? 1 : 61;
	struct object object;
	struct left both[2];
	char tag[KEEPER_TAG_SIZE];
	int fd;

	test_timeout(step == 1 ? 3600 : TEST_TIMEOUT_S);
	progress_begin();
	run(live_and_end, 0);
	object = shm_object_of_catalog(dead->instance);
	must_be(shm_object_open(&object, O_RDWR, &fd), 0);
	both[0] = left_map(fd);
	close(fd);
	survive_tag(tag, SURVIVOR_FACTS, dead->instance, 0, 0);
	fd = kept_take(&kept, tag);
	both[1] = left_map(fd);
	must_be(kept_add(&kept, tag, fd), 0);
	run(adopt_undamaged, 0);
	for (int i = 0; i < 2; i++)
		memcpy(both[i].map, both[i].copy, both[i].size);
	flip(both, &both[1], step);
	flip(both, &both[0], step);
	for (int i = 0; i < 2; i++)
		left_unmap(&both[i]);
	adopt_here(adopt_and_use);
	munmap(progress, sizeof(*progress));
}

static struct namespaces all;
static struct namespace_config lab = { .name = "lab", .uid = 7, .gid = 70, .mode = 0750 };

static void all_begin(struct keeper_link *k)
{
	struct fx_limits limits = dead_limits;

	limits.keeper = k;
	lab.limits = fx_prepare(limits);
	namespaces_init(&all, &fx_shared, dead->instance);
}

static _Noreturn void make_namespace(struct keeper_link *k)
{
	struct namespace *ns;

	all_begin(k);
	must_be(namespace_new(&all, &lab, &ns), 0);
	must(!strcmp(ns->state.catalog.facts->name, "lab"));
	_exit(0);
}

/* A daemon that is killed in the midst of that would leave facts that no sum fits. */
TEST(a_new_owner_in_the_configuration_changes_no_facts)
{
	struct keeper_link k = { .here = true, .fd = -1 };
	struct namespace *ns;
	struct left facts;
	const char *why;
	char tag[KEEPER_TAG_SIZE];
	int fd;

	progress_begin();
	must_be(object_random(&dead->instance), 0);
	dead->instance &= ~(uint64_t)(NAMESPACES_MAX - 1);
	run(make_namespace, 0);
	survive_tag(tag, SURVIVOR_FACTS, dead->instance, 0, 0);
	fd = kept_take(&kept, tag);
	facts = left_map(fd);
	lab.uid = 8;
	lab.gid = 80;
	all_begin(&k);
	must_be(namespace_map(&all, &lab, dead->instance, fd, &why, &ns), 0);
	must_be(ns->config.uid, 8);
	must_be(memcmp(facts.map, facts.copy, facts.size), 0);
	left_unmap(&facts);
	namespaces_deinit(&all);
	common_deinit(&fx_shared);
	kept_deinit(&kept);
	munmap(progress, sizeof(*progress));
}

int main(int argc, char **argv)
{
	fx_made = fx_map_for_writer;
	return argc > 1 ? suite_run_one(argv[1]) : suite_run();
}
