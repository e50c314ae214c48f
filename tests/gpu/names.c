/* SPDX-License-Identifier: Apache-2.0 */
/* Second names of tensors on a GPU: whoever holds one publishes it under another name, without a
 * copy, and its producer keeps the memory until both names are gone. */
#include "tests/gpu/common.h"

enum { N = 1 << 20, ROWS = 512, COLUMNS = 1024 };

/* ---- Each kind of memory ---- */

static int producer(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	struct gpu_foreign f;
	struct gpu_memory m;

	gpu_memory_init(&m, *(enum gpu_kind *)arg, N, 0);
	gpu_fill(m.base, 5, N, CUDA_STREAM_LEGACY);
	gpu_foreign_init(&f, m.base, N, 0);
	f.owned = &m; /* the fake driver reports it if it is freed while anybody has it open */
	must_be(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), 0);
	pause_at(1); /* others name it */
	must_be(f.deleted, 0);
	parent_tell(1);
	eventually(atomic_load(&f.deleted));
	tl_close(client);
	return 0;
}

/* Renames it twice, and reads it under its last name. */
static int renames(const struct test_daemon *d, void *arg)
{
	const tl_put_options o = {
		.size = sizeof(o), .flags = TL_PUBLISH_NO_COPY, .metadata = "m", .metadata_size = 1
	};
	const char *const names[] = { "t", "u", "v" };
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t, *again;
	tl_info info = { .size = sizeof(info) };
	CUdeviceptr at;
	bool copied;

	(void)arg;
	for (int i = 0; i < 2; i++) {
		t = gpu_get(client, names[i], TL_STREAM_LEGACY);
		at = gpu_data(t);
		copied = true;
		must_be(tl_publish(client, names[i + 1], t, &o, &copied, NULL), 0);
		must_be(copied, false);
		again = gpu_get(client, names[i + 1], TL_STREAM_LEGACY);
		must_be(gpu_data(again), at); /* it is opened once */
		drop(again);
		must_be(tl_delete(client, names[i]), 0);
	}
	pause_at(1);
	t = gpu_get(client, "v", TL_STREAM_LEGACY);
	must_be(gpu_read(gpu_data(t), N, CUDA_STREAM_LEGACY), 5);
	must_be(tl_tensor_info(t, &info), 0);
	must_be(info.metadata_size, 1);
	must_be(tl_delete(client, "v"), 0);
	drop(t);
	tl_close(client);
	return 0;
}

GPU_TEST(memory_of_each_kind_is_renamed)
{
	gpu_setenv("FAKECUDA_DELAY_US", "10000");
	for (int kind = 0; kind < GPU_KINDS; kind++) {
		cleanup_gpu struct gpu_daemon g = gpu_start();
		struct test_child p = child_start_ready(&g.d, producer, &kind);
		struct test_child c = child_start_ready(&g.d, renames, NULL);

		must_be(child_step(&p), 1);
		child_finish(&c);
		child_must_succeed(&p);
		gpu_nothing_left(&g);
	}
}

static int names_a_draft(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);

	(void)arg;
	gpu_put_draft(client, "t", 5, N, 0, CUDA_STREAM_LEGACY);
	tl_close(client); /* when the GPU has written it */
	return 0;
}

GPU_TEST(a_draft_is_renamed_after_its_producer_has_ended)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child c;

	must_be(td_run_client(&g.d, names_a_draft, NULL), 0);
	c = child_start_ready(&g.d, renames, NULL);
	child_finish(&c);
	gpu_nothing_left(&g);
}

/* ---- Strides ---- */

