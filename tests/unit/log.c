/* SPDX-License-Identifier: Apache-2.0 */
/* The log waits for nobody, and nobody fills it. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/harness/suite.h"
#include "util/log.h"

static int reader, saved;
static char text[1 << 20];

/* Standard error is a pipe until log_end(). */
static void log_begin(void)
{
	int fds[2];

	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	saved = dup(STDERR_FILENO);
	assert_int_equal(dup2(fds[1], STDERR_FILENO), STDERR_FILENO);
	close(fds[1]);
	reader = fds[0];
	assert_int_equal(fcntl(reader, F_SETFL, O_NONBLOCK), 0);
}

static void log_read(void)
{
	size_t length = 0;
	ssize_t n;

	while ((n = read(reader, text + length, sizeof(text) - 1 - length)) > 0)
		length += (size_t)n;
	assert_int_equal(errno, EAGAIN);
	text[length] = '\0';
}

static void log_end(void)
{
	dup2(saved, STDERR_FILENO);
	close(saved);
	close(reader);
}

static unsigned count(const char *what)
{
	unsigned n = 0;

	for (const char *at = text; (at = strstr(at, what)); at++)
		n++;
	return n;
}

PLAIN_TEST(a_log_that_nobody_reads_stops_nobody_and_says_what_was_lost)
{
	enum { LINES = 10000 };
	unsigned written;

	log_begin();
	for (unsigned i = 0; i < LINES; i++)
		log_warn("a line", "number=%u", i);
	log_read();
	written = count("number=");
	assert_in_range(written, 100, LINES - 1);
	assert_int_equal(count("lost"), 0);
	log_warn("again");
	log_warn("and again");
	log_read();
	assert_int_equal(count("msg=again"), 1);
	assert_int_equal(count("were lost"), 1);
	assert_int_equal(strtoul(strstr(text, "lines=") + 6, NULL, 10), LINES - written);
	assert_true(strstr(text, "were lost") < strstr(text, "msg=again"));
	log_end();
}

PLAIN_TEST(a_reader_that_has_gone_stops_nobody)
{
	log_begin();
	close(reader);
	signal(SIGPIPE, SIG_IGN);
	log_warn("to nobody");
	log_warn("to nobody");
	signal(SIGPIPE, SIG_DFL);
	reader = open("/dev/null", O_RDONLY);
	log_end();
}

PLAIN_TEST(one_user_writes_ten_lines_and_the_rest_is_counted)
{
	struct log_limit limit = { 0 }, other = { 0 };

	log_begin();
	for (unsigned i = 0; i < 1000; i++)
		log_warn_limited(&limit, "careless", "number=%u", i);
	log_warn_limited(&other, "another");
	log_read();
	/* one more each second, if this takes so long */
	assert_in_range(count("careless"), 10, 100);
	assert_int_equal(count("another"), 1);
	assert_true(limit.left_out > 800);
	limit.paid_until = 0; /* time has passed */
	log_warn_limited(&limit, "careless");
	log_read();
	assert_int_equal(count("left out"), 1);
	assert_int_equal(count("careless"), 1);
	assert_int_equal(limit.left_out, 0);
	log_end();
}

int main(void)
{
	return suite_run();
}
