/* SPDX-License-Identifier: Apache-2.0 */
/* tl_get() and the other functions that read, and watches. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <tensorlease/cuda.h>
#include <tensorlease/watch.h>

#include "client/checks.h"
#include "client/connection/call.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/gpu/gpu.h"
#include "client/read/gather.h"
#include "client/read/get.h"
#include "client/read/lease_tensor.h"
#include "client/read/lookup.h"
#include "client/read/names.h"
#include "client/read/sleep.h"
#include "client/read/watch.h"
#include "client/stream/stream.h"
#include "util/cancel.h"
#include "util/cleanup.h"
#include "util/clock.h"

/* Gets tensors, and answers questions about them. */

/* ---- Getting ---- */

/* Takes another lease on @held: on the same stream, unless @stream says that @options has one. */
static int remap(const DLManagedTensorVersioned *held, bool stream, tl_get_options *options,
		 DLManagedTensorVersioned **out, const char *function)
{
	const struct tensor_lease *l = tensor_lease_of(held);
	const bool moved = held && copied_info(held), item = held && is_item_tensor(held);

	if ((!l && !moved && !item) || !out)
		return tl_fail(-EINVAL, "%s: %s", function,
			       out ? "the tensor is not from tl_get()" : "out is NULL");
	if (client_check_mode(options->mode, function))
		return -EINVAL;
	if (moved && options->mode != TL_MODE_READ)
		return tl_fail(-ENOTSUP,
			       "%s: a copy on another device cannot be mapped copy-on-write: it "
			       "is this process's alone and may be written",
			       function);
	if (item)
		return item_tensor_remap(held, stream, options, out);
	if (moved)
		return copied_again(held, stream ? options->stream : TL_STREAM_NONE, out);
	if (tensor_lease_kind(l)->lease_again)
		tensor_lease_kind(l)->lease_again(l, stream, options);
	return lease_again(l, options, out);
}

/* Returns what is left of a get's timeout. It is not 0, which would mean another one. */
static int64_t timeout_left(const tl_get_options *options, int64_t deadline)
{
	int64_t left = options->timeout_ns > 0 ? deadline_left_ns(deadline) : options->timeout_ns;

	return left || !options->timeout_ns ? left : 1;
}

/* Returns @options for a get before it is known where the tensor is: nothing is ordered yet. */
static tl_get_options anywhere(const tl_get_options *options)
{
	tl_get_options o = *options;

	o.flags = 0;
	o.mode = TL_MODE_READ;
	o.stream = TL_STREAM_NONE;
	return o;
}

/* Moves the tensor to the wanted device. Takes @held over, also if it fails. */
static int put_on(tl_client *client, const char *name, DLManagedTensorVersioned *held,
		  const tl_get_options *options, int64_t deadline, DLManagedTensorVersioned **out)
{
	tl_get_options o = *options;
	int r;

	o.timeout_ns = timeout_left(options, deadline);
	if (copied_needed(held, options->device))
		return copied_new(client, name, held, &o, out);
	o.flags = 0;
	r = remap(held, true, &o, out, "tl_get");
	held->deleter(held);
	return r;
}

static int check_device(const tl_get_options *options)
{
	const DLDevice *d = &options->device;

	if (!(options->flags & TL_GET_DEVICE))
		return 0;
	if (options->flags & TL_GET_LOCAL)
		return tl_fail(-EINVAL, "tl_get_options.flags: TL_GET_LOCAL allows no copy, and so "
					"does not go with TL_GET_DEVICE");
	if (client_check_mode(options->mode, "tl_get_options"))
		return -EINVAL;
	if (d->device_type == kDLCUDA || (d->device_type == kDLCPU && d->device_id == 0))
		return 0;
	return tl_fail(-EINVAL,
		       "tl_get_options.device is device %d of type %d; a tensor can be had on "
		       "the CPU, which is 0 of %d, and on GPUs, which are of %d",
		       d->device_id, (int)d->device_type, kDLCPU, kDLCUDA);
}

