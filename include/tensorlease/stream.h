/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensorlease_stream - streams: every item reaches whoever must have it
 *
 * A name is for the newest value: who is slow skips some. A stream is for all of them: a named,
 * bounded sequence of items, whose producers wait when it is full. An item is one tensor or several
 * that are published together, with metadata. It is taken without a copy, and stays as long as
 * somebody holds it, whatever dies.
 *
 * In a broadcast each subscriber gets every item, once, all of them in one order. In a queue each
 * item goes to one of the subscribers. If that one dies before it has acknowledged the item,
 * another one gets it.
 *
 *	tl_stream_options o = TL_INIT(tl_stream_options, .mode = TL_STREAM_QUEUE, .depth = 64);
 *	tl_stream *stream;
 *
 *	if (tl_stream_open(client, "rollouts", &o, &stream))
 *		errx(1, "%s", tl_last_error());
 *
 *	producer:	tl_stream_put(stream, &(tl_part){ .tensor = &t }, 1,
 *				      &TL_INIT(tl_stream_put_options, .timeout_ns = -1), NULL);
 *
 *	consumer:	tl_stream_subscribe(stream, NULL, &subscription);
 *			while (!tl_stream_take(subscription,
 *					       &TL_INIT(tl_wait_options, .timeout_ns = -1), &item))
 *				... tl_item_tensor(item, 0, NULL) ... tl_item_release(item);
 *
 * Producers and subscribers of one stream are processes of one user, unless it was made with
 * TL_STREAM_SHARED. A stream stays until its name
 * is deleted (tl_delete()), also while nobody has it open; or as its lifetime and `ttl_ns` say.
 *
 * The conventions are those of <tensorlease/tensorlease.h>. In addition, each function here returns
 *	-ESTALE		the stream is gone: its name was deleted, or another daemon is there that
 *			did not take it over. Open it again
 *	-ECHILD		the handle is the parent's of this forked process: open another one
 */
#ifndef TENSORLEASE_STREAM_H
#define TENSORLEASE_STREAM_H

#include <tensorlease/tensorlease.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A stream, opened. */
typedef struct tl_stream tl_stream;
/* A subscription to a stream. */
typedef struct tl_subscription tl_subscription;
/* An item that was taken. */
typedef struct tl_item tl_item;
/* An item that is written in place. */
typedef struct tl_item_draft tl_item_draft;

/* tl_stream_mode - who gets an item */
enum tl_stream_mode {
	TL_STREAM_BROADCAST = 1, /* every subscriber */
	TL_STREAM_QUEUE = 2,	 /* one of them */
};

/* TL_STREAM_* - flags of tl_stream_options */
enum {
	/* Do not make the stream if there is none: -ENOENT. */
	TL_STREAM_EXISTING = 1,
	/* Producers never wait: a subscriber that is `depth` items behind skips some. Of a
	 * broadcast. */
	TL_STREAM_DROP_OLDEST = 2,
	/* Be a producer from now on, and not only from the first put on. */
	TL_STREAM_PRODUCER = 4,
	/* Any user who may publish in this namespace may put and take. Any of them can stop or
	 * damage the stream, as they could not do to a tensor; and no item that was taken. */
	TL_STREAM_SHARED = 8,
};

/* TL_STREAM_*_MAX - limits of streams */
enum {
	TL_STREAM_DEPTH_MAX = 512,	   /* of tl_stream_options.depth */
	TL_STREAM_PARTS_MAX = 4096,	   /* tensors of one item */
	TL_STREAM_METADATA_MAX = 64 << 10, /* bytes of metadata of one item */
	TL_STREAM_MEMBERS_MAX = 128,	   /* producers and subscribers of one stream */
	TL_STREAMS_MAX = 256, /* streams of one namespace; a user may have half, root all */
};

/* tl_stream_options - what the stream is to be; if there is one, what is 0 is as that has it, and
 * the rest must be the same */
