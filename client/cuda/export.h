/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The producer's side: an allocation of this process is made known to the daemon as a segment (an
 * export), and tensors in it are published (sources). A source keeps what it was published from
 * until nobody holds the tensor any more and its own work has ended; then `done` is called, on the
 * library's thread. An export lasts as long as it has sources, or as the block that owns it. Memory
 * that must not be freed while others have it open is given back only after a handshake: the last
 * sources are done when the daemon says that everybody has closed it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <tensorlease/tensorlease.h>

#include "client/cuda/session.h"
#include "client/request.h"
#include "proto/catalog_layout.h"
#include "proto/conn.h"
#include "proto/wire.h"

/* A piece of device memory that one call of the driver allocated, or mapped. */
struct cuda_part {
	CUdeviceptr base;
	uint64_t size;
	uint64_t id; /* never the same again in this process */
};

/* A range of device memory. */
struct cuda_memory {
	enum segment_kind kind;
	struct cuda_device *device; /* NULL: known by a handle only */
	unsigned char uuid[16];
	CUdeviceptr base; /* 0: likewise */
	uint64_t size;
	unsigned char handle[WIRE_HANDLE_BYTES]; /* not of SEGMENT_CUDA_VMM */
	uint32_t nparts;
	struct cuda_part *parts; /* malloc()ed; NULL: likewise */
};

struct cuda_export {
	struct list link; /* in its cuda_session's exports, as long as it may be published in */
	struct list queue_link; /* of the thread */
	struct session *session;
	struct cuda_memory memory;
	uint32_t segment, generation;
	bool owned;    /* by a block, which ends it */
	bool orphaned; /* nobody will hear any more who holds it: its sources are free */
	unsigned nsources;
	struct list sources;	  /* changed, as nsources and events, under cuda_lock */
	struct list events;	  /* struct cuda_event that no source has now */
	struct cuda_source *last; /* to be done when the UNEXPORT is answered */
	bool asked;		  /* UNEXPORT was sent */
	struct request ending;
	struct conn_message answer;
};

struct cuda_source {
	struct list link;	/* in its export's sources */
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

/*
 * The source that a FREED on @s names by @cookie, or NULL: there is none, or it is free already.
 * The daemon need not tell the truth. cuda_lock.
 */
struct cuda_source *cuda_source_known(const struct session *s, uint64_t cookie);

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
 * Makes an export of @memory, whose descriptors, one a part, are @fds_peek. Nobody else knows it
 * yet. 0, SESSION_E_*, or a negative errno.
 */
int cuda_export_new(struct cuda_export **out, struct session *s, const struct cuda_memory *memory,
		    const int *fds_peek);
/* Tells the daemon that it ends, which nobody waits for, and frees it. It has no sources. */
void cuda_export_drop(struct cuda_export *e);

/*
 * A source in an export of @memory: one that there is, or a new one, for which @open(@context)
 * makes what opens it elsewhere. To be given to cuda_place(). As cuda_export_new().
 */
struct cuda_opening {
	int (*open)(struct cuda_opening *o); /* NULL: memory->handle is there */
	struct cuda_memory *memory;
	const int *fds_peek;
};
int cuda_source_for(struct session *s, struct cuda_opening *o, struct cuda_source **out);
/* One in an export that a block owns. */
int cuda_source_in(struct cuda_export *e, struct cuda_source **out);

/*
 * Publishes; consumes @source. On success @done(@context) will be called once; on failure never,
 * but if a block owns the export: it is called in any case, as soon as nobody can use the memory.
 * 0, SESSION_E_UNSENT, or a negative errno; -EINPROGRESS: there was no answer, so that it may be
 * published, now or later: as after success.
 */
int cuda_place(struct cuda_source *source, const struct cuda_placing *p,
	       void (*done)(void *context), void *context, uint64_t *version);
/* Calls @done(@context) when what is queued on the stream by now has ended. On failure it is not
 * called. */
int cuda_retire(struct cuda_export *e, intptr_t stream, void (*done)(void *context), void *context);

/* The answer to a PLACE, whose publisher did not wait for it any longer. The receive mutex is held.
 */
void cuda_late_answer(struct session *s, const struct conn_message *m);

/* ---- Under cuda_lock ---- */

/* What this process exported itself, to the daemon with that instance; NULL: it did not. */
struct cuda_export *cuda_export_here(uint64_t instance, uint32_t segment, uint32_t generation);
/* The event with that handle of what was published in it; NULL: it has come. */
CUevent cuda_event_here(const struct cuda_export *e, const unsigned char handle[64]);

/* What the thread is to do with a source, without the lock. */
enum source_step {
	SOURCE_WAIT, /* look again later: GPU work is going on, or the daemon does not read */
	SOURCE_IDLE, /* a message will tell */
	SOURCE_DONE, /* cuda_source_done(): it is out of all lists */
	SOURCE_LAST, /* cuda_export_end(): likewise, and so is its export */
};
enum source_step cuda_source_step(struct cuda_source *source);

/*
 * What a tensor still needs this process for. If its work has ended the daemon is told so here,
 * unless that has happened.
 */
enum source_need {
	SOURCE_NEEDS_NOTHING,
	SOURCE_NEEDS_DAEMON, /* which has not yet handled that its work has ended */
	SOURCE_NEEDS_GPU,    /* it is being written */
};
enum source_need cuda_source_need(struct cuda_source *source);

/* ---- Without it ---- */

void cuda_source_done(struct cuda_source *source, struct session *s); /* its export may be gone */
/* True: the thread has to call cuda_export_answered() until that is true, then cuda_export_ended().
 */
bool cuda_export_end(struct cuda_export *e, struct cuda_source *last);
bool cuda_export_answered(struct cuda_export *e);
void cuda_export_ended(struct cuda_export *e);
