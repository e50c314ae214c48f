/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors on GPUs while the daemon's /dev/shm is full to the last page. Only their rows and names
 * are there, not their bytes: what has a row keeps working, what needs more is refused, and nothing
 * is lost.
 */
#include "tests/daemon/shm_common.h"
#include "tests/gpu/common.h"

enum { N = 2 << 20, DRAFT = GPU_KINDS, NAMES, ROUNDS = 120, MORE_MAX = 20000 };

static const char *const names[NAMES] = { "plain", "virtual", "parts", "pooled", "draft" };

/* ---- What is published keeps working ---- */

static void publish_all(tl_client *client, const struct gpu_memory *m, struct gpu_foreign *f,
			int value)
{
	for (int kind = 0; kind < GPU_KINDS; kind++) {
		gpu_fill(m[kind].base, value, N, CUDA_STREAM_LEGACY);
		gpu_foreign_init(&f[kind], m[kind].base, N, 0);
		must_be(tl_publish(client, names[kind], &f[kind].managed, NULL, NULL, NULL), 0);
	}
	gpu_put_draft(client, names[DRAFT], value, N, 0, CUDA_STREAM_LEGACY);
}

/* Memory that is not there is asked for in vain, with a word about where. */
static void must_be_full(tl_client *client)
{
	int64_t n = MIB;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	tl_draft *draft;

	must_refuse(tl_create(client, "cpu", &spec, &draft), -ENOSPC, "/dev/shm is full");
}

static int goes_on(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	static struct gpu_foreign f[ROUNDS][GPU_KINDS];
	struct gpu_memory m[GPU_KINDS];

	(void)arg;
	for (int kind = 0; kind < GPU_KINDS; kind++)
		gpu_memory_init(&m[kind], kind, N, 0);
	publish_all(client, m, f[0], 1);
	pause_at(1); /* now it is full */
	must_be_full(client);
	for (int round = 1; round < ROUNDS; round++) {
		publish_all(client, m, f[round], 1 + round);
		for (int kind = 0; kind < GPU_KINDS; kind++)
			eventually(atomic_load(&f[round - 1][kind].deleted) == 1);
	}
	must_be_full(client);
	pause_at(1);
	for (int name = 0; name < NAMES; name++)
		must_be(tl_delete(client, names[name]), 0);
	for (int kind = 0; kind < GPU_KINDS; kind++) {
		eventually(atomic_load(&f[ROUNDS - 1][kind].deleted) == 1);
		gpu_memory_deinit(&m[kind]);
	}
	tl_close(client);
	return 0;
}

/* Connects while there is no space. */
static int reads_all(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);

	(void)arg;
	for (int name = 0; name < NAMES; name++) {
		DLManagedTensorVersioned *t = gpu_get(client, names[name], TL_STREAM_LEGACY);
		tl_info info = { .size = sizeof(info) };

		must_be(tl_tensor_info(t, &info), 0);
		must_be(info.version, ROUNDS);
		must_be(gpu_read(gpu_data(t), N, CUDA_STREAM_LEGACY), ROUNDS);
		drop(t);
	}
	tl_close(client);
	return 0;
}

GPU_TEST(what_has_its_rows_goes_on)
{
	struct test_child p;

	SKIP_UNLESS(may_mount(), "may not mount a small tmpfs");
	cleanup_gpu struct gpu_daemon g = gpu_start(.capacity = 256 * MIB, .storage = "shm",
						    .shm_size = 24 * MIB);
	p = child_start_ready(&g.d, goes_on, NULL);
	fill_shm(&g.d, 0);
	child_step(&p);
	must_be(td_status(&g.d).tensors, NAMES);
	must_be(td_run_client(&g.d, reads_all, NULL), 0);
	child_finish(&p);
	empty_shm(&g.d);
	gpu_nothing_left(&g);
}

/* ---- What needs more rows is refused ---- */

