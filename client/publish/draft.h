/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a draft in either kind of memory, and the description lent to its writer. */
#pragma once

#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tensorlease/dlpack.h>
#include <tensorlease/tensorlease.h>

#include "client/connection/call.h"
#include "client/connection/session.h"
#include "client/memory/memory_ops.h"
#include "client/publish/draft_request.h"

/*
 *	 grant       export           commit
 *  NEW ------> OPEN -------> EXPORTED -------> PUBLISHED
 *   |          |  |
 *   |    close |  | commit
 *   `----------|  `-----> COMMITTED
 *              v
 *            ENDED              any of them -- fork --> PARENTS, in the child
 *
 * Other events change nothing. A draft is freed from COMMITTED at once, from any other state when
 * its handle is consumed, or its exported tensor's deleter is called.
 */
enum draft_state {
	DRAFT_NEW,	 /* not handed out yet */
	DRAFT_OPEN,	 /* written by means of its handle */
	DRAFT_EXPORTED,	 /* written by means of the tensor of tl_draft_to_dlpack() */
	DRAFT_COMMITTED, /* the COMMIT is sent, and its handle is consumed */
	DRAFT_PUBLISHED, /* the COMMIT is sent; the exported tensor still refers to the memory */
	DRAFT_ENDED,	 /* aborted by tl_close(); the caller still has its handle */
	DRAFT_PARENTS,	 /* the draft belongs to the process that forked */
	DRAFT_STATES,
};

enum draft_event {
	DRAFT_GRANT,
	DRAFT_EXPORT,
	DRAFT_COMMIT,
	DRAFT_CLOSE,
	DRAFT_FORK,
	DRAFT_EVENTS,
};

enum { DRAFT_OWN = 32 };

/* A draft, which holds a count on its session. The state changes under the session's produce
 * mutex. */
struct tl_draft {
	DLManagedTensorVersioned managed; /* first: an exported draft's deleter gets its address */
	DLTensor tensor;		  /* managed has the copy that is lent */
	/*
	 * Our ledger counts the slots of drafts until they are committed. Slots of exported drafts
	 * are counted longer: their memory must stay after the commit as long as the tensor is
	 * there.
	 */
	struct draft_hold hold;
	struct session *session;
	const struct memory_kind *kind;
	struct ring *ring; /* the draft is a slot of that ring, and holds a reference; or NULL */
	struct ring_slot *ring_slot;	/* of that ring */
	uint32_t ring_depth;		/* as in tl_spec */
	_Atomic enum draft_state state; /* read without the mutex, too */
	uint32_t extra;			/* requested bytes of shape and metadata */
	uint64_t capacity;		/* requested bytes of data */
	union {
		struct write_map *map; /* shared memory: where it is written */
		alignas(uint64_t) unsigned char own[DRAFT_OWN]; /* the data of another kind */
	};
	unsigned char *metadata;
	uint16_t metadata_size;
	struct tensor_lifetime lifetime;
	uint64_t version; /* as in tl_spec */
	bool own_pages;	  /* as in tl_spec */
	bool unlinked;	  /* it is out of the list for good, which can be read without a lock */
	bool doubted;	  /* its COMMIT was sent, and may be refused and leave it a draft */
	uint8_t tensor_flags;
	uint8_t name_len;
	char name[TL_NAME_MAX + 1];
	int64_t dims[]; /* shape, then strides; then both again, as lent */
};

/* What a draft is committed as: its own description, or what tl_publish() gives in place of
 * that. */
struct commit_as {
	const DLTensor *tensor; /* dtype, ndim and shape */
	uint64_t flags;		/* DLPack's */
	const char *name;
	size_t name_len;
	const void *metadata;
	size_t metadata_size;
	struct tensor_lifetime lifetime;
	uint64_t version; /* stated, or 0 */
};

/* The only function that changes a state. True if it did. */
bool draft_step(struct tl_draft *draft, enum draft_event event);

static inline bool draft_is_writable(const struct tl_draft *draft)
{
	return draft->state == DRAFT_OPEN || draft->state == DRAFT_EXPORTED;
}

static inline bool draft_is_exported(const struct tl_draft *draft)
{
	return draft->state == DRAFT_EXPORTED || draft->state == DRAFT_PUBLISHED;
}