typedef struct tl_stream_options {
	size_t size;	/* sizeof(tl_stream_options) */
	uint32_t mode;	/* enum tl_stream_mode; may be 0 with TL_STREAM_EXISTING */
	uint32_t flags; /* TL_STREAM_* */
	uint32_t depth; /* how many items producers may be ahead; 0: 16 */
	uint32_t keep;	/* of a broadcast: so many past items are kept for who subscribes late; the
			 * end of a producer takes the place of one */
	uint32_t max_tries; /* of a queue: how often an item is given out again when its taker died;
			     * then it is dropped. At most 15; 0: 3 */
	uint32_t lifetime;  /* 0, or TL_LIFETIME_OWNER_BOUND: it goes when this client ends */
	int64_t ttl_ns;	    /* it goes when it has had neither a producer nor a subscriber for so
			     * long, at most TL_TTL_MAX; 0: it stays */
	uint64_t max_bytes; /* of shared memory that the items of this handle may take, beside a
			     * single one; beyond it a put waits as if the stream were full, and
			     * what is only kept for late subscribers goes. Memory on a GPU is not
			     * counted. 0: no limit. It is no property of the stream. Since 0.2 */
} tl_stream_options;

/*
 * tl_stream_open - open a stream, and make it if there is none
 *
 * A handle is for putting and for subscribing. The first put makes it a producer, if it was not
 * opened with TL_STREAM_PRODUCER.
 *
 * A stream that there is keeps its properties. Options that are 0, and flags that are not set, take
 * them as they are; others must not differ from them.
 *
 * Ownership: *out is yours; give it back with tl_stream_close(). @client must be open as long as
 * the stream, its subscriptions or their items are used.
 * Blocking: for one round trip.
 * Threads: any.
 * Returns: 0, a common error, or
 *	-EMEDIUMTYPE	the name means a tensor, or a stream of the other mode
 *	-EINVAL		also: the stream has another depth, keep, max_tries or ttl_ns, or was made
 *			without a flag or the lifetime that is asked for; tl_last_error() has both
 *	-ENOENT		there is none, and TL_STREAM_EXISTING was given
 *	-EACCES		the stream is another user's, and not shared; or this user may not publish
 *			in the namespace
 *	-ENOSPC		all streams of the namespace, or this user's half, are in use
 * Since: 0.2
 */
TL_API int tl_stream_open(tl_client *client, const char *name, const tl_stream_options *options,
			  tl_stream **out);

/*
 * tl_stream_close - close a stream
 *
 * Its subscriptions and items stay. What this process has put stays for whoever has not taken it.
 * Subscribers learn that this producer has ended.
 *
 * Ownership: consumes @stream; NULL is allowed and does nothing.
 * Blocking: for one round trip if it was put to.
 * Threads: any, but no other thread may be in a call on @stream.
 * Returns: 0, always.
 * Since: 0.2
 */
TL_API int tl_stream_close(tl_stream *stream);

/* ---- Producers ---- */

/* tl_part - one tensor of an item */
typedef struct tl_part {
	const char *name;	/* or NULL; at most TL_NAME_MAX bytes, each name once an item */
	const DLTensor *tensor; /* on the CPU, of any strides, or on a GPU, C-contiguous; copied.
				 * Those of one item that are on a GPU are on the same one */
	uint64_t dlpack_flags;	/* DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED, or 0 */
} tl_part;

/* tl_stream_put_options - how to put */
typedef struct tl_stream_put_options {
	size_t size;		   /* sizeof(tl_stream_put_options) */
	int64_t timeout_ns;	   /* how long to wait for room; < 0: without a limit */
	const void *metadata;	   /* or NULL */
	size_t metadata_size;	   /* bytes; at most TL_STREAM_METADATA_MAX */
	const uint32_t *interrupt; /* as in tl_wait_options */
	uint32_t interrupt_value;  /* as in tl_wait_options */
	uint32_t flags;		   /* 0, or TL_PUBLISH_SEALED: wait until a GPU has written */
	intptr_t stream; /* of parts on a GPU: on which they are written, as in tl_put_options */
} tl_stream_put_options;

