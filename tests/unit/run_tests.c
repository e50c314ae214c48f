/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How tools/run-tests and tests/faults/run judge programs, shown with shell scripts that print what
 * cmocka prints.
 */
#include <sys/stat.h>

#include "tests/harness/harness.h"
#include "tests/harness/process.h"
#include "tests/harness/program.h"

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
		   "crashed_child) first && fail 'crashed: a child, by signal 11'; ok ;;\n"
		   "damaged) first && fail 'damaged: tests/inspect says:'; ok ;;\n"
		   "memory) first && fail '1 bytes of 0x55aa and 0x55bb differ'; ok ;;\n"
		   "reported) echo '==1==ERROR: AddressSanitizer: heap'; ok ;;\n"
		   "waits*) echo $$ >\"$HERE/pid\"; exec sleep 600 ;;\n"
		   "litter) : >\"$TMPDIR/litter\"; ok ;;\n"
		   "silent) exit 0 ;;\n"
		   "esac\n";

/* Makes the program, in a directory of its own. */
static void make_program(char dir[PROGRAM_DIR], char path[PROGRAM_DIR + 16])
{
	FILE *f;

	program_directory(dir);
	snprintf(path, PROGRAM_DIR + 16, "%s/program", dir);
	f = fopen(path, "we");
	must(f && fputs(script, f) >= 0);
	must_be(fclose(f), 0);
	must_be(chmod(path, 0755), 0);
}

/* Runs the runner on a program with @tests. Returns what it printed; the caller frees it. */
static char *run(const char *tests, const char *environment, const char *arguments, int status)
{
	char dir[PROGRAM_DIR], path[PROGRAM_DIR + 16], command[4096];
	char *text = calloc(1, 64 * KIB);
	FILE *f;

	must(text);
	make_program(dir, path);
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
	must_say(run("hangs_once good1", "TL_TEST_TIMEOUT=4", "", 0),
		 "program:hangs_once: timed out after 4 s, then");
	must_say(run("hangs_once good1", "TL_TEST_TIMEOUT=4 TL_TEST_STRICT=1", "", 1),
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
	must_be_final("crashed_child");
	must_be_final("damaged");
	must_be_final("memory");
	must_be_final("reported");
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

/* The number that the last test has written, or 0. */
static int pid_of(const char *dir)
{
	char path[PROGRAM_DIR + 8];
	int pid = 0;
	FILE *f;

	snprintf(path, sizeof(path), "%s/pid", dir);
	f = fopen(path, "re");
	if (f && fscanf(f, "%d\n", &pid) != 1)
		pid = 0;
	if (f)
		fclose(f);
	return pid;
}

/* Ends a run whose first test waits for long. */
static void must_end_by(int number)
{
	char dir[PROGRAM_DIR], path[PROGRAM_DIR + 16], command[PROGRAM_DIR + 16];
	int status, pid = 0;
	pid_t runner;

	make_program(dir, path);
	runner = fork();
	must(runner >= 0);
	if (!runner) {
		setenv("HERE", dir, 1);
		setenv("TESTS", "waits1 waits2 waits3", 1);
		setenv("TL_TEST_JOBS", "1", 1);
		setenv("TL_TEST_OWN_SHM", "1", 1); /* it is in that of the tests */
		snprintf(command, sizeof(command), "%s/logs", dir);
		execl("tools/run-tests", "run-tests", "--logs", command, path, NULL);
		_exit(127);
	}
	process_remember(runner);
	eventually((pid = pid_of(dir)));
	must_be(kill(runner, number), 0);
	must_be(process_wait(runner, &status), 0);
	must_be(status, (128 + number) << 8);
	eventually(kill(pid, 0) && errno == ESRCH); /* init may reap it late */
	must_be(pid_of(dir), pid);		    /* no other test was started */
	snprintf(command, sizeof(command), "rm -r '%s'", dir);
	must_be(system(command), 0);
}

/* The runner's own directory is in ours, which must be empty in the end. */
TEST(a_run_that_is_ended_leaves_nothing)
{
	must_end_by(SIGTERM);
	must_end_by(SIGINT);
}

/* Runs tests/faults/run on one case, which says @what and fails, but would pass the second time. */
static char *run_fault(const char *wish, const char *what, int status)
{
	char dir[PROGRAM_DIR], path[PROGRAM_DIR + 32], command[4096];
	char *text = calloc(1, 64 * KIB);
	FILE *f;

	must(text);
	program_directory(dir);
	snprintf(command, sizeof(command), "mkdir -p '%s/tests/faults'", dir);
	must_be(system(command), 0);
	snprintf(path, sizeof(path), "%s/tests/faults/case", dir);
	f = fopen(path, "we");
	must(f);
	fprintf(f, "#!/bin/sh\nmkdir '%s/first' 2>/dev/null || exit 0\necho '%s'\nexit 1\n", dir,
		what);
	must_be(fclose(f), 0);
	must_be(chmod(path, 0755), 0);
	snprintf(command, sizeof(command), "TL_TEST_STRICT= tests/faults/run --build '%s' %s 2>&1",
		 dir, wish);
	f = popen(command, "r");
	must(f);
	(void)!fread(text, 1, 64 * KIB - 1, f);
	must_be(WEXITSTATUS(pclose(f)), status);
	snprintf(command, sizeof(command), "rm -r '%s'", dir);
	must_be(system(command), 0);
	return text;
}

TEST(a_failed_call_that_leads_to_a_crash_or_wrong_bytes_is_not_tried_again)
{
	static const char one[] = "cli:malloc:1/ENOMEM", failed[] = "1 failed, 0 flaky";

	must_say(run_fault(one, "x.c:1: status is 256, not 0 ()", 0),
		 "FLAKY cli:malloc:1/ENOMEM\n");
	must_say(run_fault(one, "crashed: the command line, by signal 11", 1), failed);
	must_say(run_fault(one, "WRONG: get: all(data, 5, 3)", 1), failed);
	must_say(run_fault(one, "child: x.c:1: all_bytes(t, 5, 3)", 1), failed);
	/* the runs that count the calls */
	must_say(run_fault("cli", "x.c:1: status is 256, not 0 ()", 1),
		 "FLAKY cli without a fault: exit status 1\n");
	must_say(run_fault("cli", "crashed: the daemon, by signal 11", 1),
		 "cli without a fault fails: 1\ncrashed: ");
}

int main(void)
{
	return suite_run();
}
