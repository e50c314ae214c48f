/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Getting a tensor and giving it back. The hot path, tl_get() of a mapped tensor and its deleter,
 * makes no system call and takes no lock; see lease.h for the protocol. All that can go another way
 * (not mapped yet, no such name, wait, connect again) is done from the start by get_slow(). A lease
 * keeps its session's count from the call that took it.
 */
#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "client/catalog.h"
#include "client/client.h"
#include "client/cuda/lease.h"
#include "client/error.h"
#include "client/fork.h"
#include "client/lease.h"
#include "client/lease_objects.h"
#include "client/mapping.h"
#include "client/request.h"
#include "client/tensor_lease.h"
#include "proto/conn.h"
#include "util/clock.h"

enum { GET_E_AGAIN = 64 }; /* something changed: try again */

/*
 * How long a waiter sleeps before it looks whether the daemon is there, and how long between
 * attempts to connect.
 */
#define SLICE_NS (1 * NS_PER_SEC)
#define BACKOFF_NS (50 * NS_PER_MS)

/* ---- The rare ends of lease.h ---- */

/*
 * ORDER: `rescan` is set (seq_cst) before the second attempt. If that fails too the socket was full
 * after the store, so the daemon has yet to empty it, and looks at `rescan` when it has. It is a
 * counter and never goes back to 0: another thread's reset could fall between our store and the
 * daemon's look.
 */
static void tell(struct session *s, uint64_t ref)
{
	struct wire_ref m = { .header = { .type = WIRE_RELEASED, .length = sizeof(m) },
			      .ref = ref };
	int r;

	if (atomic_load(&s->lost) || s->socket < 0)
		return;
	r = conn_send(s->socket, &m, -1, MSG_DONTWAIT);
	if (!r)
		return;
	atomic_fetch_add(&s->ledger->rescan, 1);
	if (!atomic_load(&s->ledger->rescan))
		atomic_fetch_add(&s->ledger->rescan, 1); /* wrapped */
	conn_send(s->socket, &m, -1, MSG_DONTWAIT);
}

void lease_tell(struct session *s, uint64_t ref)
{
	int saved = errno;

	tell(s, ref);
	errno = saved;
}

int lease_refused(struct session *s, uint32_t slot, uint32_t was)
{
	lease_release(s, slot);
	if (was >= LEDGER_HELD_MAX)
		return LEASE_E_TOO_MANY;
	if (!session_served(s))
		return LEASE_E_UNSERVED;
	switch (atomic_load(&s->state)) {
	case SESSION_FORKING:
		return LEASE_E_FORKING;
	case SESSION_OVER:
		return LEASE_E_UNSERVED;
	default:
		return LEASE_E_GONE;
	}
}

/* ---- The tensor that is handed out ---- */

static inline void lease_end(struct tensor_lease *l)
{
	struct session *s = l->session;
	uint32_t slot = ref_slot(l->ref);

	lease_object_give(l);
	lease_release(s, slot);
	users_leave(&s->users);
}

void tensor_lease_end(struct tensor_lease *l)
{
	lease_end(l);
}

static void lease_delete(DLManagedTensorVersioned *managed)
{
	struct tensor_lease *l = (struct tensor_lease *)managed;

	if (__builtin_expect(l->private_size != 0, 0)) {
		int saved = errno;

		munmap(l->private_map, l->private_size);
		errno = saved;
	}
	lease_end(l);
}

struct tensor_lease *tensor_lease_of(const DLManagedTensorVersioned *managed)
{
	return managed && (managed->deleter == lease_delete ||
			   managed->deleter == cuda_lease_delete)
		       ? (struct tensor_lease *)managed
		       : NULL;
}

