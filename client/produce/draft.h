/* SPDX-License-Identifier: Apache-2.0 */
/* Drafts: made, written, committed. */
#pragma once

#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tensorlease/tensorlease.h>

#include "client/produce/want.h"
#include "client/session/kind.h"
#include "client/session/session.h"

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
	DRAFT_OPEN,	 /* written by its handle */
	DRAFT_EXPORTED,	 /* written by the tensor of tl_draft_to_dlpack() */
	DRAFT_COMMITTED, /* the COMMIT is sent, and nobody has a handle any more */
	DRAFT_PUBLISHED, /* the COMMIT is sent; the exported tensor still refers to the memory */
	DRAFT_ENDED,	 /* aborted by tl_close(); its handle is still somebody's */
	DRAFT_PARENTS,	 /* of the process that forked */
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

enum { DRAFT_OWN = 24 };

/* It holds a count on its session. The state changes under the session's produce mutex. */
struct tl_draft {
	DLManagedTensorVersioned managed; /* first: an exported draft's deleter gets its address */
	DLTensor tensor;		  /* the one in managed is lent */
	/*
	 * Our ledger counts the slots of drafts until they are committed, and of exported ones
	 * longer: their memory must stay after the commit as long as the tensor is there.
	 */
	struct draft_hold hold;
	struct session *session;
	const struct memory_kind *kind;
	struct ring *ring;	     /* it is a slot of that ring, which has a reference; or NULL */
	struct ring_slot *ring_slot; /* of it */
	uint32_t ring_depth;	     /* as in tl_spec */
	enum draft_state state;
	uint32_t extra; /* bytes of shape and metadata that were asked for */
	uint64_t room;	/* bytes that were */
	union {
		struct write_map *map; /* shared memory: where it is written */
		alignas(uint64_t) unsigned char own[DRAFT_OWN]; /* another kind's */
	};
	unsigned char *metadata;
	uint16_t metadata_size;
	struct tensor_lifetime lifetime;
	bool own_pages; /* as in tl_spec */
	bool unlinked;	/* for good, so that no lock is needed to find that out */
	uint8_t tensor_flags;
	uint8_t name_len;
	char name[TL_NAME_MAX + 1];
	int64_t dims[]; /* shape, then strides; again, as lent */
};

/* The one place where a state changes. True: it did. */
bool draft_step(struct tl_draft *draft, enum draft_event event);

static inline bool draft_is_writable(const struct tl_draft *draft)
{
	return draft->state == DRAFT_OPEN || draft->state == DRAFT_EXPORTED;
}

static inline bool draft_is_exported(const struct tl_draft *draft)
{
	return draft->state == DRAFT_EXPORTED || draft->state == DRAFT_PUBLISHED;
}

/* One without memory. NULL: no memory for it. */
struct tl_draft *draft_alloc(const struct draft_request *want, const struct memory_kind *kind);
/* Enters it into the list of its session, from when it is granted. */
void draft_link(struct tl_draft *draft);
/* Takes it out of the list, and our count off its slot: fork() sees both or neither. */
void draft_unlink(struct tl_draft *draft);
/* Copies its tensor to the one that its producer gets. */
void draft_lend(struct tl_draft *draft);
/* Is that still a copy? 0, or -EINVAL. */
int draft_lent_check(struct tl_draft *draft);
/* It has what it needs, and is the caller's. */
void draft_granted(struct tl_draft *draft);
/* Its COMMIT is sent. If that is going to be answered our ledger counts it until it is freed, so
 * that another daemon can answer too. */
void draft_sent(struct tl_draft *draft, bool answer);
/* The daemon has it back, or has committed it. NULL is fine. */
void draft_free(struct tl_draft *draft);

int draft_metadata(struct tl_draft *draft, const void *metadata, size_t size);
/* May it be committed? 0, or a negative errno: then it is to be given up. */
int draft_check(struct tl_draft *draft);
/* Commits what the draft says it is. Consumes it, also on failure. */
int draft_commit(struct tl_draft *draft, uint64_t *version);
/* The same in an attempt of a call that can write it again: CALL_E_STALE for -ESTALE. */
int draft_commit_again(struct tl_draft *draft, uint64_t *version);
/* Gives it up. Consumes it. NULL is fine. */
void draft_abort(struct tl_draft *draft);
int draft_lost(const char *name); /* -ESTALE: its daemon is gone */

int draft_export(struct tl_draft *draft, DLManagedTensorVersioned **out);
/* The draft that was exported as @managed, or NULL. */
struct tl_draft *draft_of(const DLManagedTensorVersioned *managed);
/* The exported and uncommitted draft of @s whose bytes begin at @data, or NULL. */
struct tl_draft *draft_at(struct session *s, const void *data);

/* tl_close() aborts those that are not exported; in a forked child all are the parent's. */
void drafts_close(struct session *s);
void drafts_fork(struct session *s);
