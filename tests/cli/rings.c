/* SPDX-License-Identifier: Apache-2.0 */
/* What the command line shows of names that have a ring. */
#include <pthread.h>
#include <stdatomic.h>

#include "tests/cli/run.h"

enum { SIZE = 4096, SLOTS = 8 };

static void put(tl_client *client, uint32_t ring)
{
	static unsigned char data[SIZE];
	static const int64_t shape = SIZE;
	const tl_put_options options = { .size = sizeof(options), .ring = ring };
	const DLTensor source = { .data = data,
				  .device = { kDLCPU, 0 },
				  .ndim = 1,
				  .dtype = { kDLUInt, 8, 1 },
				  .shape = (int64_t *)(uintptr_t)&shape };
	uint64_t version;

	must_be(tl_put(client, "r", &source, &options, &version), 0);
}

struct camera {
	tl_client *client;
	_Atomic bool stop;
};

static void *film(void *arg)
{
	struct camera *camera = arg;

	while (!atomic_load(&camera->stop)) {
		put(camera->client, SLOTS);
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	return NULL;
}

static double number(const cJSON *json, const char *key)
{
	const cJSON *item = cJSON_GetObjectItem(json, key);

	must(item);
	return cJSON_IsNumber(item) ? item->valuedouble : -1;
}

/* The camera may rest on a busy machine, while the two looks are taken that show the rate. */
static bool rate_is_seen(const struct test_daemon *d)
{
	cleanup_result struct result json = run(d, "info", "r", "--json");
	cJSON *object = json_of(&json);
	double rate = number(object, "rate");

	must_be(number(object, "ring"), SLOTS);
	must(rate < 1100);
	cJSON_Delete(object);
	return rate > 0;
}

TEST(info_shows_a_ring_its_slots_and_its_rate)
{
	cleanup_td struct test_daemon d = td_start(0);
	struct camera camera = { .client = td_connect(&d) };
	pthread_t thread;

	put(camera.client, SLOTS);
	must_be(pthread_create(&thread, NULL, film, &camera), 0);
	{
		cleanup_result struct result text = run(&d, "info", "r");

		must_exit(&text, 0);
		must_contain(text.out, "ring\t8\n");
		must_contain(text.out, "rate\t");
	}
	eventually(rate_is_seen(&d));
	atomic_store(&camera.stop, true);
	pthread_join(thread, NULL);
	{
		cleanup_result struct result still = run(&d, "info", "r");

		must_contain(still.out, "rate\t0.0\n");
	}
	tl_close(camera.client);
}

TEST(names_without_a_ring_say_nothing_of_one)
{
	cleanup_td struct test_daemon d = td_start(0);
	tl_client *client = td_connect(&d);

	put(client, TL_RING_NONE);
	{
		cleanup_result struct result text = run(&d, "info", "r");
		cleanup_result struct result json = run(&d, "info", "r", "--json");
		cJSON *object = json_of(&json);

		must_exit(&text, 0);
		must(!strstr(text.out, "\nring\t")); /* the publisher is called "rings" */
		must_be(number(object, "ring"), 0);
		cJSON_Delete(object);
	}
	tl_close(client);
}

TEST(status_counts_rings_and_their_slots)
{
	cleanup_td struct test_daemon d = td_start(0);
	tl_client *client = td_connect(&d);

	put(client, SLOTS);
	{
		cleanup_result struct result text = run(&d, "status");
		cleanup_result struct result json = run(&d, "status", "--json");
		cJSON *object = json_of(&json);

		must_contain(text.out, "\nrings\t1\nring_slots\t8\n");
		must_be(number(object, "rings"), 1);
		must_be(number(object, "ring_slots"), SLOTS);
		cJSON_Delete(object);
	}
	must_be(tl_delete(client, "r"), 0);
	{
		cleanup_result struct result text = run(&d, "status");

		must_contain(text.out, "\nrings\t0\nring_slots\t0\n");
	}
	tl_close(client);
}

int main(void)
{
	return suite_run();
}