/* Makes the tensor of a lease that the use has taken. The lease takes over the use's count. */
static inline void lease_fill(struct tensor_lease *l, const struct use *use, uint64_t ref,
			      const struct row_head *h, const void *data, uint64_t flags)
{
	l->session = use->session;
	l->ref = ref;
	l->managed = (DLManagedTensorVersioned){
		.version = { DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION },
		.manager_ctx = l,
		.deleter = lease_delete,
		.flags = (h->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED) | flags,
		.dl_tensor = {
			.data = (void *)data,
			.device = { kDLCPU, 0 },
			.ndim = h->ndim,
			.dtype = h->dtype,
			.shape = h->ndim ? l->dims : NULL,
			.strides = h->ndim ? l->dims + h->ndim : NULL,
		},
	};
}

static int no_memory(void)
{
	tl_fail(-ENOMEM, "no memory for a lease");
	return -ENOMEM;
}

/* A lease object with shape and strides. */
static int lease_shaped(const struct use *use, uint64_t ref, const struct row_head *h,
			uint64_t *nbytes, struct tensor_lease **out)
{
	const struct session *s = use->session;
	struct tensor_lease *l = lease_object_take(h->ndim);
	int r;

	if (!l)
		return no_memory();
	l->private_size = 0;
	r = row_dims(s, &s->rows[ref_slot(ref)], h, l->dims, l->dims + h->ndim, nbytes);
	if (r)
		lease_object_give(l);
	else
		*out = l;
	return r;
}

int tensor_lease_wrap(const struct use *use, uint64_t ref, const struct row_head *h,
		      uint64_t *nbytes, DLManagedTensorVersioned **out)
{
	struct tensor_lease *l;
	int r = lease_shaped(use, ref, h, nbytes, &l);

	if (r)
		return r;
	lease_fill(l, use, ref, h, NULL, DLPACK_FLAG_BITMASK_READ_ONLY);
	*out = &l->managed;
	return 0;
}

void tensor_lease_unwrap(DLManagedTensorVersioned *managed)
{
	lease_object_give((struct tensor_lease *)managed);
}

static int out_of_place(const struct row_head *h, uint64_t nbytes, uint64_t size)
{
	return tl_fail(-EPROTO,
		       "the catalog has a tensor of %llu bytes at %llu in a segment of %llu",
		       (unsigned long long)nbytes, (unsigned long long)h->offset,
		       (unsigned long long)size);
}

/*
 * Likewise, in a mapping that is there: LEASE_E_UNMAPPED otherwise. h->segment is one. Says what it
 * uses before it looks for it: see lease_objects.h.
 */
__attribute__((always_inline)) static inline int wrap_mapped(const struct use *use, uint64_t ref,
							     const struct row_head *h,
							     DLManagedTensorVersioned **out)
{
	struct session *s = use->session;
	struct mapping *m = &s->mappings[h->segment];
	struct tensor_lease *l = lease_object_take(h->ndim);
	uint64_t size = 0, nbytes = 0;
	const unsigned char *base;
	int r;

	if (__builtin_expect(!l, 0))
		return no_memory();
	l->private_size = 0;
	lease_object_use(l, m);
	base = mapping_find(m, h->segment_generation, &size);
	if (__builtin_expect(!base, 0)) {
		lease_object_give(l);
		return LEASE_E_UNMAPPED;
	}
	r = row_dims(s, &s->rows[ref_slot(ref)], h, l->dims, l->dims + h->ndim, &nbytes);
	if (!r &&
	    __builtin_expect(
		    h->offset > size || nbytes > size - h->offset || h->offset % TL_ALIGNMENT, 0))
		r = out_of_place(h, nbytes, size);
	if (__builtin_expect(r != 0, 0)) {
		lease_object_give(l);
		return r;
	}
	lease_fill(l, use, ref, h, base + h->offset, DLPACK_FLAG_BITMASK_READ_ONLY);
	*out = &l->managed;
	return 0;
}

/* ---- The hot path ---- */

