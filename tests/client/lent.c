/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A producer may write anything to the DLTensor that it is lent. Then its commit fails and says
 * what it wrote, and nothing else is lost.
 */
#include "tests/client/common.h"

enum { SIDE = 4, NDIM = 2 };

struct vandal {
	const char *told;
	void (*change)(DLTensor *t);
};

static int64_t elsewhere[NDIM] = { SIDE, SIDE };

static void ndim_of_255(DLTensor *t)
{
	t->ndim = 255;
}

static void ndim_of_200(DLTensor *t)
{
	t->ndim = 200;
}

static void ndim_of_a_million(DLTensor *t)
{
	t->ndim = 1000000;
}

static void ndim_of_258(DLTensor *t)
{
	t->ndim = 256 + NDIM;
}

static void ndim_below_0(DLTensor *t)
{
	t->ndim = -1;
}

static void dtype_code(DLTensor *t)
{
	t->dtype.code = 99;
}

static void dtype_bits(DLTensor *t)
{
	t->dtype.bits = 64;
}

static void dtype_lanes(DLTensor *t)
{
	t->dtype.lanes = 65535;
}

static void data(DLTensor *t)
{
	t->data = (char *)t->data + TL_ALIGNMENT;
}

static void no_data(DLTensor *t)
{
	t->data = NULL;
}

static void byte_offset(DLTensor *t)
{
	t->byte_offset = 1ULL << 40;
}

static void device(DLTensor *t)
{
	t->device.device_type = kDLCUDA;
}

static void device_number(DLTensor *t)
{
	t->device.device_id = 7;
}

static void shape(DLTensor *t)
{
	t->shape[0] = MIB;
}

static void shape_below_0(DLTensor *t)
{
	t->shape[1] = INT64_MIN;
}

static void shape_elsewhere(DLTensor *t)
{
	t->shape = elsewhere;
}

static void no_shape(DLTensor *t)
{
	t->shape = NULL;
}

static void strides(DLTensor *t)
{
	t->strides[1] = 2;
}

static void no_strides(DLTensor *t)
{
	t->strides = NULL;
}

static const struct vandal vandals[] = {
	{ "ndim is 255 instead of 2", ndim_of_255 },
	{ "ndim is 200 instead of 2", ndim_of_200 },
	{ "ndim is 1000000 instead of 2", ndim_of_a_million },
	{ "ndim is 258 instead of 2", ndim_of_258 },
	{ "ndim is -1 instead of 2", ndim_below_0 },
	{ "code 99, bits 8, lanes 1 instead of 1, 8 and 1", dtype_code },
	{ "code 1, bits 64, lanes 1 instead", dtype_bits },
	{ "code 1, bits 8, lanes 65535 instead", dtype_lanes },
	{ "data is 0x", data },
	{ "data is (nil) instead of 0x", no_data },
	{ "byte_offset is 1099511627776 instead of 0", byte_offset },
	{ "device is 2:0 instead of 1:0", device },
	{ "device is 1:7 instead of 1:0", device_number },
	{ "shape[0] is 1048576 instead of 4", shape },
	{ "shape[1] is -9223372036854775808 instead of 4", shape_below_0 },
	{ "shape points elsewhere", shape_elsewhere },
	{ "shape points elsewhere", no_shape },
	{ "strides[1] is 2 instead of 1", strides },
	{ "strides points elsewhere", no_strides },
};

enum { VANDALS = sizeof(vandals) / sizeof(vandals[0]) };

/* The error names the tensor and what was changed, and the connection is there. */
static void must_tell(const struct test_daemon *d, tl_client *client, const char *name, int r,
		      const struct vandal *v)
{
	tl_info info = { .size = sizeof(info) };

	if (r != -EINVAL || !strstr(tl_last_error(), v->told) || !strstr(tl_last_error(), name))
		fail_msg("%s: %d, \"%s\"", v->told, r, r ? tl_last_error() : "");
	must_be(tl_stat(client, name, &info), -ENOENT);
	put_alone(client, "other", 1, 100);
	must_be(td_status(d).drafts, 1); /* that of the next put */
	must_be(tl_delete(client, "other"), 0);
}

