/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams; docs/protocol/streams.md has the steps, named here as there. A stream is opened on one
 * session, of which it holds a count. Its page and its entry in the catalog are one object,
 * stream_view, that handles, subscriptions and items share.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <tensorlease/stream.h>

#include "client/connection/call.h"
#include "client/connection/notifier.h"
#include "client/connection/session.h"
#include "client/read/get.h"
#include "proto/stream_layout.h"
#include "util/spin.h"

/* The page of a stream, as long as anybody in this process needs it. */
struct stream_view {
	_Atomic uint32_t refs;
	struct session *session; /* with a count on it */
	uint32_t forks;		 /* the session's when it was opened */
	struct stream_page *page;
	const struct catalog_stream *entry; /* in the catalog */
	size_t page_size;
	uint64_t ref;
	uint32_t words, depth, keep, mode; /* checked copies */
	char name[TL_NAME_MAX + 1];
};

/* Opens a stream, and joins it as @role if that is not 0. *@member and *@number are as in
 * wire_stream. Returns 0 or a negative errno. */
enum { DEPTH_DEFAULT = 16 };
struct stream_ask {
	const char *name;
	tl_stream_options options;
	unsigned role; /* enum stream_role */
	unsigned line;
	bool kept;
	uint32_t member;
	uint64_t number;
};
/* @view is NULL or has the view that an earlier call opened, whose session is asked. */
int stream_ask(tl_client *client, struct stream_ask *ask, struct stream_view **view);
struct stream_view *stream_view_ref(struct stream_view *view);
void stream_view_unref(struct stream_view *view); /* NULL is fine */
/* Sends LEAVE and waits for its answer. */
void stream_leave(struct stream_view *view, uint32_t member);

/* Takes a line of the ledger that no other member of the session has: the number of a producer, the
 * place of a subscriber's position. */
int stream_line_take(struct session *s, unsigned *line);
void stream_line_give(struct stream_view *view, unsigned line);
/* OPEN with that line has failed with @r. If it may be answered yet, and have made a member, the
 * line stays taken until then. Its position holds up nobody. */
void stream_line_failed(struct stream_view *view, unsigned line, int r);

/* Members belong to a process: a forked child may read and close what it has inherited, no more. */
bool stream_is_ours(const struct stream_view *view);
int stream_check_ours(const struct stream_view *view); /* returns 0 or -ECHILD; takes no lock */
/* Returns 0, or -ESTALE, -ECHILD, -ECANCELED: the stream or its session is over. */
int stream_usable(const struct stream_view *view);
int stream_gone(const struct stream_view *view); /* fails with -ESTALE */
/* True if the member's word is still @word. */
bool stream_member_is(const struct stream_view *view, uint32_t member, uint64_t word);
/* Returns the word of the member that this process has just become. */
uint64_t stream_member_read(const struct stream_view *view, uint32_t member);

static inline _Atomic uint64_t *stream_word_at(const struct stream_view *view, uint64_t number)
{
	return &view->page->order[number & (view->words - 1)];
}

/* Moves *@number on to the first that no word has yet, and returns the word there. */
uint64_t stream_end_find(const struct stream_view *view, uint64_t *number);
/* True if the stream is ended and was not reopened before @end. */
bool stream_is_closed(const struct stream_view *view, uint64_t end);

/* ---- sleeping and waking ---- */

/* Sets the bit of a member while @threads of it sleep, or are about to sleep, on @word. */
void stream_bit_set(struct stream_bits *bits, uint32_t member, _Atomic uint32_t *threads);
void stream_bit_clear(struct stream_bits *bits, uint32_t member, _Atomic uint32_t *threads,
		      _Atomic uint32_t *word);
static inline bool stream_bits_any(struct stream_bits *bits)
{
	uint64_t any = 0;

	for (unsigned i = 0; i < STREAM_MEMBERS / 64; i++)
		any |= atomic_load(&bits->bits[i]);
	return any;
}
/* Changes the word, and wakes @n sleepers. */
void stream_wake(_Atomic uint32_t *word, int n);
/* S5, R3: tells producers that wait. */
static inline void stream_tell_room(struct stream_view *view)
{
	if (__builtin_expect(stream_bits_any(&view->page->waits), 0))
		stream_wake(&view->page->room, INT32_MAX);
}
/* Sleeps while *@word is @seen, with @soon a few milliseconds at most. Returns 0 (look again),
 * -ETIMEDOUT without a text, -ECANCELED, -EINTR, -ESTALE. */
int stream_sleep(struct call *c, struct stream_view *view, const _Atomic uint32_t *word,
		 uint32_t seen, bool soon);
/* Begins a call that waits. */
struct call stream_call(const struct stream_view *view, int64_t timeout_ns,
			const uint32_t *interrupt, uint32_t interrupt_value);

/* P3 of a queue, and W4, when somebody sleeps. */
void stream_wake_worker(struct stream_view *view);

/* ---- subscriptions ---- */

