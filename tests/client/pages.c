/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold for pages of any size: these tests are run with large ones, too. */
#include "tests/client/common.h"

enum { SMALL = 40000, LARGE = (2 << 20) + 4096 };

TEST(copies_of_tensors_anywhere_in_a_segment)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	const tl_get_options cow = { .size = sizeof(cow), .mode = TL_MODE_COPY_ON_WRITE };
	DLManagedTensorVersioned *t;
	char name[16];

	for (int i = 1; i <= 8; i++) {
		snprintf(name, sizeof(name), "%d", i);
		put_bytes(client, name, i, SMALL);
		must_be(tl_get(client, name, &cow, &t), 0);
		must(all_bytes(t, i, SMALL));
		memset(t->dl_tensor.data, 99, SMALL);
		drop(t);
		t = get(client, name);
		must(all_bytes(t, i, SMALL));
		drop(t);
	}
	tl_close(client);
}

/* Of this process. */
static unsigned mappings(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned n = 0;
	int c;

	must(maps);
	while ((c = fgetc(maps)) != EOF)
		n += c == '\n';
	fclose(maps);
	return n;
}

static void publish_and_delete(tl_client *client, unsigned times)
{
	int64_t shape[1] = { LARGE };
	const tl_spec spec = { .size = sizeof(spec),
			       .dtype = U8,
			       .ndim = 1,
			       .shape = shape,
			       .flags = TL_CREATE_OWN_PAGES };
	tl_draft *draft;
	uint64_t version;

	while (times--) {
		must_be(tl_create(client, "large", &spec, &draft), 0);
		must_be(tl_commit(draft, &version), 0);
		drop(get(client, "large"));
		must_be(tl_delete(client, "large"), 0);
	}
}

TEST(a_mapping_that_ends_leaves_no_addresses)
{
	enum { FEW = 20 };
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	unsigned before;

	publish_and_delete(client, FEW);
	before = mappings();
	publish_and_delete(client, FEW);
	must(mappings() < before + FEW / 2);
	tl_close(client);
}

int main(void)
{
	return suite_run();
}