static tl_draft *create(tl_client *client, const char *name, uint32_t ring)
{
	const int64_t sides[NDIM] = { SIDE, SIDE };
	const tl_spec spec = {
		.size = sizeof(spec), .shape = sides, .ndim = NDIM, .dtype = U8, .ring = ring
	};
	tl_draft *draft;

	must_be(tl_create(client, name, &spec, &draft), 0);
	memset(tl_draft_tensor(draft)->data, 5, SIDE * SIDE);
	return draft;
}

TEST(a_draft_whose_tensor_was_changed_is_not_committed)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	uint64_t version;

	put_alone(client, "other", 1, 100);
	for (int i = 0; i < VANDALS; i++) {
		tl_draft *draft = create(client, "wide", TL_RING_NONE);

		vandals[i].change(tl_draft_tensor(draft));
		must_tell(&d, client, "wide", tl_commit(draft, i % 2 ? &version : NULL),
			  &vandals[i]);
	}
	tl_close(client);
	must_be(td_status(&d).drafts, 0);
}

TEST(nor_exported)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);

	for (int i = 0; i < VANDALS; i++) {
		tl_draft *draft = create(client, "wide", TL_RING_NONE);
		DLManagedTensorVersioned *out = NULL;
		int r;

		vandals[i].change(tl_draft_tensor(draft));
		r = tl_draft_to_dlpack(draft, &out);
		must(!out);
		must(r == -EINVAL && strstr(tl_last_error(), vandals[i].told));
		tl_abort(draft); /* it is still the caller's */
	}
	tl_close(client);
	must_be(td_status(&d).drafts, 0);
}

/* A ring's slot is free again, and the name keeps what it means. */
TEST(nor_published_in_a_ring)
{
	enum { DEPTH = 4 };
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	uint64_t version = 0, last = 0;
	DLManagedTensorVersioned *got;

	for (int i = 0; i < 2 * DEPTH; i++)
		must_be(tl_commit(create(client, "ring", DEPTH), &last), 0);
	for (int i = 0; i < VANDALS; i++) {
		tl_draft *draft = create(client, "ring", DEPTH);
		int r;

		vandals[i].change(tl_draft_tensor(draft));
		r = tl_commit(draft, &version);
		must(r == -EINVAL && strstr(tl_last_error(), vandals[i].told));
		must_be(version, 0);
	}
	must_be(tl_commit(create(client, "ring", DEPTH), &version), 0);
	must(version > last);
	got = get(client, "ring");
	must_be(got->dl_tensor.ndim, NDIM);
	must(all_bytes(got, 5, SIDE * SIDE));
	drop(got);
	tl_close(client);
}

TEST(nor_a_group)
{
	const int64_t sides[NDIM] = { SIDE, SIDE };
	const tl_group_item items[] = {
		{ .name = "first", .shape = sides, .ndim = NDIM, .dtype = U8 },
		{ .name = "wide", .shape = sides, .ndim = NDIM, .dtype = U8 },
	};
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);

	put_alone(client, "other", 1, 100);
	for (int i = 0; i < VANDALS; i++) {
		tl_group *group;
		tl_info info = { .size = sizeof(info) };

		must_be(tl_group_create(client, items, 2, NULL, &group), 0);
		vandals[i].change(tl_group_tensor(group, 1));
		must_tell(&d, client, "wide", tl_group_commit(group), &vandals[i]);
		must_be(tl_stat(client, "first", &info), -ENOENT);
	}
	tl_close(client);
	must_be(td_status(&d).drafts, 0);
}

/* What is compared is what was lent, whatever else its members say. */
TEST(a_scalar_and_a_tensor_without_bytes_are_committed_as_they_are)
{
	const int64_t none[NDIM] = { 0, SIDE };
	tl_spec spec = { .size = sizeof(spec), .dtype = U8 };
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	uint64_t version;
	tl_draft *draft;

	must_be(tl_create(client, "scalar", &spec, &draft), 0);
	must_be(tl_commit(draft, &version), 0);
	must_be(tl_create(client, "scalar", &spec, &draft), 0);
	tl_draft_tensor(draft)->ndim = 255;
	must_be(tl_commit(draft, &version), -EINVAL);
	spec.shape = none;
	spec.ndim = NDIM;
	must_be(tl_create(client, "empty", &spec, &draft), 0);
	must_be(tl_commit(draft, &version), 0);
	tl_close(client);
}

int main(void)
{
	return suite_run();
}
