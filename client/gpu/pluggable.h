/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for the allocators of other libraries: tl_cuda_alloc(). As long as it is allocated an
 * export of it stays open, so that consumers keep what they have mapped while tensors in it come
 * and go.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/gpu/export.h"

/* 0, or a negative errno with a text. Any thread, without locks. */
int cuda_pluggable_new(uint64_t size, int ordinal, void **memory);
/* Does nothing if it is not of cuda_pluggable_new(). */
void cuda_pluggable_free(void *memory, intptr_t stream);

/* Does the memory lie in an allocation of tl_cuda_alloc()? cuda_lock. */
bool cuda_pluggable_has(const struct cuda_memory *memory);
/* Frees those of the session's exports that stay open and have no publications: all, if its
 * connection has ended. Its claims, or its end, keep the session. */
void cuda_pluggable_leave(struct cuda_session *cs);