static inline int get_mapped(const struct use *use, const struct name_key *key,
			     const tl_get_options *want, DLManagedTensorVersioned **out)
{
	struct session *s = use->session;
	struct row_head h;
	uint64_t ref;
	int r;

	r = lookup_take(s, key, want->newer_than, &ref);
	if (r)
		return r;
	h = row_head(&s->rows[ref_slot(ref)]);
	r = LEASE_E_UNMAPPED;
	if (__builtin_expect(h.flags & ROW_ON_DEVICE, 0))
		r = cuda_lease_known(use, ref, &h, want, out);
	else if (h.segment < s->slots && h.segment_generation)
		r = wrap_mapped(use, ref, &h, out);
	if (__builtin_expect(r != 0, 0))
		lease_release(s, ref_slot(ref));
	return r;
}

__attribute__((noinline)) static int get_slow(tl_client *client, const struct name_key *key,
					      const tl_get_options *want,
					      DLManagedTensorVersioned **out);

static inline int get(tl_client *client, const char *name, const tl_get_options *options,
		      DLManagedTensorVersioned **out)
{
	struct name_key key = name_key(name, strlen(name));
	struct use use;
	int r;

	use.session = atomic_load_explicit(&client->session, memory_order_acquire);
	if (options->mode == TL_MODE_READ && use.session && users_enter(&use.session->users)) {
		r = get_mapped(&use, &key, options, out);
		if (!r)
			return 0;
		client_leave(&use);
		if (r < 0)
			return r;
	}
	if (options->flags & TL_GET_LOCAL)
		return tl_fail(-EAGAIN, "'%s' cannot be had without a request or a wait", name);
	return get_slow(client, &key, options, out);
}

int tensor_lease_get(tl_client *client, const char *name, const tl_get_options *options,
		     DLManagedTensorVersioned **out)
{
	return get(client, name, options, out);
}

TL_API int tl_get(tl_client *client, const char *name, const tl_get_options *options,
		  DLManagedTensorVersioned **out)
{
	static const tl_get_options defaults = { .size = sizeof(defaults) };
	tl_get_options copy;
	int r;

	if (!client || !name || !out)
		return tl_fail(-EINVAL, "tl_get: %s is NULL",
			       !client ? "client"
			       : !name ? "name"
				       : "out");
	if (options) {
		r = client_options(&copy, sizeof(copy), options, sizeof(copy), "tl_get_options");
		if (r)
			return r;
		options = &copy;
	} else {
		options = &defaults;
	}
	if (__builtin_expect(options->flags & ~(uint32_t)TL_GET_LOCAL, 0))
		return tl_fail(-EINVAL, "tl_get_options.flags is %#x; %#x is known", options->flags,
			       TL_GET_LOCAL);
	return get(client, name, options, out);
}

/* ---- All the rest ---- */

/* The tensor's own copy-on-write mapping. */
static int lease_private(const struct use *use, uint64_t ref, const struct row_head *h,
			 int64_t deadline, DLManagedTensorVersioned **out)
{
	struct private_map private = { 0 };
	struct tensor_lease *l;
	uint64_t nbytes = 0;
	int r = lease_shaped(use, ref, h, &nbytes, &l);

	if (r)
		return r;
	if (h->offset % TL_ALIGNMENT)
		r = out_of_place(h, nbytes, UINT64_MAX);
	else if (nbytes)
		r = mapping_private(use->session, ref, h->segment, h->segment_generation, h->offset,
				    nbytes, deadline, &private);
	if (r) {
		lease_object_give(l);
		return r;
	}
	lease_fill(l, use, ref, h, private.data, 0);
	l->private_map = private.map;
	l->private_size = private.map_size;
	*out = &l->managed;
	return 0;
}

/* It has no bytes, and so no place. */
static int lease_empty(const struct use *use, uint64_t ref, const struct row_head *h,
		       enum tl_mode mode, DLManagedTensorVersioned **out)
{
	struct tensor_lease *l;
	uint64_t nbytes = 0;
	int r = lease_shaped(use, ref, h, &nbytes, &l);

