/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cuda/kind.h"
#include "client/produce/shared.h"
#include "client/session/kind.h"

const struct memory_kind *const memory_kinds[MEMORY_KINDS] = {
	[KIND_SHARED] = &shared_kind,
	[KIND_DEVICE] = &cuda_kind,
};
