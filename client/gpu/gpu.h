/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of GPUs. */
#pragma once

#include "client/memory/memory_ops.h"

extern const struct memory_kind cuda_kind;
