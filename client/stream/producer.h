/* SPDX-License-Identifier: Apache-2.0 */
/* Producers: a stream's handle, its rows, and the subscribers that it has to wait for. */
#pragma once

#include "client/publish/draft.h"
#include "client/stream/stream.h"

enum stream_block_state {
	BLOCK_NONE = 0, /* unused: a new block may go here */
	BLOCK_READY,	/* free, or its item is in the stream */
	BLOCK_WRITTEN,	/* a put or a draft is writing it */
	BLOCK_AWAY,	/* RETIRE was sent: the row comes back with its next generation */
	BLOCK_LEAVING,	/* RETIRE was sent: the row does not come back */
};

/* A row of this producer. */
struct stream_block {
	struct tl_draft *draft; /* the former draft that is now the row */
	enum stream_block_state state;
	unsigned entry;
	uint64_t size;	 /* bytes */
	uint64_t number; /* of the last item; 0: none */
	uint32_t life;	 /* the daemon's, when RETIRE was sent */
};

/* The sizes of the smallest and largest items, in this window and in the one before. */
struct stream_sizes {
	uint64_t least, most;
	uint64_t before_least, before_most;
	uint64_t until; /* the number that begins the next window */
};

/* A subscriber, as a producer sees it. */
struct stream_reader {
	uint64_t word;	     /* of its member; 0: there is none */
	uint32_t generation; /* of its client */
	void *ledger;	     /* mapped; NULL: our own */
	size_t ledger_size;
	const _Atomic uint64_t *position;
	const _Atomic uint32_t *held;
	bool lossy;
};

struct tl_stream {
	_Atomic uint32_t refs; /* 1 until it is closed, and 1 for each draft and its tensors */
	struct stream_view *view;
	pthread_mutex_t mutex; /* of all that follows: the producer */
	struct spin spin;
	bool joined, reopens, closed;
	unsigned line;
	uint32_t member;
	uint64_t member_word;
	uint64_t next;	  /* no number below this is free */
	uint64_t room;	  /* numbers below this pass the gate; 0: not known */
	uint32_t changes; /* of the table of members, when it was read */
	struct stream_reader readers[STREAM_MEMBERS];
	uint32_t nreaders; /* the places from this index on are empty */
	struct stream_block *blocks;
	unsigned nblocks, max_blocks;
	unsigned *free; /* a stack of indexes of free blocks, the most recently used on top */
	unsigned nfree;
	struct stream_sizes sizes;
	uint64_t max_bytes;	  /* as in tl_stream_options */
	bool starved;		  /* the last put found no memory */
	struct notifier notifier; /* readable when a put may have room */
	_Atomic uint32_t waiters; /* threads that need our bit in `waits` */
};

/* ---- readers.c ---- */

void reader_forget(struct stream_reader *r);
/* Reads the table of members, if it has changed. Returns 0 or a negative errno. */
int readers_read(struct tl_stream *s);
/* Returns the lowest position of the subscribers that producers wait for, and the member *@who that
 * has it. UINT64_MAX: there is none. */
uint64_t readers_lowest(const struct tl_stream *s, uint32_t *who);
uint64_t readers_lowest_lossy(const struct tl_stream *s);

/* ---- blocks.c; with the mutex ---- */

enum { PUT_E_FULL = 1 << 9 }; /* wait for room, then look again */

/* Finds or makes a block for an item of @size bytes, to be written. PUT_E_FULL: none is free, and
 * there can be no more now. */
int blocks_find(struct tl_stream *s, uint64_t size, unsigned *index);
/* Tell whether the block's item was published: the first one yes, the second one no. */
void blocks_published(struct tl_stream *s, unsigned index, uint64_t number);
void blocks_put_back(struct tl_stream *s, unsigned index);
/* Returns how many blocks there are. The item of one may be released: then a put has memory. */
unsigned blocks_in_use(const struct tl_stream *s);
/* Looks which blocks are free. */
int blocks_sweep(struct tl_stream *s);
void blocks_free(struct tl_stream *s);

enum { NO_BLOCK = UINT32_MAX };

enum putting_what {
	PUTS_ITEM = 0,
	PUTS_DRAFT,   /* writes a block, and does not publish it */
	PUTS_WRITTEN, /* publishes the block of a draft, which stays one if that fails */
};

/* A put under way. */
struct putting {
	struct item_plan plan;
	tl_stream_put_options options;
	struct tl_draft *device; /* of a draft: its parts on a GPU; NULL: it has none */
	uint64_t device_ref;	 /* the tensor with the parts on a GPU; 0: none yet */
	unsigned block;		 /* with the item; or NO_BLOCK */
	enum putting_what what;
};

int stream_parts_check(const tl_stream *s, const tl_part *parts, size_t n, const char *function);
/* Copies and checks options. With @drafts, metadata may be NULL although its size is not 0. */
int stream_put_options(tl_stream_put_options *o, const tl_stream_put_options *from, bool drafts);
int stream_put(struct tl_stream *s, struct putting *p, const tl_stream_put_options *options,
	       uint64_t *number);
/* Puts a measured item with checked options. */
int stream_put_planned(struct tl_stream *s, struct putting *p, uint64_t *number);
/* Returns the bytes of a draft's block. */
char *stream_block_bytes(struct tl_stream *s, unsigned index);
void stream_draft_abort(struct tl_stream *s, const struct putting *p);
/* item_device.c: puts the parts on a GPU into a tensor there, p->device_ref, which has the entry's
 * name. For a draft it makes p->device, which will be that tensor, and item_device_commit()
 * publishes it. 0, or a negative errno. */
int item_device_put(struct tl_stream *s, struct putting *p, unsigned entry);
int item_device_commit(struct tl_stream *s, struct putting *p, unsigned entry);
/* Deletes the GPU tensor of the entry's last item, which nobody will take any more. Returns true if
 * there was one. */
bool item_device_drop(struct tl_stream *s, unsigned entry);
void stream_ref(struct tl_stream *s);
void stream_unref(struct tl_stream *s);
/* Waits until a put may have room. */
void stream_notifier_wait(struct notifier *n);
/* Ends the handle's producer. Its blocks stay while there are drafts. */
void stream_producer_end(struct tl_stream *s);
