/* SPDX-License-Identifier: Apache-2.0 */
/* How tools/run-tests counts what the versions of cmocka print. */
#include "tests/harness/harness.h"

/* "passed failed skipped errors" of a program that printed @text. */
static void must_count(const char *text, const char *counts)
{
	char line[64] = "", command[64];
	char path[] = "/tmp/tl-count-XXXXXX";
	int fd = mkstemp(path);
	FILE *f;

	must(fd >= 0);
	must_be(write(fd, text, strlen(text)), strlen(text));
	close(fd);
	snprintf(command, sizeof(command), "awk -f tools/count-tests %s", path);
	f = popen(command, "r");
	must(f && fgets(line, sizeof(line), f));
	must_be(pclose(f), 0);
	unlink(path);
	assert_string_equal(line, counts);
}

TEST(tests_are_counted_whatever_the_version_of_cmocka)
{
	must_count("[==========] Running 2 test(s).\n" /* 1.1.5 */
		   "[  SKIPPED ] a\n"
		   "[==========] 2 test(s) run.\n"
		   "[  PASSED  ] 0 test(s).\n"
		   "[  SKIPPED ] 2 test(s), listed below:\n"
		   "[  SKIPPED ] a\n",
		   "0 0 2 0\n");
	must_count("[==========] tests: Running 2 test(s).\n" /* 1.1.7, 2.0 */
		   "[  SKIPPED ] a\n"
		   "[==========] tests: 2 test(s) run.\n"
		   "[  PASSED  ] 0 test(s).\n"
		   "[  SKIPPED ] tests: 2 test(s), listed below:\n"
		   "[  SKIPPED ] a\n"
		   "\n 2 SKIPPED TEST(S)\n",
		   "0 0 2 0\n");
	must_count("[  ERROR   ] --- 0\n"
		   "[  FAILED  ] f\n"
		   "[  PASSED  ] 13 test(s).\n"
		   "[  SKIPPED ] tests: 1 test(s), listed below:\n"
		   "[  FAILED  ] tests: 12 test(s), listed below:\n"
		   "[  FAILED  ] f\n",
		   "13 12 1 1\n");
	must_count("", "0 0 0 0\n");
}

int main(void)
{
	return suite_run();
}
