/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "cli/format.h"
#include "cli/progress.h"

#define SECOND 1000000000LL

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * SECOND + t.tv_nsec;
}

void progress_start(struct progress *progress, const char *what, const char *name)
{
	*progress = (struct progress){ .what = what, .name = name, .started_ns = now_ns() };
}

int progress_step(void *context, uint64_t done, uint64_t total)
{
	struct progress *p = context;
	char *of, *so_far, *speed;
	int64_t now = now_ns(), spent = now - p->started_ns;

	if (spent < SECOND || now - p->shown_ns < SECOND / 10 || !isatty(STDERR_FILENO))
		return 0;
	so_far = format_size(done, true);
	of = format_size(total, true);
	speed = format_size((uint64_t)((double)done * SECOND / (double)spent), true);
	fprintf(stderr, "\r%s %s: %s of %s (%u %%), %s/s\033[K", p->what, p->name, so_far, of,
		total ? (unsigned)(100.0 * (double)done / (double)total) : 100, speed);
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
}
