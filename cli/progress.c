/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/format.h"
#include "cli/out.h"
#include "cli/progress.h"
#include "util/clock.h"

enum { COLUMNS = 80 };

void progress_start(struct progress *progress, const char *what, const char *name)
{
	*progress = (struct progress){ .what = what, .name = name, .started_ns = now_mono_ns() };
}

static volatile sig_atomic_t ended_by;

static void on_end_signal(int number)
{
	ended_by = number;
}

static void on_end_signals(void (*handler)(int))
{
	const struct sigaction action = { .sa_handler = handler }; /* it ends a wait */
	sigset_t ends;

	cli_end_signals(&ends);
	for (int i = 1; i < NSIG; i++) {
		if (sigismember(&ends, i) == 1)
			sigaction(i, &action, NULL);
	}
}

void progress_start_file(struct progress *progress, const char *what, const char *name)
{
	progress_start(progress, what, name);
	progress->writes = true;
	on_end_signals(on_end_signal);
}

int progress_interrupted(void *context)
{
	(void)context;
	return ended_by ? -EINTR : 0;
}

/*
 * Prints one line, whatever the width of the terminal. If the name is too long, its end is shown.
 */
static void print_line(const struct progress *p, const char *numbers)
{
	char *name = format_printable(p->name, strlen(p->name)), *from = name;
	size_t columns = COLUMNS, taken = strlen(p->what) + strlen(numbers) + strlen(" ...: ");
	struct winsize size;

	if (!ioctl(STDERR_FILENO, TIOCGWINSZ, &size) && size.ws_col)
		columns = size.ws_col;
	while (*from && format_columns(from) + taken >= columns)
		from++;
	while ((*from & 0xc0) == 0x80) /* skip the rest of a split character */
		from++;
	fprintf(stderr, "\r%s %s%s: %s\033[K", p->what, from > name ? "..." : "", from, numbers);
	free(name);
}

int progress_step(void *context, uint64_t done, uint64_t total)
{
	struct progress *p = context;
	char *of, *so_far, *speed, *numbers;
	int64_t now = now_mono_ns(), spent = now - p->started_ns;

	if (p->writes && ended_by)
		return -EINTR;
	if (spent < NS_PER_SEC || now - p->shown_ns < NS_PER_SEC / 10 || !isatty(STDERR_FILENO))
		return 0;
	so_far = format_size(done, true);
	of = format_size(total, true);
	speed = format_size((uint64_t)((double)done * NS_PER_SEC / (double)spent), true);
	numbers = cli_text("%s of %s (%u %%), %s/s", so_far, of,
			   total ? (unsigned)(100.0 * (double)done / (double)total) : 100, speed);
	print_line(p, numbers);
	free(numbers);
	free(so_far);
	free(of);
	free(speed);
	p->shown_ns = now;
	p->shown = true;
	return 0;
}

void progress_end(struct progress *progress)
{
	if (progress->shown)
		fputs("\r\033[K", stderr);
	progress->shown = false;
	if (!progress->writes)
		return;
	on_end_signals(SIG_DFL);
	if (ended_by)
		raise(ended_by);
}
