/* SPDX-License-Identifier: Apache-2.0 */
/* Two programs that publish one name with different types or shapes are told of each other. */
#include <string.h>

#include "tests/client/common.h"

static tl_status status_of(tl_client *client)
{
	tl_status s = { .size = sizeof(s) };

	must_be(tl_get_status(client, &s), 0);
	return s;
}

static void put_shaped(tl_client *client, const char *name, uint8_t bits, int64_t n)
{
	static unsigned char bytes[64];
	DLTensor tensor = { .data = bytes,
			    .device = { kDLCPU, 0 },
			    .ndim = 1,
			    .dtype = { kDLUInt, bits, 1 },
			    .shape = &n };

	must_be(tl_put(client, name, &tensor, NULL, NULL), 0);
}

static void must_have_retyped(const struct test_daemon *d, tl_client *client, unsigned count,
			      const char *name)
{
	tl_status s;

	td_sync(d);
	s = status_of(client);

	must_be(s.retyped, count);
	assert_string_equal(s.retyped_name, name);
}

TEST(another_programs_type_or_shape_is_told)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *a = td_connect(&d), *b = td_connect(&d);
	static const char name[] = "cam0/with/a/name/that/does/not/fit/into/its/entry";
	char *log;

	for (int i = 0; i < 8; i++) /* a ring by then */
		put_shaped(a, name, 8, 16);
	put_shaped(a, name, 8, 32); /* a program may change its own */
	put_shaped(a, "other", 8, 16);
	must_have_retyped(&d, a, 0, "");
	td_sync(&d); /* in this order */
	put_shaped(b, name, 8, 32);
	put_shaped(b, "other", 8, 16);
	must_have_retyped(&d, a, 0, "");
	put_shaped(a, name, 8, 16);
	must_have_retyped(&d, b, 1, name);
	log = td_log(&d);
	must(strstr(log, "a name got another type or shape than another program had given it"));
	must(strstr(log, name));
	free(log);
	put_shaped(a, "other", 16, 16);
	must_have_retyped(&d, b, 2, "other");
	must_be(tl_close(a), 0);
	put_shaped(b, "other", 8, 16); /* its program has just ended */
	must_have_retyped(&d, b, 3, "other");
	must_be(tl_delete(b, "other"), 0);
	put_shaped(b, "other", 8, 8);
	must_have_retyped(&d, b, 3, "other");
	tl_close(b);
}

int main(void)
{
	return suite_run();
}
