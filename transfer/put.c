/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <string.h>

#include "tensor/check.h"
#include "tensor/copy.h"
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
		int r = tensor_check_source(sources[i], items[i].dlpack_flags, reason,
					    sizeof(reason));

		if (!r)
			continue;
		snprintf(why, FILE_ERROR_TEXT, "'%s': %s", items[i].name, reason);
		return r == -EOVERFLOW ? -EINVAL : r;
	}
	return 0;
}

int transfer_put(tl_client *client, const tl_group_item *items, const DLTensor *const *sources,
		 size_t count, int64_t timeout_ns, char *why)
{
	tl_group *group;
	int r = check_sources(items, sources, count, why);

	if (r)
		return r;
	r = tl_group_create(client, items, count, timeout_ns, &group);
	if (r)
		return library(r, why);
	for (size_t i = 0; !r && i < count; i++) {
		void *to = tl_group_tensor(group, i)->data;

		if (to)
			r = copy_gather(to, sources[i], items[i].dlpack_flags);
	}
	if (!r)
		return library(tl_group_commit(group), why);
	tl_group_abort(group);
	snprintf(why, FILE_ERROR_TEXT, "an array cannot be copied: %s", strerror(-r));
	return r;
}
