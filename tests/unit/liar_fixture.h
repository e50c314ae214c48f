/* SPDX-License-Identifier: Apache-2.0 */
/* The fixture of the tests with a daemon that lies: all the ways to look at a tensor, and the
 * checks of the answers. */
#pragma once

#include "tensor/name.h"
#include "tests/client/common.h"
#include "tests/harness/liar.h"
#include "tests/harness/messages.h"

static struct liar liar;
static const char *const both[] = { "a", "b" };

/* ---- What is handed out ---- */

static inline unsigned sum_of(const void *bytes, uint64_t n)
{
	const unsigned char *p = bytes;
	unsigned sum = 0;

	for (uint64_t i = 0; i < n; i++)
		sum += p[i];
	return sum;
}

/* Reads all of a tensor, which lies in one of the segments. */
static inline void read_all(const DLManagedTensorVersioned *t)
{
	const DLTensor *d = &t->dl_tensor;
	bool padded = t->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
	uint64_t nbytes = UINT64_MAX;

	must_be(d->device.device_type, kDLCPU);
	must_be(tensor_nbytes(d->dtype, d->ndim, d->shape, padded, &nbytes), 0);
	must(nbytes <= LIAR_SEGMENT_BYTES);
	must(!nbytes || ((uintptr_t)d->data % TL_ALIGNMENT == 0 && d->data));
	must(sum_of(d->data, nbytes) <= 255 * nbytes);
}

static inline void read_info(const tl_info *info)
{
	uint64_t nbytes;
	const char *why;

	must(info->ndim >= 0 && info->ndim <= TL_NDIM_MAX);
	must(info->metadata_size <= TL_METADATA_MAX);
	must(!tensor_name_check(info->name, strlen(info->name), &why));
	must(!tensor_dtype_check(info->dtype, &why));
	must_be(tensor_nbytes(info->dtype, info->ndim, info->shape,
			      info->dlpack_flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED,
			      &nbytes),
		0);
	must_be(info->nbytes, nbytes);
}

static inline int visit(const tl_info *info, void *context)
{
	(void)context;
	read_info(info);
	return 0;
}

/* In each way that there is; the outcomes, which all are 0 or an error, but for what is handed out
 * by then. */
struct outcomes {
	int get, again, copy, stat, list, many;
};

static inline int get_as(tl_client *client, enum tl_mode mode)
{
	tl_get_options o = { .size = sizeof(o), .mode = mode };
	DLManagedTensorVersioned *t;
	tl_info info = { .size = sizeof(info) };
	int r = tl_get(client, "a", &o, &t);

	if (r)
		return r;
	read_all(t);
	if (!tl_tensor_info(t, &info))
		read_info(&info);
	if (mode == TL_MODE_COPY_ON_WRITE && t->dl_tensor.data)
		*(unsigned char *)t->dl_tensor.data = 7;
	drop(t);
	return 0;
}

static inline struct outcomes try_all(tl_client *client)
{
	DLManagedTensorVersioned *many[2];
	struct outcomes o;
	tl_info info = { .size = sizeof(info) };

	o.get = get_as(client, TL_MODE_READ);
	o.again = get_as(client, TL_MODE_READ); /* now it is mapped, if it can be */
	o.copy = get_as(client, TL_MODE_COPY_ON_WRITE);
	o.stat = tl_stat(client, "a", &info);
	if (!o.stat)
		read_info(&info);
	o.list = tl_list(client, NULL, visit, NULL);
	o.many = tl_get_many(client, both, 2, NULL, many);
	for (int i = 0; !o.many && i < 2; i++) {
		read_all(many[i]);
		drop(many[i]);
	}
	return o;
}

static inline void honest(void)
{
	const int64_t shape[] = { 2, 3, 100 };

	liar_repent(&liar);
	liar_publish(&liar, 0, "a", 3, shape, 0, 256);
	liar_publish(&liar, 1, "b", 3, shape, 0, 4096);
}

static inline int set_up(void **state)
{
	int r = test_setup(state);

	liar_start(&liar);
	honest();
	return r;
}

static inline int tear_down(void **state)
{
	liar_stop(&liar);
	return test_teardown(state);
}

#define LIE_TEST(name) TEST_WITH(name, set_up, tear_down)
