/* SPDX-License-Identifier: Apache-2.0 */
/* Two daemons, with tensors of the same names in the same memory at both, and processes that use
 * both. One is killed. */
#include "tests/gpu/common.h"

enum { N = 3 << 20, DRAFT = GPU_KINDS, NAMES };

static const char *const names[NAMES] = { "plain", "virtual", "parts", "pooled", "draft" };

struct both {
	const struct test_daemon *killed, *stays;
};

static int value_of(int name, int daemon)
{
	return 10 + name + (name == DRAFT ? daemon : 0); /* drafts are memory of their own */
}

/* ---- Producer and consumer ---- */

static int publishes_at_both(const struct test_daemon *d, void *arg)
{
	const struct both *both = arg;
	tl_client *client[2] = { gpu_open(both->killed, 0), td_connect(both->stays) };
	static struct gpu_foreign f[2][GPU_KINDS];
	static struct gpu_memory m[GPU_KINDS];

	(void)d;
	for (int kind = 0; kind < GPU_KINDS; kind++) {
		gpu_memory_init(&m[kind], kind, N, 0);
		gpu_fill(m[kind].base, value_of(kind, 0), N, CUDA_STREAM_LEGACY);
	}
	for (int i = 0; i < 2; i++) {
		for (int kind = 0; kind < GPU_KINDS; kind++) {
			gpu_foreign_init(&f[i][kind], m[kind].base, N, 0);
			must_be(tl_publish(client[i], names[kind], &f[i][kind].managed, NULL, NULL,
					   NULL),
				0);
		}
		gpu_put_draft(client[i], names[DRAFT], value_of(DRAFT, i), N, 0,
			      CUDA_STREAM_LEGACY);
	}
	gpu_must(cuda->ctx_synchronize());
	pause_at(1); /* one is killed */
	tl_close(client[0]);
	for (int kind = 0; kind < GPU_KINDS; kind++) {
		eventually(atomic_load(&f[0][kind].deleted) == 1);
		must_be(f[1][kind].deleted, 0);
	}
	pause_at(1); /* nobody reads them any more */
	for (int name = 0; name < NAMES; name++)
		must_be(tl_delete(client[1], names[name]), 0);
	for (int kind = 0; kind < GPU_KINDS; kind++) {
		eventually(atomic_load(&f[1][kind].deleted) == 1);
		must_be(f[0][kind].deleted, 1);
		gpu_memory_deinit(&m[kind]);
	}
	tl_close(client[1]);
	return 0;
}

static void must_read(DLManagedTensorVersioned *const *t, int daemon)
{
	for (int name = 0; name < NAMES; name++) {
		must_be(gpu_read(gpu_data(t[name]), N, CUDA_STREAM_LEGACY), value_of(name, daemon));
		if (daemon)
			must_be(tl_tensor_check(t[name]), 0);
	}
}

static void drop_all(DLManagedTensorVersioned *const *t)
{
	for (int name = 0; name < NAMES; name++)
		drop(t[name]);
}

static int reads_from_both(const struct test_daemon *d, void *arg)
{
	const struct both *both = arg;
	tl_client *client[2] = { gpu_open(both->killed, 0), td_connect(both->stays) };
	DLManagedTensorVersioned *t[2][NAMES], *again[NAMES];

	(void)d;
	for (int i = 0; i < 2; i++) {
		for (int name = 0; name < NAMES; name++)
			t[i][name] = gpu_get(client[i], names[name], TL_STREAM_LEGACY);
		must_read(t[i], i);
	}
	pause_at(1); /* one is killed */
	must_read(t[0], 0);
	must_read(t[1], 1);
	must_be(leases_of(client[1], getpid()), NAMES);
	for (int name = 0; name < NAMES; name++)
		again[name] = gpu_get(client[1], names[name], TL_STREAM_LEGACY);
	must_be(leases_of(client[1], getpid()), 2 * NAMES);
	drop_all(again);
	drop_all(t[0]); /* this closes mappings of memory that the other's tensors are in, too */
	tl_close(client[0]);
	must_read(t[1], 1);
	pause_at(1); /* the producer has left the killed daemon as well */
	must_read(t[1], 1);
	eventually(leases_of(client[1], getpid()) == NAMES);
	drop_all(t[1]);
	eventually(leases_of(client[1], getpid()) == 0);
	tl_close(client[1]);
	return 0;
}

static void must_be_untouched(const struct gpu_daemon *g, const struct tl_status *before,
			      uint64_t charged)
{
	struct tl_status now = td_status(&g->d);

	must_be(now.tensors, NAMES);
	must_be(now.tensors, before->tensors);
	must_be(now.retired, before->retired);
	must_be(now.segments, before->segments);
	must_be(now.clients, before->clients);
	must_be(gpu_charged(&g->d), charged);
}

