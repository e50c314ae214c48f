/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/harness.h"

enum { SUITE_MAX = 128 };

static struct CMUnitTest suite[SUITE_MAX];
static size_t suite_size;

void suite_add(const struct CMUnitTest *test)
{
	if (suite_size == SUITE_MAX) {
		fprintf(stderr, "%s: a program has at most %d tests\n", test->name, SUITE_MAX);
		abort();
	}
	suite[suite_size++] = *test;
}

static int list_names(void)
{
	for (size_t i = 0; i < suite_size; i++)
		puts(suite[i].name);
	return 0;
}

int suite_run(void)
{
	const char *only = getenv("TL_TEST_ONLY");

	if (getenv("TL_TEST_LIST"))
		return list_names();
	if (only)
		return suite_run_one(only);
	test_init();
	return _cmocka_run_group_tests("tests", suite, suite_size, NULL, NULL);
}

int suite_run_one(const char *name)
{
	test_init();
	for (size_t i = 0; i < suite_size; i++) {
		if (strcmp(suite[i].name, name))
			continue;
		unsetenv("TL_TEST_ONLY"); /* it is not meant for programs that the test starts */
		return _cmocka_run_group_tests("tests", &suite[i], 1, NULL, NULL);
	}
	fprintf(stderr, "no test is called %s\n", name);
	return 1;
}
