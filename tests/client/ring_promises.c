/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a name promises it promises with a ring too: each test runs for a name without a ring, for
 * one with, and for one whose ring is about to begin.
 */
#include "tests/client/common.h"

enum { SIZE = 4096, SLOTS = 8, ALMOST = 3 };

static const char name[] = "cam/rgb";

struct world {
	struct test_daemon d;
	tl_client *producer, *other;
	uint32_t ring;
	uint64_t version; /* published last */
};

static int try_put(tl_client *client, const char *as, int value, const void *metadata, size_t size,
		   uint32_t ring, uint64_t *version)
{
	const tl_put_options o = {
		.size = sizeof(o), .metadata = metadata, .metadata_size = size, .ring = ring
	};
	unsigned char data[SIZE];
	int64_t shape[1] = { SIZE };
	DLTensor t = bytes_tensor(data, shape);

	memset(data, value, SIZE);
	return tl_put(client, as, &t, &o, version);
}

/* The producer publishes; nobody else has published in between. */
static void put(struct world *w, int value)
{
	uint64_t version = 0;

	must_be(try_put(w->producer, name, value, NULL, 0, w->ring, &version), 0);
	must_be(version, ++w->version);
}

static uint64_t put_by(struct world *w, tl_client *client, int value)
{
	must_be(try_put(client, name, value, NULL, 0, TL_RING_NONE, &w->version), 0);
	return w->version;
}

static tl_info look(tl_client *client, const char *as)
{
	tl_info info = { .size = sizeof(info) };

	must_be(tl_stat(client, as, &info), 0);
	return info;
}

/* All that looks at the name sees that value, in the version that was published last. */
static void must_see(const struct world *w, tl_client *client, int value)
{
	DLManagedTensorVersioned *t = get(client, name);
	tl_info info = { .size = sizeof(info) };

	must_be(tl_tensor_info(t, &info), 0);
	must_be(info.version, w->version);
	must(all_bytes(t, value, SIZE));
	drop(t);
	must_be(look(client, name).version, w->version);
}

static void world_begin(struct world *w, uint32_t ring, uint64_t capacity)
{
	w->d = td_start(.capacity = capacity);
	w->producer = td_connect(&w->d);
	w->other = td_connect(&w->d);
	w->ring = ring;
	w->version = 0;
	for (int i = 1; i < ALMOST; i++)
		put(w, i);
	must_be(look(w->other, name).ring, ring == SLOTS ? SLOTS : 0);
}

static void world_end(struct world *w)
{
	tl_close(w->producer);
	tl_close(w->other);
	td_stop(&w->d);
}

static void for_all(void (*promise)(struct world *w), uint64_t capacity)
{
	static const uint32_t rings[] = { TL_RING_NONE, TL_RING_AUTO, SLOTS };

	for (size_t i = 0; i < sizeof(rings) / sizeof(rings[0]); i++) {
		struct world w;

		world_begin(&w, rings[i], capacity);
		promise(&w);
		world_end(&w);
	}
}

/* TEST() of a function that gets the world. */
#define PROMISE(sentence, capacity)                                                                \
	static void sentence##_in(struct world *w);                                                \
	TEST(sentence)                                                                             \
	{                                                                                          \
		for_all(sentence##_in, capacity);                                                  \
	}                                                                                          \
	static void sentence##_in(struct world *w)

/* ---- Looking ---- */

struct listed {
	unsigned count;
	uint64_t version;
};

static int visit(const tl_info *info, void *context)
{
	struct listed *l = context;

	must(!strcmp(info->name, name));
	l->count++;
	l->version = info->version;
	return 0;
}

PROMISE(stat_list_and_get_agree, 0)
{
	for (int i = 0; i < 200; i++) {
		struct listed l = { 0 };
		tl_info info;

		put(w, i);
		must_see(w, w->other, i);
		must_see(w, w->producer, i);
		info = look(w->other, name);
		must(!strcmp(info.name, name) && info.nbytes == SIZE && info.ndim == 1 &&
		     info.shape[0] == SIZE && info.uid == geteuid() && !info.metadata_size);
		must(info.committed_ns && !info.ttl_ns && !info.lifetime && !info.lost);
		must_be(tl_list(w->other, "cam/", visit, &l), 0);
		must_be(l.count, 1);
		must_be(l.version, w->version);
	}
}

PROMISE(metadata_of_any_size_comes_along, 0)
{
	static const size_t sizes[] = { 0, 1, 24, 25, 0, TL_METADATA_MAX, 24, 0 };
	unsigned char metadata[TL_METADATA_MAX];

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		tl_info info;

		memset(metadata, (int)i, sizeof(metadata));
		must_be(try_put(w->producer, name, (int)i, metadata, sizes[i], w->ring,
				&w->version),
			0);
		must_see(w, w->other, (int)i);
		info = look(w->other, name);
		must_be(info.metadata_size, sizes[i]);
		must(!memcmp(info.metadata, metadata, sizes[i]));
	}
}