/*
 * tl_stream_put - put an item into a stream
 *
 * Copies @n tensors (1 to TL_STREAM_PARTS_MAX) and publishes them as one item. Waits as long as the
 * stream is full: a subscriber is `depth` items behind or, in a queue, `depth` items are not taken;
 * or as long as there is no memory for more items. *@number, unless @number is NULL, is the item's
 * number. Numbers rise; some are not used.
 *
 * Ownership: all arguments stay yours.
 * Blocking: for at most options->timeout_ns; NULL: it does not wait for room. Now and then it asks
 * the daemon for memory, for at most the client's timeout.
 * Threads: any; puts to one handle wait for each other.
 * Returns: 0, a common error, or
 *	-EAGAIN		the stream is full, and the timeout is 0
 *	-ETIMEDOUT	it was full all the time. tl_last_error() names who holds it up
 *	-EPIPE		the stream was closed by tl_stream_end()
 *	-ENOSPC		no memory for another item, and none is in use that could come back; or
 *			the stream has its maximum of members
 *	-EDQUOT		the same, for this user
 *	-ENOMEM		also: no memory on the GPU, though some may be in use by items
 *	-EINVAL		a part is no tensor that can be put, or too many parts or bytes
 *	-ENOTSUP	parts are on two GPUs, or one there is not C-contiguous; or that GPU has no
 *			memory that can be shared in this way
 *	-ENODEV		a part is on a GPU, and CUDA cannot be used here
 *	-ECANCELED	*options->interrupt is not options->interrupt_value
 *	-EINTR		a signal handler ran while the call slept
 * Since: 0.2
 */
TL_API int tl_stream_put(tl_stream *stream, const tl_part *parts, size_t n,
			 const tl_stream_put_options *options, uint64_t *number);

/*
 * tl_stream_draft - make an item that is written in place
 *
 * As tl_stream_put() without a copy: write the tensors through tl_item_draft_tensor(), then call
 * tl_item_draft_commit(). Of each part's tensor only device, dtype and shape count; it will be
 * C-contiguous, and holds old bytes of this user. options->metadata_size is how many bytes of
 * metadata it may have at most; options->metadata need not be there. Waits, for at most
 * options->timeout_ns, as long as there is no memory for more items, and not for room.
 *
 * Parts on a GPU are written on options->stream, unless tl_item_draft_commit() names another one.
 * After an abort their memory is used again when what is queued there has ended.
 *
 * Ownership: *out is yours; tl_item_draft_commit() consumes it if it succeeds, and
 * tl_item_draft_abort(). All arguments stay yours. @stream may be closed before: then it cannot be
 * committed. The stream of a GPU must exist until the draft and its exported tensors have ended.
 * Blocking: as tl_stream_put().
 * Threads: any.
 * Returns: as tl_stream_put()
 * Since: 0.2
 */
TL_API int tl_stream_draft(tl_stream *stream, const tl_part *parts, size_t n,
			   const tl_stream_put_options *options, tl_item_draft **out);

/*
 * tl_item_draft_tensor - look at the memory of a tensor of a draft
 *
 * Its bytes are to be written before the commit.
 *
 * Ownership: the result is the draft's, valid until it is committed or aborted.
 * Blocking: never.
 * Threads: any.
 * Returns: the tensor at @i, or NULL if the draft has not so many.
 * Since: 0.2
 */
TL_API DLTensor *tl_item_draft_tensor(tl_item_draft *draft, size_t i);

