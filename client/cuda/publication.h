/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publications: a tensor that this process published in one of its exports. A publication keeps
 * what it was published from until nobody holds the tensor any more and the GPU work that writes it
 * has ended; then `done` is called, on the library's thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <tensorlease/tensorlease.h>

#include "client/cuda/event.h"
#include "client/cuda/export.h"

struct cuda_publication {
	struct list link;	/* in its export's publications */
	struct list queue_link; /* of the thread */
	struct list known_link; /* by its address, from before it is published until it is freed */
	struct cuda_export *export;
	struct cuda_event *event; /* NULL: none */
	uint64_t ref;		  /* 0: the daemon has not said yet, or it was not published */
	uint32_t serial;	  /* of PLACE; 0: not sent */
	bool publisher_owned;	  /* of its publisher: nobody else ends it */
	bool freed;		  /* nobody holds it */
	bool finished;		  /* its work has ended: the event need not be waited for */
	bool notified;		  /* FINISHED was sent, or needs not be */
	CUresult failure;	  /* of that work; CUDA_OK: none */
	void (*done)(void *context);
	void *context;
};

/* What is to be published. */
struct cuda_placing {
	const DLTensor *as; /* dtype, ndim and shape */
	uint64_t flags;	    /* DLPack's */
	uint64_t offset;    /* in the memory */
	const char *name;
	size_t name_len;
	const void *metadata;
	size_t metadata_size;
	intptr_t stream;		    /* TL_STREAM_NONE: it is written already */
	const unsigned char *foreign_event; /* somebody else's handle, instead of the stream */
};

/*
 * A publication in an export of @memory: one that there is, or a new one, for which @open(@context)
 * makes what opens it elsewhere. To be given to cuda_place(). As cuda_export_new().
 */
struct cuda_opening {
	int (*open)(struct cuda_opening *o); /* NULL: memory->handle is there */
	struct cuda_memory *memory;
	const int *fds_peek;
};
int cuda_publication_for(struct session *s, struct cuda_opening *o, struct cuda_publication **out);
/* One in an export that a draft buffer owns. */
int cuda_publication_in(struct cuda_export *e, struct cuda_publication **out);

/*
 * Publishes; consumes @publication. On success @done(@context) will be called once; on failure
 * never, but if a draft buffer owns the export: it is called in any case, as soon as nobody can use
 * the memory. 0, SESSION_E_UNSENT, or a negative errno; -EINPROGRESS: there was no answer, so that
 * it may be published, now or later: as after success.
 */
int cuda_place(struct cuda_publication *publication, const struct cuda_placing *p,
	       void (*done)(void *context), void *context, uint64_t *version);
/* Calls @done(@context) when what is queued on the stream by now has ended. On failure it is not
 * called. */
int cuda_retire(struct cuda_export *e, intptr_t stream, void (*done)(void *context), void *context);

/* The answer to a PLACE, whose publisher did not wait for it any longer. The receive mutex is held.
 */
void cuda_late_answer(struct session *s, const struct conn_message *m);

/* ---- The caller has cuda_lock ---- */

/*
 * The publication that a FREED on @s names by @cookie, or NULL: there is none, or it is free
 * already. The daemon need not tell the truth.
 */
struct cuda_publication *cuda_publication_known(const struct session *s, uint64_t cookie);

/* The event with that handle of what was published in it; NULL: it has come. */
CUevent cuda_event_here(const struct cuda_export *e, const unsigned char handle[64]);

/* What the thread is to do with a publication, without the lock. */
enum publication_step {
	PUBLICATION_WAIT, /* look again later: GPU work is going on, or the daemon does not read */
	PUBLICATION_IDLE, /* a message will tell */
	PUBLICATION_DONE, /* cuda_publication_done(): it is out of all lists */
	PUBLICATION_LAST, /* cuda_export_end(): likewise, and so is its export */
};
enum publication_step cuda_publication_step(struct cuda_publication *publication);

/*
 * What a tensor still needs this process for. If its work has ended the daemon is told so here,
 * unless that has happened.
 */
enum publication_need {
	PUBLICATION_NEEDS_NOTHING,
	PUBLICATION_NEEDS_DAEMON, /* which has not yet handled that its work has ended */
	PUBLICATION_NEEDS_GPU,	  /* it is being written */
};
enum publication_need cuda_publication_need(struct cuda_publication *publication);

/* ---- The caller does not have it ---- */

/* Frees it, and calls `done`. Its export may be gone: @s is its session. */
void cuda_publication_done(struct cuda_publication *publication, struct session *s);
