/* SPDX-License-Identifier: Apache-2.0 */
/* Which characters of foreign text are shown as they are, and how the others are escaped. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "client/error.h"
#include "tests/harness/suite.h"
#include "util/log.h"
#include "util/text.h"

PLAIN_TEST(what_can_be_seen_stays_as_it_is)
{
	static const char *const texts[] = { "",	   "cam0/rgb",
					     "a b\\\"",	   "\u00e4\u65e5\u672c",
					     "\U0001f4f7", "\u0301" };
	char out[64];

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		text_escape(out, sizeof(out), texts[i], strlen(texts[i]));
		assert_string_equal(out, texts[i]);
	}
}

PLAIN_TEST(what_cannot_is_escaped_once)
{
	static const char *const texts[][2] = {
		{ "\033[31m", "\\x1b[31m" },
		{ "a\nb\x7f", "a\\x0ab\\x7f" },
		{ "\xc2\x9b", "\\xc2\\x9b" },	     /* a C1 control */
		{ "a\u202eb", "a\\xe2\\x80\\xaeb" }, /* turns the rest of a line around */
		{ "a\u200bb", "a\\xe2\\x80\\x8bb" }, /* is no wider than nothing */
		{ "a\u2028\u2029", "a\\xe2\\x80\\xa8\\xe2\\x80\\xa9" }, /* ends a line, or a
									   paragraph */
		{ "\U000e0041", "\\xf3\\xa0\\x81\\x81" },		/* a tag */
		{ "\xff\xc3", "\\xff\\xc3" },				/* no UTF-8 */
		{ "\xed\xa0\x80", "\\xed\\xa0\\x80" },			/* half of a pair */
		{ "\xc0\xaf", "\\xc0\\xaf" }, /* longer than it has to be */
	};
	char out[64], again[64];

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		text_escape(out, sizeof(out), texts[i][0], strlen(texts[i][0]));
		assert_string_equal(out, texts[i][1]);
		text_escape(again, sizeof(again), out, strlen(out));
		assert_string_equal(again, out);
	}
}

PLAIN_TEST(it_is_cut_between_characters)
{
	static const char text[] = "a\u202e\u65e5";
	static const char *const cut[] = { "",	     "a",      "a",	 "a",	   "a",
					   "a\\xe2", "a\\xe2", "a\\xe2", "a\\xe2", "a\\xe2\\x80" };
	char out[16];

	for (size_t size = 1; size <= 10; size++) {
		memset(out, '#', sizeof(out));
		text_escape(out, size, text, strlen(text));
		assert_string_equal(out, cut[size - 1]);
		assert_int_equal(out[size], '#');
	}
}

PLAIN_TEST(logs_and_failures_show_names_like_that)
{
	char out[64], small[8];

	assert_string_equal(log_quote(out, sizeof(out), "\u65e5"), "\u65e5");
	assert_string_equal(log_quote(out, sizeof(out), ""), "\"\"");
	assert_string_equal(log_quote(out, sizeof(out), "a\"\n\u202e"),
			    "\"a\\\"\\n\\xe2\\x80\\xae\"");
	assert_string_equal(log_quote(out, sizeof(out), "a\xc2\x85"), "\"a\\xc2\\x85\"");
	assert_string_equal(log_quote(small, sizeof(small), "abcdefghij"), "\"ab...\"");
	tl_fail(-1, "'%s' and '%s'", "\u2066", "\u00e4");
	assert_string_equal(tl_failure_text(), "'\\xe2\\x81\\xa6' and '\u00e4'");
}

int main(void)
{
	return suite_run();
}
