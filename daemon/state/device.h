/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors that lie in exported memory of a device. PROTOCOL.md section 8. */
#pragma once

#include "daemon/state/publish.h"
#include "proto/wire.h"

struct device_placed {
	uint64_t ref, version;
};

/* STATE_E_NOT_FOUND: the segment; STATE_E_NOTICES; otherwise as tensor_commit() and
 * tensor_create(). */
int device_place(struct state *st, struct client *c, const struct wire_place *m,
		 const struct tensor_description *d, struct device_placed *placed,
		 const char **why);
/* Makes a member of the group whose draft is @ref, as tensor_member() does; otherwise the same. */
int device_member(struct state *st, struct client *c, uint64_t ref, const struct wire_place *m,
		  const struct tensor_description *d, uint64_t *member, const char **why);
/* Nothing happens if @ref is no unfinished tensor of @c's. */
void device_finished(struct state *st, const struct client *c, uint64_t ref, bool failed);

/*
 * The connection of @c has ended: its imports and exports end, and tensors that it placed are lost
 * if their memory dies with it or was never finished. Its notices are dropped. This takes *@looks
 * of them; true: that was all.
 */
bool device_leave(struct state *st, struct client *c, unsigned *looks);