static int get_on(tl_client *client, const char *name, const tl_get_options *options,
		  DLManagedTensorVersioned **out)
{
	int64_t deadline = deadline_after(options->timeout_ns);
	tl_get_options o = anywhere(options);
	DLManagedTensorVersioned *held;
	int r = check_device(options);

	while (!r) {
		r = lease_get(client, name, &o, &held);
		if (r)
			break;
		r = put_on(client, name, held, options, deadline, out);
		if (r != -ENODATA || !options->timeout_ns)
			break;
		o.timeout_ns = timeout_left(options, deadline);
		r = 0; /* it was lost meanwhile: wait for the next one */
	}
	return r;
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
		r = client_options(&copy, sizeof(copy), options, offsetof(tl_get_options, device),
				   "tl_get_options");
		if (r)
			return r;
		options = &copy;
	} else {
		options = &defaults;
	}
	if (__builtin_expect(options->flags & ~(uint32_t)TL_GET_LOCAL, 0)) {
		if (options->flags & ~(uint32_t)(TL_GET_LOCAL | TL_GET_DEVICE))
			return tl_fail(-EINVAL, "tl_get_options.flags is %#x; %#x is known",
				       options->flags, TL_GET_LOCAL | TL_GET_DEVICE);
		return get_on(client, name, options, out);
	}
	r = lease_get_mapped(client, name, options, out);
	if (__builtin_expect(r != LEASE_E_SLOW, 1))
		return r;
	if (options->flags & TL_GET_LOCAL)
		return tl_fail(-EDEADLK, "'%s' cannot be had without a request or a wait", name);
	return lease_get(client, name, options, out);
}

/* Moves all of @got to the wanted device. On failure none is left. */
static int put_many_on(tl_client *client, const char *const *names, size_t count,
		       const tl_get_options *options, int64_t deadline,
		       DLManagedTensorVersioned **got)
{
	int r = 0;

	for (size_t i = 0; !r && i < count; i++) {
		DLManagedTensorVersioned *held = take_ptr(got[i]);

		r = put_on(client, names[i], held, options, deadline, &got[i]);
	}
	for (size_t i = 0; r && i < count; i++)
		if (got[i])
			got[i]->deleter(got[i]);
	return r;
}

/* Leaves @out alone on failure, as get_many() does. */
static int get_many_on(tl_client *client, const char *const *names, size_t count,
		       const tl_get_options *options, DLManagedTensorVersioned **out)
{
	int64_t deadline = deadline_after(options->timeout_ns);
	tl_get_options o = anywhere(options);
	DLManagedTensorVersioned **got = calloc(count + 1, sizeof(DLManagedTensorVersioned *));
	int r = got ? 0 : tl_fail(-ENOMEM, "no memory for %zu tensors", count);

	while (!r) {
		r = get_many(client, names, count, &o, got);
		if (r)
			break;
		r = put_many_on(client, names, count, options, deadline, got);
		if (!r)
			memcpy(out, got, count * sizeof(DLManagedTensorVersioned *));
		if (r != -ENODATA || !options->timeout_ns)
			break;
		o.timeout_ns = timeout_left(options, deadline);
		r = 0; /* one was lost meanwhile: wait for the next one */
	}
	free(got);
	return r;
}

TL_API int tl_get_many(tl_client *client, const char *const *names, size_t count,
		       const tl_get_options *options, DLManagedTensorVersioned **out)
{
	tl_get_options o = { .size = sizeof(o) };
	int r = 0;

	if (!client || !names || !out)
		return tl_fail(-EINVAL, "tl_get_many: %s is NULL",
			       !client	? "client"
			       : !names ? "names"
					: "out");
	if (options)
		r = client_options(&o, sizeof(o), options, offsetof(tl_get_options, device),
				   "tl_get_options");
	if (!r)
		r = check_device(&o);
	if (r)
		return r;
	if (o.newer_than)
		return tl_fail(-EINVAL, "tl_get_many: newer_than must be 0; it is %llu",
			       (unsigned long long)o.newer_than);
	if (client_check_mode(o.mode, "tl_get_options"))
		return -EINVAL;
	if (o.flags & ~(uint32_t)TL_GET_DEVICE)
		return tl_fail(-EINVAL, "tl_get_many: tl_get_options.flags is %#x; %#x is known",
			       o.flags, TL_GET_DEVICE);
	if (count > WIRE_GROUP_MAX)
		return tl_fail(-EINVAL, "tl_get_many: %zu tensors; the limit is %d", count,
			       WIRE_GROUP_MAX);
	if (o.flags & TL_GET_DEVICE)
		return get_many_on(client, names, count, &o, out);
	return get_many(client, names, count, &o, out);
}

