/* SPDX-License-Identifier: Apache-2.0 */
/* Second names of tensors on devices in the state layer: a walk over what clients may do, in any
 * order. */
#include "tests/unit/state_export.h"

static int link_to(struct tester *t, uint64_t ref, const char *name)
{
	unsigned char meta[500] = { 0 };
	struct tensor_description d = { .name = name_key(name, (uint16_t)strlen(name)),
					.meta = meta,
					.meta_len = sizeof(meta) };
	const char *why = NULL;
	uint64_t version;

	assert_true(device_has(&st, ref));
	return device_link(&st, &t->c, ref, &d, &version, &why);
}

enum { PRODUCERS = 2, NAMES = 5, LEASES = 8, PLACED_MAX = 4096, STEPS = 3000 };

static const char *const names[NAMES] = { "a", "b", "c", "d", "e" };

TEST(the_bytes_of_another_user_get_no_name)
{
	struct tester t, other;
	struct segment *seg;
	uint64_t ref = 0;

	fx_start(.device_capacity = 1000 * MIB, .device_fds_max = 16);
	fx_connect(&t, 71000);
	fx_connect(&other, 72000);
	assert_int_equal(fx_export(&t, SEGMENT_CUDA_IPC, 1000, 1, &seg), 0);
	assert_int_equal(fx_place(&t, seg, "a", false, &ref), 0);
	assert_true(fx_hold(&other, ref));
	assert_int_equal(link_to(&other, ref, "b"), STATE_E_STALE);
	fx_drop(&other, ref);
	assert_true(fx_hold(&t, ref));
	assert_int_equal(link_to(&t, ref, "b"), 0);
	fx_drop(&t, ref);
	fx_leave(&other);
	fx_leave(&t);
	fx_stop();
}

/* One PLACE: how many tensors have its bytes, and how many leases are on those. */
struct placed {
	unsigned uses;
	int producer; /* -1: it has ended */
	bool told;
};

static struct walk {
	struct tester producers[PRODUCERS], user;
	struct segment *segments[PRODUCERS];
	struct placed placed[PLACED_MAX];
	unsigned nplaced;
	unsigned of[NAMES]; /* which PLACE a name means; 0: none */
	struct {
		uint64_t ref;
		unsigned of;
	} leases[LEASES];
	unsigned nleases;
	uint64_t random;
} w;

static unsigned pick(unsigned n)
{
	w.random = w.random * 6364136223846793005ULL + 1442695040888963407ULL;
	return (unsigned)(w.random >> 33) % n;
}

static void means(unsigned name, unsigned of)
{
	w.placed[w.of[name]].uses--;
	w.of[name] = of;
	w.placed[of].uses++;
}

static void arrive(int i)
{
	fx_connect(&w.producers[i], 71000);
	assert_int_equal(fx_export(&w.producers[i], i ? SEGMENT_CUDA_VMM : SEGMENT_CUDA_IPC, 1000,
				   1, &w.segments[i]),
			 0);
}

static uint64_t ref_of(unsigned name)
{
	struct name_key key = name_key(names[name], 1);
	uint32_t index = name_find(&st.names, &key);

	return index == CATALOG_NONE ? 0 : name_meaning(&st, index);
}

static void place(unsigned name)
{
	int64_t nbytes = 10;
	struct tensor_description d = fx_bytes(names[name], &nbytes);
	int i = (int)pick(PRODUCERS);
	struct wire_place m = { .segment = w.segments[i]->index,
				.segment_generation = w.segments[i]->generation,
				.cookie = ++w.nplaced };
	struct device_placed placed;
	const char *why;

	assert_int_equal(device_place(&st, &w.producers[i].c, &m, &d, &placed, &why), 0);
	w.placed[w.nplaced] = (struct placed){ .producer = i };
	means(name, w.nplaced);
}

