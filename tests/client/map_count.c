/* SPDX-License-Identifier: Apache-2.0 */
/* A process may have only so many mappings, and may use more tensors than that. */
#include <sys/mman.h>

#include "client/connection/client.h"
#include "tests/client/common.h"

enum { TENSORS = 300, SPARE = 150 };
#define SIZE ((int64_t)100 << 10) /* each has a segment of its own */

static unsigned long number_in(const char *path, bool lines)
{
	FILE *f = fopen(path, "re");
	unsigned long n = 0;
	int c;

	must(f);
	if (!lines)
		must_be(fscanf(f, "%lu", &n), 1);
	while (lines && (c = fgetc(f)) != EOF)
		n += c == '\n';
	fclose(f);
	return n;
}

/* Leaves the process so many mappings. */
static void leave_mappings(unsigned spare)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	unsigned long most = number_in("/proc/sys/vm/max_map_count", false), n;
	char *p;

	n = most - number_in("/proc/self/maps", true) - spare;
	p = mmap(NULL, (n + 1) * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
		 0);
	must(p != MAP_FAILED);
	for (unsigned long i = 1; i < n; i += 2) /* each splits one into three */
		must_be(mprotect(p + i * page, page, PROT_READ), 0);
}

static void put_filled(tl_client *client, const char *name, int byte, const tl_put_options *o)
{
	static unsigned char bytes[SIZE];
	const int64_t n = SIZE;
	DLTensor t = bytes_tensor(bytes, &n);
	uint64_t version;

	memset(bytes, byte, sizeof(bytes));
	must_be(tl_put(client, name, &t, o, &version), 0);
}

static void must_be_filled(tl_client *client, const char *name, int byte)
{
	DLManagedTensorVersioned *t;

	must_be(tl_get(client, name, NULL, &t), 0);
	for (int64_t i = 0; i < SIZE; i++)
		must_be(((const unsigned char *)t->dl_tensor.data)[i], byte);
	t->deleter(t);
}

static int uses_many(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	DLManagedTensorVersioned *held;
	char name[16];

	(void)arg;
	put_filled(client, "held", 99, NULL);
	must_be(tl_get(client, "held", NULL, &held), 0);
	leave_mappings(SPARE);
	for (int round = 0; round < 2; round++) { /* a third one would make rings */
		for (int i = 0; i < TENSORS; i++) {
			snprintf(name, sizeof(name), "t%d", i);
			put_filled(client, name, i % 251 + round, NULL);
			must_be_filled(client, name, i % 251 + round);
		}
		for (int i = 0; i < TENSORS; i++) {
			snprintf(name, sizeof(name), "t%d", i);
			must_be_filled(client, name, i % 251 + round);
		}
	}
	must_be(((const unsigned char *)held->dl_tensor.data)[SIZE - 1], 99);
	held->deleter(held);
	must_be(tl_close(client), 0);
	return 0;
}

TEST(a_process_uses_more_tensors_than_it_may_have_mappings)
{
	SKIP_UNLESS(!SANITIZED, "a sanitizer needs mappings of its own");
	SKIP_UNLESS(number_in("/proc/sys/vm/max_map_count", false) <= 1 << 20,
		    "this process may have very many mappings");
	cleanup_td struct test_daemon d = td_start(.capacity = 128 * MIB);

	must_be(td_run_client(&d, uses_many, NULL), 0);
}

struct crowd {
	tl_client *client;
	_Atomic unsigned turn; /* to seed the threads */
	_Atomic bool stop;
};

enum { NAMES = 30, MOST = 8 };

static void *gets_any(void *arg)
{
	struct crowd *crowd = arg;
	unsigned seed = atomic_fetch_add(&crowd->turn, 1);
	DLManagedTensorVersioned *t;
	const unsigned char *data;
	char name[16];

	while (!atomic_load(&crowd->stop)) {
		int i = rand_r(&seed) % NAMES;

		snprintf(name, sizeof(name), "t%d", i);
		must_be(tl_get(crowd->client, name, NULL, &t), 0);
		data = t->dl_tensor.data;
		must(data[0] == i && data[SIZE - 1] == i);
		t->deleter(t);
	}
	return NULL;
}

/* Each get may find that its mapping has just been let go, and each put that of its space. */
TEST(mappings_come_and_go_beside_other_threads)
{
	cleanup_td struct test_daemon d = td_start();
	const tl_put_options o = { .size = sizeof(o), .ring = TL_RING_NONE };
	struct crowd crowd = { .client = td_connect(&d) };
	pthread_t threads[3];
	char name[16];

	atomic_load(&crowd.client->session)->mappings.most = MOST;
	for (int round = 0; round < 10; round++) {
		for (int i = 0; i < NAMES; i++) {
			snprintf(name, sizeof(name), "t%d", i);
			put_filled(crowd.client, name, i, &o);
		}
		for (int i = 0; !round && i < 3; i++)
			must_be(pthread_create(&threads[i], NULL, gets_any, &crowd), 0);
	}
	atomic_store(&crowd.stop, true);
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	must(atomic_load(&crowd.client->session)->mappings.count <= 4 * MOST);
	must_be(tl_close(crowd.client), 0);
}

int main(void)
{
	return suite_run();
}