	if (!r && nbytes) {
		lease_object_give(l);
		r = tl_fail(-EPROTO, "the catalog has a tensor of %llu bytes without a place",
			    (unsigned long long)nbytes);
	}
	if (r)
		return r;
	lease_fill(l, use, ref, h, NULL, mode == TL_MODE_READ ? DLPACK_FLAG_BITMASK_READ_ONLY : 0);
	*out = &l->managed;
	return 0;
}

static int lease_mapped(const struct use *use, uint64_t ref, const struct row_head *h,
			int64_t deadline, DLManagedTensorVersioned **out)
{
	int r = mapping_read(use->session, ref, h->segment, h->segment_generation, deadline);

	if (!r)
		r = wrap_mapped(use, ref, h, out);
	if (r == LEASE_E_UNMAPPED) /* it went between the two, though we hold what lies in it */
		r = tl_fail(-EPROTO, "segment %u went while a tensor in it is leased", h->segment);
	return r;
}

int tensor_lease_new(const struct use *use, uint64_t ref, const tl_get_options *want,
		     int64_t deadline, DLManagedTensorVersioned **out)
{
	struct session *s = use->session;
	const struct row_head h = row_head(&s->rows[ref_slot(ref)]);
	int r;

	if (h.flags & ROW_ON_DEVICE)
		return cuda_lease_new(use, ref, &h, want, deadline, out);
	if (h.segment == CATALOG_NONE)
		return lease_empty(use, ref, &h, want->mode, out);
	if (want->mode == TL_MODE_READ)
		r = lease_mapped(use, ref, &h, deadline, out);
	else
		r = lease_private(use, ref, &h, deadline, out);
	if (r == -ENOENT && !session_served(s))
		return LEASE_E_UNSERVED; /* the daemon dropped us just now */
	return r == -ENOENT ? tl_fail(-EPROTO, "%s", tl_failure_text()) : r;
}

static int take_and_map(const struct use *use, const struct name_key *key,
			const tl_get_options *want, int64_t deadline,
			DLManagedTensorVersioned **out)
{
	uint64_t ref;
	int r;

	r = lookup_take(use->session, key, want->newer_than, &ref);
	if (r)
		return r;
	r = tensor_lease_new(use, ref, want, deadline, out);
	if (r)
		lease_release(use->session, ref_slot(ref));
	return r;
}

static void spin(const _Atomic uint32_t *wake, uint32_t seen, int64_t end)
{
	while (atomic_load_explicit(wake, memory_order_acquire) == seen && !deadline_passed(end))
		for (unsigned i = 0;
		     i < 32 && atomic_load_explicit(wake, memory_order_relaxed) == seen; i++)
#if defined(__x86_64__) || defined(__i386__)
			__builtin_ia32_pause();
#else
			atomic_signal_fence(memory_order_seq_cst);
#endif
}

static void sleep_on(const _Atomic uint32_t *wake, uint32_t seen, int64_t ns)
{
	struct timespec ts = { .tv_sec = ns / NS_PER_SEC, .tv_nsec = ns % NS_PER_SEC };

	syscall(SYS_futex, wake, FUTEX_WAIT, seen, &ts, NULL, 0); /* shared: the daemon wakes it */
}

/*
 * Waits for a commit, or for a reason to look. GET_E_AGAIN, LEASE_E_UNSERVED, or -ETIMEDOUT without
 * a text.
 */
