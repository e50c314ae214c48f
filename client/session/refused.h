/* SPDX-License-Identifier: Apache-2.0 */
/*
 * COMMITs without a waiter: which of them the daemon may not have processed yet, and which failed.
 * Each failure is reported once, to the thread that sent the COMMIT, or to any if that has ended.
 * The session's receive mutex is held.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "proto/wire.h"
#include "tensor/limits.h"

enum { REFUSED_THREADS = 64 };

/* A COMMIT that the daemon may not have processed yet. */
struct unanswered_commit {
	uint32_t serial;
	uint32_t newest;    /* an answer to a later serial shows it; 0: it is being sent */
	uint32_t own;	    /* an answer to this serial shows it, too */
	unsigned committer; /* the number of its thread's entry */
	char name[TENSOR_NAME_MAX + 1];
};

/* A thread with such a COMMIT. */
struct committer {
	uint64_t thread;	      /* 0: several */
	pid_t tid;		      /* of the thread: the kernel's number, which it uses again */
	unsigned unanswered;	      /* its COMMITs that the daemon may not have processed yet */
	int error;		      /* of its first failure that was not reported yet; 0: none */
	char text[WIRE_TEXT_MAX + 1]; /* of the error */
};

struct refused {
	struct unanswered_commit *commits; /* no more than a client may have drafts */
	unsigned ncommits, max_commits;
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
void refused_sending(struct refused *r, uint32_t serial, const char *name);
/* To be called when it was sent, or could not be. The others are as in struct unanswered_commit. */
void refused_sent(struct refused *r, uint32_t serial, uint32_t newest, uint32_t own);
void refused_unsent(struct refused *r, uint32_t serial);
/* An answer with @serial has come. */
void refused_answered(struct refused *r, uint32_t serial);
/* Adds a failure, of the COMMIT with @serial. For each thread only the first is kept. */
void refused_add(struct refused *r, uint32_t serial, int error, const void *text, size_t size);
/* The connection has ended: all that may not have been processed may be lost. */
void refused_lost_all(struct refused *r);
/* Returns the error of a failure for this thread and its *@text, which counts as reported then; or
 * 0. */
int refused_take(struct refused *r, const char **text);
/* The session with @old, which has ended and keeps none, is replaced by a new one, whose threads
 * are told instead. */
void refused_inherit(struct refused *r, struct refused *old);
/* Forgets all. */
void refused_reset(struct refused *r);
