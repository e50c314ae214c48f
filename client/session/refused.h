/* SPDX-License-Identifier: Apache-2.0 */
/*
 * COMMITs that nobody waits for, and those of them that failed: each is told once, to the thread
 * that sent it. The session's receive mutex is held.
 */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/wire.h"

enum { REFUSED_SENDERS = 64, REFUSED_MAX = 4 };

struct refusal {
	int error;	 /* 0: none */
	uint64_t thread; /* 0: it is not known any more */
	char text[WIRE_TEXT_MAX + 1];
};

struct refused {
	/* Who sent what last, at the serial modulo their number. */
	struct {
		uint32_t serial;
		uint64_t thread;
	} senders[REFUSED_SENDERS];
	struct refusal list[REFUSED_MAX];
	unsigned next;		/* of the list, to be used again */
	_Atomic unsigned count; /* that are not told yet; may be read without the mutex */
};

void refused_sent(struct refused *r, uint32_t serial);
/* The first one of a thread is told, and with many threads the latest. */
void refused_add(struct refused *r, uint32_t serial, int error, const void *text, size_t size);
/* The error of one for this thread, which is told by that, and *@text; or 0. */
int refused_take(struct refused *r, const char **text);
