/* SPDX-License-Identifier: Apache-2.0 */
/* How many calls of the driver the common operations make. Each costs up to a microsecond, and some
 * take locks that other threads of the program wait for. Of those that make a context current, one
 * looks whether it was reset, since its handle does not tell. */
#include "tests/gpu/common.h"

#include <dlfcn.h>

enum { N = 2 << 20 };

static unsigned (*count_calls)(void);

static void find_counter(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	*(void **)&count_calls = dlsym(library, "fakecuda_calls");
	must(gpu_is_real() || count_calls);
}

/* Runs it and returns how many calls of the driver this thread made meanwhile. */
#define calls_of(statement)                                                                        \
	({                                                                                         \
		unsigned before_ = count_calls ? count_calls() : 0;                                \
		statement;                                                                         \
		(count_calls ? count_calls() : 0) - before_;                                       \
	})

static unsigned calls_on_legacy(tl_client *client)
{
	DLManagedTensorVersioned *t = gpu_get(client, "a", TL_STREAM_LEGACY);

	return calls_of(drop(t));
}

static int counts(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	tl_put_options own = { .size = sizeof(own) }, legacy = { .size = sizeof(legacy) };
	enum gpu_kind kind = *(enum gpu_kind *)arg;
	unsigned parts = kind == GPU_PARTS ? 4 : 1;
	static struct gpu_foreign f[5];
	DLManagedTensorVersioned *t;
	struct gpu_memory m;
	CUstream stream;

	find_counter();
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	own.stream = (intptr_t)stream;
	gpu_memory_init(&m, kind, 4 * N, 0);
	for (int i = 0; i < 5; i++)
		gpu_foreign_init(&f[i], m.base, 4 * N, 0);
	must_be(tl_publish(client, "first", &f[0].managed, &own, NULL, NULL), 0);
	/* What is exported already costs one look, and one more for each part of virtual memory.
	 * One call asks whether the stream's query can be believed. */
	if (kind == GPU_LEGACY || kind == GPU_POOL)
		parts = 0;
	must(calls_of(must_be(tl_publish(client, "a", &f[1].managed, &own, NULL, NULL), 0)) <=
	     9 + 2 * parts);
	must(calls_of(must_be(tl_publish(client, "b", &f[2].managed, &legacy, NULL, NULL), 0)) <=
	     16 + 2 * parts);
	t = gpu_get(client, "a", (intptr_t)stream);
	must(calls_of(drop(t)) <= 8);
	/* Only an event tells there whether work is left; one more call makes the first of them. */
	eventually(calls_on_legacy(client) <= 8);
	t = gpu_get(client, "a", TL_STREAM_NONE);
	must_be(calls_of(drop(t)), 0);
	must_be(tl_delete(client, "first") + tl_delete(client, "a") + tl_delete(client, "b"), 0);
	for (int i = 0; i < 3; i++)
		eventually(atomic_load(&f[i].deleted));
	gpu_must(cuda->stream_destroy(stream));
	gpu_memory_deinit(&m);
	tl_close(client);
	return 0;
}

GPU_TEST(common_operations_make_few_calls)
{
	SKIP_UNLESS(!gpu_is_real(), "needs a driver that counts");
	for (enum gpu_kind kind = 0; kind < GPU_KINDS; kind++) {
		cleanup_gpu struct gpu_daemon g = gpu_start();

		must_be(td_run_client(&g.d, counts, &kind), 0);
		gpu_nothing_left(&g);
	}
}

/* ---- A model: 320 tensors of 192 MB in 10 allocations; `make bench-gpu` shows what it costs ----
 */

enum { TENSORS = 320, BLOCKS = 10, EACH = 600 << 10 };

static int64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * SECOND + t.tv_nsec;
}

struct model {
	char names[TENSORS][48];
	const char *list[TENSORS];
	struct gpu_memory blocks[BLOCKS];
	struct gpu_foreign f[TENSORS];
	DLManagedTensorVersioned *tensors[TENSORS];
};

static struct model *model_new(bool memory)
{
	struct model *m = calloc(1, sizeof(*m));

	for (int i = 0; i < TENSORS; i++) {
		snprintf(m->names[i], sizeof(m->names[i]), "model/layers.%d.attention.weight", i);
		m->list[i] = m->names[i];
	}
	for (int i = 0; memory && i < BLOCKS; i++)
		gpu_memory_init(&m->blocks[i], GPU_LEGACY, (size_t)TENSORS / BLOCKS * EACH, 0);
	for (int i = 0; memory && i < TENSORS; i++) {
		gpu_foreign_init(&m->f[i],
				 m->blocks[i % BLOCKS].base + (CUdeviceptr)(i / BLOCKS) * EACH,
				 EACH, 0);
		m->tensors[i] = &m->f[i].managed;
	}
	return m;
}

static int publishes_a_model(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	struct model *m = model_new(true);
	int64_t least = INT64_MAX;

	(void)arg;
	find_counter();
	for (int round = 0; round < 5; round++) {
		int64_t begin = cpu_ns(), ns;
		unsigned calls = calls_of(must_be(
			tl_publish_many(client, m->list, m->tensors, TENSORS, NULL, NULL), 0));

		ns = cpu_ns() - begin;
		least = ns < least ? ns : least;
		/* The first time each allocation is exported; then it is looked at. */
		must(calls <= (round ? 40 : 80) + 20 * BLOCKS);
		if (round == 4)
			printf("320 tensors in 10 allocations: %u calls of the driver, published "
			       "in %lld us of CPU\n",
			       calls, (long long)least / 1000);
		if (round < 4)
			for (int i = 0; i < TENSORS; i++)
				must_be(tl_delete(client, m->names[i]), 0);
		for (int i = 0; round < 4 && i < TENSORS; i++) {
			eventually(atomic_load(&m->f[i].deleted) == round + 1);
		}
	}
	pause_at(1);
	for (int i = 0; i < TENSORS; i++)
		must_be(tl_delete(client, m->names[i]), 0);
	for (int i = 0; i < TENSORS; i++)
		eventually(atomic_load(&m->f[i].deleted) == 5);
	for (int i = 0; i < BLOCKS; i++)
		gpu_memory_deinit(&m->blocks[i]);
	tl_close(client);
	free(m);
	return 0;
}

static int gets_a_model(const struct test_daemon *d, void *arg)
{
	tl_get_options o = { .size = sizeof(o), .stream = TL_STREAM_LEGACY };
	DLManagedTensorVersioned *t[TENSORS];
	tl_client *client = gpu_open(d, 0);
	struct model *m = model_new(false);
	int64_t least = INT64_MAX;
	unsigned calls = 0;

	(void)arg;
	find_counter();
	for (int round = 0; round < 5; round++) {
		int64_t begin = cpu_ns(), ns;

		calls = calls_of(must_be(tl_get_many(client, m->list, TENSORS, &o, t), 0));
		ns = cpu_ns() - begin;
		least = ns < least ? ns : least;
		for (int i = 0; i < TENSORS; i++)
			drop(t[i]);
	}
	printf("320 tensors in 10 allocations: %u calls of the driver, got in %lld us of CPU\n",
	       calls, (long long)least / 1000);
	must(calls <= 16 * TENSORS);
	tl_close(client);
	free(m);
	return 0;
}

GPU_TEST(a_model_costs_calls_for_its_allocations_only)
{
	gpu_with_producer(publishes_a_model, gets_a_model, NULL);
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