static void more_name(char name[256], unsigned n)
{
	memset(name, 'x', 200); /* long */
	name[200] = '\0';
	name[snprintf(name, 16, "more/%u", n)] = 'y';
}

static int wants_more(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	struct gpu_foreign *f = calloc(MORE_MAX, sizeof(*f));
	tl_put_options sealed = { .size = sizeof(sealed), .flags = TL_PUBLISH_SEALED };
	struct gpu_memory m;
	unsigned n = 0;
	char name[256];
	int r = 0;

	(void)arg;
	must(f);
	gpu_memory_init(&m, GPU_LEGACY, N, 0);
	gpu_fill(m.base, 7, N, CUDA_STREAM_LEGACY);
	for (; n < MORE_MAX; n++) {
		gpu_foreign_init(&f[n], m.base, N, 0);
		more_name(name, n);
		r = tl_publish(client, name, &f[n].managed, &sealed, NULL, NULL);
		if (r)
			break;
	}
	must_be(r, -ENOMEM);
	must(strstr(tl_last_error(), "catalog: No space left on device"));
	must_be(f[n].deleted, 0); /* its owner still has it */
	pause_at(n);		  /* it was looked at from outside */
	for (unsigned i = 0; i < n; i++)
		must_be(f[i].deleted, 0);
	more_name(name, n / 2); /* what is given back is used again */
	must_be(tl_delete(client, name), 0);
	eventually(atomic_load(&f[n / 2].deleted) == 1);
	gpu_foreign_init(&f[n / 2], m.base, N, 0);
	must_be(tl_publish(client, name, &f[n / 2].managed, &sealed, NULL, NULL), 0);
	more_name(name, n);
	must_be(tl_publish(client, name, &f[n].managed, &sealed, NULL, NULL), -ENOMEM);
	pause_at(1); /* now there is space */
	must_be(tl_publish(client, name, &f[n].managed, &sealed, NULL, NULL), 0);
	for (unsigned i = 0; i <= n; i++) {
		more_name(name, i);
		must_be(tl_delete(client, name), 0);
	}
	for (unsigned i = 0; i <= n; i++)
		eventually(atomic_load(&f[i].deleted) == 1);
	gpu_memory_deinit(&m);
	tl_close(client);
	free(f);
	return 0;
}

static int reads_more(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t;
	unsigned n = *(unsigned *)arg;
	const unsigned which[] = { 0, n / 2, n - 1 };
	char name[256];

	for (int i = 0; i < 3; i++) {
		more_name(name, which[i]);
		t = gpu_get(client, name, TL_STREAM_LEGACY);
		must_be(gpu_read(gpu_data(t), N, CUDA_STREAM_LEGACY), 7);
		drop(t);
	}
	more_name(name, n);
	must_be(tl_get(client, name, NULL, &t), -ENOENT);
	tl_close(client);
	return 0;
}

GPU_TEST(what_needs_more_rows_is_refused_and_nothing_is_lost)
{
	struct test_child p;
	unsigned n;

	SKIP_UNLESS(may_mount(), "may not mount a small tmpfs");
	cleanup_gpu struct gpu_daemon g = gpu_start(.capacity = 256 * MIB, .storage = "shm",
						    .shm_size = 24 * MIB, .max_tensors = MORE_MAX);
	fill_shm(&g.d, 256 * (off_t)KIB);
	p = child_start(&g.d, wants_more, NULL);
	n = (unsigned)child_await(&p);
	must(n > 10 && n < MORE_MAX);
	must(td_alive(&g.d));
	must_be(td_status(&g.d).tensors, n);
	must_be(td_status(&g.d).drafts, 0);
	must_be(td_run_client(&g.d, reads_more, &n), 0);
	child_step(&p);
	must_be(td_status(&g.d).tensors, n);
	empty_shm(&g.d);
	child_finish(&p);
	gpu_nothing_left(&g);
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