/*
 * tl_item_draft_to_dlpack - get a tensor of a draft as a DLPack tensor
 *
 * The tensor at @i, writable, for a library that consumes DLPack. It keeps the memory, but does not
 * hold up the item: do not write to it after tl_item_draft_commit(), or after
 * tl_item_draft_abort(), since the memory is that of a later item then. On a GPU it becomes that of
 * a later item when all tensors of the draft there have ended.
 *
 * Ownership: *out is yours; its deleter gives it back.
 * Blocking: never.
 * Threads: any.
 * Returns: 0, -EINVAL, -ENOMEM, or
 *	-ESTALE		it is on a GPU, and the client was closed, or this is a forked process
 * Since: 0.2
 */
TL_API int tl_item_draft_to_dlpack(tl_item_draft *draft, size_t i, DLManagedTensorVersioned **out);

/*
 * tl_item_draft_commit - put an item that was written in place
 *
 * Publishes it as tl_stream_put() does, and waits for room as that does. Consumers wait for what is
 * queued on options->stream, if the draft has parts on a GPU. If it fails you may write the draft
 * again and call this once more.
 *
 * Ownership: consumes @draft if it succeeds, else it stays yours.
 * Blocking: for at most options->timeout_ns; NULL: it does not wait for room. With parts on a GPU
 * also for a round trip.
 * Threads: any, but no other thread may be in a call on @draft.
 * Returns: 0, an error of tl_stream_put(), or
 *	-EINVAL		also: more metadata than the draft has room for
 *	-ECANCELED	also: the stream was closed
 * Since: 0.2
 */
TL_API int tl_item_draft_commit(tl_item_draft *draft, const tl_stream_put_options *options,
				uint64_t *number);

/*
 * tl_item_draft_abort - give up an item that was written in place
 *
 * Nobody will have seen it.
 *
 * Ownership: consumes @draft; NULL is allowed and does nothing.
 * Blocking: never; but for a round trip if a commit has failed for parts on a GPU.
 * Threads: any, but no other thread may be in a call on @draft.
 * Returns: 0, always.
 * Since: 0.2
 */
TL_API int tl_item_draft_abort(tl_item_draft *draft);

/*
 * tl_stream_end - say that nothing more comes
 *
 * Subscribers get what is left, and then -EPIPE. Later puts of any producer fail, until one puts
 * after tl_stream_reopen().
 *
 * Ownership: @stream stays yours.
 * Blocking: for at most options->timeout_ns, as tl_stream_put().
 * Threads: any.
 * Returns: as tl_stream_put()
 * Since: 0.2
 */
TL_API int tl_stream_end(tl_stream *stream, const tl_stream_put_options *options);

/*
 * tl_stream_reopen - go on after the end
 *
 * Lets this handle put to a stream that was ended. Its next item reopens the stream for all.
 *
 * Ownership: @stream stays yours.
 * Blocking: never.
 * Threads: any.
 * Returns: 0, or -EINVAL.
 * Since: 0.2
 */
TL_API int tl_stream_reopen(tl_stream *stream);

/*
 * tl_stream_fd - get a descriptor that is readable when there may be room
 *
 * For poll(), epoll, and event loops. When it is readable, call tl_stream_put() with a timeout of
 * 0. It stays readable until that has returned -EAGAIN, and is readable again when there may be
 * room. Poll it level-triggered. It may be readable although there is no room. Do not read it or
 * write to it. After another error than -EAGAIN it may stay readable: poll it no more.
 *
 * The first call starts a thread, which sleeps.
 *
 * Ownership: *fd is the stream's, which closes it.
 * Blocking: never.
 * Threads: any.
 * Returns: 0, or a common error.
 * Since: 0.2
 */
TL_API int tl_stream_fd(tl_stream *stream, int *fd);

/* ---- Subscribers ---- */

/* TL_SUBSCRIBE_* - flags of tl_subscribe_options */
enum {
	/* Nobody waits for this subscriber. If it is `depth` items behind it skips some, and learns
	 * how many. Of a broadcast. */
	TL_SUBSCRIBE_LOSSY = 1,
	/* Begin with the items that are kept. Of a broadcast. */
	TL_SUBSCRIBE_KEPT = 2,
};

