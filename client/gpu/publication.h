/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publications: a tensor that this process published in one of its exports. A publication keeps
 * what it was published from until nobody holds the tensor any more and the GPU work that writes it
 * has ended; then `done` is called, on the library's thread if it calls a program's deleter. A
 * publication has a count on its session.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <tensorlease/tensorlease.h>

#include "client/gpu/event.h"
#include "client/gpu/export.h"
#include "client/gpu/threads.h"
#include "client/publish/group.h"
#include "proto/description.h"

/*
 * A publication can end when two conditions hold: nobody can hold the tensor, and its publisher has
 * left the call that publishes it, in which it may still touch the publication. Each state is one
 * combination of what is known of these two.
 *
 *                          the daemon has            nobody holds it: FREED, or
 *                          published it              it was refused or not sent
 *
 *   the publisher is in its call:
 *                PLACING ---------------> PLACED ----------------> VOID
 *                   |                        |                       |
 *   it leaves       |                        |                       |
 *                   v                        v                       v
 *                UNANSWERED ------------> PUBLISHED -------------> FREE
 *
 * PLACING also goes straight to VOID, and UNANSWERED to FREE. publication_become() in publication.c
 * has the table. A publisher leaves PLACING when the daemon did not answer in time: a late answer
 * or FREED says what became of the tensor. The library's thread ends a publication that is FREE
 * when its work has ended.
 */
enum cuda_publication_state {
	PUBLICATION_PLACING,
	PUBLICATION_PLACED,
	PUBLICATION_VOID,
	PUBLICATION_UNANSWERED,
	PUBLICATION_PUBLISHED,
	PUBLICATION_FREE,
};

/* The GPU work that writes the tensor; it only goes forward. */
enum cuda_work {
	WORK_QUEUED, /* the publication's event has not come */
	WORK_ENDED,  /* the event has come, or failed, and the daemon has to be told (FINISHED) */
	WORK_KNOWN,  /* the daemon was told, or need not be */
};

/* All under cuda_lock. */
struct cuda_publication {
	struct list link;	/* in its export's publications, until it ends */
	struct list queue_link; /* in one of the thread's queues */
	struct list known_link; /* by its cookie, from before it is published until it is freed */
	uint64_t cookie;	/* unique in this process, never reused */
	struct session *session;
	struct cuda_export *export; /* after the publication's end: NULL, or the export that ends
				       with it */
	enum cuda_publication_state state;
	enum cuda_work work;
	struct cuda_event *event; /* NULL: there was nothing to wait for */
	CUresult failure;	  /* the work's error; CUDA_OK: none */
	uint64_t ref;		  /* set when the daemon has published it */
	uint32_t serial;	  /* of an unanswered PLACE or GROUP; 0: there is none */
	bool deletes; /* `done` calls a program's deleter, so only the library's thread calls it */
	void (*first)(void *context); /* or NULL: before `done`, on any thread */
	void (*done)(void *context);
	void (*child)(void *context); /* called instead in a child that is forked before; or NULL */
	void *context;
	struct cuda_captured captured; /* of cuda_retire(), while @stream is being captured */
	intptr_t stream;
};

/* The tensor to publish. */
struct cuda_placing {
	const DLTensor *as; /* dtype, ndim and shape */
	uint64_t flags;	    /* DLPack's */
	uint64_t offset;    /* in the memory */
	const char *name;
	size_t name_len;
	const void *metadata;
	size_t metadata_size;
	struct tensor_lifetime lifetime;
	uint64_t version;		    /* given by the caller, or 0 */
	intptr_t stream;		    /* TL_STREAM_NONE: it is written already */
	const unsigned char *foreign_event; /* somebody else's handle, instead of the stream */
};

/* Makes a publication, for cuda_place(), in the export of a draft buffer. 0, or -ENOMEM. */
int cuda_publication_in(struct cuda_export *e, struct cuda_publication **out);

/*
 * Publishes; consumes @p. On success @done(@context) will be called once; on failure never, unless
 * a draft buffer owns the export: then it is called in any case, as soon as nobody can use the
 * memory. 0, SESSION_E_UNSENT, or a negative errno. After -EINPROGRESS, when there was no answer,
 * the tensor may be published, now or later, and @done will be called as after success.
 */
int cuda_place(struct cuda_publication *p, const struct cuda_placing *placing,
	       void (*done)(void *context), void *context, uint64_t *version);
/*
 * Calls @done(@context) when the work now queued on the stream has ended. Waits for that if the
 * driver cannot mark the place. If @first is not NULL, any thread calls @first instead, and
 * after it the library's thread calls @done, which may call a program's deleter. A child that is
 * forked before that calls @child at once, unless it is NULL. Returns 0, or -ENOMEM: none of the
 * functions is called.
 */
