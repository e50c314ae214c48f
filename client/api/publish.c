/* SPDX-License-Identifier: Apache-2.0 */
/* Producing tensors. */
#include <errno.h>
#include <string.h>
#include <tensorlease/cuda.h>

#include "client/checks.h"
#include "client/connection/call.h"
#include "client/error.h"
#include "client/memory/memory_ops.h"
#include "client/publish/draft.h"
#include "client/publish/publish.h"

/* ---- Drafts ---- */

static int device_check(DLDevice device)
{
	if (kind_of_device(device.device_type)->device == device.device_type)
		return 0;
	return tl_fail(-ENOTSUP,
		       "tl_spec.device is of DLPack's type %d; a draft is on the CPU (%d) or "
		       "on a GPU of CUDA (%d)",
		       (int)device.device_type, kDLCPU, kDLCUDA);
}

struct creating {
	struct draft_request request;
	tl_draft **out;
};

static int create_attempt(struct call *c, const struct use *use, void *context)
{
	const struct creating *p = context;

	return kind_of_device(p->request.device.device_type)->create(c, use, &p->request, p->out);
}

TL_API int tl_create(tl_client *client, const char *name, const tl_spec *spec, tl_draft **out)
{
	struct creating p = { .request = { .name = name, .metadata_max = TL_METADATA_MAX },
			      .out = out };
	struct call c;
	int r;

	if (!client || !name || !spec || !out)
		return tl_fail(-EINVAL, "tl_create: %s is NULL",
			       !client ? "client"
			       : !name ? "name"
			       : !spec ? "spec"
				       : "out");
	r = draft_request_check(&p.request, spec);
	if (!r && !p.request.device.device_type)
		p.request.device.device_type = kDLCPU;
	if (!r)
		r = device_check(p.request.device);
	if (r)
		return r;
	c = call_begin_request(client);
	r = call_run(&c, create_attempt, &p);
	if (!r)
		draft_lend(*out);
	return r;
}

TL_API DLTensor *tl_draft_tensor(tl_draft *draft)
{
	return draft ? &draft->managed.dl_tensor : NULL;
}

TL_API int tl_draft_set_metadata(tl_draft *draft, const void *metadata, size_t size)
{
	if (!draft)
		return tl_fail(-EINVAL, "tl_draft_set_metadata: draft is NULL");
	return draft_metadata(draft, metadata, size);
}

TL_API int tl_commit(tl_draft *draft, uint64_t *version)
{
	int r;

	if (!draft)
		return tl_fail(-EINVAL, "tl_commit: draft is NULL");
	r = draft_lent_check(draft);
	if (!r)
		return draft_commit(draft, version);
	draft_abort(draft);
	return r;
}

TL_API void tl_abort(tl_draft *draft)
{
	draft_abort(draft);
}

TL_API int tl_draft_to_dlpack(tl_draft *draft, DLManagedTensorVersioned **out)
{
	if (!draft || !out)
		return tl_fail(-EINVAL, "tl_draft_to_dlpack: %s is NULL", draft ? "out" : "draft");
	return draft_export(draft, out);
}

/* ---- Copying, handing over ---- */

/* Checks the options of a call that always copies. */
static int copy_options(tl_put_options *o, const tl_put_options *options, const char *call)
{
	int r = put_options(o, options);

	if (!r && o->flags & TL_PUBLISH_NO_COPY)
		r = tl_fail(
			-EINVAL,
			"%s: tl_put_options.flags has TL_PUBLISH_NO_COPY, but this call copies; "
			"tl_publish() and tl_create() do not have to",
			call);
	return r;
}

struct putting {
	const char *name;
	const DLTensor *source;
	tl_put_options o;
	uint64_t *version;
};

static int put_attempt(struct call *c, const struct use *use, void *context)
{
	const struct putting *p = context;
	const struct memory_kind *kind = kind_of_device(p->source->device.device_type);

	return call_done(c, use, kind->put(c, use, p->name, p->source, &p->o, p->version));
}

TL_API int tl_put(tl_client *client, const char *name, const DLTensor *source,
		  const tl_put_options *options, uint64_t *version)
{
	uint64_t v = 0;
	struct putting p = { .name = name, .source = source, .version = &v };
	struct call c;
	int r;

	if (!client || !name || !source)
		return tl_fail(-EINVAL, "tl_put: %s is NULL",
			       !client ? "client"
			       : !name ? "name"
				       : "source");
	r = copy_options(&p.o, options, "tl_put");
	if (r)
		return r;
	if (p.o.dlpack_flags & ~(uint64_t)DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED)
		return tl_fail(-EINVAL, "tl_put_options.dlpack_flags is %#llx; %#llx is known",
			       (unsigned long long)p.o.dlpack_flags,
			       (unsigned long long)DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED);
	c = call_begin_request(client);
	r = call_run(&c, put_attempt, &p);
	if (!r && version)
		*version = v;
	if (r == -ENOTCONN && client_check_name(name, strlen(name)))
		r = -EINVAL; /* no daemon would take that name: starting one does not help */
	return r;
}

TL_API int tl_publish(tl_client *client, const char *name, DLManagedTensorVersioned *tensor,
		      const tl_put_options *options, bool *copied, uint64_t *version)
{
	tl_put_options o;
	int r;

	if (!client || !name || !tensor)
		return tl_fail(-EINVAL, "tl_publish: %s is NULL",
			       !client ? "client"
			       : !name ? "name"
				       : "tensor");
	r = put_options(&o, options);
	return r ? r : publish(client, name, tensor, &o, copied, version);
}

