/* SPDX-License-Identifier: Apache-2.0 */
/* A client's segments for small tensors, which are found by how much space they have. Loop thread
 * only. */
#pragma once

#include "daemon/state/client.h"

enum { SMALL_LOOKS = 16 };

/* Adds a new segment that will have a tensor. */
void small_add(struct client *c, struct segment *seg);
/* Takes an extent of any of them. Looks at no more than @looks of each class: only those of the
 * first may lack the space for long. NULL: none of these has it. */
struct segment *small_take(struct client *c, uint64_t nbytes, unsigned looks, uint64_t *offset);
/* Gives back an extent, which counts in seg->extents no more. @writer: NULL if it has left. */
void small_give(struct client *writer, struct segment *seg, uint64_t offset, uint64_t nbytes);