GPU_TEST(a_killed_daemon_takes_nothing_from_the_other)
{
	cleanup_gpu struct gpu_daemon stays = gpu_start();
	struct gpu_daemon killed = gpu_start();
	const struct both both = { .killed = &killed.d, .stays = &stays.d };
	struct test_child p = child_start_ready(NULL, publishes_at_both, (void *)&both), c;
	struct tl_status before;
	uint64_t charged;

	c = child_start_ready(NULL, reads_from_both, (void *)&both);
	before = td_status(&stays.d);
	charged = gpu_charged(&stays.d);
	must(charged >= (uint64_t)NAMES * N);
	td_kill(&killed.d);
	child_step(&c);
	must_be_untouched(&stays, &before, charged);
	child_step(&p);
	must_be_untouched(&stays, &before, charged);
	child_finish(&c);
	child_finish(&p);
	gpu_nothing_left(&stays);
	killed = gpu_start(.socket = killed.d.socket); /* removes what the dead one left */
	gpu_nothing_left(&killed);
	td_stop(&killed.d);
}

/* ---- While both are in use ---- */

struct side {
	tl_client *client;
	bool stays;
	_Atomic unsigned rounds; /* that went well */
};

static _Atomic bool stop;
static CUcontext context;

/* Values at the one daemon are odd, at the other even. Only the killed daemon may fail a round,
 * whose result is returned. */
static int publish_once(struct side *s, int round)
{
	int64_t n = N;
	tl_spec spec = { .size = sizeof(spec),
			 .shape = &n,
			 .ndim = 1,
			 .dtype = U8,
			 .timeout_ns = WAIT_S * SECOND }; /* until readers give memory back */
	int value = 2 * (round % 100) + (s->stays ? 0 : 1);
	tl_draft *draft;
	int r = gpu_create(s->client, "moving", &spec, 0, &draft);

	if (r)
		return r;
	gpu_fill((CUdeviceptr)(uintptr_t)tl_draft_tensor(draft)->data, value, N,
		 CUDA_STREAM_PER_THREAD);
	must_be(tl_draft_set_stream(draft, TL_STREAM_PER_THREAD), 0);
	r = tl_commit(draft, NULL);
	gpu_must(cuda->stream_synchronize(CUDA_STREAM_PER_THREAD)); /* not far ahead of readers */
	return r;
}

static int read_once(struct side *s, int round)
{
	tl_get_options o = { .size = sizeof(o),
			     .timeout_ns = round ? 0 : WAIT_S * SECOND, /* the first may be late */
			     .stream = TL_STREAM_PER_THREAD };
	DLManagedTensorVersioned *t;
	int r = tl_get(s->client, "moving", &o, &t), value;

	if (r)
		return r;
	value = gpu_read(gpu_data(t), N, CUDA_STREAM_PER_THREAD);
	must(value >= 0); /* the bytes are those of one round */
	must_be(value % 2, !s->stays);
	drop(t);
	return 0;
}

static void go_on(struct side *s, int (*once)(struct side *s, int round))
{
	gpu_must(cuda->ctx_set_current(context));
	for (int round = 0; !atomic_load(&stop); round++) {
		int r = once(s, round);

		if (s->stays)
			must_be(r, 0);
		if (r)
			sched_yield();
		else
			atomic_fetch_add(&s->rounds, 1);
	}
	gpu_must(cuda->stream_synchronize(CUDA_STREAM_PER_THREAD));
}

static void *publishing(void *arg)
{
	go_on(arg, publish_once);
	return NULL;
}

static void *reading(void *arg)
{
	go_on(arg, read_once);
	return NULL;
}

static void some_rounds(struct side *s)
{
	unsigned seen = atomic_load(&s->rounds);

	eventually(atomic_load(&s->rounds) > seen + 20);
}

/* Uses both daemons at once from one process; the parent says what has become of them. */
static void move(const struct both *both, struct side *sides, void *(*thread_of)(void *side))
{
	pthread_t thread[2];

	sides[0] = (struct side){ .client = gpu_open(both->killed, 0) };
	sides[1] = (struct side){ .client = td_connect(both->stays), .stays = true };
	gpu_must(cuda->ctx_get_current(&context));
	for (int i = 0; i < 2; i++)
		must_be(pthread_create(&thread[i], NULL, thread_of, &sides[i]), 0);
	some_rounds(&sides[0]);
	some_rounds(&sides[1]);
	pause_at(1); /* one is killed */
	some_rounds(&sides[1]);
	pause_at(1); /* and another is in its place */
	some_rounds(&sides[0]);
	some_rounds(&sides[1]);
	pause_at(1); /* enough */
	atomic_store(&stop, true);
	for (int i = 0; i < 2; i++)
		must_be(pthread_join(thread[i], NULL), 0);
}

