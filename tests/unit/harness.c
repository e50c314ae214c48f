/* SPDX-License-Identifier: Apache-2.0 */
/* What the harness notices of crashes. Children show it, since a failed must() ends them. */
#include <fcntl.h>

#include "tests/harness/harness.h"
#include "tests/harness/log.h"

enum { FAILED = 97 << 8 };

static int look(const struct test_daemon *d, void *dir)
{
	(void)d;
	log_must_have_no_crash(dir);
	return 0;
}

/* The status of a child that looks at a daemon's log with @text after very much of other text. */
static int looked(const char *text)
{
	char dir[128], path[160];
	const char *tmp = getenv("TMPDIR");
	int status;
	FILE *f;

	snprintf(dir, sizeof(dir), "%s/tl-log-XXXXXX", tmp ? tmp : "/tmp");
	must(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/log", dir);
	f = fopen(path, "we");
	must(f);
	for (int i = 0; i < 10000; i++)
		must(fputs("info: a client has come\n", f) >= 0);
	must(fputs(text, f) >= 0);
	must_be(fclose(f), 0);
	status = td_run_client(NULL, look, dir);
	must_be(unlink(path), 0);
	must_be(rmdir(dir), 0);
	return status;
}

TEST(a_crash_is_found_wherever_it_is_in_the_log)
{
	must_be(looked(""), 0);
	must_be(looked("warn: the daemon died; starting another one "
		       "why=\"killed by signal 9 (Killed)\"\n"),
		0);
	must_be(looked("warn: the daemon died; starting another one "
		       "why=\"killed by signal 11 (Segmentation fault)\"\n"),
		FAILED);
	must_be(looked("error: the new program does not serve; going back to the one before "
		       "path=/a why=\"killed by signal 6 (Aborted)\"\n"),
		FAILED);
}

TEST(a_sanitizers_report_in_the_log_is_found)
{
	/* in two parts, since tools/run-tests looks for them in the output of this test */
	must_be(looked("==1==ERROR: Address"
		       "Sanitizer: heap-use-after-free\n"),
		FAILED);
	must_be(looked("a.c:1:2: runtime "
		       "error: shift\n"),
		FAILED);
}

static int ends(const struct test_daemon *d, void *signal_number)
{
	(void)d;
	if (signal_number)
		raise(*(int *)signal_number);
	return 0;
}

static int kills(const struct test_daemon *d, void *signal_number)
{
	struct test_child c = child_start(d, ends, signal_number);
	siginfo_t info;

	must_be(waitid(P_PID, (id_t)c.pid, &info, WEXITED | WNOWAIT), 0);
	child_kill(&c);
	return 0;
}

TEST(a_child_that_is_to_be_killed_must_not_have_ended)
{
	int number = SIGSEGV;

	must_be(td_run_client(NULL, kills, NULL), FAILED);
	must_be(td_run_client(NULL, kills, &number), FAILED);
	number = SIGKILL;
	must_be(td_run_client(NULL, kills, &number), 0);
}

int main(void)
{
	return suite_run();
}
