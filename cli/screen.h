/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text on a terminal that changes in place. The escape sequences are those that every terminal of
 * today has, so neither ncurses nor its database of terminals is needed, which a wheel would have
 * to bring along. One screen at a time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Begin a line: it is shown inverse, or bold. format_printable() lets neither into foreign text. */
#define SCREEN_INVERSE "\001"
#define SCREEN_BOLD "\002"

enum screen_key {
	KEY_NONE = 0x100, /* the time is over; others are characters */
	KEY_STOP,	  /* a signal asks this command to end, or nobody sees the screen */
	KEY_RESIZED,
	KEY_ESCAPE,
	KEY_UP,
	KEY_DOWN,
	KEY_PAGE_UP,
	KEY_PAGE_DOWN,
	KEY_HOME,
	KEY_LAST,
};

struct screen {
	int rows, columns;
	bool whole;    /* all of the terminal, which shows again what it did when this ends */
	bool keys;     /* standard input is a terminal */
	unsigned high; /* lines that are shown; unless `whole` */
	char *text;    /* being drawn */
	size_t size;
	char typed[16]; /* and not taken yet */
	ssize_t typed_size;
};

/* Takes the terminal. @whole: all of it, with keys; else the lines below the cursor. */
void screen_enter(struct screen *screen, bool whole);
void screen_leave(struct screen *screen);

/* From here to screen_show(), what is printed on standard output goes to the screen. */
void screen_begin(struct screen *screen);
/* Shows it, clipped to the terminal. Returns 0 or a negative errno. */
int screen_show(struct screen *screen);

/* Waits until the time @until_ns (CLOCK_MONOTONIC) for a key. Returns a character or KEY_*. */
int screen_key(struct screen *screen, int64_t until_ns);
