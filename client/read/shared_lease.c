/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <sys/mman.h>

#include "client/connection/address.h"
#include "client/connection/request.h"
#include "client/read/shared_lease.h"
#include "util/cancel.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/fd.h"

/* ---- Mapping ---- */

/* A thousand threads that all get a new tensor must not ask at once. Most of them find it mapped
 * when their turn comes. */
enum { MAPS_MAX = WIRE_FDS_UNREAD_MAX / 2 };
#define MAPS_PAUSE_NS 50000

/* Counts the caller among the threads that ask. False: there are too many already. The caller is
 * not counted then, even for a moment: of a thousand threads that try again and again, some are
 * always in that moment. */
static bool map_may_begin(struct session *s)
{
	unsigned n = atomic_load(&s->maps);

	while (n < MAPS_MAX)
		if (atomic_compare_exchange_weak(&s->maps, &n, n + 1))
			return true;
	return false;
}

static int map_begin(struct session *s, int64_t deadline)
{
	while (!map_may_begin(s)) {
		if (deadline_passed(deadline))
			return tl_fail(-ETIMEDOUT,
				       "the daemon at %s did not answer other threads "
				       "that map segments in time",
				       s->address->path);
		nap(MAPS_PAUSE_NS);
	}
	return 0;
}

static void map_end(struct session *s)
{
	atomic_fetch_sub(&s->maps, 1);
}

/* Asks the daemon for a read-only descriptor of the tensor's segment. If the tensor has ended
 * before, the answer has the segment of the tensor that the name means now. */
static int request_fd(struct session *s, uint64_t ref, const struct row_head *h, int64_t deadline,
		      struct wire_segment *segment, int *fd)
{
	struct wire_map m = { .header = { .type = WIRE_MAP, .length = sizeof(m) },
			      .ref = ref,
			      .name = h->name };
	struct conn_message answer;
	uint32_t life;
	int r;

	session_drain_expected(s); /* the daemon counts descriptors that we leave unread */
	do {
		*fd = fd_close(*fd);
		life = atomic_load(&s->catalog.header->life);
		r = session_call(s, &m, deadline, &answer);
		if (r)
			return r;
		r = answer_expect(&answer, WIRE_SEGMENT, "mapping a segment");
		if (r)
			return r;
		memcpy(segment, answer.bytes, sizeof(*segment));
		*fd = answer.fd;
		r = mapping_known(&s->mappings, segment->segment, segment->segment_generation);
		if (r < 0)
			return r;
		ledger_map_note(s->ledger, s->catalog.slots, segment->segment,
				segment->segment_generation);
		if (atomic_load(&s->catalog.header->life) == life) /* ORDER: ledger_map_note() */
			return 0;
	} while (!deadline_passed(deadline));
	return tl_fail(-ETIMEDOUT, "one daemon after the other at %s took over in the time",
		       s->address->path);
}

/* Returns 0, or LEASE_E_STALE if the answer has another segment than we asked for; after the next
 * look at the name it will be right. */
static int was_meant(const struct wire_segment *segment, const struct row_head *h)
{
	return segment->segment == h->segment &&
			       segment->segment_generation == h->segment_generation
		       ? 0
		       : LEASE_E_STALE;
}

static int map_shared(struct session *s, uint64_t ref, const struct row_head *h, int64_t deadline)
{
	cleanup_(fd_closep) int fd = -1;
	struct wire_segment segment = { 0 };
	int r = map_begin(s, deadline);

	if (r)
		return r;
	r = mapping_known(&s->mappings, h->segment, h->segment_generation);
	if (r <= 0) {
		map_end(s);
		return r;
	}
	r = request_fd(s, ref, h, deadline, &segment, &fd);
	if (!r) {
		r = mapping_install(&s->mappings, segment.segment, segment.segment_generation, fd,
				    segment.size, deadline);
		if (!r || r == -EPROTO) /* another segment has no lease of ours, so it may have
					   ended */
			r = was_meant(&segment, h) ? LEASE_E_STALE : r;
	}
	map_end(s);
	return r;
}

static int map_private(struct session *s, uint64_t ref, const struct row_head *h, uint64_t nbytes,
		       int64_t deadline, struct private_map *out)
{
	struct wire_segment segment = { 0 };
	int fd = -1;
	int r;

	if (session_lost(s)) /* and with it the descriptors that are kept */
		mappings_lose_descriptors(&s->mappings);
	r = mapping_private(&s->mappings, h->segment, h->segment_generation, h->offset, nbytes,
			    out);
	if (r <= 0)
		return r;
	r = map_begin(s, deadline);
	if (r)
		return r;
	r = request_fd(s, ref, h, deadline, &segment, &fd);
	map_end(s);
	if (r && (atomic_load(&s->ended) || !session_served(s))) {
		int copied = mapping_copied(&s->mappings, h->segment, h->segment_generation,
					    h->offset, nbytes, out);

		r = copied <= 0 ? copied : r; /* there is no daemon to ask for a descriptor */
	}
	if (r || out->map) {
		fd_close(fd);
		return r;
	}
	r = was_meant(&segment, h);
	if (r) {
		mapping_keep_cow(&s->mappings, segment.segment, segment.segment_generation, fd);
		return r;
	}
	return mapping_private_new(&s->mappings, h->segment, h->segment_generation, fd, h->offset,
				   nbytes, out);
}