static int publishes_on(const struct test_daemon *d, void *arg)
{
	struct side sides[2];

	(void)d;
	move(arg, sides, publishing);
	for (int i = 0; i < 2; i++) {
		must_be(tl_delete(sides[i].client, "moving"), 0);
		tl_close(sides[i].client);
	}
	return 0;
}

static int reads_on(const struct test_daemon *d, void *arg)
{
	struct side sides[2];

	(void)d;
	move(arg, sides, reading);
	for (int i = 0; i < 2; i++)
		tl_close(sides[i].client);
	return 0;
}

GPU_TEST(exchanges_go_on_while_the_other_daemon_is_killed)
{
	cleanup_gpu struct gpu_daemon stays = gpu_start();
	struct gpu_daemon killed = gpu_start();
	const struct both both = { .killed = &killed.d, .stays = &stays.d };
	struct test_child p = child_start(NULL, publishes_on, (void *)&both),
			  c = child_start(NULL, reads_on, (void *)&both);

	child_await(&p);
	child_await(&c);
	td_kill(&killed.d);
	child_go(&p);
	child_go(&c);
	child_await(&p);
	child_await(&c);
	killed.d = td_start(.socket = killed.d.socket);
	child_go(&p);
	child_go(&c);
	child_await(&p);
	child_await(&c);
	child_finish(&c);
	child_finish(&p);
	gpu_nothing_left(&stays);
	gpu_nothing_left(&killed);
	td_stop(&killed.d);
}

/* ---- An allocation of a pool that one session closes while the other opens it ---- */

static int publishes_pooled_at_both(const struct test_daemon *d, void *arg)
{
	const struct gpu_daemon *g = arg;
	tl_client *client[2] = { gpu_open(&g[0].d, 0), td_connect(&g[1].d) };
	struct gpu_foreign f[2];
	struct gpu_memory m;

	(void)d;
	gpu_memory_init(&m, GPU_POOL, N, 0);
	gpu_fill(m.base, 7, N, CUDA_STREAM_LEGACY);
	for (int i = 0; i < 2; i++) {
		gpu_foreign_init(&f[i], m.base, N, 0);
		must_be(tl_publish(client[i], "t", &f[i].managed, NULL, NULL, NULL), 0);
	}
	gpu_must(cuda->ctx_synchronize());
	pause_at(1);
	for (int i = 0; i < 2; i++) {
		must_be(tl_delete(client[i], "t"), 0);
		eventually(atomic_load(&f[i].deleted) == 1);
		tl_close(client[i]);
	}
	gpu_memory_deinit(&m);
	return 0;
}

static struct {
	tl_client *client[2];
	DLManagedTensorVersioned *t;
	CUresult (*mem_free)(CUdeviceptr pointer);
	CUresult (*open)(CUdeviceptr *pointer, CUmemoryPool pool, struct cuda_pool_pointer *data);
	_Atomic bool closing, may_close, closed, opened, may_go_on;
} late;

static CUresult free_late(CUdeviceptr pointer)
{
	CUresult e;

	atomic_store(&late.closing, true);
	eventually(atomic_load(&late.may_close));
	e = late.mem_free(pointer);
	atomic_store(&late.closed, true);
	return e;
}

static CUresult open_late(CUdeviceptr *pointer, CUmemoryPool pool, struct cuda_pool_pointer *data)
{
	CUresult e = late.open(pointer, pool, data);

	atomic_store(&late.opened, true);
	eventually(atomic_load(&late.may_go_on));
	return e;
}

static void *gets_late(void *arg)
{
	(void)arg;
	gpu_use(0);
	late.t = gpu_get(late.client[1], "t", TL_STREAM_LEGACY);
	return NULL;
}

static void *closes_late(void *arg)
{
	drop(arg);
	tl_close(late.client[0]);
	return NULL;
}

/* Those who want what is being closed wait for it, but no longer than they say. */
static void gets_in_time(void)
{
	tl_get_options o = { .size = sizeof(o), .timeout_ns = SECOND / 50 };

	must_refuse(tl_get(late.client[1], "t", &o, &late.t), -ETIMEDOUT, "being closed");
}

/* @first: the close begins before the other opens it; else it ends between what the driver opens
 * and what the library does then. */
