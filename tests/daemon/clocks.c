/* SPDX-License-Identifier: Apache-2.0 */
/* Processes whose clock is not the daemon's: in time namespaces of their own. */
#include "tests/client/common.h"
#include "tests/harness/own_user.h"

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

enum { NO_NAMESPACE = 77 };

static void read_there(const struct test_daemon *d)
{
	tl_client *client = td_connect(d);
	tl_info info = { .size = sizeof(info) };

	must_be(tl_stat(client, "timed", &info), 0);
	must(info.ttl_ns > 3000 * SECOND && info.ttl_ns <= 4000 * SECOND);
	drop(get(client, "first"));
	tl_close(client);
}

static int in_another_time(const struct test_daemon *d, void *offsets)
{
	int status;
	pid_t pid;

	if (unshare(CLONE_NEWTIME) || !write_text("/proc/self/timens_offsets", offsets))
		return NO_NAMESPACE;
	pid = fork();
	must(pid >= 0);
	if (pid == 0) {
		read_there(d);
		_exit(0);
	}
	must_be(waitpid(pid, &status, 0), pid);
	return status ? 1 : 0;
}

/* Gets count in 16.8 ms. */
static void next_tick(void)
{
	int64_t tick = now_ns() >> 24;

	eventually(now_ns() >> 24 > tick + 1);
}

/* False: there are no time namespaces for us. */
static bool lifetimes_with(char *offsets)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 4 * MIB);
	const tl_put_options evictable = { .size = sizeof(evictable),
					   .lifetime = TL_LIFETIME_EVICTABLE };
	const tl_put_options timed = { .size = sizeof(timed), .ttl_ns = 4000 * SECOND };
	tl_client *client = td_connect(&d);
	int status;

	put_as(client, "timed", 1, 100, &timed);
	put_as(client, "first", 1, MIB, &evictable);
	put_as(client, "second", 1, MIB, &evictable);
	status = td_run_client(&d, in_another_time, offsets);
	if (status != NO_NAMESPACE << 8) {
		must_be(status, 0);
		next_tick();
		drop(get(client, "second"));
		put_bytes(client, "new", 1, 2 * MIB);
		must(!client_sees(client, "first") && client_sees(client, "second"));
	}
	tl_close(client);
	return status == 0;
}

#define NO_TIME "needs a time namespace, which root can make since Linux 5.6"

TEST(a_clock_that_is_ahead_changes_no_lifetime)
{
	SKIP_UNLESS(lifetimes_with((char[]){ "monotonic 1000000 0\n" }), NO_TIME);
}

TEST(a_clock_that_is_behind_changes_no_lifetime)
{
	SKIP_UNLESS(lifetimes_with((char[]){ "monotonic -10 0\n" }), NO_TIME);
}

TEST(what_was_used_of_late_may_stay)
{
	static const char *const names[] = { "a", "b", "c", "d" };
	cleanup_td struct test_daemon d = td_start(.capacity = 4 * MIB);
	tl_client *client = td_connect(&d);
	tl_put_options o = { .size = sizeof(o), .lifetime = TL_LIFETIME_EVICTABLE };
	unsigned char *data = calloc(1, MIB);
	int64_t shape = MIB;
	DLTensor t = bytes_tensor(data, &shape);
	const tl_spec spec = { .size = sizeof(spec),
			       .shape = &shape,
			       .ndim = 1,
			       .dtype = U8,
			       .evict_idle_s = UINT32_MAX };
	tl_draft *draft;

	must(data);
	for (unsigned i = 0; i < 4; i++)
		put_as(client, names[i], 1, MIB, &o);
	o.evict_idle_s = 1000;
	for (unsigned i = 0; i < 3; i++)
		must_be(tl_put(client, "new", &t, &o, NULL), -ENOSPC);
	must_be(tl_create(client, "new", &spec, &draft), -ENOSPC);
	for (unsigned i = 0; i < 4; i++)
		must(client_sees(client, names[i]));
	o.evict_idle_s = 0;
	must_be(tl_put(client, "new", &t, &o, NULL), 0);
	must(!client_sees(client, "a"));
	free(data);
	tl_close(client);
}

int main(void)
{
	return suite_run();
}
