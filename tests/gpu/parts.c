/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of very many allocations, such as a large one in PyTorch's expandable segments. */
#include <sys/resource.h>

#include "tests/gpu/common.h"

enum { PARTS = 2000, SIZE_EACH = GPU_PART, NEEDED = 2048 + 2 * PARTS + 512, FEW = 64 };
#define MEMORY "8589934592"

/* The fake driver has a descriptor for each allocation, so that its process needs many. */
static bool may_have(rlim_t descriptors)
{
	struct rlimit limit;

	must_be(getrlimit(RLIMIT_NOFILE, &limit), 0);
	return limit.rlim_max >= descriptors;
}

static void allow(rlim_t descriptors)
{
	struct rlimit limit;

	must_be(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = descriptors;
	must_be(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static CUdeviceptr map_all(unsigned parts)
{
	CUdeviceptr base;

	gpu_must(cuda->mem_address_reserve(&base, (size_t)parts * SIZE_EACH, 0, 0, 0));
	for (unsigned i = 0; i < parts; i++)
		gpu_map_part(base + (size_t)i * SIZE_EACH, SIZE_EACH, 0, CUDA_HANDLE_POSIX_FD);
	return base;
}

/* Its process has few descriptors left when it publishes: it must not need one for each part. */
static int producer(const struct test_daemon *d, void *arg)
{
	tl_client *client;
	struct gpu_foreign f;
	CUdeviceptr base;

	(void)arg;
	allow(NEEDED);
	client = gpu_open(d, 0);
	base = map_all(PARTS);
	for (unsigned i = 0; i < PARTS; i += PARTS - 1)
		gpu_fill(base + (size_t)i * SIZE_EACH, 1 + (int)(i % 7), 4096, CUDA_STREAM_LEGACY);
	gpu_must(cuda->ctx_synchronize());
	gpu_foreign_init(&f, base, (int64_t)PARTS * SIZE_EACH, 0);
	allow(FEW);
	must_be(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), 0);
	allow(NEEDED);
	pause_at(1);
	must_be(tl_delete(client, "t"), 0);
	eventually(atomic_load(&f.deleted));
	gpu_must(cuda->mem_unmap(base, (size_t)PARTS * SIZE_EACH));
	gpu_must(cuda->mem_address_free(base, (size_t)PARTS * SIZE_EACH));
	tl_close(client);
	return 0;
}

static int consumer(const struct test_daemon *d, void *arg)
{
	DLManagedTensorVersioned *t;
	tl_client *client;

	(void)arg;
	allow(NEEDED);
	client = gpu_open(d, 0);
	t = gpu_get(client, "t", TL_STREAM_LEGACY);
	must_be(t->dl_tensor.shape[0], (int64_t)PARTS * SIZE_EACH);
	for (unsigned i = 0; i < PARTS; i += PARTS - 1)
		must_be(gpu_read(gpu_data(t) + (size_t)i * SIZE_EACH, 4096, CUDA_STREAM_LEGACY),
			1 + (int)(i % 7));
	drop(t);
	tl_close(client);
	return 0;
}

GPU_TEST(a_tensor_of_2000_allocations)
{
	SKIP_UNLESS(may_have(NEEDED), "needs more descriptors than a process may have here");
	gpu_setenv("FAKECUDA_MEMORY", MEMORY);
	gpu_with_producer(producer, consumer, NULL);
}

static int publishes_too_many(const struct test_daemon *d, void *arg)
{
	tl_client *client;
	struct gpu_foreign f;
	CUdeviceptr base;

	(void)arg;
	allow(NEEDED);
	client = gpu_open(d, 0);
	base = map_all(PARTS);
	gpu_foreign_init(&f, base, (int64_t)PARTS * SIZE_EACH, 0);
	must_refuse(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), -ENOMEM, "descriptors");
	must_be(f.deleted, 0);
	gpu_must(cuda->mem_unmap(base, (size_t)PARTS * SIZE_EACH));
	gpu_must(cuda->mem_address_free(base, (size_t)PARTS * SIZE_EACH));
	tl_close(client);
	return 0;
}

GPU_TEST(more_parts_than_the_daemon_has_descriptors_for)
{
	SKIP_UNLESS(may_have(NEEDED), "needs more descriptors than a process may have here");
	cleanup_gpu struct gpu_daemon g = gpu_start(.nofile = 1024, .max_clients = 16);

	gpu_setenv("FAKECUDA_MEMORY", MEMORY);
	must_be(td_run_client(&g.d, publishes_too_many, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- The file that keeps the GPU open, when the daemon has no descriptor left for it ---- */

/* Publishes until the daemon has no descriptors left; gives them back when it is told to. */
static int takes_all_descriptors(const struct test_daemon *d, void *arg)
{
	struct gpu_foreign *f = calloc(PARTS, sizeof(*f));
	tl_client *client;
	CUdeviceptr base;
	char name[32];
	int n, r = 0;

	(void)arg;
	allow(NEEDED);
	client = gpu_open(d, 0);
	base = map_all(PARTS);
	for (n = 0; n < PARTS; n++) {
		snprintf(name, sizeof(name), "all/%d", n);
		gpu_foreign_init(&f[n], base + (CUdeviceptr)n * SIZE_EACH, 4096, 0);
		r = tl_publish(client, name, &f[n].managed, NULL, NULL, NULL);
		if (r)
			break;
	}
	must(r && strstr(tl_last_error(), "descriptors"));
	pause_at(1);
	while (n--) {
		snprintf(name, sizeof(name), "all/%d", n);
		must_be(tl_delete(client, name), 0);
		eventually(atomic_load(&f[n].deleted) == 1);
	}
	pause_at(2);
	gpu_must(cuda->mem_unmap(base, (size_t)PARTS * SIZE_EACH));
	gpu_must(cuda->mem_address_free(base, (size_t)PARTS * SIZE_EACH));
	tl_close(client);
	free(f);
	return 0;
}

static int publishes_when_there_is_space(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	CUdeviceptr base = map_all(1);
	struct gpu_foreign f;

	(void)arg;
	gpu_fill(base, 7, 4096, CUDA_STREAM_LEGACY);
	gpu_must(cuda->ctx_synchronize());
	gpu_foreign_init(&f, base, 4096, 0);
	must_refuse(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), -ENOMEM, "descriptors");
	must_be(f.deleted, 0);
	pause_at(1);
	eventually(tl_publish(client, "t", &f.managed, NULL, NULL, NULL) == 0);
	pause_at(2); /* and is killed there */
	return 0;
}

static int reads_what_stayed(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t = gpu_get(client, "t", TL_STREAM_LEGACY);

	(void)arg;
	must_be(gpu_read(gpu_data(t), 4096, CUDA_STREAM_LEGACY), 7);
	drop(t);
	must_be(tl_delete(client, "t"), 0);
	tl_close(client);
	return 0;
}

GPU_TEST(a_gpu_is_kept_open_once_the_daemon_has_a_descriptor_for_that)
{
	SKIP_UNLESS(may_have(NEEDED), "needs more descriptors than a process may have here");
	cleanup_gpu struct gpu_daemon g = gpu_start(.nofile = 1024, .max_clients = 16);
	struct test_child all, p;

	gpu_setenv("FAKECUDA_MEMORY", MEMORY);
	all = child_start_ready(&g.d, takes_all_descriptors, NULL);
	p = child_start_ready(&g.d, publishes_when_there_is_space, NULL);
	child_step(&all);
	child_step(&p);
	child_finish(&all);
	child_kill(&p);
	td_sync(&g.d); /* nobody uses the GPU now */
	must_be(td_run_client(&g.d, reads_what_stayed, NULL), 0);
	gpu_nothing_left(&g);
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