TL_API int tl_gather(tl_client *client, const char *const *names, size_t count,
		     const tl_gather_out *outs, size_t nouts, const tl_gather_options *options)
{
	tl_gather_options o = { .size = sizeof(o) };
	int r = 0;

	if (!client || (count && !names) || (nouts && !outs))
		return tl_fail(-EINVAL, "tl_gather: %s is NULL",
			       !client		 ? "client"
			       : count && !names ? "names"
						 : "outs");
	if (options)
		r = client_options(&o, sizeof(o), options, sizeof(o), "tl_gather_options");
	if (!r && count > WIRE_GROUP_MAX)
		r = tl_fail(-EINVAL, "tl_gather: %zu tensors; the limit is %d", count,
			    WIRE_GROUP_MAX);
	return r ? r : gather(client, names, count, outs, nouts, &o);
}

TL_API int tl_wait_many(tl_client *client, const tl_wait_item *items, size_t count,
			const tl_wait_options *options, size_t *which)
{
	tl_wait_options o;
	int r;

	if (!client || (count && (!items || !which)))
		return tl_fail(-EINVAL, "tl_wait_many: %s is NULL",
			       !client	? "client"
			       : !items ? "items"
					: "which");
	r = client_wait_options(&o, options);
	if (r)
		return r;
	return wait_many(client, items, count, (const _Atomic uint32_t *)o.interrupt,
			 o.interrupt_value, o.timeout_ns, which);
}

TL_API int tl_remap(const DLManagedTensorVersioned *held, enum tl_mode mode,
		    DLManagedTensorVersioned **out)
{
	tl_get_options o = { .size = sizeof(o), .mode = mode };
	const struct tensor_lease *l;
	int r = remap(held, false, &o, out, "tl_remap");

	l = r ? NULL : tensor_lease_of(*out);
	if (l && l->private_size && l->copied)
		(*out)->flags |= DLPACK_FLAG_BITMASK_IS_COPIED; /* of a get it means TL_GET_DEVICE
								 */
	return r;
}

TL_API int tl_remap_stream(const DLManagedTensorVersioned *held, intptr_t stream,
			   int64_t timeout_ns, DLManagedTensorVersioned **out)
{
	tl_get_options o = {
		.size = sizeof(o), .timeout_ns = timeout_ns, .mode = TL_MODE_READ, .stream = stream
	};

	return remap(held, true, &o, out, "tl_remap_stream");
}

/* ---- Handing on ---- */

TL_API int tl_handover(tl_client *client, const DLManagedTensorVersioned *tensor, int64_t ttl_ns,
		       uint32_t flags, unsigned char token[TL_TOKEN_SIZE])
{
	bool item = tensor && is_item_tensor(tensor);
	const struct tensor_lease *l = item	? item_tensor_lease(tensor)
				       : tensor ? tensor_lease_of(tensor)
						: NULL;
	struct handed_part part = { 0 };
	int r;

	if (!client || !token)
		return tl_fail(-EINVAL, "tl_handover: %s is NULL", client ? "token" : "client");
	if (ttl_ns < 0 || ttl_ns > TL_TTL_MAX)
		return tl_fail(-EINVAL, "tl_handover: ttl_ns is %lld; it is 0 to %lld",
			       (long long)ttl_ns, (long long)TL_TTL_MAX);
	if (flags & ~(uint32_t)TL_HANDOVER_MANY)
		return tl_fail(-EINVAL, "tl_handover: flags is %#x; %#x is known", flags,
			       TL_HANDOVER_MANY);
	if (tensor && copied_info(tensor))
		return tl_fail(-ENOTSUP, "tl_handover: the tensor is a copy that is this process's "
					 "alone: hand on the one that it was copied from");
	if (!l)
		return tl_fail(-EINVAL, "tl_handover: the tensor is not from tl_get()");
	part.many = flags & TL_HANDOVER_MANY;
	r = item ? item_tensor_part(tensor, &part) : 0;
	return r ? r : lease_hand_on(client, l, part, (uint64_t)ttl_ns, token);
}