PROMISE(what_is_held_does_not_change, 0)
{
	DLManagedTensorVersioned *held[40], *mine;
	tl_get_options copy = { .size = sizeof(copy), .mode = TL_MODE_COPY_ON_WRITE };

	for (int i = 0; i < 40; i++) {
		put(w, i);
		held[i] = get(w->other, name);
	}
	must_be(tl_get(w->other, name, &copy, &mine), 0);
	memset(mine->dl_tensor.data, 99, SIZE);
	for (int i = 0; i < 40; i++)
		put(w, 100 + i);
	must(all_bytes(mine, 99, SIZE));
	drop(mine);
	for (int i = 0; i < 40; i++) {
		DLManagedTensorVersioned *again;

		must_be(tl_remap(held[i], TL_MODE_READ, &again), 0);
		drop(held[i]);
		must(all_bytes(again, i, SIZE));
		drop(again);
	}
	must_see(w, w->other, 139);
}

PROMISE(many_are_got_together, 0)
{
	const char *names[3] = { "before", name, "zzz" };
	DLManagedTensorVersioned *got[3];

	put_bytes(w->other, "before", 1, SIZE);
	put_bytes(w->other, "zzz", 3, SIZE);
	for (int i = 0; i < 50; i++) {
		put(w, i);
		must_be(tl_get_many(w->other, names, 3, NULL, got), 0);
		must(all_bytes(got[0], 1, SIZE) && all_bytes(got[1], i, SIZE) &&
		     all_bytes(got[2], 3, SIZE));
		for (int j = 0; j < 3; j++)
			drop(got[j]);
	}
}

/* ---- Waiting ---- */

struct waiter {
	struct world *w;
	uint64_t newer_than;
	bool many, prefix;
	_Atomic pid_t tid;
	pthread_t thread;
};

static void *wait_for_it(void *arg)
{
	struct waiter *x = arg;
	tl_get_options o = { .size = sizeof(o),
			     .newer_than = x->newer_than,
			     .timeout_ns = WAIT_S * SECOND };
	tl_wait_item items[2] = { { .name = "never" },
				  { .name = x->prefix ? "cam/" : name,
				    .newer_than = x->newer_than,
				    .flags = x->prefix ? TL_WAIT_PREFIX : 0 } };
	DLManagedTensorVersioned *t;
	size_t which = 0;

	atomic_store(&x->tid, (pid_t)syscall(SYS_gettid));
	if (x->many) {
		must_be(tl_wait_many(x->w->other, items, 2,
				     &TL_INIT(tl_wait_options, .timeout_ns = WAIT_S * SECOND),
				     &which),
			0);
		must_be(which, 1);
	}
	must_be(tl_get(x->w->other, name, &o, &t), 0);
	drop(t);
	return NULL;
}

static void waiter_start(struct waiter *x, struct world *w, bool many)
{
	*x = (struct waiter){ .w = w, .newer_than = w->version, .many = many };
	must_be(pthread_create(&x->thread, NULL, wait_for_it, x), 0);
	until_it_sleeps(&x->tid);
}

PROMISE(who_waits_is_woken, 0)
{
	for (int i = 0; i < 20; i++) {
		struct waiter single, many;

		waiter_start(&single, w, false);
		waiter_start(&many, w, true);
		put(w, i);
		pthread_join(single.thread, NULL);
		pthread_join(many.thread, NULL);
	}
}

PROMISE(waits_end_in_time_and_looks_do_not_wait, 0)
{
	tl_wait_item item = { .name = name, .newer_than = w->version };
	tl_get_options o = { .size = sizeof(o), .newer_than = w->version };
	uint32_t interrupt = 1;
	DLManagedTensorVersioned *t;
	size_t which;

	put(w, 1);
	must_be(tl_get(w->other, name, &o, &t), 0);
	drop(t);
	must_be(tl_wait_many(w->other, &item, 1, NULL, &which), 0);
	item.newer_than = o.newer_than = w->version;
	must_be(tl_get(w->other, name, &o, &t), -EAGAIN);
	must_be(tl_wait_many(w->other, &item, 1, NULL, &which), -ETIMEDOUT);
	must_be(tl_wait_many(w->other, &item, 1,
			     &TL_INIT(tl_wait_options, .timeout_ns = -1, .interrupt = &interrupt),
			     &which),
		-ECANCELED);
	o.timeout_ns = MS;
	must_be(tl_get(w->other, name, &o, &t), -ETIMEDOUT);
	must_be(tl_wait_many(w->other, &item, 1, &TL_INIT(tl_wait_options, .timeout_ns = MS),
			     &which),
		-ETIMEDOUT);
}