static int publishes_transposed(const struct test_daemon *d, void *arg)
{
	int64_t shape[] = { COLUMNS, ROWS }, strides[] = { 1, COLUMNS };
	int64_t part[] = { ROWS, COLUMNS / 4 }, gaps[] = { COLUMNS, 1 };
	tl_client *client = gpu_open(d, 0);
	CUdeviceptr memory = gpu_alloc(N);
	struct gpu_foreign f, slice;

	(void)arg;
	gpu_fill(memory, 3, N, CUDA_STREAM_LEGACY);
	gpu_foreign_init(&f, memory, N, 0);
	f.managed.dl_tensor.ndim = 2;
	f.managed.dl_tensor.shape = shape;
	f.managed.dl_tensor.strides = strides;
	must_be(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), 0);
	gpu_foreign_init(&slice, memory, N, 0);
	slice.managed.dl_tensor.ndim = 2;
	slice.managed.dl_tensor.shape = part;
	slice.managed.dl_tensor.strides = gaps;
	must_be(tl_publish(client, "slice", &slice.managed, NULL, NULL, NULL), 0);
	pause_at(1);
	eventually(atomic_load(&f.deleted) && atomic_load(&slice.deleted));
	gpu_must(cuda->mem_free(memory));
	tl_close(client);
	return 0;
}

static int renames_transposed(const struct test_daemon *d, void *arg)
{
	const tl_put_options o = { .size = sizeof(o), .flags = TL_PUBLISH_NO_COPY };
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t = gpu_get(client, "t", TL_STREAM_LEGACY);
	int64_t strides[] = { ROWS, 1 };

	(void)arg;
	must_be(tl_publish(client, "u", t, &o, NULL, NULL), 0);
	must_be(tl_delete(client, "t"), 0);
	t = gpu_get(client, "u", TL_STREAM_LEGACY);
	must_be(t->dl_tensor.shape[0], COLUMNS);
	must_be(t->dl_tensor.strides[0], 1);
	must_be(t->dl_tensor.strides[1], COLUMNS);
	t->dl_tensor.strides = strides; /* not as it was got */
	must_refuse(tl_publish(client, "w", t, &o, NULL, NULL), -ENOTSUP, "second name");
	drop(t);
	must_be(tl_delete(client, "u"), 0);
	t = gpu_get(client, "slice", TL_STREAM_LEGACY); /* it has gaps */
	must_be(tl_publish(client, "v", t, &o, NULL, NULL), 0);
	must_be(tl_delete(client, "slice"), 0);
	t = gpu_get(client, "v", TL_STREAM_LEGACY);
	must_be(t->dl_tensor.strides[0], COLUMNS);
	drop(t);
	must_be(tl_delete(client, "v"), 0);
	tl_close(client);
	return 0;
}

GPU_TEST(a_tensor_with_strides_keeps_them)
{
	gpu_with_producer(publishes_transposed, renames_transposed, NULL);
}

/* ---- Its memory, without the tensor ---- */

/* Whoever gets such a tensor would read what the producer writes there later. */
static int publishes_what_it_got(const struct test_daemon *d, void *arg)
{
	const tl_put_options staging = { .size = sizeof(staging), .flags = TL_PUBLISH_STAGING };
	const char *const name = "u";
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t = gpu_get(client, "t", TL_STREAM_LEGACY);
	static struct gpu_foreign f;
	bool copied = false;

	(void)arg;
	pause_at(1);
	gpu_foreign_init(&f, gpu_data(t), N, 0);
	must_refuse(tl_publish(client, name, &f.managed, NULL, NULL, NULL), -ENOTSUP,
		    "got from another process");
	must_refuse(tl_publish_many(client, &name, &t, 1, NULL, NULL), -ENOTSUP,
		    "got from another process");
	must_be(atomic_load(&f.deleted), 0);
	must_be(tl_publish(client, name, &f.managed, &staging, &copied, NULL), 0);
	must_be(copied, true);
	eventually(atomic_load(&f.deleted));
	drop(t);
	must_be(tl_delete(client, "t"), 0);
	t = gpu_get(client, name, TL_STREAM_LEGACY);
	must_be(gpu_read(gpu_data(t), N, CUDA_STREAM_LEGACY), 5);
	drop(t);
	must_be(tl_delete(client, name), 0);
	tl_close(client);
	return 0;
}

GPU_TEST(memory_that_was_got_is_not_exported_again)
{
	for (int kind = 0; kind < GPU_KINDS; kind++) {
		cleanup_gpu struct gpu_daemon g = gpu_start();
		struct test_child p = child_start_ready(&g.d, producer, &kind);
		struct test_child c = child_start_ready(&g.d, publishes_what_it_got, NULL);

		must_be(child_step(&p), 1);
		child_finish(&c);
		child_must_succeed(&p);
		gpu_nothing_left(&g);
	}
}

