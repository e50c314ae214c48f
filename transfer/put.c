/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <tensorlease/cuda.h>

#include "tensor/check.h"
#include "tensor/dtype.h"
#include "transfer/inner.h"

static_assert((int)TRANSFER_DTYPE_TEXT == (int)TENSOR_DTYPE_TEXT, "callers do not see tensor.h");

const char *transfer_dtype(DLDataType dtype, char text[TRANSFER_DTYPE_TEXT])
{
	return tensor_dtype_format(dtype, text);
}

static int check_sources(const tl_group_item *items, const DLTensor *const *sources, size_t count,
			 char *why)
{
	char reason[TENSOR_WHY_TEXT];

	for (size_t i = 0; i < count; i++) {
		DLTensor as;
		int r;

		if (items[i].flags & TL_GROUP_DELETE)
			continue;
		as = *sources[i];
		if (as.device.device_type == kDLCUDA)
			as.device.device_type = kDLCPU; /* all else is the same */
		r = tensor_check_source(&as, items[i].dlpack_flags, reason, sizeof(reason));

		if (!r)
			continue;
		snprintf(why, FILE_ERROR_TEXT, "'%s': %s", items[i].name, reason);
		return r == -EOVERFLOW ? -EINVAL : r;
	}
	return 0;
}

static int put_once(tl_client *client, const tl_group_item *items, const DLTensor *const *sources,
		    size_t count, intptr_t stream, bool sealed, int64_t timeout_ns, bool *had_space,
		    char *why)
{
	DLDevice *devices = calloc(count + 1, sizeof(*devices));
	tl_group *group = NULL;
	int r = devices ? check_sources(items, sources, count, why) : -ENOMEM;

	for (size_t i = 0; !r && i < count; i++)
		devices[i] = sources[i] && sources[i]->device.device_type == kDLCUDA
				     ? sources[i]->device
				     : (DLDevice){ kDLCPU, 0 };
	if (!r)
		r = library(tl_group_create(client, items, count,
					    &TL_INIT(tl_group_options, .timeout_ns = timeout_ns,
						     .devices = devices),
					    &group),
			    why);
	free(devices);
	if (r)
		return r;
	*had_space = true;
	tl_group_set_stream(group, stream, sealed);
	r = tl_group_copy(group, sources);
	if (!r)
		return library(tl_group_commit(group), why);
	library(r, why);
	tl_group_abort(group);
	return r;
}

int transfer_put(tl_client *client, const tl_group_item *items, const DLTensor *const *sources,
		 size_t count, intptr_t stream, bool sealed, int64_t timeout_ns, bool *had_space,
		 char *why)
{
	int r = put_once(client, items, sources, count, stream, sealed, timeout_ns, had_space, why);

	/* its memory went with the daemon before it was published */
	return r == -ESTALE ? put_once(client, items, sources, count, stream, sealed, timeout_ns,
				       had_space, why)
			    : r;
}
