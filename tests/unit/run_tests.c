/* SPDX-License-Identifier: Apache-2.0 */
/* How tools/run-tests judges programs, shown with shell scripts that print what cmocka prints. */
#include <sys/stat.h>

#include "tests/harness/harness.h"

/*
 * Each argument of the runner's is a program with these tests. $HERE outlives a test's $TMPDIR, so
 * that one can fail the first time only.
 */
static const char
	script[] = "#!/bin/sh\n"
		   "if [ -n \"$TL_TEST_LIST\" ]; then echo \"$TESTS\"; exit; fi\n"
		   "ok() { echo \"[       OK ] $TL_TEST_ONLY\"; exit 0; }\n"
		   "fail() { echo \"$1\"; echo \"[  FAILED  ] $TL_TEST_ONLY\"; exit 1; }\n"
		   "first() { mkdir \"$HERE/$TL_TEST_ONLY\" 2>/dev/null; }\n"
		   "case $TL_TEST_ONLY in\n"
		   "good*) ok ;;\n"
		   "skip) echo 'SKIP: no moon'; echo '[  SKIPPED ] skip' ;;\n"
		   "bad) fail 'x.c:1: a is 1, not 2' ;;\n"
		   "flaky*) first && fail 'x.c:1: never: done'; ok ;;\n"
		   "hangs_once) first && sleep 600; ok ;;\n"
		   "late_bytes) first && fail 'x.c:1: never: bytes_used == 0'; ok ;;\n"
		   "bytes) first && fail 'x.c:1: s.bytes_used is 1, not 0 ()'; ok ;;\n"
		   "version) first && fail 'child: x.c:1: version is 1, not 2 ()'; ok ;;\n"
		   "left) first && fail 'left behind: 1 descriptors, 0 shm objects'; ok ;;\n"
		   "crash) first && kill -SEGV $$; ok ;;\n"
		   "sanitizer) first && fail '==1==ERROR: AddressSanitizer: heap'; ok ;;\n"
		   "undefined) first && fail 'x.c:1:2: runtime error: shift'; ok ;;\n"
		   "litter) : >\"$TMPDIR/litter\"; ok ;;\n"
		   "silent) exit 0 ;;\n"
		   "esac\n";

/* Runs the runner on a program with @tests. Returns what it printed; the caller frees it. */
static char *run(const char *tests, const char *environment, const char *arguments, int status)
{
	char dir[128], path[160], command[1024];
	char *text = calloc(1, 64 * KIB);
	FILE *f;

	must(text);
	snprintf(dir, sizeof(dir), "%s/tl-runner-XXXXXX", getenv("TMPDIR") ?: "/tmp");
	must(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/program", dir);
	f = fopen(path, "we");
	must(f && fputs(script, f) >= 0);
	must_be(fclose(f), 0);
	must_be(chmod(path, 0755), 0);
	snprintf(command, sizeof(command),
		 "export HERE='%s' TESTS='%s' SAN= TL_TEST_STRICT= %s; "
		 "tools/run-tests --logs '%s/logs' %s '%s' ${MEMFD:+\"$MEMFD%s\"} 2>&1",
		 dir, tests, environment, dir, arguments, path, path);
	f = popen(command, "r");
	must(f);
	(void)!fread(text, 1, 64 * KIB - 1, f);
	must_be(WEXITSTATUS(pclose(f)), status);
	snprintf(command, sizeof(command), "rm -r '%s'", dir);
	must_be(system(command), 0);
	return text;
}

static void must_say(char *text, const char *what)
{
	if (!strstr(text, what))
		print_error("'%s' is not in:\n%s\n", what, text);
	must(strstr(text, what));
	free(text);
}

/* One test that fails the first time and would pass the second. */
static void must_be_final(const char *test)
{
	char *text = run(test, "", "", 1);

	must(!strstr(text, "FLAKY"));
	must_say(text, "\n0 passed, 1 failed\n");
}

TEST(results_are_counted_and_reasons_shown)
{
	must_say(run("good1 good2 skip", "", "", 0), "\n2 passed, 0 failed, 1 skipped\n");
	must_say(run("skip", "", "", 0), "program:skip: no moon\n");
	must_say(run("good1 bad", "", "", 1), "\n1 passed, 1 failed\n");
	must_say(run("silent good1", "", "", 1), "silent: no result");
	must_say(run("", "", "", 1), "\n0 passed, 1 failed\n");
}

TEST(a_test_that_passes_when_it_runs_again_is_flaky)
{
	must_say(run("flaky1 good1", "", "", 0), "\n2 passed, 0 failed\n");
	must_say(run("flaky1 late_bytes", "", "", 0), "program:late_bytes: exit status 1, then");
	must_say(run("flaky1 flaky2 flaky3", "", "", 0), "\n3 flaky\n");
	must_say(run("flaky1 flaky2 flaky3 flaky4", "", "", 1), "\n4 flaky, and 3 are the limit\n");
	must_say(run("bad", "", "", 1), "program:bad: again\n");
	must_say(run("flaky1", "TL_TEST_STRICT=1", "", 1), "\n0 passed, 1 failed\n");
}

TEST(one_test_that_hangs_costs_that_test_only)
{
	must_say(run("hangs_once good1", "TL_TEST_TIMEOUT=1", "", 0),
		 "program:hangs_once: timed out after 1 s, then");
	must_say(run("hangs_once good1", "TL_TEST_TIMEOUT=1 TL_TEST_STRICT=1", "", 1),
		 "\n1 passed, 1 failed\n");
}

TEST(what_time_cannot_explain_is_not_run_again)
{
	must_be_final("bytes");
	must_be_final("version");
	must_be_final("left");
	must_be_final("crash");
	must_be_final("sanitizer");
	must_be_final("undefined");
	must_say(run("litter", "", "", 1), "left files behind: litter");
}

TEST(one_test_can_be_chosen)
{
	must_say(run("good1 bad", "", "--only program:good", 0), "\n1 passed, 0 failed\n");
	must_say(run("good1 bad", "", "--only 'nothing program:good1'", 0),
		 "\n1 passed, 0 failed\n");
	must_say(run("good1 bad", "", "--only nothing", 1), "no test ran");
	must_say(run("good1 bad", "", "--except program", 1), "no test ran");
	must_say(run("good1 bad", "", "--except program:bad", 0), "\n1 passed, 0 failed\n");
}

/* Each program is given once more, to be run on the other storage. */
TEST(tests_of_one_storage_can_be_left_out)
{
	char *text = run("good1 good2", "MEMFD=memfd:", "--except 'memfd:program:good2'", 0);

	must(strstr(text, "memfd:"));
	must_say(text, "\n3 passed, 0 failed\n");
	must_say(run("good1 good2", "MEMFD=memfd:", "--except memfd:program", 0),
		 "\n2 passed, 0 failed\n");
	must_say(run("good1 good2", "MEMFD=memfd:", "--except memfd:", 0),
		 "\n2 passed, 0 failed\n");
	must_say(run("good1 good2", "MEMFD=memfd:", "--only memfd:program:good1", 0),
		 "\n1 passed, 0 failed\n");
}

int main(void)
{
	return suite_run();
}