struct tl_subscription {
	struct stream_view *view;
	pthread_mutex_t mutex; /* of all that follows, but the member */
	uint32_t member;
	uint64_t member_word;
	unsigned line;
	_Atomic uint64_t *position;
	bool lossy;
	intptr_t stream;  /* of a GPU, on which items are used */
	uint64_t next;	  /* the next number */
	uint64_t skipped; /* since the last item */
	int64_t took_ns;  /* of a queue: when the last take returned */
	bool quick;	  /* and whether this one came soon after that */
	struct spin spin;
	struct notifier notifier;  /* readable when a take may get something */
	uint64_t looked;	   /* the notifier's: what a queue has before that was taken */
	_Atomic uint32_t sleepers; /* threads for which our bit in `sleeps` stands */
};

/* take.c: waits until a take may get something. */
void subscription_notifier_wait(struct notifier *n);

/* ---- items ---- */

/* What an item is made of. */
struct item_plan {
	const tl_part *parts; /* NULL: it is the end of the stream */
	size_t n;
	bool blank; /* the tensors have no bytes yet */
	const void *metadata;
	size_t metadata_size;
	/* item_measure() finds: */
	uint64_t tensors;      /* offset of the description, which follows them */
	uint64_t description;  /* its bytes */
	uint64_t device_bytes; /* of the parts on a GPU */
	DLDevice device;       /* of those */
};

/* ---- put.c ---- */

/* Makes the handle a producer, if it is none. */
int stream_producer_join(struct tl_stream *s);
struct item_part {
	DLTensor tensor;
	const char *name;
};

struct tl_item {
	_Atomic uint32_t refs;
	struct stream_view *view;	  /* NULL: the row was handed on */
	DLManagedTensorVersioned *row;	  /* the lease */
	DLManagedTensorVersioned *device; /* and that on its parts on a GPU, or NULL */
	_Atomic bool settled;		  /* acknowledged, or never to be */
	uint64_t take;			  /* its take word, of a queue */
	unsigned entry;
	uint64_t number, time_ns, skipped;
	uint32_t producer, uid;
	size_t count;
	uint32_t description; /* as in struct stream_entry */
	const void *metadata;
	size_t metadata_size;
	struct item_part *parts; /* in the same memory as the item, as are shapes and names */
};

/* Makes an item of the row, which was leased, and its entry. Returns 0; or -EPROTO or -ENOMEM:
 * the row is the caller's. */
int item_make(struct stream_view *view, DLManagedTensorVersioned *row,
	      DLManagedTensorVersioned *device, const struct stream_entry *entry,
	      struct tl_item **out);
void item_unref(struct tl_item *item);

/* Makes @managed, the first member of what @deleter gets, like that tensor. @dims: twice its ndim.
 */
void item_managed(DLManagedTensorVersioned *managed, const DLTensor *like, int64_t *dims,
		  void (*deleter)(DLManagedTensorVersioned *));
/* The item's tensor at @i, which there is. 0, or -ENOMEM. */
int item_tensor_new(struct tl_item *item, size_t i, DLManagedTensorVersioned **out);
bool is_item_tensor(const DLManagedTensorVersioned *managed);
/* tl_remap() of such a tensor; on a GPU for use on the same stream, unless @stream says that
 * @options has one. */
int item_tensor_remap(const DLManagedTensorVersioned *managed, bool stream, tl_get_options *options,
		      DLManagedTensorVersioned **out);
/* The lease that keeps such a tensor's bytes. */
const struct tensor_lease *item_tensor_lease(const DLManagedTensorVersioned *managed);
/* What is handed on of such a tensor. -ENOTSUP: it is on a GPU. */
int item_tensor_part(const DLManagedTensorVersioned *managed, struct handed_part *part);
/* Makes a tensor of a part of the row that was received, which it takes over, also if it fails.
 * -EPROTO, -ENOMEM. */
int item_tensor_received(DLManagedTensorVersioned *row, struct handed_part part,
			 DLManagedTensorVersioned **out);
/* -EINVAL: a part is no tensor that can be put, or they are too large together. */
int item_measure(struct item_plan *plan);
/* Writes tensors and description into a row's bytes. */
int item_write(char *row, const struct item_plan *plan);
/* The host reaches memory on all other devices that a part may be on. */
static inline bool item_is_on_gpu(const DLTensor *t)
{
	return t->device.device_type == kDLCUDA;
}
/* The bytes that a part takes in the tensor on the GPU, where they follow each other. */
uint64_t item_device_space(uint64_t nbytes);
/* Changes the metadata of an item that was written, to at most as many bytes. */
void item_write_metadata(char *row, struct item_plan *plan, const void *metadata, size_t size);
/* Makes a part that is written in place a tensor: that at @offset of a row, or of the tensor on the
 * GPU. @dims: twice its ndim. Returns the offset of the next part there. */
uint64_t item_part_at(char *base, uint64_t offset, const tl_part *part, int64_t *dims,
		      DLTensor *out);
