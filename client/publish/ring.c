/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The producer's side of rings (ring.h).
 *
 * ORDER: K1 then K2 here, E1 then T2 in the daemon (state/ring_end.c): we count a hold on the row,
 * then look at the page's word; it adds a bit to that word, then looks at our ledger. And P2 here,
 * E1 there: both change one word. All are seq_cst (tests/model/ring.pml).
 *
 * All of a struct ring, and the rows that it writes, are under the session's produce mutex.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/connection/answer.h"
#include "client/connection/lease_protocol.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/memory/ring_pages.h"
#include "client/publish/ring.h"
#include "client/publish/ring_trial.h"
#include "proto/description.h"
#include "proto/ring_layout.h"
#include "tensor/dtype.h"
#include "tensor/extent.h"
#include "util/cancel.h"
#include "util/clock.h"
#include "util/fd.h"

struct ring_slot {
	uint32_t slot;
	uint64_t used; /* the generation of the last publication */
	bool taken;    /* a draft has it */
	void *data;
	struct write_map *map;
};

struct ring {
	struct list link; /* in producer.rings while it lives */
	unsigned refs;	  /* 1 while it lives, and 1 for each draft */
	bool parents;	  /* in a forked child: the ring is the parent's */
	uint64_t ring;
	struct ring_page *page;
	uint64_t word, version; /* of the last publication */
	unsigned count, next, nretired;
	uint32_t life; /* of the daemon that was told the retired rows */
	uint64_t retired[RING_REFS_MAX];
	uint64_t run; /* bytes of a tensor, if its elements have whole bytes; or 0 */
	uint64_t flags;
	DLDataType dtype;
	int ndim;
	int64_t shape[CATALOG_INLINE_NDIM];
	uint8_t name_len;
	char name[TL_NAME_MAX];
	struct ring_slot slots[RING_SLOTS_MAX];
};

struct producer {
	struct list rings;
	unsigned count;
	struct ring *last; /* the last one found */
	struct ring_trials trials;
};

/* ---- Rings and their references ---- */

static struct producer *producer_locked(struct session *s)
{
	if (s->producer)
		return s->producer;
	s->producer = calloc(1, sizeof(*s->producer));
	if (s->producer)
		list_init(&s->producer->rings);
	return s->producer;
}

/* Frees the ring. Takes the mappings' mutex. */
static void ring_free(struct session *s, struct ring *r)
{
	if (!r->parents)
		munmap(r->page, RING_PAGE_SIZE);
	for (unsigned i = 0; i < r->count; i++)
		mapping_write_end(&s->mappings, r->slots[i].map);
	free(r);
}

/* For a forked child, where the ring's page is not mapped. The slots stay only if drafts still have
 * some. */
static void ring_forked(struct ring *r)
{
	r->parents = true;
	for (unsigned i = 0; r->refs == 1 && i < r->count; i++)
		mapping_write_forked(r->slots[i].map);
	r->count = r->refs == 1 ? 0 : r->count;
}

static void unref_locked(struct session *s, struct ring *r)
{
	if (--r->refs == 0)
		ring_free(s, r);
}

/* Drops a ring that is not to be used any more. Drafts may still be in it. */
static void forget_locked(struct session *s, struct ring *r)
{
	if (list_empty(&r->link))
		return;
	list_del(&r->link);
	s->producer->count--;
	if (s->producer->last == r)
		s->producer->last = NULL;
	unref_locked(s, r);
}

static void forget_all_locked(struct session *s)
{
	while (!list_empty(&s->producer->rings))
		forget_locked(s, list_first_entry(&s->producer->rings, struct ring, link));
}

/* Forgets all rings if a request timed out. A publish in a ring must not overtake that request,
 * such as a DELETE of the ring's name, which the daemon may read later. COMMITs come after it. */
static void doubt_locked(struct session *s)
{
	if (atomic_load(&s->in_doubt) && atomic_exchange(&s->in_doubt, false))
		forget_all_locked(s);
}

void rings_end(struct session *s)
{
	if (!s->producer)
		return;
	forget_all_locked(s);
	free(s->producer);
	s->producer = NULL;
}

void rings_close(struct session *s)
{
	pthread_mutex_lock(&s->produce_mutex);
	rings_end(s);
	pthread_mutex_unlock(&s->produce_mutex);
	mappings_end_writes(&s->mappings);
}

void rings_fork(struct session *s)
{
	struct draft_hold *hold;
	struct ring *r;

	if (!s->producer)
		return;
	list_for_each_entry(hold, &s->drafts, link) {
		const struct tl_draft *draft = container_of(hold, struct tl_draft, hold);

		if (draft->ring)
			draft->ring->parents = true;
	}
	list_for_each_entry(r, &s->producer->rings, link)
		ring_forked(r);
	rings_end(s);
}

