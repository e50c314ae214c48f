/* SPDX-License-Identifier: Apache-2.0 */
/*
 * COMMITs without a waiter: which of them the daemon may not have processed yet, and which failed.
 * Each failure is reported once, to the thread that sent the COMMIT. The session's receive mutex is
 * held.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/wire.h"
#include "tensor/limits.h"

enum { REFUSED_SENDERS = 64, REFUSED_THREADS = 64 };

/* A thread with such a COMMIT. The daemon processes messages in order, so what shows that the last
 * one was processed shows that of the former ones too. */
struct committer {
	uint64_t thread; /* 0: several, or it is not known any more */
	uint32_t newest; /* an answer to a later serial shows it; 0: it was processed */
	uint32_t own;	 /* an answer to this serial shows it, too; 0: there is none */
	int error;	 /* of its first failure that was not reported yet; 0: none */
	char name[TENSOR_NAME_MAX + 1]; /* of the last COMMIT */
	char text[WIRE_TEXT_MAX + 1];	/* of the error */
};

struct refused {
	/* The last sender of each serial modulo the length of the table. */
	struct {
		uint32_t serial;
		uint64_t thread;
	} senders[REFUSED_SENDERS];
	struct committer *threads; /* REFUSED_THREADS at most; free ones are used again */
	unsigned nthreads;
	struct committer others; /* all further threads together */
	_Atomic unsigned count;	 /* failures not reported yet; may be read without the mutex */
};

/* True if @serial was taken after @other. They have 31 bits and wrap around. */
static inline bool serial_is_later(uint32_t serial, uint32_t other)
{
	return (int32_t)((serial - other) << 1) > 0;
}

/* To be called before this thread sends the COMMIT with @serial. */
void refused_sending(struct refused *r, uint32_t serial);
/* To be called when it was sent. The others are as in struct committer. */
void refused_sent(struct refused *r, uint32_t newest, uint32_t own, const char *name);
/* An answer with @serial has come. */
void refused_answered(struct refused *r, uint32_t serial);
/* Adds a failure, of the COMMIT with @serial. For each thread only the first is kept. */
void refused_add(struct refused *r, uint32_t serial, int error, const void *text, size_t size);
/* The connection has ended: the COMMIT with @serial may be lost. */
void refused_lost(struct refused *r, uint32_t serial, const char *name);
/* The same for all that were sent and may not have been processed. */
void refused_lost_all(struct refused *r);
/* Returns the error of a failure for this thread and its *@text, which counts as reported then; or
 * 0. */
int refused_take(struct refused *r, const char **text);
/* The session with @old, which keeps none, is replaced by a new one, whose threads are told
 * instead. */
void refused_inherit(struct refused *r, struct refused *old);
/* Forgets all. */
void refused_reset(struct refused *r);