/* Makes a draft without memory for its bytes. NULL: malloc() failed. */
struct tl_draft *draft_alloc(const struct draft_request *request, const struct memory_kind *kind);
/* Enters a draft into the list of its session, when it is granted. */
void draft_link(struct tl_draft *draft);
/* Takes a draft out of the list, and our count off its slot: fork() sees both or neither. */
void draft_unlink(struct tl_draft *draft);
/* Copies its tensor to the lent one, which its producer gets. */
void draft_lend(struct tl_draft *draft);
/* Checks that the lent tensor is still a copy. 0, or -EINVAL. */
int draft_lent_check(struct tl_draft *draft);
/* To be called when the draft has all that it needs, and goes to the caller. */
void draft_granted(struct tl_draft *draft);
/* To be called when its COMMIT was sent. Our ledger counts the draft until it is freed: the daemon
 * does not take back what is counted, and another daemon can answer too. */
void draft_sent(struct tl_draft *draft);
/* Frees a draft that the daemon has taken back or committed. NULL is fine. */
void draft_free(struct tl_draft *draft);

int draft_metadata(struct tl_draft *draft, const void *metadata, size_t size);
/* Checks that the draft may be committed. 0, or a negative errno: then it must be given up. */
int draft_check(struct tl_draft *draft);
/* Commits the draft as it describes itself. Consumes it, also on failure. */
int draft_commit(struct tl_draft *draft, uint64_t *version);
/* Does so and consumes nothing: the caller keeps its memory until draft_abort(), and may commit it
 * again. */
int draft_commit_kept(struct tl_draft *draft, uint64_t *version);
/* draft_commit() by a call that can write the draft again: CALL_E_STALE for -ESTALE. */
int draft_commit_again(struct tl_draft *draft, uint64_t *version);
/* Gives the draft up, which consumes it. NULL is fine. */
void draft_abort(struct tl_draft *draft);
int draft_stale(const char *name); /* fails with -ESTALE: its daemon has ended */

int draft_export(struct tl_draft *draft, DLManagedTensorVersioned **out);
/* From now on its memory stays until draft_abort(), also after a commit or tl_close(), as that of
 * an exported draft does until its deleter is called. */
int draft_keep(struct tl_draft *draft);
/* The draft that was exported as @managed, or NULL. */
struct tl_draft *draft_of(const DLManagedTensorVersioned *managed);
/* The exported and uncommitted draft of @s, or of a session that its client had before, whose bytes
 * begin at @data, or NULL. */
struct tl_draft *draft_at(struct session *s, const void *data);

/* drafts_close(), for tl_close(), aborts drafts that are not exported. drafts_fork() is for a
 * forked child, where all drafts are the parent's. */
void drafts_close(struct session *s);
void drafts_fork(struct session *s);

/* The description of a draft's tensor that its producer gets for writing. It is a copy, and not
 * trusted. */

/*
 * Makes @lent a copy of @t, whose shape and strides are one array with space behind them for those
 * of @lent.
 */
void lent_make(DLTensor *lent, const DLTensor *t);
/* Checks that @lent is still a copy of @t, whose name is @name. Returns 0, or -EINVAL with a text
 * that tells which member differs. */
int lent_check(const DLTensor *lent, const DLTensor *t, const char *name);

/* Prefetched drafts. The functions take the session's produce mutex, except for the last. */

/* Takes a prefetched draft of that size into use, enters it into the list as @draft, and copies its
 * DRAFT message. False: there is none. */
bool prefetch_take(struct session *s, uint64_t nbytes, uint32_t extra, int64_t deadline,
		   struct draft_hold *draft, struct wire_draft *out);

/*
 * To be called before a tensor of that size is committed. If another one is likely to be needed,
 * returns the serial with which the COMMIT must ask for it, else 0. If that COMMIT cannot be sent:
 * prefetch_cancel().
 */
uint32_t prefetch_begin(struct session *s, uint64_t nbytes, uint32_t extra);
void prefetch_cancel(struct session *s, uint32_t serial);

/* Frees the prefetches. The caller has both the produce mutex and the receive mutex. */
void prefetch_deinit(struct session *s);

/* Shared memory: the daemon grants it, one draft at a time. */

extern const struct memory_kind shared_kind;

/*
 * Copies a source to @dst, which are bytes of the draft. @fd: what draft_request.fd_move got. By a
 * descriptor the kernel fills pages that were never touched in a third of the time that it takes to
 * map each of them on the first write. Returns 0 or what copy_gather() returns.
 */
int draft_copy(const struct tl_draft *draft, int fd, void *dst, const DLTensor *source,
	       uint64_t flags, uint32_t threads);

/* An attempt to make the draft that @request describes, which may have no name. */
int shared_draft_new(struct call *c, const struct use *use, const struct draft_request *request,
		     struct tl_draft **out);

/* To be called after MAPPING_E_LET_GO: tells the daemon, which from now on grants drafts in that
 * segment only with a descriptor. */
void draft_tell_let_go(struct session *s, const struct wire_draft *granted);
