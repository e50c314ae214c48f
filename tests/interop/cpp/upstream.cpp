// SPDX-License-Identifier: Apache-2.0
/*
 * DLPack's own header and ours in one program, in the order that OURS_FIRST says. The first of them declares DLPack's types.
 * cpp_test.py compiles this with each DLPack header that it finds, and links both orders together.
 */
#ifdef OURS_FIRST
#include <tensorlease/tensorlease.h>
#include UPSTREAM
#define NAME ours_first
#else
#include UPSTREAM
#include <tensorlease/tensorlease.h>
#define NAME upstream_first
#endif

#include <cstddef>

static_assert(DLPACK_MAJOR_VERSION == 1, "one version for both");
static_assert(sizeof(DLTensor) == 48 && sizeof(DLManagedTensorVersioned) == 80, "the ABI");
static_assert(offsetof(DLManagedTensorVersioned, dl_tensor) == 32, "the ABI");

/* A function of our API takes their structs without a cast. */
int NAME(tl_client *client, DLManagedTensorVersioned *tensor)
{
	DLDataType dtype = tensor->dl_tensor.dtype;
	bool copied = dtype.code == kDLBool && tensor->flags & DLPACK_FLAG_BITMASK_READ_ONLY;

	return tl_publish(client, "name", tensor, nullptr, &copied, nullptr);
}

#ifdef OURS_FIRST
int upstream_first(tl_client *client, DLManagedTensorVersioned *tensor);

int main()
{
	DLManagedTensorVersioned tensor{};

	return ours_first(nullptr, &tensor) < 0 && upstream_first(nullptr, &tensor) < 0 ? 0 : 1;
}
#endif