/* tl_subscribe_options - how to subscribe */
typedef struct tl_subscribe_options {
	size_t size;	   /* sizeof(tl_subscribe_options) */
	uint32_t flags;	   /* TL_SUBSCRIBE_* */
	uint32_t reserved; /* 0 */
	intptr_t stream;   /* of a GPU: on which its items are used, as in tl_get_options */
} tl_subscribe_options;

/*
 * tl_stream_subscribe - subscribe to a stream
 *
 * A subscriber of a broadcast gets the items that are put from now on. From now on producers wait
 * for it, unless it is lossy.
 *
 * Ownership: *out is yours; give it back with tl_subscription_close(). @stream may be closed
 * before.
 * Blocking: for one round trip.
 * Threads: any.
 * Returns: 0, a common error, or
 *	-ENOSPC		the stream has its maximum of 128 members, or this client is 64 of them in
 *			all its streams
 * Since: 0.2
 */
TL_API int tl_stream_subscribe(tl_stream *stream, const tl_subscribe_options *options,
			       tl_subscription **out);

/*
 * tl_stream_take - take the next item
 *
 * Waits for the next item of a broadcast, or for an item of a queue that nobody else has taken.
 *
 * Ownership: *out is yours; give it back with tl_item_release().
 * Blocking: for at most options->timeout_ns; NULL: it does not. The first item of each producer
 * takes a round trip.
 * Threads: any; takes from one subscription wait for each other.
 * Returns: 0, a common error, or
 *	-EAGAIN		there is none, and the timeout is 0
 *	-ETIMEDOUT	none came in time
 *	-EPIPE		the stream was ended, and all items before were taken
 *	-ECANCELED	*options->interrupt is not options->interrupt_value, or the client was
 *			closed
 *	-EINTR		a signal handler ran while the call slept
 *	-EPROTO		a producer has damaged the stream; the item is passed over
 *	-ENODATA	its memory on a GPU went with its producer; the item is passed over
 *	-ENODEV		it has tensors on a GPU, and CUDA cannot be used here
 * Since: 0.2
 */
TL_API int tl_stream_take(tl_subscription *subscription, const tl_wait_options *options,
			  tl_item **out);

/*
 * tl_subscription_fd - get a descriptor that is readable when there may be an item
 *
 * As tl_stream_fd(), for tl_stream_take(): when it is readable, call that without options, once or
 * a few times, and go back to the loop. It stays readable until that has returned -EAGAIN. Of
 * several workers of a queue some may find nothing.
 *
 * Ownership: *fd is the subscription's, which closes it.
 * Blocking: never.
 * Threads: any.
 * Returns: 0, or a common error.
 * Since: 0.2
 */
TL_API int tl_subscription_fd(tl_subscription *subscription, int *fd);

/*
 * tl_subscription_close - subscribe no longer
 *
 * Items that are held stay. In a queue, those that are not acknowledged go to another subscriber.
 *
 * Ownership: consumes @subscription; NULL is allowed and does nothing.
 * Blocking: for one round trip.
 * Threads: any, but no other thread may be in a call on @subscription.
 * Returns: 0, always.
 * Since: 0.2
 */
TL_API int tl_subscription_close(tl_subscription *subscription);

/* ---- Items ---- */

/* tl_item_info - about an item */
typedef struct tl_item_info {
	size_t size;	   /* sizeof(tl_item_info) */
	uint64_t number;   /* its number in the stream */
	uint64_t put_ns;   /* when it was put, CLOCK_REALTIME */
	uint64_t skipped;  /* numbers that this lossy subscriber has missed just before it: items,
			      and perhaps ends of producers */
	uint32_t tries;	   /* of a queue: how many took it before and died */
	uint32_t producer; /* a small number: the same for items of one producer that lives */
	size_t count;	   /* its tensors */
	const void *metadata; /* valid until the item is released */
	size_t metadata_size; /* bytes of it */
	uint32_t uid;	      /* the user who has put it */
	uint32_t reserved;    /* 0 */
} tl_item_info;

