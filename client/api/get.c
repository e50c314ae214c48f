/* SPDX-License-Identifier: Apache-2.0 */
/* Getting tensors, and asking about them. */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include <tensorlease/cuda.h>

#include "client/arguments.h"
#include "client/error.h"
#include "client/get/lease.h"
#include "client/get/lookup.h"
#include "client/get/many.h"
#include "client/get/mapped.h"
#include "client/get/names.h"
#include "client/get/remap.h"
#include "client/get/tensor.h"
#include "client/get/wait.h"

/* ---- Getting ---- */

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
	r = lease_get_mapped(client, name, options, out);
	if (__builtin_expect(r != LEASE_E_SLOW, 1))
		return r;
	if (options->flags & TL_GET_LOCAL)
		return tl_fail(-EAGAIN, "'%s' cannot be had without a request or a wait", name);
	return lease_get(client, name, options, out);
}

TL_API int tl_get_many(tl_client *client, const char *const *names, size_t count,
		       const tl_get_options *options, DLManagedTensorVersioned **out)
{
	tl_get_options want = { .size = sizeof(want) };
	int r = 0;

	if (!client || !names || !out)
		return tl_fail(-EINVAL, "tl_get_many: %s is NULL",
			       !client	? "client"
			       : !names ? "names"
					: "out");
	if (options)
		r = client_options(&want, sizeof(want), options, sizeof(want), "tl_get_options");
	if (r)
		return r;
	if (want.newer_than)
		return tl_fail(-EINVAL, "tl_get_many: newer_than must be 0; it is %llu",
			       (unsigned long long)want.newer_than);
	if (want.mode != TL_MODE_READ && want.mode != TL_MODE_COPY_ON_WRITE)
		return tl_fail(-EINVAL, "tl_get_options.mode is %d", (int)want.mode);
	if (want.flags)
		return tl_fail(-EINVAL, "tl_get_many: tl_get_options.flags is %#x, not 0",
			       want.flags);
	if (count > WIRE_GROUP_MAX)
		return tl_fail(-EINVAL, "tl_get_many: %zu tensors; the limit is %d", count,
			       WIRE_GROUP_MAX);
	return get_many(client, names, count, &want, out);
}

TL_API int tl_wait_many(tl_client *client, const tl_wait_item *items, size_t count,
			const uint32_t *interrupt, uint32_t interrupt_value, int64_t timeout_ns,
			size_t *which)
{
	if (!client || (count && (!items || !which)))
		return tl_fail(-EINVAL, "tl_wait_many: %s is NULL",
			       !client	? "client"
			       : !items ? "items"
					: "which");
	return wait_many(client, items, count, (const _Atomic uint32_t *)interrupt, interrupt_value,
			 timeout_ns, which);
}

/* Another lease on @held: on the stream it has, unless @stream says that @want has one. */
static int remap(const DLManagedTensorVersioned *held, bool stream, tl_get_options *want,
		 DLManagedTensorVersioned **out, const char *function)
{
	const struct tensor_lease *l = tensor_lease_of(held);

	if (!l || !out)
		return tl_fail(-EINVAL, "%s: %s", function,
			       l ? "out is NULL" : "the tensor is not from tl_get()");
	if (want->mode != TL_MODE_READ && want->mode != TL_MODE_COPY_ON_WRITE)
		return tl_fail(-EINVAL, "%s: the mode is %d", function, (int)want->mode);
	if (tensor_lease_kind(l)->lease_again)
		tensor_lease_kind(l)->lease_again(l, stream, want);
	return lease_again(l, want, out);
}

TL_API int tl_remap(const DLManagedTensorVersioned *held, enum tl_mode mode,
		    DLManagedTensorVersioned **out)
{
	tl_get_options want = { .size = sizeof(want), .mode = mode };

	return remap(held, false, &want, out, "tl_remap");
}