static bool same(const struct ring *r, const char *name, size_t name_len, DLDataType dtype,
		 int ndim, const int64_t *shape, uint64_t flags)
{
	return r->name_len == name_len && !memcmp(r->name, name, name_len) &&
	       tensor_dtype_same(r->dtype, dtype) && r->ndim == ndim && r->flags == flags &&
	       (!ndim || !memcmp(r->shape, shape, (size_t)ndim * sizeof(*shape)));
}

static bool matches(const struct ring *r, const struct draft_request *request)
{
	return same(r, request->name, request->name_len, request->dtype, request->ndim,
		    request->shape, request->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED);
}

bool ring_fits(const struct tl_draft *draft, const DLTensor *as, uint64_t flags, const char *name,
	       size_t name_len)
{
	return same(draft->ring, name, name_len, as->dtype, as->ndim, as->shape,
		    flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED);
}

static uint64_t ring_hash(const struct ring *r)
{
	return ring_trial_hash(r->name, r->name_len, r->dtype, (unsigned)r->ndim, r->shape);
}

static struct ring *find_locked(struct session *s, const struct draft_request *request)
{
	struct ring *r;

	if (!s->producer)
		return NULL;
	doubt_locked(s);
	if (s->producer->last && matches(s->producer->last, request))
		return s->producer->last;
	list_for_each_entry(r, &s->producer->rings, link)
		if (matches(r, request))
			return s->producer->last = r;
	return NULL;
}

static bool is_ended(const struct ring *r)
{
	return atomic_load(&r->page->word) != r->word;
}

/* Forgets the rings of that name, and those that the daemon has ended. */
static void forget_some_locked(struct session *s, const char *name, size_t name_len)
{
	if (!s->producer)
		return;
	list_for_each_safe(l, &s->producer->rings) {
		struct ring *r = list_entry(l, struct ring, link);

		if (is_ended(r) || (r->name_len == name_len && !memcmp(r->name, name, name_len)))
			forget_locked(s, r);
	}
}

void ring_forget(struct session *s, const char *name, size_t name_len)
{
	pthread_mutex_lock(&s->produce_mutex);
	forget_some_locked(s, name, name_len);
	pthread_mutex_unlock(&s->produce_mutex);
}

void rings_let_go(struct session *s)
{
	if (pthread_mutex_trylock(&s->produce_mutex))
		return;
	forget_some_locked(s, "", 0);
	pthread_mutex_unlock(&s->produce_mutex);
}

/* ---- Retiring ---- */

struct retire {
	struct wire_retire m;
	uint64_t refs[RING_REFS_MAX];
};

/* Takes the list of retired rows if it has at least @least entries. */
static bool list_take_locked(struct ring *r, unsigned least, struct retire *out)
{
	if (r->nretired < least)
		return false;
	out->m = (struct wire_retire){
		.header = { .type = WIRE_RETIRE,
			    .length = (uint32_t)(sizeof(out->m) +
						 r->nretired * sizeof(*out->refs)) },
		.ring = r->ring,
		.count = r->nretired,
	};
	memcpy(out->refs, r->retired, r->nretired * sizeof(*out->refs));
	r->nretired = 0;
	return true;
}

/* A daemon that died may have read RETIRE without doing it. So the next daemon is told again of all
 * published rows that the name does not mean. It ignores the rows that were retired already. */
static void list_anew_locked(const struct session *s, struct ring *r)
{
	uint32_t life = atomic_load(&s->catalog.header->life);

	if (r->life == life)
		return;
	r->life = life;
	r->nretired = 0;
	for (unsigned i = 0; i < r->count; i++) {
		const struct ring_slot *slot = &r->slots[i];
		uint64_t word = atomic_load(&s->catalog.rows[slot->slot].word);

		if (i != ring_word_index(r->word) && word == row_word(slot->used, ROW_LIVE))
			r->retired[r->nretired++] = ref_make(slot->used, slot->slot);
	}
}

/* ---- Taking a slot ---- */

/* K1 and K2. False: the ring has ended, and is forgotten. */
static bool slot_hold_locked(struct session *s, struct ring *r, const struct ring_slot *slot)
{
	uint32_t held = slot->slot;

	hold_add(s, held);
	if (!is_ended(r) && !atomic_load(&s->forking))
		return true;
	lease_release(s, held);
	forget_locked(s, r);
	return false;
}