/*
 * tl_item_get_info - tell about an item
 *
 * Set info->size before the call.
 *
 * Ownership: *info is yours; info->metadata is valid until the item is released.
 * Blocking: never.
 * Threads: any.
 * Returns: 0, or -EINVAL.
 * Since: 0.2
 */
TL_API int tl_item_get_info(const tl_item *item, tl_item_info *info);

/*
 * tl_item_count - count the tensors of an item
 *
 * There is at least one.
 *
 * Ownership: nothing changes hands.
 * Blocking: never.
 * Threads: any.
 * Returns: the number of its tensors.
 * Since: 0.2
 */
TL_API size_t tl_item_count(const tl_item *item);

/*
 * tl_item_tensor - look at a tensor of an item
 *
 * *@name, unless @name is NULL, is the tensor's name, or NULL if it has none.
 *
 * Ownership: the result and *name are the item's, valid until it is released; read-only.
 * Blocking: never.
 * Threads: any.
 * Returns: the tensor at @i, or NULL if the item has not so many.
 * Since: 0.2
 */
TL_API const DLTensor *tl_item_tensor(const tl_item *item, size_t i, const char **name);

/*
 * tl_item_to_dlpack - get a tensor of an item as a DLPack tensor
 *
 * The tensor at @i, read-only, for a library that consumes DLPack.
 *
 * Ownership: *out is yours; its deleter gives it back. It keeps the item until then.
 * Blocking: never.
 * Threads: any.
 * Returns: 0, -EINVAL, or -ENOMEM.
 * Since: 0.2
 */
TL_API int tl_item_to_dlpack(tl_item *item, size_t i, DLManagedTensorVersioned **out);

/*
 * tl_item_done - acknowledge an item of a queue
 *
 * From now on it is not given out again, even if this process dies while it holds it.
 *
 * Ownership: @item stays yours.
 * Blocking: never.
 * Threads: any.
 * Returns: 0, or
 *	-ESTALE		it was given to another subscriber, since this one was taken for dead
 * Since: 0.2
 */
TL_API int tl_item_done(tl_item *item);

/*
 * tl_item_release - give an item back
 *
 * Acknowledges it if that was not done. Its memory is used again when its last holder has released
 * it.
 *
 * Ownership: consumes @item; NULL is allowed and does nothing.
 * Blocking: never.
 * Threads: any.
 * Returns: as tl_item_done(); the item is released in any case.
 * Since: 0.2
 */
TL_API int tl_item_release(tl_item *item);

/* ---- Looking at streams ---- */

/* tl_stream_info - about a stream */
typedef struct tl_stream_info {
	size_t size;	      /* sizeof(tl_stream_info) */
	uint32_t mode;	      /* enum tl_stream_mode */
	uint32_t flags;	      /* TL_STREAM_DROP_OLDEST, TL_STREAM_SHARED */
	uint32_t depth;	      /* as in tl_stream_options */
	uint32_t keep;	      /* as in tl_stream_options */
	uint32_t max_tries;   /* as in tl_stream_options */
	uint32_t uid;	      /* its user */
	uint32_t producers;   /* that have put something and are there */
	uint32_t subscribers; /* lossy ones, too */
	uint32_t rows;	      /* items for which it has memory */
	uint32_t ended;	      /* 1: tl_stream_end() was called, and nobody has reopened it */
	uint32_t lifetime;    /* as in tl_stream_options */
	uint32_t reserved;    /* 0 */
	int64_t ttl_ns;	      /* as in tl_stream_options */
	uint64_t first;	      /* the number of its first item */
	uint64_t next;	      /* the number that the next item gets. next - first is how many there
				 were, with the ends of producers, which have a number too */
	uint64_t length;      /* of a queue: items that nobody has taken, or whose taker died; of a
				 broadcast: how far the slowest subscriber is behind that is not
				 lossy */
	uint64_t bytes;	      /* of memory, held or not */
	uint64_t created_ns;  /* when it was made, CLOCK_REALTIME */
	char name[TL_NAME_MAX + 1]; /* its name */
} tl_stream_info;

