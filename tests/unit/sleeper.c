/* SPDX-License-Identifier: Apache-2.0 */
/* When a wait takes itself for robbed of its wake. */
#include "client/connection/client.h"
#include "client/read/sleep.h"
#include "tests/harness/harness.h"

static tl_client client;

static struct sleeper after_a_sleep(void)
{
	struct sleeper sl = { .client = &client };

	atomic_store(&client.wary, 0);
	sleeper_begin(&sl, SECOND);
	return sl;
}

TEST(a_late_wake_makes_wary)
{
	struct sleeper sl = after_a_sleep();
	struct wake_word wake = { .published_ns = (uint64_t)sl.began };

	sl.looked = sl.began + 30 * (SECOND / 1000);
	sleeper_found(&sl, &wake, 0);
	must(atomic_load(&client.wary));
}

/* Its segment was mapped, or its producer's GPU waited for. */
TEST(what_a_get_does_after_its_wake_does_not_count)
{
	struct sleeper sl = after_a_sleep();
	struct wake_word wake = { .published_ns = (uint64_t)sl.began };
	int64_t start;

	sleeper_looked(&sl);
	sl.looked = sl.looked < sl.began + 10 * (SECOND / 1000) ? sl.looked : sl.began; /* a busy
											   machine
											 */
	start = now_ns();
	eventually(now_ns() - start > 30 * (SECOND / 1000));
	sleeper_found(&sl, &wake, 0);
	must_be(atomic_load(&client.wary), 0);
}

int main(void)
{
	return suite_run();
}