TL_API int tl_remap_stream(const DLManagedTensorVersioned *held, intptr_t stream,
			   DLManagedTensorVersioned **out)
{
	tl_get_options want = { .size = sizeof(want), .mode = TL_MODE_READ, .stream = stream };

	return remap(held, true, &want, out, "tl_remap_stream");
}

/* ---- Tensors that are held ---- */

/* Is the row still the lease's? If the daemon dropped us it may be another's; the bytes stay. */
static bool row_is_ours(const struct tensor_lease *l)
{
	uint64_t word = atomic_load(&l->session->catalog.rows[ref_slot(l->ref)].word);
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
	r = tensor_info(l->session, &l->session->catalog.rows[ref_slot(l->ref)], &found);
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
	row = &l->session->catalog.rows[ref_slot(l->ref)];
	if (row_is_ours(l) && load_once(&row->flags) & ROW_ON_DEVICE &&
	    atomic_load(&row->progress) == ROW_LOST)
		return tl_fail(-ENODATA,
			       "the process that published the tensor is gone, and with it the GPU "
			       "memory it lay in");
	return 0;
}

/* ---- Looking around ---- */

TL_API int tl_stat(tl_client *client, const char *name, tl_info *info)
{
	struct name_key key;
	tl_info found;
	struct use use;
	uint64_t ref;
	int r;

	if (!client || !name || !info)
		return tl_fail(-EINVAL, "tl_stat: %s is NULL",
			       !client ? "client"
			       : !name ? "name"
				       : "info");
	key = name_key(name, strlen(name));
	r = client_result_check(info, sizeof(found), "tl_info");
	if (!r)
		r = client_check_name(name, key.len);
	if (r)
		return r;
	r = lookup_client(client, &key, &use, &ref);
	if (r == LEASE_E_NONE)
		return tl_fail(-ENOENT, "no tensor is called '%s'", name);
	if (r)
		return r;
	r = tensor_info(use.session, &use.session->catalog.rows[ref_slot(ref)], &found);
	lease_release(use.session, ref_slot(ref));
	client_leave(&use);
	if (!r)
		client_result(info, &found, sizeof(found));
	return r;
}

TL_API int tl_list(tl_client *client, const char *prefix,
		   int (*visit)(const tl_info *info, void *context), void *context)
{
	struct use use;
	int r;

	if (!client || !visit)
		return tl_fail(-EINVAL, "tl_list: %s is NULL", client ? "visit" : "client");
	r = client_enter(client, false, client_deadline(client), &use);
	if (r)
		return r;
	r = names_list(use.session, prefix ? prefix : "", visit, context);
	client_leave(&use);
	return r;
}

TL_API int tl_get_status(tl_client *client, tl_status *status)
{
	const struct catalog_header *c;
	tl_status now = { 0 };
	struct use use;
	int r;

	if (!client || !status)
		return tl_fail(-EINVAL, "tl_get_status: %s is NULL", client ? "status" : "client");
	r = client_result_check(status, sizeof(now), "tl_status");
	if (!r)
		r = client_enter(client, false, client_deadline(client), &use);
	if (r)
		return r;
	c = use.session->catalog.header;
	memcpy(now.address, client->address, sizeof(now.address));
	now.started_ns = load_once(&c->started_ns);
	now.capacity = load_once(&c->capacity);
	now.bytes_used = atomic_load(&c->bytes_used);
	now.bytes_warm = atomic_load(&c->bytes_warm);
	now.commits = atomic_load(&c->commits);
	now.tensors = atomic_load(&c->tensors);
	now.retired = atomic_load(&c->retired);
	now.drafts = atomic_load(&c->drafts);
	now.segments = atomic_load(&c->segments);
	now.clients = atomic_load(&c->clients);
	now.max_tensors = load_once(&c->max_tensors);
	now.max_clients = load_once(&c->max_clients);
	now.daemon_pid = load_once(&c->daemon_pid);
	client_leave(&use);
	client_result(status, &now, sizeof(now));
	return 0;
}