TL_API int tl_receive(tl_client *client, const unsigned char token[TL_TOKEN_SIZE],
		      const tl_get_options *options, DLManagedTensorVersioned **out)
{
	tl_get_options o = { .size = sizeof(o) };
	DLManagedTensorVersioned *got = NULL;
	struct handed_part part = { 0 };
	int r = 0;

	if (!client || !token || !out)
		return tl_fail(-EINVAL, "tl_receive: %s is NULL",
			       !client	? "client"
			       : !token ? "token"
					: "out");
	if (options)
		r = client_options(&o, sizeof(o), options, offsetof(tl_get_options, device),
				   "tl_get_options");
	if (!r && client_check_mode(o.mode, "tl_get_options"))
		r = -EINVAL;
	if (!r && (o.flags || o.newer_than || o.timeout_ns || o.spin_ns))
		r = tl_fail(-EINVAL, "tl_receive: of tl_get_options only mode and stream may be "
				     "set: a token means one tensor, which is there or not");
	if (!r)
		r = lease_receive(client, token, &o, &part, &got);
	if (!r && part.index)
		r = item_tensor_received(got, part, &got);
	if (!r)
		*out = got;
	return r;
}

/* ---- Tensors that are held ---- */

TL_API int tl_tensor_info(const DLManagedTensorVersioned *tensor, tl_info *info)
{
	const tl_info *moved = tensor ? copied_info(tensor) : NULL;
	const struct tensor_lease *l = tensor && !moved ? tensor_lease_of(tensor) : NULL;
	tl_info found;
	int r;

	if (!info || (!l && !moved))
		return tl_fail(-EINVAL, "tl_tensor_info: %s",
			       info ? "the tensor is not from tl_get()" : "info is NULL");
	r = client_result_check(info, offsetof(tl_info, ttl_ns), "tl_info");
	if (r)
		return r;
	if (moved)
		found = *moved;
	else
		r = tensor_lease_info(l, &found);
	if (r)
		return r;
	client_result(info, &found, sizeof(found));
	return 0;
}

TL_API int tl_tensor_version(const DLManagedTensorVersioned *tensor, uint64_t *version)
{
	const tl_info *moved = tensor ? copied_info(tensor) : NULL;
	const struct tensor_lease *l = tensor && !moved ? tensor_lease_of(tensor) : NULL;
	struct ring_entry entry;
	uint64_t found;

	if (!version || (!l && !moved))
		return tl_fail(-EINVAL, "tl_tensor_version: %s",
			       version ? "the tensor is not from tl_get()" : "version is NULL");
	if (moved)
		found = moved->version;
	else
		row_entry(&l->session->catalog, &l->session->catalog.rows[ref_slot(l->ref)], &found,
			  &entry);
	if (l && !tensor_lease_known(l)) /* after its words were read */
		return tensor_lease_unknown();
	*version = found;
	return 0;
}

TL_API int tl_tensor_check(const DLManagedTensorVersioned *tensor)
{
	const struct tensor_lease *l = tensor && is_item_tensor(tensor) ? item_tensor_lease(tensor)
									: tensor_lease_of(tensor);
	const struct catalog_row *row;

	if (tensor && copied_info(tensor))
		return 0;
	if (!l)
		return tl_fail(-EINVAL, "tl_tensor_check: the tensor is not from tl_get()");
	row = &l->session->catalog.rows[ref_slot(l->ref)];
	if (tensor_lease_known(l) && load_once(&row->flags) & ROW_ON_DEVICE &&
	    atomic_load(&row->progress) == ROW_LOST)
		return tl_fail(
			-ENODATA,
			"the process that published the tensor has ended, and with it the GPU "
			"memory it lay in");
	return 0;
}

/* ---- Looking around ---- */

struct looking {
	struct name_key key;
	struct backoff backoff;
	tl_info info;
};

static int stat_attempt(struct call *c, const struct use *use, void *context)
{
	struct session *s = use->session;
	struct looking *l = context;
	uint64_t ref;
	int r;

	if (!session_probe(s))
		return LEASE_E_UNSERVED;
	r = lookup_find(s, &l->key, 0, &ref);
	if (r)
		return r;
	r = tensor_info(s, &s->catalog.rows[ref_slot(ref)], &l->info);
	if (!r)
		names_publisher(s, &s->catalog.rows[ref_slot(ref)], &l->info.publisher);
	if (!lease_stands(s, ref)) { /* the tensor went while we read its row */
		r = lookup_again(s, &l->backoff);
		r = r ? r : LEASE_E_STALE;
	}
	lease_release(s, ref_slot(ref));
	return call_done(c, use, r);
}

