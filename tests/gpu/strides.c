/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors on a GPU that are not in C order: published where they lie, with their strides. */
#include "tests/gpu/common.h"

enum { ROWS = 96, COLUMNS = 512, DEPTH = 3, FIRST = 5 << 10 };

static const DLDataType f32 = { kDLFloat, 32, 1 };

struct view {
	struct gpu_foreign f;
	int64_t shape[TL_NDIM_MAX], strides[TL_NDIM_MAX];
};

static DLManagedTensorVersioned *view_of(struct view *v, CUdeviceptr at, int32_t ndim,
					 const int64_t *shape, const int64_t *strides)
{
	gpu_foreign_init(&v->f, at, 1, 0);
	memcpy(v->shape, shape, sizeof(*shape) * (size_t)ndim);
	memcpy(v->strides, strides, sizeof(*shape) * (size_t)ndim);
	v->f.managed.dl_tensor.ndim = ndim;
	v->f.managed.dl_tensor.shape = v->shape;
	v->f.managed.dl_tensor.strides = v->strides;
	v->f.managed.dl_tensor.dtype = f32;
	return &v->f.managed;
}
#define LIST(...) ((const int64_t[]){ __VA_ARGS__ })

/* A matrix whose words are their own index, transposed; and a slice of a cache, whose rows have
 * gaps between them and whose last size says nothing. */
static int publishes_views(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	CUdeviceptr base = gpu_alloc((size_t)ROWS * COLUMNS * DEPTH * 4 + FIRST);
	struct view transposed, slice;
	DLManagedTensorVersioned *both[2];
	const char *const names[] = { "v/t", "v/s" };
	size_t n = 9;
	bool copied = true;
	uint64_t version = 0;

	for (uint32_t i = 0; i < ROWS * COLUMNS * DEPTH; i += COLUMNS)
		gpu_must(cuda->memset_d8_async(base + FIRST + (CUdeviceptr)i * 4,
					       (unsigned char)(i / COLUMNS), (size_t)COLUMNS * 4,
					       CUDA_STREAM_LEGACY));
	both[0] = view_of(&transposed, base + FIRST, 2, LIST(COLUMNS, ROWS), LIST(1, COLUMNS));
	both[1] = view_of(&slice, base + FIRST + (CUdeviceptr)COLUMNS * 4, 4, LIST(DEPTH, 2, 64, 1),
			  LIST(ROWS * COLUMNS, COLUMNS, 1, -7));
	if (arg) {
		must_be(tl_publish_many(client, names, both, 2, NULL, &n), 0);
		must_be(n, 0);
	} else {
		for (int i = 0; i < 2; i++) {
			must_be(tl_publish(client, names[i], both[i], NULL, &copied, &version), 0);
			must_be(copied, false);
		}
	}
	pause_at(1);
	must_be(tl_delete(client, "v/t"), 0);
	must_be(tl_delete(client, "v/s"), 0);
	eventually(atomic_load(&transposed.f.deleted) && atomic_load(&slice.f.deleted));
	tl_close(client);
	gpu_must(cuda->mem_free(base));
	return 0;
}

static void must_show(tl_client *client, const char *name, const DLTensor *t, uint64_t nbytes)
{
	tl_info info = { .size = sizeof(info) };

	must_be(tl_stat(client, name, &info), 0);
	must_be(info.nbytes, nbytes);
	must_be(info.ndim, t->ndim);
	must(!memcmp(info.strides, t->strides, sizeof(int64_t) * (size_t)t->ndim));
}

static int reads_views(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t = gpu_get(client, "v/t", TL_STREAM_LEGACY);
	DLManagedTensorVersioned *s = gpu_get(client, "v/s", TL_STREAM_LEGACY);
	const DLTensor *m = &t->dl_tensor, *c = &s->dl_tensor;

	(void)arg;
	must(m->shape[0] == COLUMNS && m->shape[1] == ROWS);
	must(m->strides[0] == 1 && m->strides[1] == COLUMNS);
	must_show(client, "v/t", m, (uint64_t)ROWS * COLUMNS * 4);
	for (int row = 0; row < ROWS; row += 31)
		must_be(gpu_read(gpu_data(t) + (CUdeviceptr)(row * m->strides[1]) * 4, COLUMNS * 4,
				 CUDA_STREAM_LEGACY),
			row);
	must(c->strides[0] == ROWS * COLUMNS && c->strides[1] == COLUMNS && c->strides[2] == 1 &&
	     c->strides[3] == 1);
	must_show(client, "v/s", c, DEPTH * 2 * 64 * 4);
	for (int depth = 0; depth < DEPTH; depth++)
		must_be(gpu_read(gpu_data(s) + (CUdeviceptr)(depth * c->strides[0]) * 4, 64 * 4,
				 CUDA_STREAM_LEGACY),
			(depth * ROWS + 1) % 256);
	drop(t);
	drop(s);
	tl_close(client);
	return 0;
}

static void share_views(bool together)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start(&g.d, publishes_views, together ? &together : NULL), c;

	must_be(child_await(&p), 1);
	c = child_start(&g.d, reads_views, NULL);
	child_finish(&c);
	child_finish(&p);
	gpu_nothing_left(&g);
}

GPU_TEST(views_are_published_where_they_lie)
{
	share_views(false);
}

GPU_TEST(views_are_members_of_groups)
{
	share_views(true);
}

/* ---- What cannot be told to others ---- */

static int refuses(const struct test_daemon *d, void *arg)
{
	static const struct {
		int64_t shape[3], strides[3];
		const char *why;
	} cases[] = {
		{ { 4, 8, 2 }, { 16, 0, 1 }, "negative, or 0" },
		{ { 4, 8, 2 }, { 16, -2, 1 }, "negative, or 0" },
		{ { 4, 8, 2 }, { 4, 2, 1 }, "overlap" },
		{ { 4, 8, 2 }, { 1, 1, 32 }, "overlap" },
		{ { 4, 8, 2 }, { 32, 4, 2048 }, "allocation" }, /* it ends beyond its memory */
	};
	tl_client *client = gpu_open(d, 0);
	CUdeviceptr base = gpu_alloc(8192);
	tl_put_options staging = { .size = sizeof(staging), .flags = TL_PUBLISH_STAGING };
	int64_t many[17];
	struct view v;

	(void)arg;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		DLManagedTensorVersioned *t = view_of(&v, base, 3, cases[i].shape,
						      cases[i].strides);
		const char *name = "bad";
		bool copied;

		must(tl_publish(client, name, t, NULL, &copied, NULL) < 0);
		must(strstr(tl_last_error(), cases[i].why) != NULL);
		must(tl_publish(client, name, t, &staging, &copied, NULL) < 0);
		must(tl_publish_many(client, &name, &t, 1, NULL, NULL) < 0);
		must_be(v.f.deleted, 0);
	}
	for (int i = 0; i < 17; i++)
		many[i] = i ? 1 : 2;
	many[1] = 2;
	view_of(&v, base, 17, many, many);
	v.strides[0] = 1;
	v.strides[1] = 2;
	must_be(tl_publish(client, "bad", &v.f.managed, NULL, NULL, NULL), -ENOTSUP);
	gpu_must(cuda->mem_free(base));
	tl_close(client);
	return 0;
}

GPU_TEST(strides_that_overlap_or_lead_out_are_refused_in_words)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child c = child_start(&g.d, refuses, NULL);

	child_finish(&c);
	gpu_nothing_left(&g);
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
