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
	uint32_t forks;		 /* session->forks when the stream was opened */
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
/* To be called when OPEN with that line has failed with @r. If an answer may still come, and the
 * daemon have made a member, the line stays taken until then. Its position holds up nobody. */
void stream_line_failed(struct stream_view *view, unsigned line, int r);

/* A member belongs to one process: a forked child may only read and close what it has inherited. */
bool stream_is_ours(const struct stream_view *view);
int stream_check_ours(const struct stream_view *view); /* returns 0 or -ECHILD; takes no lock */
/* Returns 0, or -ESTALE, -ECHILD, -ECANCELED: the stream or its session is over. */
int stream_usable(const struct stream_view *view);
int stream_gone(const struct stream_view *view); /* fails with -ESTALE */
/* Fails as stream_usable() does, such as with -ECONNABORTED after a kick, or else with -ESTALE. */
int stream_why_gone(const struct stream_view *view);
/* True if the member's word is still @word. */
bool stream_member_is(const struct stream_view *view, uint32_t member, uint64_t word);
/* Returns the word of the member that this process has just become. */
uint64_t stream_member_read(const struct stream_view *view, uint32_t member);

static inline _Atomic uint64_t *stream_word_at(const struct stream_view *view, uint64_t number)
{
	return &view->page->order[number & (view->words - 1)];
}

/* Moves *@number on to the first unpublished number, and returns the word in its place. */
uint64_t stream_end_find(const struct stream_view *view, uint64_t *number);
/* Returns the number at which the stream was ended, or 0 if it was not, or was reopened before
 * @end. */
uint64_t stream_closed_at(const struct stream_view *view, uint64_t end);

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
/* S5, R3: wakes producers that wait for room. */
static inline void stream_tell_room(struct stream_view *view)
{
	if (__builtin_expect(stream_bits_any(&view->page->waits), 0))
		stream_wake(&view->page->room, INT32_MAX);
}
/* Sleeps while *@word is @seen; if @soon, for a few milliseconds at most. Returns 0 (look again),
 * -ETIMEDOUT without a text, -ECANCELED, -EINTR, -ESTALE. */
int stream_sleep(struct call *c, struct stream_view *view, const _Atomic uint32_t *word,
		 uint32_t seen, bool soon);
/* Begins a call that waits. */
struct call stream_call(const struct stream_view *view, int64_t timeout_ns,
			const uint32_t *interrupt, uint32_t interrupt_value);

/* Wakes a worker that sleeps: P3 of a queue, and W4. */
void stream_wake_worker(struct stream_view *view);

/* ---- subscriptions ---- */

struct tl_subscription {
	struct stream_view *view;
	pthread_mutex_t mutex; /* protects all that follows, but the member */
	uint32_t member;
	uint64_t member_word;
	unsigned line;
	_Atomic uint64_t *position;
	bool lossy;
	uint64_t since;	  /* the first number that was put after it subscribed, or a later one */
	intptr_t stream;  /* the CUDA stream on which items are used */
	uint64_t next;	  /* the next number */
	uint64_t skipped; /* since the last item */
	int64_t took_ns;  /* of a queue: when the last take returned */
	bool quick;	  /* of a queue: the present take came soon after that */
	struct spin spin;
	struct notifier notifier;  /* readable when a take may get something */
	uint64_t looked;	   /* the notifier's: in a queue, items below this are taken */
	_Atomic uint32_t sleepers; /* threads that need our bit in `sleeps` */
};

/* take.c: waits until a take may get something. */
void subscription_notifier_wait(struct notifier *n);

/* ---- items ---- */

/* What a put makes an item from. */
struct item_plan {
	const tl_part *parts; /* NULL: it is the end of the stream */
	size_t n;
	bool blank; /* the tensors have no bytes yet */
	const void *metadata;
	size_t metadata_size;
	/* item_measure() computes: */
	uint64_t tensors;      /* their bytes, after which the description begins */
	uint64_t description;  /* bytes of the description */
	uint64_t device_bytes; /* of the parts on a GPU */
	DLDevice device;       /* the GPU that they are on */
};