static bool slot_take_locked(struct session *s, struct ring *r, struct tl_draft *draft,
			     struct ring_slot *slot, uint64_t generation)
{
	if (!slot_hold_locked(s, r, slot))
		return false;
	slot->taken = true;
	r->refs++;
	draft->session = s;
	draft->ring = r;
	draft->ring_slot = slot;
	draft->hold.ref = ref_make(generation, slot->slot);
	draft->hold.held = true;
	draft->map = slot->map;
	draft->tensor.data = slot->data;
	list_add_tail(&s->drafts, &draft->hold.link);
	draft_step(draft, DRAFT_GRANT);
	return true;
}

enum { SLOTS_FEW = 16 };

/* Finds a slot that no draft has and whose row is LIVE in an unpublished generation. */
static struct ring_slot *slot_free_locked(const struct session *s, struct ring *r,
					  uint64_t *generation)
{
	if (r->count <= SLOTS_FEW) /* the slots used last are in the caches */
		r->next = 0;
	for (unsigned i = 0; i < r->count; i++) {
		struct ring_slot *slot = &r->slots[r->next];
		uint64_t word = atomic_load(&s->catalog.rows[slot->slot].word);

		r->next = r->next + 1 == r->count ? 0 : r->next + 1;
		*generation = word >> 2;
		if (row_word_state(word) == ROW_LIVE && *generation > slot->used && !slot->taken)
			return slot;
	}
	return NULL;
}

/* Consumers hold all slots and more are needed: the next ring, which begins at once, gets them. */
static void grow(struct session *s, const struct draft_request *request)
{
	const struct ring *r;

	pthread_mutex_lock(&s->produce_mutex);
	r = find_locked(s, request);
	if (r && request->ring == TL_RING_AUTO && r->count < RING_SLOTS_MAX)
		ring_trial_deepen(&s->producer->trials, ring_hash(r), r->count);
	pthread_mutex_unlock(&s->produce_mutex);
}

enum taken { TAKEN, TAKEN_NOT, TAKEN_LATER };

static enum taken try_take(struct session *s, struct tl_draft *draft,
			   const struct draft_request *request, struct retire *retire)
{
	enum taken taken = TAKEN_NOT;
	struct ring_slot *slot;
	uint64_t generation;
	struct ring *r;

	retire->m.count = 0;
	pthread_mutex_lock(&s->produce_mutex);
	r = find_locked(s, request);
	if (r && !session_served(s)) {
		forget_locked(s, r);
	} else if (r) {
		slot = slot_free_locked(s, r, &generation);
		if (slot) {
			taken = slot_take_locked(s, r, draft, slot, generation) ? TAKEN : TAKEN_NOT;
		} else if (is_ended(r)) {
			forget_locked(s, r);
		} else {
			list_anew_locked(s, r);
			list_take_locked(r, 1, retire);
			taken = TAKEN_LATER;
		}
	}
	pthread_mutex_unlock(&s->produce_mutex);
	return taken;
}

/* How long to wait for the daemon to give slots back, before it is asked for a draft. */
#define SLOT_TIMEOUT_NS (5 * NS_PER_MS)

/* True if the daemon is there. A publish to a ring sends nothing, so the death of the daemon would
 * not show by itself. */
static bool daemon_is_there(struct session *s)
{
	int64_t now = now_mono_coarse_ns();

	if (atomic_load(&s->ended))
		return false;
	if (now - atomic_load_explicit(&s->probed_ns, memory_order_relaxed) < DAEMON_PROBE_NS)
		return true;
	atomic_store_explicit(&s->probed_ns, now, memory_order_relaxed);
	return session_probe(s);
}

bool ring_take(struct session *s, struct tl_draft *draft, const struct draft_request *request)
{
	struct retire retire;
	int64_t deadline = 0;

	if (request->ring == TL_RING_NONE || !request->name_len || request->lifetime.flags ||
	    request->lifetime.ttl_ns || request->version || !daemon_is_there(s))
		return false;

	for (unsigned tries = 1;; tries++) {
		switch (try_take(s, draft, request, &retire)) {
		case TAKEN:
			return true;
		case TAKEN_NOT:
			return false;
		case TAKEN_LATER:
			break;
		}
		if (!deadline)
			deadline = deadline_after(SLOT_TIMEOUT_NS);
		if (retire.m.count)
			session_post(s, &retire);
		else if (deadline_passed(deadline)) {
			grow(s, request);
			return false;
		} else if (tries < 64)
			sched_yield();
		else
			nap(20 * NS_PER_US);
	}
}

