/* SPDX-License-Identifier: Apache-2.0 */
/* The lists of lost rows; see lost.h. Loop thread only. */
#include "daemon/state/lost.h"

bool lost_add(struct state *st, uint32_t slot)
{
	struct tensor *t = &st->tensors[slot];

	list_add_tail(&t->account->lost, &t->link);
	st->lost++;
	return ++t->account->lost_count > LOST_MAX;
}

uint32_t lost_oldest(const struct state *st, const struct account *account)
{
	return (uint32_t)(list_first_entry(&account->lost, struct tensor, link) - st->tensors);
}

void lost_remove(struct state *st, uint32_t slot)
{
	struct tensor *t = &st->tensors[slot];

	if (atomic_load(&catalog_row(&st->catalog, slot)->progress) != ROW_LOST)
		return;
	list_del(&t->link);
	t->account->lost_count--;
	st->lost--;
}