/* A ring that ends or begins while somebody sleeps must not leave him asleep. */
PROMISE(who_waits_is_woken_by_another_producer, 0)
{
	struct waiter single, many;

	for (int i = 0; i < 10; i++) {
		put(w, i);
		waiter_start(&single, w, false);
		waiter_start(&many, w, true);
		put_by(w, w->other, 50);
		pthread_join(single.thread, NULL);
		pthread_join(many.thread, NULL);
	}
	waiter_start(&single, w, false);
	waiter_start(&many, w, true);
	tl_close(w->producer); /* nothing new: they sleep on */
	w->producer = td_connect(&w->d);
	put(w, 1);
	pthread_join(single.thread, NULL);
	pthread_join(many.thread, NULL);
}

/* ---- Others ---- */

PROMISE(others_may_publish_delete_and_link, 0)
{
	DLManagedTensorVersioned *t;

	for (int i = 0; i < 5; i++) {
		put(w, 1);
		put_by(w, w->other, 2);
		must_see(w, w->producer, 2);
		for (int j = 0; j < 5; j++)
			put(w, 3);
		must_be(tl_delete(w->other, name), 0);
		must_be(tl_get(w->other, name, NULL, &t), -ENOENT);
		must_be(tl_delete(w->producer, name), -ENOENT);
		put(w, 4);
		must_see(w, w->other, 4);
	}
	t = get(w->other, name); /* a second name for the same bytes */
	must_be(tl_publish(w->other, "second", t, NULL, NULL, NULL), 0);
	for (int i = 0; i < 3 * SLOTS; i++)
		put(w, 5);
	t = get(w->other, "second");
	must(all_bytes(t, 4, SIZE));
	drop(t);
	must_see(w, w->other, 5);
}

PROMISE(a_group_replaces_it, 0)
{
	unsigned char data[SIZE];
	int64_t shape[1] = { SIZE };
	DLTensor t = bytes_tensor(data, shape);
	const DLTensor *sources[2] = { &t, &t };
	const char *names[2] = { name, "cam/depth" };

	for (int i = 0; i < 10; i++) {
		put(w, 1);
		put(w, 2);
		memset(data, 100 + i, SIZE);
		must_be(tl_put_many(i % 2 ? w->other : w->producer, names, sources, 2, NULL), 0);
		w->version++;
		must_see(w, w->other, 100 + i);
		must_be(look(w->other, name).ring, 0);
	}
}

PROMISE(another_shape_may_follow, 0)
{
	for (int i = 0; i < 5; i++) {
		put(w, 1);
		must_be(put_bytes(w->producer, name, 9, 100), ++w->version);
		must_be(look(w->other, name).nbytes, 100);
		must_be(put_bytes(w->producer, name, 9, 0), ++w->version);
		must_be(look(w->other, name).nbytes, 0);
	}
}

static int kick_others(const tl_client_info *info, void *context)
{
	uint64_t *last = context;

	if (!*last || info->id < *last)
		*last = info->id; /* the producer came first */
	return 0;
}

PROMISE(a_kick_leaves_the_last_tensor, 0)
{
	uint64_t id = 0, version;

	put(w, 1);
	put(w, 2);
	must_be(tl_list_clients(w->other, kick_others, &id), 0);
	must_be(tl_kick(w->other, id), 0);
	td_sync(&w->d);
	must_be(try_put(w->producer, name, 3, NULL, 0, w->ring, &version), -ECONNABORTED);
	must_see(w, w->other, 2);
	must_be(look(w->other, name).ring, 0);
	put_by(w, w->other, 4);
	must_see(w, w->other, 4);
}

PROMISE(a_close_leaves_the_last_tensor, 0)
{
	for (int i = 0; i < 5; i++)
		put(w, i);
	tl_close(w->producer);
	td_sync(&w->d);
	must_see(w, w->other, 4);
	must_be(look(w->other, name).ring, 0);
	w->producer = td_connect(&w->d);
	put(w, 7);
	must_see(w, w->other, 7);
}

