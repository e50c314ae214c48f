/* SPDX-License-Identifier: Apache-2.0 */
/* SIGTERM to the keeper leaves nothing behind, whatever its daemons do just then. */
#include <sys/resource.h>

#include "tests/daemon/adopted_common.h"
#include "tests/harness/process.h"

static const char *const with_keeper[] = { "--keeper", "yes", NULL };

enum { MOMENTS = 10, STEP_US = 1000 };

struct scene {
	struct test_daemon d;
	tl_client *c;
	pid_t pid; /* of the daemon proper */
};

static void begin(struct scene *s)
{
	uint64_t version;

	s->d = td_start(.extra = with_keeper, .expect_ready = true);
	s->c = td_connect(&s->d);
	s->pid = daemon_of(s->c);
	must_be(put(s->c, "a", 1, BYTES, &version), 0);
}

static bool log_has(const struct test_daemon *d, const char *text)
{
	char *log = td_log(d);
	bool has = strstr(log, text);

	free(log);
	return has;
}

static void must_be_gone(struct scene *s)
{
	must_be(td_exit_status(&s->d), 0);
	must_be(td_objects(&s->d), 0);
	must_be(access(s->d.socket, F_OK), -1);
	tl_close(s->c);
}

TEST(a_daemon_that_has_just_died_leaves_nothing)
{
	struct scene s;

	begin(&s);
	process_stop(s.d.keeper); /* it sees both when it goes on */
	must_be(kill(s.pid, SIGKILL), 0);
	must_be(kill(s.d.keeper, SIGTERM), 0);
	must_be(kill(s.d.keeper, SIGCONT), 0);
	must_be_gone(&s);
}

/* It has no daemon, and no descriptors to start one. */
TEST(a_keeper_that_cannot_start_a_daemon_leaves_nothing_when_it_can)
{
	struct rlimit limit, former;
	struct scene s;

	begin(&s);
	must_be(prlimit(s.d.keeper, RLIMIT_NOFILE, NULL, &former), 0);
	limit = (struct rlimit){ .rlim_cur = 3, .rlim_max = former.rlim_max };
	must_be(prlimit(s.d.keeper, RLIMIT_NOFILE, &limit, NULL), 0);
	must_be(kill(s.pid, SIGKILL), 0);
	eventually(log_has(&s.d, "cannot start the daemon"));
	process_stop(s.d.keeper); /* it sees both when it goes on */
	must_be(kill(s.d.keeper, SIGTERM), 0);
	must_be(prlimit(s.d.keeper, RLIMIT_NOFILE, &former, NULL), 0);
	must_be(kill(s.d.keeper, SIGCONT), 0);
	must_be_gone(&s);
}

/* The next daemon may be anywhere: before its main(), adopting, or serving. */
static void stop_after(int number, bool keeper)
{
	for (useconds_t i = 0; i < MOMENTS; i++) {
		struct scene s;

		begin(&s);
		must_be(kill(keeper ? s.d.keeper : s.pid, number), 0);
		usleep(i * STEP_US);
		must_be(kill(s.d.keeper, SIGTERM), 0);
		must_be_gone(&s);
	}
}

TEST(a_restart_after_a_death_can_be_stopped_at_any_moment)
{
	stop_after(SIGKILL, false);
}

TEST(a_restart_that_was_asked_for_can_be_stopped_at_any_moment)
{
	stop_after(SIGUSR2, true);
}

int main(void)
{
	return suite_run();
}
