/* SPDX-License-Identifier: Apache-2.0 */
/* The list of rows whose bytes are lost; see lost.h. Loop thread only. */
#include "daemon/state/lost.h"

void lost_add(struct state *st, uint32_t slot)
{
	struct tensor *t = &st->tensors[slot];

	t->next = CATALOG_NONE;
	t->prev = st->lost.newest;
	if (t->prev == CATALOG_NONE)
		st->lost.oldest = slot;
	else
		st->tensors[t->prev].next = slot;
	st->lost.newest = slot;
	st->lost.count++;
}

void lost_remove(struct state *st, uint32_t slot)
{
	struct tensor *t = &st->tensors[slot];

	if (atomic_load(&catalog_row(&st->catalog, slot)->progress) != ROW_LOST)
		return;
	if (t->prev == CATALOG_NONE)
		st->lost.oldest = t->next;
	else
		st->tensors[t->prev].next = t->next;
	if (t->next == CATALOG_NONE)
		st->lost.newest = t->prev;
	else
		st->tensors[t->next].prev = t->prev;
	st->lost.count--;
}