static void close_and_open(const struct gpu_daemon *g, bool first)
{
	DLManagedTensorVersioned *t;
	pthread_t threads[2];

	late.client[0] = td_connect(&g[0].d);
	atomic_store(&late.may_go_on, true);
	t = gpu_get(late.client[0], "t", TL_STREAM_LEGACY);
	atomic_store(&late.closing, false);
	atomic_store(&late.closed, false);
	atomic_store(&late.opened, false);
	atomic_store(&late.may_close, !first);
	atomic_store(&late.may_go_on, first);
	if (first) {
		must_be(pthread_create(&threads[0], NULL, closes_late, t), 0);
		eventually(atomic_load(&late.closing));
		gets_in_time();
		atomic_store(&late.opened, false);
	}
	must_be(pthread_create(&threads[1], NULL, gets_late, NULL), 0);
	eventually(atomic_load(&late.opened));
	if (!first)
		must_be(pthread_create(&threads[0], NULL, closes_late, t), 0);
	atomic_store(&late.may_close, true);
	eventually(atomic_load(&late.closed));
	atomic_store(&late.may_go_on, true);
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	must_be(gpu_read(gpu_data(late.t), N, CUDA_STREAM_LEGACY), 7);
	drop(late.t);
	tl_close(late.client[1]);
}

static int closes_while_opening(const struct test_daemon *d, void *arg)
{
	const struct gpu_daemon *g = arg;
	struct cuda_driver *driver;
	tl_client *client = gpu_open(&g[0].d, 0);

	(void)d;
	driver = (struct cuda_driver *)(uintptr_t)cuda;
	late.mem_free = driver->mem_free;
	late.open = driver->pool_import_pointer;
	driver->mem_free = free_late;
	driver->pool_import_pointer = open_late;
	for (int first = 0; first < 2; first++) {
		late.client[1] = td_connect(&g[1].d);
		close_and_open(g, first);
	}
	tl_close(client);
	return 0;
}

GPU_TEST(an_allocation_of_a_pool_is_opened_while_it_is_closed)
{
	struct gpu_daemon g[2] = { gpu_start(), gpu_start() };
	struct test_child p = child_start_ready(NULL, publishes_pooled_at_both, g);

	must_be(td_run_client(NULL, closes_while_opening, g), 0);
	child_finish(&p);
	for (int i = 0; i < 2; i++) {
		gpu_nothing_left(&g[i]);
		gpu_daemon_stop(&g[i]);
	}
}

/* Of two allocations of a pool one is freed while the other is opened, and that is then opened
 * again, which fails. */
static int publishes_two_of_a_pool(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	struct gpu_foreign f[2];
	struct gpu_memory m;
	CUdeviceptr second;

	(void)arg;
	gpu_memory_init(&m, GPU_POOL, N, 0);
	gpu_must(cuda->mem_alloc_from_pool_async(&second, N, m.pool, CUDA_STREAM_LEGACY));
	gpu_must(cuda->ctx_synchronize());
	gpu_foreign_init(&f[0], m.base, N, 0);
	gpu_foreign_init(&f[1], second, N, 0);
	must_be(tl_publish(client, "a", &f[0].managed, NULL, NULL, NULL), 0);
	must_be(tl_publish(client, "b", &f[1].managed, NULL, NULL, NULL), 0);
	pause_at(1);
	must_be(tl_delete(client, "b"), 0);
	eventually(atomic_load(&f[1].deleted));
	tl_close(client);
	gpu_must(cuda->mem_free(second));
	gpu_memory_deinit(&m);
	return 0;
}

static void *gets_what_fails(void *arg)
{
	tl_get_options o = { .size = sizeof(o) };
	DLManagedTensorVersioned *t;

	gpu_use(0);
	must_refuse(tl_get(arg, "b", &o, &t), -ENOMEM, "opening memory");
	return NULL;
}

static int fails_to_open_again(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	struct cuda_driver *driver = (struct cuda_driver *)(uintptr_t)cuda;
	DLManagedTensorVersioned *t;
	pthread_t thread;

	(void)arg;
	late.open = driver->pool_import_pointer;
	driver->pool_import_pointer = open_late;
	atomic_store(&late.may_go_on, true);
	t = gpu_get(client, "a", TL_STREAM_LEGACY);
	atomic_store(&late.opened, false);
	atomic_store(&late.may_go_on, false);
	must_be(pthread_create(&thread, NULL, gets_what_fails, client), 0);
	eventually(atomic_load(&late.opened));
	must_be(gpu_live(FAKE_POOL_IMPORT), 2);
	must_be(tl_delete(client, "a"), 0);
	drop(t); /* which frees it, as the producer waits for that */
	eventually(td_status(d).segments == 1);
	must_be(gpu_live(FAKE_POOL_IMPORT), 1);
	atomic_store(&late.may_go_on, true);
	pthread_join(thread, NULL);
	eventually(gpu_live(FAKE_POOL_IMPORT) == 0);
	tl_close(client);
	return 0;
}

GPU_TEST(an_allocation_of_a_pool_that_is_not_opened_again_is_freed)
{
	SKIP_UNLESS(!gpu_is_real(), "needs a driver that fails and counts");
	gpu_setenv("FAKECUDA_FAIL", "cuMemPoolImportPointer:3:2");
	gpu_with_producer(publishes_two_of_a_pool, fails_to_open_again, NULL);
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