static void leave_locked(struct tl_draft *draft)
{
	draft->ring_slot->taken = false;
	unref_locked(draft->session, draft->ring);
	draft->ring = NULL;
	draft->map = NULL; /* the map belongs to the ring */
}

void ring_leave(struct tl_draft *draft)
{
	struct session *s = draft->session;

	pthread_mutex_lock(&s->produce_mutex);
	leave_locked(draft);
	pthread_mutex_unlock(&s->produce_mutex);
}

/* ---- Publishing ---- */

/* P1: writes the page's entry. */
static void entry_write(struct ring *r, unsigned index, const void *metadata, size_t size)
{
	struct ring_entry *entry = &r->page->entries[index];

	entry->version = r->version + 1;
	entry->committed_ns = (uint64_t)now_real_ns();
	entry->meta_len = (uint16_t)size;
	if (size)
		memcpy(entry->meta, metadata, size);
}

/* P1 to P3. False: the ring has ended. */
static bool publish_locked(struct session *s, struct ring *r, struct ring_slot *slot,
			   uint64_t generation, const void *metadata, size_t size)
{
	unsigned index = (unsigned)(slot - r->slots);
	uint64_t word = r->word, next = ring_word(generation, index);

	entry_write(r, index, metadata, size);
	if (!atomic_compare_exchange_strong(&r->page->word, &word, next)) { /* P2 */
		forget_locked(s, r);
		return false;
	}
	r->retired[r->nretired++] = ref_make(ring_word_generation(r->word),
					     r->slots[ring_word_index(r->word)].slot);
	r->word = next;
	r->version++;
	slot->used = generation;
	if (atomic_load(&r->page->watched)) /* P3 */
		syscall(SYS_futex, ring_futex(r->page), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	return true;
}

int ring_publish(struct tl_draft *draft, const void *metadata, size_t size, uint64_t *version)
{
	struct session *s = draft->session;
	struct ring *r = draft->ring;
	struct retire retire;
	bool tell = false, there;

	/* the probe may have seen only a message that has come, not the end */
	there = daemon_is_there(s) || !atomic_load(&s->ended);
	pthread_mutex_lock(&s->produce_mutex);
	if (!draft_is_writable(draft)) {
		pthread_mutex_unlock(&s->produce_mutex);
		return tl_fail(-ESTALE,
			       "the draft of '%s' is none any more: another thread has committed "
			       "it or closed its client",
			       draft->name);
	}
	doubt_locked(s);
	if (!there || !session_served(s) || list_empty(&r->link) ||
	    !publish_locked(s, r, draft->ring_slot, ref_generation(draft->hold.ref), metadata,
			    size)) {
		pthread_mutex_unlock(&s->produce_mutex);
		return RING_E_OVER;
	}
	*version = r->version;
	draft_step(draft, DRAFT_COMMIT);
	if (!draft_is_exported(draft)) {
		list_del(&draft->hold.link);
		if (draft->hold.held)
			lease_release(s, ref_slot(draft->hold.ref)); /* P4 */
		draft->hold.held = false;
	}
	tell = list_take_locked(r, r->count / 2, &retire);
	if (!draft_is_exported(draft)) {
		leave_locked(draft);
		draft->unlinked = true;
	}
	pthread_mutex_unlock(&s->produce_mutex);
	if (tell)
		session_post(s, &retire);
	return 0;
}

/* ---- Taking a slot and publishing in one step ---- */

/* A copy up to this size costs less than a draft. Other producers of this client, and fork(), wait
 * until it is made. */
enum { SHORT_COPY = 16 << 10 };

/* Returns the bytes of a tensor that is like the ring's, if they are a short run. */
static const void *short_run(const struct ring *r, const DLTensor *source)
{
	uintptr_t from;

	if (!r->run || r->run > SHORT_COPY || source->device.device_type != kDLCPU ||
	    !source->data ||
	    __builtin_add_overflow((uintptr_t)source->data, source->byte_offset, &from) ||
	    from > UINTPTR_MAX - r->run || !tensor_is_contiguous(source))
		return NULL;
	return (const void *)from;
}

static bool put_locked(struct session *s, struct ring *r, const void *from, const tl_put_options *o)
{
	uint64_t generation;
	struct ring_slot *slot = slot_free_locked(s, r, &generation);
	uint32_t held = slot ? slot->slot : 0;
	bool done;

	if (!slot || !slot_hold_locked(s, r, slot))
		return false;
	memcpy(slot->data, from, r->run);
	done = publish_locked(s, r, slot, generation, o->metadata, o->metadata_size);
	lease_release(s, held); /* P4 */
	return done;
}

int ring_put(struct session *s, const char *name, size_t name_len, const DLTensor *source,
	     const tl_put_options *o, uint64_t *version)
{
	const struct draft_request request = { .name = name,
					       .name_len = name_len,
					       .shape = source->shape,
					       .ndim = source->ndim,
					       .dtype = source->dtype,
					       .flags = o->dlpack_flags };
	struct retire retire;
	bool done = false, tell = false;
	const void *from;
	struct ring *r;

	if ((source->ndim && !source->shape) || o->ring == TL_RING_NONE || o->lifetime ||
	    o->ttl_ns || put_version(o) || o->metadata_size > CATALOG_INLINE_META ||
	    !daemon_is_there(s))
		return RING_E_NONE;
	pthread_mutex_lock(&s->produce_mutex);
	r = find_locked(s, &request);
	from = r && session_served(s) ? short_run(r, source) : NULL;
	if (from) {
		done = put_locked(s, r, from, o);
		if (done)
			*version = r->version;
		tell = done && list_take_locked(r, r->count / 2, &retire);
	}
	pthread_mutex_unlock(&s->produce_mutex);
	if (tell)
		session_post(s, &retire);
	return done ? 0 : RING_E_NONE;
}

/* ---- The beginning ---- */

unsigned ring_depth_for(struct tl_draft *draft, const struct tensor_description *d)
{
	struct session *s = draft->session;
	struct producer *p;
	uint32_t depth = draft->ring_depth;
	bool begins = false;
	uint64_t hash;

	if (draft->ring_depth == TL_RING_NONE || !draft->capacity ||
	    d->meta_len > CATALOG_INLINE_META || d->lifetime.flags || d->lifetime.ttl_ns ||
	    d->version || !row_fits(d->ndim, d->shape))
		return 0;
	hash = ring_trial_hash(d->name.text, d->name.len,
			       (DLDataType){ d->dtype_code, d->dtype_bits, d->dtype_lanes },
			       d->ndim, d->shape);
	pthread_mutex_lock(&s->produce_mutex);
	p = producer_locked(s);
	if (p && p->count < RINGS_CLIENT_MAX)
		begins = ring_trial_publish(&p->trials, hash, &depth);
	pthread_mutex_unlock(&s->produce_mutex);
	return begins ? ring_depth(s->catalog.header->capacity, draft->capacity, depth) : 0;
}

/* Adds a slot for the part, and takes over the part's use of its mapping. */
static void slot_fill(struct ring *r, const struct ring_part *part)
{
	r->slots[r->count++] = (struct ring_slot){ .slot = ref_slot(part->ref),
						   .map = part->map,
						   .data = part->data };
}

void ring_granted(struct session *s, const struct wire_granted *g, int fd,
		  const struct tensor_description *d, const struct ring_part *parts, unsigned n)
{
	void *page = ring_view_own(fd);
	struct ring *r = page == MAP_FAILED ? NULL : calloc(1, sizeof(*r));

	if (!r) {
		if (page != MAP_FAILED)
			munmap(page, RING_PAGE_SIZE);
		for (unsigned i = 0; i < n; i++)
			mapping_write_end(&s->mappings, parts[i].map);
		return;
	}
	madvise(page, RING_PAGE_SIZE, MADV_DONTFORK);
	r->refs = 1;
	r->ring = g->ring;
	r->page = page;
	r->version = g->version;
	r->life = atomic_load(&s->catalog.header->life);
	r->flags = d->flags;
	r->dtype = (DLDataType){ d->dtype_code, d->dtype_bits, d->dtype_lanes };
	r->ndim = d->ndim;
	if (d->ndim)
		memcpy(r->shape, d->shape, d->ndim * sizeof(*d->shape));
	if (tensor_element_bits(r->dtype, tensor_is_padded(d->flags)) % 8 ||
	    tensor_nbytes(r->dtype, r->ndim, r->shape, tensor_is_padded(d->flags), &r->run))
		r->run = 0;
	r->name_len = (uint8_t)d->name.len;
	memcpy(r->name, d->name.text, d->name.len);
	for (unsigned i = 0; i < n; i++)
		slot_fill(r, &parts[i]);
	r->slots[0].used = ref_generation(parts[0].ref);
	r->word = ring_word(r->slots[0].used, 0);
	pthread_mutex_lock(&s->produce_mutex);
	list_add_tail(&s->producer->rings, &r->link);
	s->producer->count++;
	pthread_mutex_unlock(&s->produce_mutex);
}

void ring_refused(struct session *s)
{
	pthread_mutex_lock(&s->produce_mutex);
	ring_trial_refused(&s->producer->trials);
	pthread_mutex_unlock(&s->produce_mutex);
}