static int wait_for_commit(struct session *s, const _Atomic uint32_t *wake, uint32_t seen,
			   int64_t spin_end, int64_t deadline)
{
	int64_t left;

	spin(wake, seen, spin_end);
	left = deadline_left_ns(deadline);
	if (left == 0) /* looked at first: the word may change all the time */
		return -ETIMEDOUT;
	if (atomic_load_explicit(wake, memory_order_acquire) != seen)
		return GET_E_AGAIN;
	sleep_on(wake, seen, left < SLICE_NS ? left : SLICE_NS);
	if (!session_served(s))
		return LEASE_E_UNSERVED;
	if (atomic_load_explicit(wake, memory_order_acquire) == seen && !session_probe(s))
		return LEASE_E_UNSERVED;
	return GET_E_AGAIN;
}

/* Time is up, or there was none to wait. */
static int not_found(const struct name_key *key, const tl_get_options *want, int why)
{
	const char *newer = why == LEASE_E_OLD ? "newer tensor called" : "tensor called";

	if (why == LEASE_E_LOST)
		return tl_fail(
			-ENODATA,
			"the process that published '%s' is gone, and with it the GPU memory it lay in: "
			"publish it anew, or from memory that tl_create() made on the GPU, which stays",
			key->text);
	if (want->timeout_ns)
		return tl_fail(-ETIMEDOUT, "no %s '%s' came within %lld ms", newer, key->text,
			       (long long)(want->timeout_ns / NS_PER_MS));
	if (why == LEASE_E_OLD)
		return tl_fail(-EAGAIN, "'%s' has no version above %llu", key->text,
			       (unsigned long long)want->newer_than);
	return tl_fail(-ENOENT, "no tensor is called '%s'", key->text);
}

struct getting {
	const struct name_key *key;
	const tl_get_options *want;
	int64_t deadline, spin_end;
};

/*
 * One attempt on the current session, and the wait after it if nothing was there. 0, *_E_*, or a
 * negative errno.
 */
static int get_attempt(const struct getting *g, const struct use *use, int64_t request_deadline,
		       DLManagedTensorVersioned **out)
{
	const _Atomic uint32_t *wake = catalog_wake(use->session, g->key);
	uint32_t seen = atomic_load_explicit(wake, memory_order_acquire);
	int r = take_and_map(use, g->key, g->want, request_deadline, out);
	int waited;

	if (r != LEASE_E_NONE && r != LEASE_E_OLD && r != LEASE_E_LOST)
		return r;
	if (atomic_load(&use->session->lost) && (r == LEASE_E_NONE || g->want->timeout_ns))
		return LEASE_E_UNSERVED; /* its daemon cannot tell us of a commit */
	waited = g->want->timeout_ns
			 ? wait_for_commit(use->session, wake, seen, g->spin_end, g->deadline)
			 : -ETIMEDOUT;
	return waited == -ETIMEDOUT ? not_found(g->key, g->want, r) : waited;
}

/* Another session is needed. A get that waits goes on trying until its time is up. */
static int get_renew(tl_client *client, struct session *old, const struct getting *g,
		     unsigned *renewals)
{
	int r = client_renew(client, old, client_deadline(client));

	if (!r)
		return (*renewals)++ && !g->want->timeout_ns
			       ? tl_fail(-ENOTCONN, "the daemon at %s ends every connection",
					 client->address)
			       : 0;
	if (!g->want->timeout_ns || deadline_left_ns(g->deadline) <= BACKOFF_NS || fork_exiting())
		return r;
	nanosleep(&(struct timespec){ .tv_nsec = BACKOFF_NS }, NULL);
	return 0;
}