int cuda_retire(struct cuda_export *e, intptr_t stream, void (*first)(void *context),
		void (*done)(void *context), void (*child)(void *context), void *context);

/*
 * cuda_place() in steps, for members of a group. Call cuda_publication_arm(), which takes a use of
 * @event unless that is NULL; send the message that makes the member, and call _made() when it is
 * made; call _asked() when the group is requested, and in any case _end(), which consumes @p. @done
 * is called as cuda_place() says, where MEMBERS_FAILED means failure.
 */
void cuda_publication_arm(struct cuda_publication *p, struct cuda_event *event,
			  void (*done)(void *context), void *context);
void cuda_publication_message(const struct cuda_publication *p, uint64_t offset,
			      struct tensor_description *d, unsigned char *bytes);
void cuda_publication_made(struct cuda_publication *p, uint64_t ref);
void cuda_publication_asked(struct cuda_publication *p, uint32_t serial);
void cuda_publication_end(struct cuda_publication *p, enum members_end end);

/* Makes a publication that is in no export yet. NULL, with tl_fail()'s text: no memory. */
struct cuda_publication *cuda_publication_new(struct session *s);
/* Puts it into its export. Called with cuda_lock, unless nobody else knows the export. */
void cuda_publication_link(struct cuda_export *e, struct cuda_publication *p);

/* Frees a publication that has ended and is in no list, and calls `done`. */
void cuda_publication_done(struct cuda_publication *p);

/* To be called in a forked child, the first under the lock, the second without. All publications
 * are the parent's; the second one calls their `child`. */
void cuda_publications_inherit(void);
void cuda_publications_uncount(void);

/* ---- The caller has cuda_lock ---- */

/* Handles FREED. A malicious daemon may send a @cookie that names nothing. */
void cuda_publication_freed(const struct session *s, uint64_t cookie);
/* Handles a late answer to the PLACE or GROUP with that serial, for which nobody waits any more.
 * @ref: the placed tensor's, or 0. */
void cuda_publication_answered(struct cuda_session *cs, uint32_t serial, bool published,
			       uint64_t ref);
/* Frees all publications in the export, whose daemon has ended and reports no holders any more. */
void cuda_publications_orphan(struct cuda_export *e);

/* Finds and pins the event with that handle among the publications of the export; NULL: it has
 * come. */
struct cuda_event *cuda_event_here(const struct cuda_export *e, const unsigned char handle[64]);

/* Calls cuda_event_ask() for the publication's event, unless its work is known to have ended. */
void cuda_publication_ask(struct cuda_publication *p, struct list *list);

/* Does what can be done about a publication now, and says what the thread has to do with it. */
enum publication_step {
	STEP_WAIT, /* look again later: the GPU is at work, or the daemon does not read */
	STEP_IDLE, /* nothing, until something about it changes */
	STEP_END,  /* end it: it is out of its export's list */
};
enum publication_step cuda_publication_step(struct cuda_publication *p);

/* The reasons why a tensor still needs this process. If its work has ended, cuda_publication_need()
 * also tells the daemon, unless that has happened. */
enum publication_need {
	NEEDS_NOTHING,
	NEEDS_DAEMON, /* the daemon has not yet handled that the work has ended */
	NEEDS_GPU,    /* the tensor is being written */
};
enum publication_need cuda_publication_need(struct cuda_publication *p);

/*
 * The end of a producer. CUDA's virtual memory outlives this process, but a tensor in it is lost if
 * the process ends before the daemon knows that the GPU has written it. So tl_close() and exit()
 * wait for the GPU and tell the daemon.
 */

struct session;

/*
 * For tl_close(): waits until the session's tensors no longer need this process, at most the
 * client's timeout. No lock is held. 0, -ETIMEDOUT, -EIO if the GPU failed now or before, or
 * -ENOTCONN if the daemon has ended meanwhile.
 */
int cuda_finish(struct session *s);

/*
 * Makes exit() wait for all sessions. Call it when the driver is initialised, so that the driver's
 * own function at exit, which was registered before, is called later. 0, or -ENOMEM with a text.
 */
int cuda_finish_at_exit(void);

/* True if exit() waits, or has waited. Then no deleter of a program is called any more. */
bool cuda_is_exiting(void);

/* Finding or making the export in which a program's own memory is published. */

/* Memory that may have to be exported first. */
struct cuda_opening {
	int (*open)(struct cuda_opening *o); /* fills in the rest; NULL: the rest is set */
	struct cuda_memory *memory;
	struct cuda_parts *parts; /* NULL: the handle alone opens it */
};

/* Makes a publication, for cuda_place(), in the session's export of @o->memory. Makes the export
 * if there is none. Returns 0, SESSION_E_*, or a negative errno. */
int cuda_publication_for(struct session *s, struct cuda_opening *o, struct cuda_publication **out);
