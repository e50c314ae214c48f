/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tests of a program. Each registers itself where it is written, and they run in that order.
 *
 *	TEST(a_name_that_is_a_sentence)
 *	{
 *		must_be(1 + 1, 2);
 *	}
 *
 *	int main(void)
 *	{
 *		return suite_run();
 *	}
 *
 * TEST() is in harness.h. A file whose tests need another set-up and tear-down defines a macro like
 * it with TEST_WITH().
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* A test with nothing before or after it. */
#define PLAIN_TEST(name) TEST_WITH(name, NULL, NULL)

/* A test with cmocka's @set_up before it and @tear_down after it. */
#define TEST_WITH(name, set_up, tear_down)                                                         \
	static void name(void **test_state);                                                       \
	__attribute__((constructor)) static void register_##name(void)                             \
	{                                                                                          \
		suite_add(&(const struct CMUnitTest)cmocka_unit_test_setup_teardown(name, set_up,  \
										    tear_down));   \
	}                                                                                          \
	static void name(__attribute__((unused)) void **test_state)

/* Copies @test to the end of the program's tests. */
void suite_add(const struct CMUnitTest *test);

/*
 * Runs all tests of the program and returns how many failed. With $TL_TEST_ONLY it runs the one
 * test of that name, and with $TL_TEST_LIST it prints the names and runs none. tools/run-tests uses
 * both, so that each test has a process of its own.
 */
int suite_run(void);

/* Runs the one test that is called @name. Returns 1 if there is none. */
int suite_run_one(const char *name);