static int get_slow(tl_client *client, const struct name_key *key, const tl_get_options *want,
		    DLManagedTensorVersioned **out)
{
	struct getting g = {
		.key = key,
		.want = want,
		.deadline = deadline_after(want->timeout_ns),
		.spin_end = deadline_after(want->spin_ns > 0 ? want->spin_ns : 0),
	};
	unsigned renewals = 0;
	int r;

	r = client_check_name(key->text, key->len);
	if (r)
		return r;
	if (want->mode != TL_MODE_READ && want->mode != TL_MODE_COPY_ON_WRITE)
		return tl_fail(-EINVAL, "tl_get_options.mode is %d", (int)want->mode);
	if (g.spin_end > g.deadline)
		g.spin_end = g.deadline;
	for (;;) {
		struct session *old = atomic_load(&client->session);
		struct use use = { .session = old };

		if (!old || !users_enter(&old->users)) {
			r = SESSION_E_UNSENT;
		} else {
			if (atomic_load_explicit(&old->pinned, memory_order_relaxed))
				fork_unpin(old);
			r = get_attempt(&g, &use, client_deadline(client), out);
			if (!r)
				return 0; /* the lease has the use's count */
			client_leave(&use);
		}
		if (r < 0)
			return r;
		if (r == LEASE_E_TOO_MANY)
			return tl_fail(-EOVERFLOW, "'%s' is held %u times by this process",
				       key->text, LEDGER_HELD_MAX);
		if (r == LEASE_E_FORKING)
			fork_wait();
		else if (r != GET_E_AGAIN && r != LEASE_E_GONE)
			r = get_renew(client, old, &g, &renewals);
		if (r < 0)
			return r;
	}
}

int client_take(tl_client *client, const struct name_key *key, struct use *use, uint64_t *ref)
{
	for (unsigned renewals = 0;;) {
		int r = client_enter(client, false, client_deadline(client), use);

		if (r)
			return r;
		r = lookup_take(use->session, key, 0, ref);
		if (!r)
			return 0;
		if (r == LEASE_E_NONE && atomic_load(&use->session->lost))
			r = LEASE_E_UNSERVED;
		if (r == LEASE_E_UNSERVED && !renewals++)
			r = client_renew(client, use->session, client_deadline(client));
		client_leave(use);
		if (r == LEASE_E_FORKING)
			fork_wait();
		else if (r == LEASE_E_UNSERVED)
			return tl_fail(-ENOTCONN, "the daemon at %s ends every connection",
				       client->address);
		else if (r)
			return r;
	}
}

/* Is the row still the lease's? If the daemon dropped us it may be another's; the bytes stay. */
static bool row_is_ours(const struct tensor_lease *l)
{
	uint64_t word = atomic_load(&l->session->rows[ref_slot(l->ref)].word);
	enum row_state state = row_word_state(word);

	return word >> 2 == ref_generation(l->ref) && (state == ROW_LIVE || state == ROW_RETIRED);
}

TL_API int tl_tensor_info(const DLManagedTensorVersioned *tensor, tl_info *info)
{
	const struct tensor_lease *l = tensor_lease_of(tensor);
	tl_info found;
	int r;

	if (!l || !info)
		return tl_fail(-EINVAL, "tl_tensor_info: %s",
			       l ? "info is NULL" : "the tensor is not from tl_get()");
	r = client_result_check(info, sizeof(found), "tl_info");
	if (r)
		return r;
	r = row_info(l->session, &l->session->rows[ref_slot(l->ref)], &found);
	if (!row_is_ours(l)) /* read after it: its word changes first */
		return tl_fail(-ENOTCONN, "the daemon that knows the tensor does not serve us now");
	if (r)
		return r;
	found.dlpack_flags = tensor->flags;
	client_result(info, &found, sizeof(found));
	return 0;
}

TL_API int tl_tensor_check(const DLManagedTensorVersioned *tensor)
{
	const struct tensor_lease *l = tensor_lease_of(tensor);
	const struct catalog_row *row;

	if (!l)
		return tl_fail(-EINVAL, "tl_tensor_check: the tensor is not from tl_get()");
	row = &l->session->rows[ref_slot(l->ref)];
	if (row_is_ours(l) && load_once(&row->flags) & ROW_ON_DEVICE &&
	    atomic_load(&row->progress) == ROW_LOST)
		return tl_fail(-ENODATA,
			       "the process that published the tensor is gone, and with it the GPU "
			       "memory it lay in");
	return 0;
}