/* What this process exported itself is its own, also if it has got a tensor there. */
static int publishes_its_own_again(const struct test_daemon *d, void *arg)
{
	const tl_put_options o = { .size = sizeof(o), .flags = TL_PUBLISH_NO_COPY };
	tl_client *client = gpu_open(d, 0), *other = td_connect(d);
	static struct gpu_foreign f[2];
	DLManagedTensorVersioned *t;
	struct gpu_memory m;

	gpu_memory_init(&m, *(enum gpu_kind *)arg, N, 0);
	gpu_foreign_init(&f[0], m.base, N, 0);
	must_be(tl_publish(client, "t", &f[0].managed, &o, NULL, NULL), 0);
	t = gpu_get(other, "t", TL_STREAM_LEGACY);
	must_be(gpu_data(t), m.base);
	gpu_foreign_init(&f[1], gpu_data(t), N, 0);
	must_be(tl_publish(client, "u", &f[1].managed, &o, NULL, NULL), 0);
	drop(t);
	must_be(tl_delete(client, "t") + tl_delete(client, "u"), 0);
	for (int i = 0; i < 2; i++)
		eventually(atomic_load(&f[i].deleted));
	gpu_memory_deinit(&m);
	tl_close(other);
	tl_close(client);
	return 0;
}

GPU_TEST(memory_of_ones_own_is_published_again)
{
	for (int kind = 0; kind < GPU_KINDS; kind++) {
		cleanup_gpu struct gpu_daemon g = gpu_start();

		must_be(td_run_client(&g.d, publishes_its_own_again, &kind), 0);
		gpu_nothing_left(&g);
	}
}

/* ---- What is not finished ---- */

static int holds_its_work(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	CUdeviceptr memory = gpu_alloc(N);
	struct gpu_foreign f;

	(void)arg;
	gpu_hold(getpid());
	gpu_held_from_here(CUDA_STREAM_LEGACY);
	gpu_fill(memory, 9, N, CUDA_STREAM_LEGACY);
	gpu_foreign_init(&f, memory, N, 0);
	must_be(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), 0);
	pause_at(1);
	gpu_hold(0);
	parent_tell(1);
	eventually(atomic_load(&f.deleted));
	gpu_must(cuda->mem_free(memory));
	tl_close(client);
	return 0;
}

static int names_what_is_unfinished(const struct test_daemon *d, void *arg)
{
	const tl_put_options o = { .size = sizeof(o), .flags = TL_PUBLISH_NO_COPY };
	const tl_connect_options soon = { .size = sizeof(soon),
					  .address = d->socket,
					  .timeout_ns = SECOND / 10 };
	const tl_get_options as_it_is = { .size = sizeof(as_it_is), .stream = TL_STREAM_NONE };
	tl_client *client = gpu_open(d, 0), *hasty = NULL;
	DLManagedTensorVersioned *t = NULL;

	(void)arg;
	/* its time is short for a busy machine */
	eventually(tl_connect(&soon, &hasty) == 0);
	eventually(tl_get(hasty, "t", &as_it_is, &t) == 0);
	must_refuse_answered(tl_publish(hasty, "u", t, &o, NULL, NULL), -ETIMEDOUT, "not finished");
	drop(t);
	tl_close(hasty);
	t = gpu_get(client, "t", TL_STREAM_NONE);
	parent_tell(1); /* its work goes on, and the publish waits for that */
	must_be(tl_publish(client, "u", t, &o, NULL, NULL), 0);
	t = gpu_get(client, "u", TL_STREAM_LEGACY);
	must_be(gpu_read(gpu_data(t), N, CUDA_STREAM_LEGACY), 9);
	drop(t);
	must_be(tl_delete(client, "t") + tl_delete(client, "u"), 0);
	tl_close(client);
	return 0;
}

GPU_TEST(a_second_name_waits_for_the_producers_work)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start_ready(&g.d, holds_its_work, NULL), c;

	c = child_start_ready(&g.d, names_what_is_unfinished, NULL);
	must_be(child_step(&p), 1);
	child_must_succeed(&c);
	child_must_succeed(&p);
	gpu_nothing_left(&g);
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
