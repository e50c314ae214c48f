/* SPDX-License-Identifier: Apache-2.0 */
/*
 * COMMITs without a waiter, and those of them that failed. Each failure is reported once, to the
 * thread that sent the COMMIT. The session's receive mutex is held.
 */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/wire.h"

enum { REFUSED_SENDERS = 64, REFUSED_MAX = 4 };

struct refusal {
	int error;	 /* 0: none */
	uint64_t thread; /* 0: the sender is not known any more */
	char text[WIRE_TEXT_MAX + 1];
};

struct refused {
	/* The last sender of each serial modulo the length of the table. */
	struct {
		uint32_t serial;
		uint64_t thread;
	} senders[REFUSED_SENDERS];
	struct refusal list[REFUSED_MAX];
	unsigned next;		/* of the list: the entry to be reused next */
	_Atomic unsigned count; /* failures not reported yet; may be read without the mutex */
};

void refused_sent(struct refused *r, uint32_t serial);
/* Adds a failure. For each thread only the first is kept; with many threads, the latest replace
 * older ones. */
void refused_add(struct refused *r, uint32_t serial, int error, const void *text, size_t size);
/* Returns the error of a failure for this thread and its *@text, which counts as reported then; or
 * 0. */
int refused_take(struct refused *r, const char **text);
/* The session with @old is replaced by a new one, whose threads are told instead. */
void refused_inherit(struct refused *r, const struct refused *old);
