/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structs that cross the API have a size, so that programs and libraries of different ages
 * understand each other.
 */
#include <errno.h>
#include <string.h>

#include "tests/client/common.h"

/* A struct of a later version has the members that we know, and one more. */
struct later_info {
	tl_info now;
	uint64_t more;
};

struct later_status {
	tl_status now;
	uint64_t more;
};

struct later_spec {
	tl_spec now;
	uint64_t more;
};

TEST(a_longer_struct_is_filled_and_its_rest_is_0)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	struct later_info info = { .now.size = sizeof(info), .more = 7 };
	struct later_status status = { .now.size = sizeof(status), .more = 7 };
	DLManagedTensorVersioned *t;

	put_bytes(client, "a", 1, 100);
	must_be(tl_stat(client, "a", &info.now), 0);
	must_be(info.now.size, sizeof(info));
	must_be(info.now.nbytes, 100);
	must_be(info.more, 0);

	info.more = 7;
	t = get(client, "a");
	must_be(tl_tensor_info(t, &info.now), 0);
	must_be(info.now.size, sizeof(info));
	must_be(info.now.version, 1);
	must_be(info.more, 0);
	drop(t);

	must_be(tl_get_status(client, &status.now), 0);
	must_be(status.now.size, sizeof(status));
	must_be(status.now.tensors, 1);
	must_be(status.more, 0);
	tl_close(client);
}

TEST(an_initialised_struct_has_its_size_and_what_is_given)
{
	const tl_get_options o = TL_INIT(tl_get_options, .timeout_ns = 5, .spin_ns = 7);
	const tl_info info = TL_INIT(tl_info);

	must_be(o.size, sizeof(o));
	must_be(o.timeout_ns, 5);
	must_be(o.spin_ns, 7);
	must_be(o.newer_than, 0);
	must_be(info.size, sizeof(info));
	must_be(info.version, 0);
}

TEST(a_struct_that_is_too_small_is_refused_and_left_alone)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_info info = { .size = offsetof(tl_info, ttl_ns) - 1, .nbytes = 7 };
	tl_status status = { .size = 8, .commits = 7 };
	DLManagedTensorVersioned *t;

	put_bytes(client, "a", 1, 100);
	t = get(client, "a");
	must_be(tl_stat(client, "a", &info), -EINVAL);
	must(strstr(tl_last_error(), "tl_info.size"));
	must_be(tl_tensor_info(t, &info), -EINVAL);
	must_be(info.nbytes, 7);
	must_be(tl_get_status(client, &status), -EINVAL);
	must(strstr(tl_last_error(), "tl_status.size"));
	must_be(status.commits, 7);
	drop(t);
	tl_close(client);
}

static int must_be_sized(const tl_info *info, void *context)
{
	must_be(info->size, sizeof(*info));
	++*(unsigned *)context;
	return 0;
}

static int client_must_be_sized(const tl_client_info *info, void *context)
{
	must_be(info->size, sizeof(*info));
	*(uint64_t *)context = info->id;
	return 0;
}

static int holding_must_be_sized(const tl_holding *holding, void *context)
{
	must_be(holding->size, sizeof(*holding));
	++*(unsigned *)context;
	return 0;
}

TEST(a_visitor_is_told_how_much_is_there)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	DLManagedTensorVersioned *t;
	unsigned tensors = 0, holdings = 0;
	uint64_t id = 0;

	put_bytes(client, "a", 1, 100);
	t = get(client, "a");
	must_be(tl_list(client, NULL, must_be_sized, &tensors), 0);
	must_be(tl_list_clients(client, client_must_be_sized, &id), 0);
	must_be(tl_list_holdings(client, id, holding_must_be_sized, &holdings), 0);
	must_be(tensors, 1);
	must_be(holdings, 1);
	drop(t);
	tl_close(client);
}

TEST(options_of_a_later_version_are_taken_if_they_are_0)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	int64_t shape[1] = { 100 };
	struct later_spec spec = {
		.now = { .size = sizeof(spec), .shape = shape, .ndim = 1, .dtype = U8 }
	};
	tl_draft *draft;

	must_be(tl_create(client, "a", &spec.now, &draft), 0);
	tl_abort(draft);
	spec.more = 1;
	must_be(tl_create(client, "a", &spec.now, &draft), -EINVAL);
	tl_close(client);
}

TEST(a_draft_is_made_on_the_device_that_is_named)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	int64_t shape[1] = { 100 };
	tl_spec spec = { .size = sizeof(spec), .shape = shape, .ndim = 1, .dtype = U8 };
	tl_draft *draft;

	must_be(tl_create(client, "a", &spec, &draft), 0);
	must_be(tl_draft_tensor(draft)->device.device_type, kDLCPU);
	tl_abort(draft);

	spec.device = (DLDevice){ kDLCPU, 0 };
	must_be(tl_create(client, "a", &spec, &draft), 0);
	must_be(tl_draft_tensor(draft)->device.device_type, kDLCPU);
	tl_abort(draft);

	spec.device = (DLDevice){ kDLCPU, 1 };
	must_be(tl_create(client, "a", &spec, &draft), -EINVAL);
	must(strstr(tl_last_error(), "tl_spec.device"));
	spec.device = (DLDevice){ kDLMetal, 0 };
	must_be(tl_create(client, "a", &spec, &draft), -ENOTSUP);
	must(strstr(tl_last_error(), "tl_spec.device"));
	tl_close(client);
}

int main(void)
{
	return suite_run();
}