static bool is_lost(uint64_t ref)
{
	return atomic_load(&catalog_row(&st.catalog, ref_slot(ref))->progress) == ROW_LOST;
}

static void hold(unsigned name)
{
	uint64_t ref = ref_of(name);

	if (!ref || w.nleases == LEASES || is_lost(ref))
		return;
	assert_true(fx_hold(&w.user, ref));
	w.leases[w.nleases].ref = ref;
	w.leases[w.nleases++].of = w.of[name];
	w.placed[w.of[name]].uses++;
}

static void drop(unsigned which)
{
	uint64_t ref = w.leases[which].ref;

	w.placed[w.leases[which].of].uses--;
	w.leases[which] = w.leases[--w.nleases];
	fx_drop(&w.user, ref);
}

static void link_one(unsigned name)
{
	unsigned which;
	int r;

	if (!w.nleases)
		return;
	which = pick(w.nleases);
	r = link_to(&w.user, w.leases[which].ref, names[name]);
	assert_int_equal(r, is_lost(w.leases[which].ref) ? STATE_E_INVALID : 0);
	if (!r)
		means(name, w.leases[which].of);
}

static void leave(int i)
{
	for (unsigned p = 1; p <= w.nplaced; p++)
		if (w.placed[p].producer == i)
			w.placed[p].producer = -1;
	fx_leave(&w.producers[i]);
	arrive(i);
}

/* FREED has come for each PLACE of which nothing is left, once, and for no other. */
static void assert_told(void)
{
	for (int i = 0; i < PRODUCERS; i++) {
		struct notice *n;

		while ((n = notice_next(&w.producers[i].c))) {
			struct placed *p = &w.placed[n->message.freed.cookie];

			assert_int_equal(n->message.header.type, WIRE_FREED);
			assert_int_equal(p->producer, i);
			assert_int_equal(p->uses, 0);
			assert_false(p->told);
			p->told = true;
			notice_sent(n);
		}
	}
	for (unsigned p = 1; p <= w.nplaced; p++)
		assert_true(w.placed[p].uses || w.placed[p].producer < 0 || w.placed[p].told);
}

static void step(void)
{
	unsigned name = pick(NAMES);

	switch (pick(16)) {
	case 0 ... 2:
		place(name);
		break;
	case 3 ... 6:
		link_one(name);
		break;
	case 7 ... 9:
		hold(name);
		break;
	case 10 ... 12:
		if (w.nleases)
			drop(pick(w.nleases));
		break;
	case 13 ... 14:
		if (w.of[name]) {
			means(name, 0);
			assert_int_equal(fx_delete(&w.user, names[name]), 0);
		}
		break;
	default:
		if (!pick(4))
			leave((int)pick(PRODUCERS));
	}
	fx_drain();
	assert_told();
}

TEST(a_walk_over_second_names)
{
	fx_start(.device_capacity = 1000 * MIB, .device_fds_max = 16);
	for (uint64_t seed = 1; seed <= 4; seed++) {
		memset(&w, 0, sizeof(w));
		w.random = seed;
		fx_connect(&w.user, 71000);
		for (int i = 0; i < PRODUCERS; i++)
			arrive(i);
		for (unsigned i = 0; i < STEPS; i++)
			step();
		while (w.nleases)
			drop(0);
		for (unsigned name = 0; name < NAMES; name++)
			if (w.of[name]) {
				means(name, 0);
				assert_int_equal(fx_delete(&w.user, names[name]), 0);
			}
		assert_told();
		for (int i = 0; i < PRODUCERS; i++) {
			assert_int_equal(w.segments[i]->extents, 0);
			fx_leave(&w.producers[i]);
		}
		fx_leave(&w.user);
		assert_int_equal(st.common->devices.list[0].pool.used, 0);
		assert_int_equal(st.common->pools[SHARE_DESCRIPTORS].used, 0);
	}
	fx_stop();
}

int main(void)
{
	return suite_run();
}