/* tl_member_role - a client's part in a stream */
enum tl_member_role {
	TL_MEMBER_PRODUCER = 1,	  /* it has put something */
	TL_MEMBER_SUBSCRIBER = 2, /* it takes items */
	TL_MEMBER_LOSSY = 3,	  /* a subscriber for which nobody waits */
};

/* tl_member_state - whether it still is a part */
enum tl_member_state {
	TL_MEMBER_LIVE = 1,    /* it is */
	TL_MEMBER_JOINING = 2, /* it subscribes just now: producers of a broadcast wait for it */
	TL_MEMBER_GONE = 3,    /* nobody waits for it, but its process may still hold items */
};

/* tl_member_info - a producer or a subscriber of a stream */
typedef struct tl_member_info {
	size_t size;	   /* sizeof(tl_member_info) */
	uint32_t role;	   /* enum tl_member_role */
	uint32_t state;	   /* enum tl_member_state */
	uint64_t client;   /* for tl_kick(); 0: its connection has ended */
	uint64_t position; /* of a subscriber: the number that it looks at next */
	uint64_t lag;	   /* of a subscriber to a broadcast: how far that is behind the end, in
			      numbers. Producers wait while it is `depth` for one that is not
			      lossy */
	uint32_t held;	   /* of a subscriber: items of the stream that its client holds, by all its
			      subscriptions; of a producer: items for which it has memory */
	uint32_t pid;	   /* 0 if in another PID namespace */
	uint32_t uid;	   /* its user */
	uint32_t number;   /* that of one member at a time; tl_item_info.producer is this */
	char label[32];	   /* its own name for itself */
} tl_member_info;

/*
 * tl_list_streams - visit all streams
 *
 * Calls @visit for each stream of the client's namespace below @prefix, which is as in tl_list(),
 * in no order. tl_list() itself visits tensors only. Whoever may get from the namespace sees its
 * streams, whoever's they are.
 *
 * Ownership: *info is valid during the call of @visit only.
 * Blocking: for a round trip for each stream.
 * Threads: any; @visit runs on the calling thread.
 * Returns: 0 when all were visited; the result of @visit if that was not 0, which ends the listing;
 * or a common error.
 * Since: 0.2
 */
TL_API int tl_list_streams(tl_client *client, const char *prefix,
			   int (*visit)(const tl_stream_info *info, void *context), void *context);

/*
 * tl_stream_stat - look at the stream of a name
 *
 * Set info->size before the call.
 *
 * Ownership: *info is yours, and a copy.
 * Blocking: for one round trip.
 * Threads: any.
 * Returns: 0, a common error, or
 *	-ENOENT		no stream has that name
 *	-EMEDIUMTYPE	the name means a tensor
 * Since: 0.2
 */
TL_API int tl_stream_stat(tl_client *client, const char *name, tl_stream_info *info);

/*
 * tl_list_members - visit the producers and subscribers of a stream
 *
 * Each is looked at at another time, while others put and take. A process that has the stream open
 * and has neither put nor subscribed is no member.
 *
 * Ownership: *info is valid during the call of @visit only.
 * Blocking: for a round trip for each member.
 * Threads: any; @visit runs on the calling thread.
 * Returns: 0 when all were visited; the result of @visit if that was not 0, which ends the listing;
 * or as tl_stream_stat(), and -ESTALE if the stream was deleted meanwhile
 * Since: 0.2
 */
TL_API int tl_list_members(tl_client *client, const char *name,
			   int (*visit)(const tl_member_info *info, void *context), void *context);

#ifdef __cplusplus
}
#endif

#endif /* TENSORLEASE_STREAM_H */
