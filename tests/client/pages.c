/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold for pages of any size: these tests are run with large ones, too. */
#include <sys/resource.h>
#include <unistd.h>

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

/* True if core dumps of this process have the page there. */
static bool is_dumped(const void *address)
{
	unsigned long at = (unsigned long)address, start, end;
	bool here = false, dumped = true;
	char line[512];
	FILE *f = fopen("/proc/self/smaps", "re");

	must(f);
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			here = at >= start && at < end;
		else if (here && !strncmp(line, "VmFlags:", 8))
			dumped = !strstr(line, " dd");
	}
	fclose(f);
	return dumped;
}

/* Checks a draft, a tensor that was got, and private pages of one. */
static void all_are_dumped(tl_client *client, const char *name, int64_t n, bool dumped)
{
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	tl_get_options private = { .size = sizeof(private), .mode = TL_MODE_COPY_ON_WRITE };
	DLManagedTensorVersioned *t;
	uint64_t version;
	tl_draft *draft;

	must_be(tl_create(client, name, &spec, &draft), 0);
	must_be(is_dumped(tl_draft_tensor(draft)->data), dumped);
	must_be(tl_commit(draft, &version), 0);
	t = get(client, name);
	must_be(is_dumped(t->dl_tensor.data), dumped);
	drop(t);
	must_be(tl_get(client, name, &private, &t), 0);
	*(char *)t->dl_tensor.data = 1;
	must_be(is_dumped(t->dl_tensor.data), dumped);
	drop(t);
}

TEST(core_dumps_have_no_tensors_unless_they_are_wanted)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);

	all_are_dumped(client, "small", 1000, false);
	all_are_dumped(client, "large", 8 * MIB, false); /* with huge pages */
	tl_close(client);
	setenv("TENSORLEASE_DUMP", "1", 1);
	client = td_connect(&d);
	all_are_dumped(client, "wanted", 9 * MIB, true);
	unsetenv("TENSORLEASE_DUMP");
	tl_close(client);
}

static long faults(void)
{
	struct rusage usage;

	must_be(getrusage(RUSAGE_SELF, &usage), 0);
	return usage.ru_minflt;
}

enum { ROWS = 1024, COLUMNS = 2048 };

/* Bytes of each row that depend on its number, and the same without the first column. */
static void sources(unsigned char *bytes, int64_t shape[2], int64_t strides[2], DLTensor out[2])
{
	for (int i = 0; i < ROWS; i++)
		memset(bytes + i * COLUMNS, i % 251, COLUMNS);
	shape[0] = ROWS;
	shape[1] = COLUMNS - 1;
	strides[0] = COLUMNS;
	strides[1] = 1;
	out[0] = (DLTensor){ .data = bytes,
			     .device = { kDLCPU, 0 },
			     .dtype = U8,
			     .ndim = 2,
			     .shape = shape,
			     .strides = strides,
			     .byte_offset = 1 };
	out[1] = out[0];
	out[1].ndim = 1; /* the first column */
}

static void check_rows(tl_client *client, const char *name, int columns)
{
	DLManagedTensorVersioned *t = get(client, name);
	const unsigned char *p = t->dl_tensor.data;

	for (int i = 0; i < ROWS * columns; i++)
		must_be(p[i], i / columns % 251);
	drop(t);
}

static void put_whole(tl_client *client, const char *name, unsigned char *bytes)
{
	int64_t shape[1] = { (int64_t)ROWS * COLUMNS };
	const tl_put_options one = { .size = sizeof(one), .ring = TL_RING_NONE, .threads = 1 };
	const DLTensor whole = {
		.data = bytes, .device = { kDLCPU, 0 }, .dtype = U8, .ndim = 1, .shape = shape
	};

	must_be(tl_put(client, name, &whole, &one, NULL), 0);
	check_rows(client, name, COLUMNS);
}

TEST(copies_into_memory_that_was_never_touched)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	unsigned char *bytes = malloc((size_t)ROWS * COLUMNS);
	const char *const names[] = { "rows", "whole", "column" };
	const tl_put_options one = { .size = sizeof(one), .threads = 1 };
	struct rlimit all, small = { .rlim_cur = MIB };
	int64_t shape[2], strides[2], whole_shape[1] = { (int64_t)ROWS * COLUMNS };
	DLTensor made[2], whole;
	const DLTensor *list[] = { &made[0], &whole, &made[1] };
	unsigned before;
	char name[16];
	long pages = (long)ROWS * COLUMNS / sysconf(_SC_PAGESIZE), faulted;

	must(bytes);
	sources(bytes, shape, strides, made);
	whole = (DLTensor){
		.data = bytes, .device = { kDLCPU, 0 }, .dtype = U8, .ndim = 1, .shape = whole_shape
	};
	before = count_fds(0);
	must_be(tl_put_many(client, names, list, 3, &one), 0);
	check_rows(client, "rows", COLUMNS - 1);
	check_rows(client, "whole", COLUMNS);
	check_rows(client, "column", 1);
	for (int i = 0; i < 8; i++) {
		snprintf(name, sizeof(name), "single%d", i);
		put_whole(client, name, bytes);
	}
	must(count_fds(0) < before + 4); /* that of a prefetched draft may be among them */

	if (!test_on_memfds() && !THREAD_SANITIZER) { /* which has memory for each byte that is read
						       */
		faulted = faults();
		must_be(tl_put(client, "unfaulted", &whole, &one, NULL), 0);
		must(faults() - faulted < pages / 4);
		check_rows(client, "unfaulted", COLUMNS);
	}

	must_be(getrlimit(RLIMIT_FSIZE, &all), 0);
	small.rlim_max = all.rlim_max;
	must_be(setrlimit(RLIMIT_FSIZE, &small), 0); /* beyond it, SIGXFSZ would end this process */
	put_whole(client, "limited", bytes);
	must_be(setrlimit(RLIMIT_FSIZE, &all), 0);
	tl_close(client);
	free(bytes);
}

int main(void)
{
	return suite_run();
}
