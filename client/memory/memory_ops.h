/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kinds of memory that tensors lie in: shared memory and that of GPUs. All that differs between
 * them is in one table of operations for each; the floors below the implementations know the table
 * only. An operation that is NULL has nothing to do for that kind.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tensorlease/tensorlease.h>

#include "proto/wire.h"
#include "util/list.h"

struct call;
struct commit_as;
struct conn_message;
struct draft_request;
struct group_member;
struct members;
struct row_head;
struct session;
struct tensor_lease;
struct tl_draft;
struct use;

enum { KIND_SHARED, KIND_DEVICE, MEMORY_KINDS };

/* Until when a get may wait; deadlines. */
struct get_until {
	int64_t answer; /* for each answer of the daemon */
	int64_t work;	/* on the host, for the GPU work that writes the tensor */
};

/* Messages that no request takes. */
enum kind_messages {
	KIND_UNSOLICITED, /* the daemon speaks up by itself */
	KIND_LATE, /* an answer to a request that gave up: what it carries must not be lost */
	KIND_MESSAGES,
};

struct memory_kind {
	DLDeviceType device;

	/* ---- Leases ---- */

	/*
	 * The tensor of a lease that @use has taken: as tensor_lease_new(), and the same without a
	 * request, LEASE_E_UNMAPPED if one is needed. read/shared_lease.h has the latter of shared
	 * memory in line.
	 */
	int (*lease)(const struct use *use, uint64_t ref, const struct row_head *head,
		     const tl_get_options *options, struct get_until until,
		     DLManagedTensorVersioned **out);
	int (*lease_known)(const struct use *use, uint64_t ref, const struct row_head *head,
			   const tl_get_options *options, DLManagedTensorVersioned **out);
	/* The deleter of its tensors, by which they are known. */
	void (*lease_delete)(DLManagedTensorVersioned *managed);
	/* Puts into @options how the tensor is leased, and its stream unless @stream is given. */
	void (*lease_again)(const struct tensor_lease *l, bool stream, tl_get_options *options);
	/* The number of the device with that UUID in this process, or -1. */
	int (*ordinal)(const unsigned char uuid[16]);

	/* ---- Tensors of others ---- */

	/* These and create() are attempts of calls, and return their outcomes (call.h). */

	/* tl_put(); checks the name. */
	int (*put)(struct call *c, const struct use *use, const char *name, const DLTensor *source,
		   const tl_put_options *options, uint64_t *version);
	/* tl_publish() of what lies in no memory of ours; takes the tensor over on success. */
	int (*publish)(struct call *c, const struct use *use, const char *name,
		       DLManagedTensorVersioned *tensor, uint64_t nbytes,
		       const tl_put_options *options, bool *copied, uint64_t *version);
	/* Waits until a leased tensor may have a second name. 0, PUBLISH_E_COPY: never, or a
	 * negative errno. */
	int (*second_name)(const struct tensor_lease *l, const char *name,
			   const tl_put_options *options, int64_t deadline);
	bool keeps_strides; /* it publishes a tensor with its strides, and gathers none */

	/* ---- Drafts ---- */

	/* tl_create(), on the device that @request names. */
	int (*create)(struct call *c, const struct use *use, const struct draft_request *request,
		      struct tl_draft **out);

	/* tl_publish() of a draft says on which stream it was written, and whether to wait. */
	int (*draft_written)(struct tl_draft *draft, const tl_put_options *options);
	/* Copies @nbytes of a contiguous source into the draft, on the stream that writes it; NULL
	 * where the host copies. */
	int (*draft_fill)(struct tl_draft *draft, uint64_t offset, const DLTensor *source,
			  uint64_t nbytes);
	/* The stream that writes the draft, seen from this thread. */
	intptr_t (*draft_stream)(struct tl_draft *draft);
	/* draft_commit(). */
	int (*draft_commit)(struct tl_draft *draft, const struct commit_as *as, uint64_t *version);
	/* It was given up without having been committed, and will not be written any more. */
	void (*draft_abort)(struct tl_draft *draft);
	/* tl_close() gives it up. The produce mutex is held: what may wait is put on @left, and
	 * done by drafts_left() when the mutex is free. The draft may be freed in between. One kind
	 * may do so. */
	void (*draft_close)(struct tl_draft *draft, struct list *left);
	void (*drafts_left)(struct list *left);
	/* It leaves its memory. */
	void (*draft_end)(struct tl_draft *draft);

	/* ---- Groups (publish/group.h); NULL if members lie in the draft of the group ---- */

	/* Memory for the members of this kind that are written in ours; waits for space until
	 * @deadline. */
	int (*members_allocate)(struct members *m, int64_t deadline);
	/* Copies the sources of its members into them, on the group's stream. */
	int (*members_copy)(struct members *m, const DLTensor *const *sources);
	/* Before the members are sent: they have what a message needs. */
	int (*members_place)(struct members *m);
	/* Writes the message that makes a member. */
	void (*member_message)(const struct group_member *member, unsigned char *bytes);
	/* The daemon has made it. */
	void (*member_made)(struct group_member *member, uint64_t ref);
	/* The group is asked for with @serial. */
	void (*members_asked)(struct members *m, uint32_t serial);
	/* @m is about to go, placed or not. An enum members_end. */
	void (*members_end)(struct members *m, int end);

	/* ---- Sessions ---- */

	/* By their type less WIRE_WELCOME. The receive mutex is held. */
	void (*messages[KIND_MESSAGES][WIRE_REPLY_END - WIRE_WELCOME])(
		struct session *s, const struct conn_message *m);
	/* A connection ended, a client closed, or an answer came that nobody sleeps for. */
	void (*wake)(void);
	/* Somebody waits, perhaps for memory of which this process still has a mapping. */
	void (*session_let_go)(struct session *s);
	/* Another daemon has taken the session over. False: what it has ends with the former one.
	 * The receive mutex is held. */
	bool (*session_adopted)(struct session *s);
	/* tl_close(): waits until its tensors need this process no more. */
	int (*session_finish)(struct session *s);
	/* The session has no user any more. True: its end goes on elsewhere, where
	 * client_session_ended() is called when it is done. One kind may do so. */
	bool (*session_end)(struct session *s);

	/* ---- fork(), in this order ---- */

	void (*fork_before)(void);		 /* takes its locks, after all others */
	void (*fork_parent)(void);		 /* gives them back */
	void (*fork_session)(struct session *s); /* the child: what is the parent's goes */
	void (*fork_child)(void);		 /* after all sessions */
	void (*fork_child_unlocked)(void);	 /* no lock is held any more */
};

/* All there are, once there has been a client; NULL before. Only kinds_register() changes them. */
extern const struct memory_kind *memory_kinds[MEMORY_KINDS];
/* For the API, which knows them all, before it makes the first client; under the lock of the
 * process, so that no fork() is under way. */
void kinds_register(const struct memory_kind *const kinds[MEMORY_KINDS]);

/* That of a tensor's device; KIND_SHARED also for those that nobody knows. */
const struct memory_kind *kind_of_device(DLDeviceType device);

/* True: the message is of a type that somebody takes, and he has it. */
bool kinds_take(enum kind_messages which, struct session *s, const struct conn_message *m);

void kinds_drafts_left(struct list *left);
void kinds_wake(void);
void kinds_session_let_go(struct session *s);
bool kinds_session_adopted(struct session *s);
int kinds_session_finish(struct session *s);
bool kinds_session_end(struct session *s);
void kinds_fork_before(void);
void kinds_fork_parent(void);
void kinds_fork_session(struct session *s);
void kinds_fork_child(void);
void kinds_fork_child_unlocked(void);