TL_API int tl_stat(tl_client *client, const char *name, tl_info *info)
{
	struct looking l = { 0 };
	struct call c;
	int r;

	if (!client || !name || !info)
		return tl_fail(-EINVAL, "tl_stat: %s is NULL",
			       !client ? "client"
			       : !name ? "name"
				       : "info");
	l.key = name_key(name, strlen(name));
	r = client_result_check(info, offsetof(tl_info, ttl_ns), "tl_info");
	if (!r)
		r = client_check_name(name, l.key.len);
	if (r)
		return r;
	c = call_begin(client, 0);
	r = call_run(&c, stat_attempt, &l);
	if (r == LEASE_E_NONE)
		return tl_fail(-ENOENT, "no tensor is called '%s'" LATE_AT, name,
			       LATE_AT_ARGS(&client->address));
	if (r == LEASE_E_TOO_MANY)
		return lease_too_many(name);
	if (!r)
		client_result(info, &l.info, sizeof(l.info));
	return r;
}

TL_API int tl_list(tl_client *client, const char *prefix,
		   int (*visit)(const tl_info *info, void *context), void *context)
{
	cleanup_(cancel_allow) int cancel = cancel_forbid(); /* @visit must return */
	char start[TL_NAME_MAX + 1];
	struct below *below;
	struct use use;
	int r;

	if (!client || !visit)
		return tl_fail(-EINVAL, "tl_list: %s is NULL", client ? "visit" : "client");
	r = client_prefix(start, prefix ? prefix : "");
	if (!r)
		r = call_look(client, &use);
	if (r)
		return r;
	below = below_get(client, start);
	r = below_list(below, use.session, start, visit, context);
	below_put(client, below);
	client_leave(&use);
	return r;
}

/* Watching names. */

TL_API int tl_watch_open(tl_client *client, const char *name, const tl_watch_options *options,
			 tl_watch **out)
{
	const uint32_t known = TL_WATCH_PREFIX | TL_WATCH_NEW;
	tl_watch_options o = { .size = sizeof(o) };
	char start[TL_NAME_MAX + 1];
	size_t len;
	int r = 0;

	if (!client || !name || !out)
		return tl_fail(-EINVAL, "tl_watch_open: %s is NULL",
			       !client ? "client"
			       : !name ? "name"
				       : "out");
	if (options)
		r = client_options(&o, sizeof(o), options, sizeof(o), "tl_watch_options");
	if (r)
		return r;
	if (o.flags & ~known)
		return tl_fail(-EINVAL, "tl_watch_options.flags is %#x; %#x is known", o.flags,
			       known);
	if (o.reserved)
		return tl_fail(-EINVAL, "tl_watch_options.reserved is %u, not 0", o.reserved);
	len = strlen(name);
	if (!len || name[len - 1] == '/')
		o.flags |= TL_WATCH_PREFIX;
	r = o.flags & TL_WATCH_PREFIX ? client_prefix(start, name) : client_check_name(name, len);
	if (r)
		return r;
	if (o.flags & TL_WATCH_PREFIX)
		name = start;
	r = watch_open(client, name, o.flags, out);
	if (r != -ENOSPC && r != -EDQUOT)
		return r;
	below_forget(client); /* these hold watches too, which the client can do without */
	return watch_open(client, name, o.flags, out);
}

TL_API int tl_watch_next(tl_watch *watch, const tl_wait_options *options, tl_watch_event *event)
{
	tl_wait_options o;
	tl_watch_event found;
	int r;

	if (!watch || !event)
		return tl_fail(-EINVAL, "tl_watch_next: %s is NULL", watch ? "event" : "watch");
	r = client_result_check(event, sizeof(found), "tl_watch_event");
	if (!r)
		r = client_wait_options(&o, options);
	if (!r)
		r = watch_next(watch, &o, &found);
	if (!r)
		client_result(event, &found, sizeof(found));
	return r;
}

TL_API int tl_watch_fd(tl_watch *watch, int *fd)
{
	if (!watch || !fd)
		return tl_fail(-EINVAL, "tl_watch_fd: %s is NULL", watch ? "fd" : "watch");
	return watch_fd(watch, fd);
}

TL_API int tl_watch_close(tl_watch *watch)
{
	if (watch)
		watch_close(watch);
	return 0;
}