PROMISE(a_forked_child_publishes_by_itself, 0)
{
	DLManagedTensorVersioned *held;
	pid_t child;
	int status;

	for (int i = 0; i < 5; i++)
		put(w, i);
	held = get(w->producer, name);
	child = fork();
	if (!child) {
		put(w, 50);
		must_see(w, w->producer, 50);
		must(all_bytes(held, 4, SIZE));
		_exit(0);
	}
	must_be(waitpid(child, &status, 0), child);
	must_be(status, 0);
	w->version++;
	must_see(w, w->other, 50);
	for (int i = 0; i < 2 * SLOTS; i++) {
		put(w, i);
		must_see(w, w->other, i);
	}
	must(all_bytes(held, 4, SIZE));
	drop(held);
}

/* ---- Drafts and space ---- */

static tl_draft *create(struct world *w)
{
	static const int64_t shape = SIZE;
	tl_spec spec = {
		.size = sizeof(spec), .shape = &shape, .ndim = 1, .dtype = U8, .ring = w->ring
	};
	tl_draft *draft;

	must_be(tl_create(w->producer, name, &spec, &draft), 0);
	return draft;
}

PROMISE(drafts_may_be_many_given_up_and_committed_in_any_order, 0)
{
	tl_draft *drafts[2 * SLOTS];
	DLManagedTensorVersioned *exported;
	uint64_t version;

	for (int i = 0; i < 2 * SLOTS; i++) {
		drafts[i] = create(w);
		memset(tl_draft_tensor(drafts[i])->data, i, SIZE);
	}
	for (int i = 2 * SLOTS - 1; i >= 0; i--) {
		if (i % 3 == 0) {
			tl_abort(drafts[i]);
			continue;
		}
		must_be(tl_commit(drafts[i], &version), 0);
		must_be(version, ++w->version);
		must_see(w, w->other, i);
	}
	for (int i = 0; i < 2 * SLOTS; i++) {
		drafts[0] = create(w);
		must_be(tl_draft_to_dlpack(drafts[0], &exported), 0);
		memset(exported->dl_tensor.data, 60 + i, SIZE);
		must_be(tl_publish(w->producer, name, exported, NULL, NULL, &version), 0);
		must_be(version, ++w->version);
		must_see(w, w->other, 60 + i);
	}
}

PROMISE(what_fits_beside_one_tensor_fits, 2 * MIB)
{
	if (test_on_memfds() && w->ring != TL_RING_NONE)
		return; /* sealed memory stays charged until its producer lets go of it */
	put(w, 1);
	must_be(put_bytes(w->other, "large", 1, (size_t)(2 * MIB - 128 * KIB)), 1);
	must_see(w, w->other, 1);
	put(w, 2);
	must_see(w, w->other, 2);
}

static bool all_is_warm(tl_client *client)
{
	tl_status status = { .size = sizeof(status) };

	must_be(tl_get_status(client, &status), 0);
	return status.bytes_used == status.bytes_warm;
}

PROMISE(nothing_stays, 0)
{
	tl_status status = { .size = sizeof(status) };

	for (int i = 0; i < 5 * SLOTS; i++)
		put(w, i);
	tl_close(w->producer);
	td_sync(&w->d);
	must_be(tl_delete(w->other, name), 0);
	must_be(tl_get_status(w->other, &status), 0);
	must_be(status.tensors, 0);
	must_be(status.retired, 0);
	must_be(status.drafts, 0);
	must_be(status.rings, 0);
	must_be(status.ring_slots, 0);
	eventually(all_is_warm(w->other));
	w->producer = td_connect(&w->d);
}

struct count {
	tl_client *client;
	atomic_bool stop;
	atomic_uint looks, wrong;
};

static void *count_tensors(void *arg)
{
	tl_status status = { .size = sizeof(status) };
	struct count *count = arg;

	while (!atomic_load(&count->stop)) {
		must_be(tl_get_status(count->client, &status), 0);
		atomic_fetch_add(&count->wrong, status.tensors > 1);
		atomic_fetch_add(&count->looks, 1);
	}
	return NULL;
}

/* However its tensor is replaced, and while its ring ends. */
PROMISE(it_never_counts_as_two, 0)
{
	struct count count = { .client = td_connect(&w->d) };
	pthread_t thread;

	must_be(pthread_create(&thread, NULL, count_tensors, &count), 0);
	for (int i = 0; i < 500 || atomic_load(&count.looks) < 1000; i++) {
		put(w, i);
		put(w, i);
		put_by(w, w->other, i);
	}
	atomic_store(&count.stop, true);
	pthread_join(thread, NULL);
	must_be(count.wrong, 0);
	tl_close(count.client);
}

int main(void)
{
	return suite_run();
}
