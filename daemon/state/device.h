/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors that lie in exported memory of a device. PROTOCOL.md section 8. */
#pragma once

#include "daemon/state/publish.h"
#include "proto/wire.h"

struct device_placed {
	uint64_t ref, version;
};

/* Returns STATE_E_NOT_FOUND if there is no such segment, STATE_E_NOTICES, or an outcome of
 * tensor_commit() or tensor_create(). */
int device_place(struct state *st, struct client *c, const struct wire_place *m,
		 const struct tensor_description *d, struct device_placed *placed,
		 const char **why);
/* Makes a member of the group of the draft @ref, as tensor_member() does. *@member is 0 if a former
 * daemon has published the group. Fails as device_place(). */
int device_member(struct state *st, struct client *c, uint64_t ref, const struct wire_place *m,
		  const struct tensor_description *d, uint64_t *member, const char **why);
/* Is @ref a tensor on a device? */
bool device_has(const struct state *st, uint64_t ref);
/* Does for such a tensor what tensor_link() does. The device must have finished it
 * (STATE_E_INVALID, why). Its producer is told FREED when nobody uses either of the two. */
int device_link(struct state *st, struct client *c, uint64_t ref, struct tensor_description *d,
		uint64_t *version, const char **why);
/* Does nothing unless @ref is an unfinished tensor of @c. */
void device_finished(struct state *st, const struct client *c, uint64_t ref, bool failed);

/*
 * Ends the imports and exports of @c, whose connection has ended. Tensors that it placed are lost
 * if their memory dies with it or was never finished. Its notices are dropped. Handles *@looks of
 * these; true: that was all.
 */
bool device_leave(struct state *st, struct client *c, unsigned *looks);
