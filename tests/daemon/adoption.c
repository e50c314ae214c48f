/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adoption of much: tensors in small segments, tensors with segments of their own, and clients that
 * hold some of them. It prints how long it took. TL_TEST_ADOPT=100000 is how many tensors there
 * are; a thirtieth of them are large, and a hundredth of that number clients. TL_TEST_ADOPT_KILLS
 * is how many daemons are killed one after the other.
 */
#include "tests/harness/number.h"

enum { LARGE = 70000 };

static uint64_t put(struct raw *rc, unsigned n)
{
	struct wire_draft draft;
	char name[32];

	snprintf(name, sizeof(name), "adopted/%u", n);
	must_be(rc_put(rc, name, n % 30 ? 64 : LARGE, (int)(n % 250), &draft), 0);
	return draft.ref;
}

/* How long it has run, in milliseconds. */
static long long cpu_ms(pid_t pid)
{
	char path[64];
	long long ns = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/schedstat", (int)pid);
	f = fopen(path, "re");
	if (f && fscanf(f, "%lld", &ns) != 1)
		ns = 0;
	if (f)
		fclose(f);
	return ns / 1000000;
}

static pid_t served_by(const struct test_daemon *d)
{
	struct raw rc;
	pid_t pid = 0;

	if (!rc_try_open(&rc, d->socket, RAW_READY, 0)) {
		pid = (pid_t)rc.catalog->daemon_pid;
		rc_close(&rc);
	}
	return pid;
}

/* Kills the daemon. Returns when another one serves, and how many nanoseconds that took. */
static uint64_t kill_one(const struct test_daemon *d, pid_t *pid)
{
	pid_t next = 0;
	int64_t from = now_ns();

	must_be(kill(*pid, SIGKILL), 0);
	eventually((next = served_by(d)) && next != *pid);
	*pid = next;
	return (uint64_t)(now_ns() - from);
}

TEST(much_is_adopted)
{
	static const char *const with_keeper[] = { "--keeper", "yes", NULL };
	unsigned tensors = test_number("TL_TEST_ADOPT", 3000), clients = tensors / 100;
	unsigned kills = test_number("TL_TEST_ADOPT_KILLS", 3);
	struct test_daemon d;
	struct raw *rcs = calloc(clients, sizeof(*rcs));
	uint64_t *ns = calloc(kills, sizeof(*ns));
	pid_t pid;

	test_timeout(400 + (int)kills * 2);
	must(rcs && ns);
	setenv("TENSORLEASE_KEEPER_IMMORTAL", "1", 1);
	d = td_start(.extra = with_keeper, .capacity = 8192 * MIB, .max_clients = clients + 24);
	unsetenv("TENSORLEASE_KEEPER_IMMORTAL");
	pid = served_by(&d);
	for (unsigned i = 0; i < clients; i++)
		rcs[i] = rc_open(&d);
	for (unsigned n = 0; n < tensors; n++)
		must(rc_hold(&rcs[n % clients], put(&rcs[n % clients], n)));
	for (unsigned i = 0; i < kills; i++) {
		ns[i] = kill_one(&d, &pid);
		must_be(td_status(&d).tensors, tensors);
	}
	print_message("%u tensors of %u clients, the last time %lld ms on a CPU\n", tensors,
		      clients, cpu_ms(pid));
	times_print("kills: served again", ns, kills);
	for (unsigned i = 0; i < clients; i++)
		rc_close(&rcs[i]);
	free(rcs);
	free(ns);
	td_stop(&d);
}

int main(void)
{
	return suite_run();
}
