/* SPDX-License-Identifier: Apache-2.0 */
/* Drafts: made, written, committed. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <tensorlease/tensorlease.h>

#include "client/session.h"
#include "util/list.h"

/*
 * A draft holds a count on its session. `hold` says that our ledger counts its slot: of drafts that
 * were prefetched, and of exported ones, whose memory must stay after the commit as long as
 * the tensor is there.
 */
struct tl_draft {
	DLManagedTensorVersioned managed; /* first: an exported draft's deleter gets its address */
	struct list link;		  /* in session->drafts; produce_mutex */
	struct session *session;
	uint64_t ref;
	struct write_map *map; /* where it is written, if that is shared memory */
	uint64_t room;	       /* bytes that were asked for */
	uint32_t extra;	       /* bytes of shape and metadata that were */
	bool hold;
	bool exported;
	bool committed;		    /* the handle lives on as an exported tensor */
	bool ended;		    /* aborted by tl_close() */
	bool stale;		    /* the parent's */
	struct cuda_buffer *buffer; /* its memory, if it is on a GPU; it has no ref then */
	intptr_t stream;	    /* on which it is written, then */
	bool sealed;		    /* the host has waited for that */
	bool written;		    /* published: what writes it is the tensor's affair */
	unsigned char *metadata;
	uint16_t metadata_size;
	uint8_t tensor_flags;
	uint8_t name_len;
	char name[TL_NAME_MAX + 1];
	int64_t dims[]; /* shape, then strides */
};

/* What is to be made. */
struct draft_request {
	const char *name;
	size_t name_len;
	const int64_t *shape;
	int ndim;
	DLDataType dtype;
	DLDevice device; /* of tl_create() only: the CPU, or a GPU */
	uint64_t flags;
	int64_t timeout_ns;
	uint64_t nbytes;
	size_t metadata_max; /* room for that much */
};

/* prefetch.c: drafts asked for before they are needed. The session's produce mutex is taken inside.
 */

/* One of that size, taken into use for @draft: its DRAFT message; false: there is none. */
bool prefetch_take(struct session *s, uint64_t nbytes, uint32_t extra, int64_t deadline,
		   struct tl_draft *draft, struct wire_draft *out);

/*
 * A tensor of that size is about to be committed. If another one looks like being needed: the
 * serial with which the COMMIT is to ask for it, else 0. If that COMMIT cannot be sent:
 * prefetch_cancel().
 */
uint32_t prefetch_begin(struct session *s, uint64_t nbytes, uint32_t extra, int64_t deadline);
void prefetch_cancel(struct session *s, uint32_t serial);

/* The requests' memory. */
void prefetch_deinit(struct session *s);

/* Tells the daemon that a draft is given up. */
void draft_abort_ref(struct session *s, uint64_t ref, int64_t deadline);

void produce_abort_all(struct session *s); /* tl_close(): the drafts that are not exported */
void produce_deinit(struct session *s);
void produce_orphan_all(struct session *s); /* in a forked child: drafts stay the parent's */

/* publish.c and cuda/ use these. */
struct tl_draft *draft_alloc(const struct draft_request *want); /* without memory */
void draft_link(struct session *s, struct tl_draft *draft);
int draft_request_check(struct draft_request *want, const tl_spec *spec); /* want->name is there */
int put_request(struct draft_request *want, const DLTensor *source, const tl_put_options *o);
/* tensor_check_source(), for tensors on GPUs too. */
int source_check(const DLTensor *source, uint64_t flags, char *why, size_t why_len);
int draft_new(tl_client *client, const struct draft_request *want, struct tl_draft **out);
int draft_commit(struct tl_draft *draft, const DLTensor *as, uint64_t flags, const char *name,
		 size_t name_len, uint64_t *version);
int draft_check(struct tl_draft *draft); /* may it be committed? */
void draft_free(struct tl_draft *draft);
int draft_metadata(struct tl_draft *draft, const void *metadata, size_t size);
int put_options(tl_put_options *o, const tl_put_options *options);
int put_copy(tl_client *client, const char *name, const DLTensor *source, const tl_put_options *o,
	     uint64_t *version);
struct tl_draft *draft_of(const DLManagedTensorVersioned *managed);
