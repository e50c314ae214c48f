/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/format.h"
#include "cli/screen.h"
#include "util/clock.h"

#define WHOLE_ON "\033[?1049h\033[?25l" /* the other buffer of the terminal; no cursor */
#define WHOLE_OFF "\033[?25h\033[?1049l"
#define HOME "\033[H"
#define CLEAR_LINE "\033[K"
#define CLEAR_BELOW "\033[J"
#define INVERSE "\033[7m"
#define BOLD "\033[1m"
#define PLAIN "\033[0m"

static volatile sig_atomic_t ended, stopped, resized;
static struct termios before;
static FILE *standard_output;

static void on_signal(int number)
{
	if (number == SIGWINCH)
		resized = 1;
	else if (number == SIGTSTP)
		stopped = 1;
	else
		ended = 1;
}

static void signals_take(bool whole)
{
	const struct sigaction action = { .sa_handler = on_signal }; /* it ends a wait */
	sigset_t ends;

	cli_end_signals(&ends);
	for (int i = 1; i < NSIG; i++) {
		if (sigismember(&ends, i) == 1)
			sigaction(i, &action, NULL);
	}
	sigaction(SIGWINCH, &action, NULL);
	if (whole)
		sigaction(SIGTSTP, &action, NULL);
}

static void size_read(struct screen *screen)
{
	struct winsize size = { 0 };

	ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
	screen->rows = size.ws_row > 1 ? size.ws_row : 24;
	screen->columns = size.ws_col > 1 ? size.ws_col : 80;
}

static void terminal_take(struct screen *screen)
{
	struct termios raw;

	screen->keys = screen->whole && !tcgetattr(STDIN_FILENO, &before);
	if (screen->keys) {
		raw = before;
		raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
		tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
	}
	if (screen->whole)
		fputs(WHOLE_ON, stdout);
	fflush(stdout);
	size_read(screen);
}

/* A signal may have ended a write. That is no failure: what it is about is done next. */
static int flush_screen(void)
{
	const int r = fflush(stdout) ? -errno : 0;

	if (!ended && !stopped && !resized)
		return r;
	clearerr(stdout);
	return r == -EINTR ? 0 : r;
}

static void terminal_give(struct screen *screen)
{
	if (screen->keys)
		tcsetattr(STDIN_FILENO, TCSADRAIN, &before);
	if (screen->whole)
		fputs(WHOLE_OFF, stdout);
	flush_screen();
	fflush(stdout); /* the rest, if a signal has ended that */
}

void screen_enter(struct screen *screen, bool whole)
{
	*screen = (struct screen){ .whole = whole };
	signals_take(whole);
	terminal_take(screen);
}

void screen_leave(struct screen *screen)
{
	terminal_give(screen);
}

/* glibc lets a program assign stdout, so that all that prints can print here. */
void screen_begin(struct screen *screen)
{
	standard_output = stdout;
	stdout = cli_need(open_memstream(&screen->text, &screen->size));
}

/* Prints the line as far as the edge of the terminal. */
static void show_line(const struct screen *screen, const char *line, size_t len)
{
	const bool marked = len && (*line == *SCREEN_INVERSE || *line == *SCREEN_BOLD);
	int columns = 0;

	if (marked)
		fputs(*line == *SCREEN_INVERSE ? INVERSE : BOLD, stdout);
	for (size_t i = marked; i < len; i++) {
		columns += ((unsigned char)line[i] & 0xc0) != 0x80; /* a character begins */
		if (columns > screen->columns)
			break;
		putchar(line[i]);
	}
	fputs(marked ? PLAIN CLEAR_LINE : CLEAR_LINE, stdout);
}

int screen_show(struct screen *screen)
{
	const char *line = cli_need(fclose(stdout) ? NULL : screen->text), *end;
	const unsigned most = (unsigned)screen->rows - 1;
	unsigned shown = 0;

	stdout = standard_output;
	if (screen->whole)
		fputs(HOME, stdout);
	else if (screen->high)
		printf("\033[%uA", screen->high);
	for (; (end = strchr(line, '\n')) != NULL; line = end + 1) {
		if (shown == most)
			continue;
		show_line(screen, line, (size_t)(end - line));
		fputs("\r\n", stdout);
		shown++;
	}
	fputs(CLEAR_BELOW, stdout);
	if (screen->whole) {
		printf("\033[%d;1H", screen->rows);
		show_line(screen, line, strlen(line));
	}
	screen->high = shown;
	free(screen->text);
	screen->text = NULL;
	return flush_screen();
}

/* Stops as a shell expects, with the terminal as it was. */
static void stop(struct screen *screen)
{
	stopped = 0;
	terminal_give(screen);
	raise(SIGSTOP);
	terminal_take(screen);
}

/* The length of the sequence that begins with an escape in @text of @n characters. */
static size_t sequence_length(const char *text, size_t n)
{
	size_t len = 2;

	if (n < 2 || (text[1] != '[' && text[1] != 'O'))
		return n < 2 ? n : 2;
	while (len < n && (text[len] < 0x40 || text[len] > 0x7e))
		len++;
	return len < n ? len + 1 : n;
}

static int key_of(const char *text, size_t len)
{
	static const struct {
		const char *text;
		enum screen_key key;
	} known[] = {
		{ "\033[A", KEY_UP },	{ "\033[B", KEY_DOWN },	    { "\033OA", KEY_UP },
		{ "\033OB", KEY_DOWN }, { "\033[5~", KEY_PAGE_UP }, { "\033[6~", KEY_PAGE_DOWN },
		{ "\033[H", KEY_HOME }, { "\033[F", KEY_LAST },	    { "\033OH", KEY_HOME },
		{ "\033OF", KEY_LAST }, { "\033[1~", KEY_HOME },    { "\033[4~", KEY_LAST },
		{ "\033", KEY_ESCAPE },
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		if (len == strlen(known[i].text) && !memcmp(text, known[i].text, len))
			return known[i].key;
	}
	return *text == '\033' ? KEY_NONE : (unsigned char)*text;
}

/* Takes the next key of what was read. The sequence of a key comes in one piece. */
static int key_take(struct screen *screen)
{
	const size_t size = (size_t)screen->typed_size;
	const size_t len = *screen->typed == '\033' ? sequence_length(screen->typed, size) : 1;
	const int key = key_of(screen->typed, len);

	screen->typed_size -= (ssize_t)len;
	memmove(screen->typed, screen->typed + len, size - len);
	return key;
}

int screen_key(struct screen *screen, int64_t until_ns)
{
	if (screen->typed_size > 0)
		return key_take(screen);
	for (;;) {
		struct pollfd fds[2] = { { .fd = STDOUT_FILENO }, /* its reader may go */
					 { .fd = screen->keys ? STDIN_FILENO : -1,
					   .events = POLLIN } };
		int64_t left = until_ns - now_mono_ns();
		int n = poll(fds, 2, left > 0 ? (int)(left / NS_PER_MS) + 1 : 0);

		if (ended || (n > 0 && fds[0].revents & (POLLERR | POLLHUP)))
			return KEY_STOP;
		if (stopped)
			stop(screen);
		if (resized) {
			resized = 0;
			size_read(screen);
			return KEY_RESIZED;
		}
		if (n == 0)
			return KEY_NONE;
		if (n < 0 || !fds[1].revents)
			continue;
		screen->typed_size = read(STDIN_FILENO, screen->typed, sizeof(screen->typed));
		if (screen->typed_size > 0)
			return key_take(screen);
		if (!screen->typed_size || errno != EINTR)
			screen->keys = false; /* nobody types any more */
	}
}