/* ---- put.c ---- */

/* Makes the handle a producer, unless it is one. */
int stream_producer_join(struct tl_stream *s);
struct item_part {
	DLTensor tensor;
	const char *name;
};

struct tl_item {
	_Atomic uint32_t refs;
	struct stream_view *view;	  /* NULL: the row was handed on */
	DLManagedTensorVersioned *row;	  /* the lease */
	DLManagedTensorVersioned *device; /* the lease on its parts on a GPU, or NULL */
	_Atomic bool settled;		  /* acknowledged, or never to be */
	uint64_t take;			  /* of a queue: its take word */
	unsigned entry;
	uint64_t number, time_ns, skipped;
	uint32_t producer, uid;
	size_t count;
	uint32_t description; /* as in struct stream_entry */
	const void *metadata;
	size_t metadata_size;
	struct item_part *parts; /* in the same memory as the item, as are shapes and names */
};

/* Makes an item of its leased row and its entry. After -EPROTO or -ENOMEM the row is the
 * caller's. */
int item_make(struct stream_view *view, DLManagedTensorVersioned *row,
	      DLManagedTensorVersioned *device, const struct stream_entry *entry,
	      struct tl_item **out);
void item_unref(struct tl_item *item);

/* Fills in @managed like @like. It is the first member of what @deleter frees. @dims: 2 * ndim. */
void item_managed(DLManagedTensorVersioned *managed, const DLTensor *like, int64_t *dims,
		  void (*deleter)(DLManagedTensorVersioned *));
/* Makes a tensor of part @i, which must exist. Returns 0 or -ENOMEM. */
int item_tensor_new(struct tl_item *item, size_t i, DLManagedTensorVersioned **out);
bool is_item_tensor(const DLManagedTensorVersioned *managed);
/* tl_remap() of an item's tensor. On a GPU it is for use on the item's CUDA stream, unless @stream
 * says that @options names one. */
int item_tensor_remap(const DLManagedTensorVersioned *managed, bool stream, tl_get_options *options,
		      DLManagedTensorVersioned **out);
/* Returns the lease that keeps the bytes of an item's tensor. */
const struct tensor_lease *item_tensor_lease(const DLManagedTensorVersioned *managed);
/* Says which part of the row an item's tensor is, to hand it on. -ENOTSUP: it is on a GPU. */
int item_tensor_part(const DLManagedTensorVersioned *managed, struct handed_part *part);
/* Makes a tensor of a part of a row that was handed on to us. Takes over @row, also on failure:
 * -EPROTO, -ENOMEM. */
int item_tensor_received(DLManagedTensorVersioned *row, struct handed_part part,
			 DLManagedTensorVersioned **out);
/* -EINVAL: a part's tensor cannot be put, or the parts together are too large. */
int item_measure(struct item_plan *plan);
/* Writes tensors and description into a row's bytes. */
int item_write(char *row, const struct item_plan *plan);
/* The other kinds of devices that a part may be on have memory that the host can access. */
static inline bool item_is_on_gpu(const DLTensor *t)
{
	return t->device.device_type == kDLCUDA;
}
/* Returns the bytes that a part takes up in the item's GPU tensor, where parts are in sequence. */
uint64_t item_device_space(uint64_t nbytes);
/* Replaces the metadata of a written item. It must not become longer. */
void item_write_metadata(char *row, struct item_plan *plan, const void *metadata, size_t size);
/* Makes a tensor of a part that is written in place, at @offset of a row or of the item's tensor
 * on the GPU. @dims: 2 * ndim. Returns the offset of the next part. */
uint64_t item_part_at(char *base, uint64_t offset, const tl_part *part, int64_t *dims,
		      DLTensor *out);