/* ---- Leases ---- */

void shared_lease_delete(DLManagedTensorVersioned *managed)
{
	struct tensor_lease *l = (struct tensor_lease *)managed;

	if (__builtin_expect(l->private_size != 0, 0)) {
		int saved = errno;

		munmap(l->private_map, l->private_size);
		errno = saved;
	}
	tensor_lease_end(l);
}

int shared_out_of_bounds(const struct row_head *h, uint64_t nbytes, uint64_t size)
{
	return tl_fail(-EPROTO,
		       "the catalog has a tensor of %llu bytes at %llu in a segment of %llu",
		       (unsigned long long)nbytes, (unsigned long long)h->offset,
		       (unsigned long long)size);
}

/* Makes a tensor with a copy-on-write mapping of its own. */
static int lease_private(const struct use *use, uint64_t ref, const struct row_head *h,
			 int64_t deadline, DLManagedTensorVersioned **out)
{
	struct private_map private = { 0 };
	struct tensor_lease *l;
	uint64_t nbytes = 0;
	int r = tensor_lease_shaped(use, ref, h, &nbytes, &l);

	if (r)
		return r;
	if (h->offset % TL_ALIGNMENT)
		r = shared_out_of_bounds(h, nbytes, UINT64_MAX);
	else if (nbytes)
		r = map_private(use->session, ref, h, nbytes, deadline, &private);
	if (!r && !lease_stands(use->session, ref)) {
		if (private.map)
			munmap(private.map, private.map_size);
		r = LEASE_E_STALE;
	}
	if (r) {
		lease_object_give(l);
		return r;
	}
	lease_fill(l, use, ref, h, private.data, 0, shared_lease_delete);
	l->copied = private.copied;
	l->private_map = private.map;
	l->private_size = private.map_size;
	*out = &l->managed;
	return 0;
}

/* Makes a tensor without bytes, which lies in no segment. */
static int lease_empty(const struct use *use, uint64_t ref, const struct row_head *h,
		       enum tl_mode mode, DLManagedTensorVersioned **out)
{
	struct tensor_lease *l;
	uint64_t nbytes = 0;
	int r = tensor_lease_shaped(use, ref, h, &nbytes, &l);

	if (!r && nbytes) {
		lease_object_give(l);
		r = tl_fail(-EPROTO, "the catalog has a tensor of %llu bytes without an extent",
			    (unsigned long long)nbytes);
	} else if (!r && !lease_stands(use->session, ref)) {
		lease_object_give(l);
		r = LEASE_E_STALE;
	}
	if (r)
		return r;
	lease_fill(l, use, ref, h, NULL, mode == TL_MODE_READ ? DLPACK_FLAG_BITMASK_READ_ONLY : 0,
		   shared_lease_delete);
	*out = &l->managed;
	return 0;
}

static int lease_shared(const struct use *use, uint64_t ref, const struct row_head *h,
			int64_t deadline, DLManagedTensorVersioned **out)
{
	int r = LEASE_E_UNMAPPED;

	if (h->segment < use->session->catalog.slots && h->segment_generation)
		r = shared_lease_mapped(use, ref, h, out);
	if (r != LEASE_E_UNMAPPED)
		return r;
	r = map_shared(use->session, ref, h, deadline);
	if (!r)
		r = shared_lease_mapped(use, ref, h, out);
	/* the segment has a later mapping by now, so what was seen at the name is old */
	return r == LEASE_E_UNMAPPED ? LEASE_E_STALE : r;
}

int shared_lease(const struct use *use, uint64_t ref, const struct row_head *h,
		 const tl_get_options *options, struct get_until until,
		 DLManagedTensorVersioned **out)
{
	int r;

	if (h->segment == CATALOG_NONE)
		return lease_empty(use, ref, h, options->mode, out);
	if (options->mode == TL_MODE_READ)
		r = lease_shared(use, ref, h, until.answer, out);
	else
		r = lease_private(use, ref, h, until.answer, out);
	if (r == -ENOENT && !session_served(use->session))
		return LEASE_E_UNSERVED; /* the daemon dropped us just now */
	if (r == -ENOENT && !lease_stands(use->session, ref))
		return LEASE_E_STALE; /* it ended before we held its segment */
	return r == -ENOENT ? tl_fail(-EPROTO, "%s", tl_failure_text()) : r;
}