/* ---- Groups ---- */

TL_API int tl_group_create(tl_client *client, const tl_group_item *items, size_t count,
			   const tl_group_options *options, tl_group **out)
{
	tl_group_options o = { .size = sizeof(o) };
	int r;

	if (!client || !items || !out)
		return tl_fail(-EINVAL, "tl_group_create: %s is NULL",
			       !client	? "client"
			       : !items ? "items"
					: "out");
	if (count < 1 || count > WIRE_GROUP_MAX)
		return tl_fail(-EINVAL, "a group of %zu tensors; it has 1 to %d", count,
			       WIRE_GROUP_MAX);
	r = options ? client_options(&o, sizeof(o), options, offsetof(tl_group_options, versions),
				     "tl_group_options")
		    : 0;
	return r ? r : group_create(client, items, &o, count, out);
}

TL_API DLTensor *tl_group_tensor(tl_group *group, size_t index)
{
	return group_tensor(group, index);
}

TL_API int tl_group_commit(tl_group *group)
{
	if (!group)
		return tl_fail(-EINVAL, "tl_group_commit: group is NULL");
	return group_commit(group);
}

TL_API void tl_group_abort(tl_group *group)
{
	group_free(group);
}

TL_API int tl_put_many(tl_client *client, const char *const *names, const DLTensor *const *sources,
		       size_t count, const tl_put_options *options)
{
	tl_put_options o;
	int r;

	if (!client || !names || !sources)
		return tl_fail(-EINVAL, "tl_put_many: %s is NULL",
			       !client	? "client"
			       : !names ? "names"
					: "sources");
	r = copy_options(&o, options, "tl_put_many");
	if (r)
		return r;
	if (!count || count > WIRE_GROUP_MAX)
		return tl_fail(-EINVAL, "tl_put_many: %zu tensors; 1 to %d are allowed", count,
			       WIRE_GROUP_MAX);
	return group_put(client, names, sources, count, &o);
}

TL_API int tl_publish_many(tl_client *client, const char *const *names,
			   DLManagedTensorVersioned *const *tensors, size_t count,
			   const tl_put_options *options, size_t *copied)
{
	tl_put_options o;
	int r;

	if (!client || !names || !tensors)
		return tl_fail(-EINVAL, "tl_publish_many: %s is NULL",
			       !client	? "client"
			       : !names ? "names"
					: "tensors");
	r = put_options(&o, options);
	if (r)
		return r;
	if (!count || count > WIRE_GROUP_MAX)
		return tl_fail(-EINVAL, "tl_publish_many: %zu tensors; 1 to %d are allowed", count,
			       WIRE_GROUP_MAX);
	return group_hand(client, names, tensors, count, &o, copied);
}

TL_API int tl_group_copy(tl_group *group, const DLTensor *const *sources)
{
	if (!group || !sources)
		return tl_fail(-EINVAL, "tl_group_copy: %s is NULL", group ? "sources" : "group");
	return group_copy(group, sources, 0);
}

TL_API int tl_group_set_stream(tl_group *group, intptr_t stream, bool sealed)
{
	if (!group)
		return tl_fail(-EINVAL, "tl_group_set_stream: group is NULL");
	group_stream(group, stream, sealed);
	return 0;
}

/* ---- Claims ---- */

TL_API int tl_claim(tl_client *client, const char *name, const tl_claim_options *options)
{
	tl_claim_options o = { .size = sizeof(o) };
	int r;

	if (!client || !name)
		return tl_fail(-EINVAL, "tl_claim: %s is NULL", client ? "name" : "client");
	r = options ? client_options(&o, sizeof(o), options, sizeof(o), "tl_claim_options") : 0;
	if (!r)
		r = client_check_name(name, strlen(name));
	return r ? r : claim_take(client, name, o.timeout_ns);
}

static int check_names(const char *function, const tl_client *client, const char *const *names,
		       size_t n)
{
	int r = 0;

	if (!client || (n && !names))
		return tl_fail(-EINVAL, "%s: %s is NULL", function, client ? "names" : "client");
	for (size_t i = 0; !r && i < n; i++) {
		if (!names[i])
			return tl_fail(-EINVAL, "%s: names[%zu] is NULL", function, i);
		r = client_check_name(names[i], strlen(names[i]));
	}
	return r;
}

TL_API int tl_claim_many(tl_client *client, const char *const *names, size_t n, int *outcomes)
{
	int r = check_names("tl_claim_many", client, names, n);

	if (!r && n && !outcomes)
		return tl_fail(-EINVAL, "tl_claim_many: outcomes is NULL");
	return r ? r : claim_many(client, names, n, outcomes);
}

TL_API int tl_unclaim(tl_client *client, const char *name)
{
	int r;

	if (!client || !name)
		return tl_fail(-EINVAL, "tl_unclaim: %s is NULL", client ? "name" : "client");
	r = client_check_name(name, strlen(name));
	return r ? r : claims_give_up(client, &name, 1);
}

TL_API int tl_unclaim_many(tl_client *client, const char *const *names, size_t n)
{
	int r = check_names("tl_unclaim_many", client, names, n);

	return r ? r : claims_give_up(client, names, n);
}
