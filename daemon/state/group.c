/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups; see publish.h. Each name is pointed at its member, which is a DRAFT and remembers the
 * name's former tensor. The name means that tensor until `groups` of the header is raised, which
 * publishes all members. Then they become LIVE one by one. A namespace can point the names of
 * only one group at a time, since one word says whether that group is published. A client that
 * waits for another's group does its work, in its own turns.
 *
 * If a daemon stops between two steps, it may leave a DRAFT that a name points at. If the `group`
 * of its entry is `groups`, the name means `former`. If not, the group is published, and the DRAFT
 * is to become LIVE. A DRAFT that no name points at was never published. If a member is LIVE, and
 * no name means its `former`, that tensor is still to be retired.
 *
 * Meanwhile others may publish or delete under a name that points at a member (publish.c): this
 * changes the `former` of the member. If the group's user may not replace the new tensor, the group
 * fails. Loop thread only.
 */
#include <errno.h>
#include <stdlib.h>

#include "daemon/state/catalog.h"
#include "daemon/state/lifetime.h"
#include "daemon/state/publish.h"
#include "daemon/state/tensor.h"
#include "util/fault.h"

static const char wrong_count[] = "the group does not have as many members as it should";

static void group_fail(struct client *c, int error, const char *why)
{
	c->group.error = error;
	c->group.why = why;
	c->group.phase = c->group.phase == GROUP_POINTS ? GROUP_FAILS : GROUP_ABORTS;
}

bool group_was_published(const struct state *st, const struct client *c, uint64_t ref)
{
	uint32_t leader;

	return draft_find(st, c, ref, &leader) && st->tensors[leader].published;
}

int group_begin(struct state *st, struct client *c, uint64_t ref, uint32_t count)
{
	const char *why = NULL;
	uint32_t leader;
	int r;

	if (!draft_find(st, c, ref, &leader))
		return STATE_E_STALE;
	if (group_was_published(st, c, ref)) {
		tensor_abort(st, c, ref); /* its members keep the memory */
		return 0;
	}
	c->group.phase = GROUP_COLLECTS;
	c->group.leader = leader;
	c->group.count = count;
	c->group.at = 0;
	c->group.next = st->tensors[leader].sibling;
	c->group.error = 0;
	c->group.why = NULL;
	if (!st->tensors[leader].group || count > st->catalog.rows.in_use) {
		group_fail(c, STATE_E_INVALID, wrong_count);
		return 0;
	}
	c->group.refs = fault("group") ? NULL : malloc(count * sizeof(*c->group.refs) + 1);
	r = c->group.refs ? segments_seal(st, leader, &why) : -ENOMEM;
	if (r)
		group_fail(c, r, why);
	return 0;
}

/* ---- steps of the phases --------------------------------------------------------------------- */

static void member_collect(struct state *st, struct client *c, uint32_t slot)
{
	const struct catalog_row *row = catalog_row(&st->catalog, slot);
	const char *why = NULL;
	int r = member_may_publish(st, c, slot, &why);

	if (!r && row->flags & ROW_EVICTABLE && !c->group.reserved)
		r = lifetime_reserve(st, c, st->tensors[slot].segment, &c->group.reserved);
	c->group.refs[c->group.at++] = ref_make(row->word >> 2, slot);
	c->group.next = st->tensors[slot].sibling;
	if (r)
		group_fail(c, r, why);
}

static void collects(struct state *st, struct client *c, unsigned *budget)
{
	for (; *budget && c->group.phase == GROUP_COLLECTS; --*budget) {
		if (c->group.next != c->group.leader && st->tensors[c->group.next].doubted) {
			c->group.next = st->tensors[c->group.next].sibling; /* adopted */
			continue;
		}
		if ((c->group.next == c->group.leader) != (c->group.at == c->group.count)) {
			group_fail(c, STATE_E_INVALID, wrong_count);
		} else if (c->group.next == c->group.leader) {
			c->group.phase = GROUP_POINTS;
			c->group.at = 0;
		} else {
			member_collect(st, c, c->group.next);
		}
	}
}

/* P3: all names point at their members, and now mean them. */
static void publish(struct state *st, struct client *c)
{
	atomic_fetch_add(&st->catalog.header->groups, 1);
	st->pointing = NULL;
	c->group.phase = GROUP_FINISHES;
	c->group.at = 0;
}

static void points(struct state *st, struct client *c, unsigned *budget)
{
	const char *why = NULL;
	uint64_t current;
	uint32_t slot;
	int r;

	if (!st->pointing) {
		atomic_fetch_add(&st->catalog.header->groups, 1);
		st->pointing = c;
		leader_note(st, c->group.leader, true);
	}
	for (; *budget && !c->group.error && c->group.at < c->group.count; --*budget) {
		slot = ref_slot(c->group.refs[c->group.at]);
		r = member_may_publish(st, c, slot, &why);
		if (r) {
			group_fail(c, r, why);
			return;
		}
		current = catalog_name(&st->catalog, catalog_row(&st->catalog, slot)->name)
				  ->current;
		if (current && !(current & REF_RING) && st->tensors[ref_slot(current)].pointed) {
			group_fail(c, STATE_E_INVALID, "two members have the same name");
			return;
		}
		member_point(st, c, slot);
		c->group.at++;
	}
	if (c->group.error)
		c->group.phase = GROUP_FAILS;
	else if (c->group.at == c->group.count)
		publish(st, c);
}

static void fails(struct state *st, struct client *c, unsigned *budget)
{
	for (; *budget && c->group.at; --*budget)
		member_take_back(st, c, ref_slot(c->group.refs[--c->group.at]));
	if (c->group.at)
		return;
	leader_note(st, c->group.leader, false);
	atomic_fetch_add(&st->catalog.header->groups, 1);
	st->pointing = NULL;
	c->group.phase = GROUP_ABORTS;
}

/* Members whose names were looked up meanwhile are LIVE already, or replaced and freed. */
static void finishes(struct state *st, struct client *c, unsigned *budget)
{
	unsigned wakes = CATALOG_WAKE_BUDGET;
	uint32_t slot;

	for (; *budget && c->group.at < c->group.count; --*budget) {
		slot = ref_slot(c->group.refs[c->group.at]);
		if (draft_find(st, c, c->group.refs[c->group.at++], &slot))
			member_finish(st, slot, &wakes);
	}
	if (c->group.at < c->group.count)
		return;
	/* the former draft is now only the memory that the members share */
	st->tensors[c->group.leader].group = false;
	c->group.phase = GROUP_PUBLISHED;
}

static void group_end(struct client *c)
{
	lifetime_unreserve(c->group.reserved);
	free(c->group.refs);
	c->group.reserved = NULL;
	c->group.refs = NULL;
	c->group.phase = GROUP_NONE;
}

static void aborts(struct state *st, struct client *c, unsigned *budget)
{
	for (; *budget && c->group.phase == GROUP_ABORTS; --*budget) {
		if (draft_leave(st, c, c->group.leader))
			group_end(c);
	}
}

/* Does a step of the present phase, which may end with it. */
static void phase_go(struct state *st, struct client *c, unsigned *budget)
{
	switch (c->group.phase) {
	case GROUP_NONE:
		return;
	case GROUP_COLLECTS:
		collects(st, c, budget);
		return;
	case GROUP_POINTS:
		points(st, c, budget);
		return;
	case GROUP_FAILS:
		fails(st, c, budget);
		return;
	case GROUP_FINISHES:
		finishes(st, c, budget);
		return;
	case GROUP_PUBLISHED:
		c->group.phase = GROUP_ABORTS;
		return;
	case GROUP_ABORTS:
		aborts(st, c, budget);
		return;
	}
}

/* Goes on with @c's group, or first with another group that is in its way. */
static void go(struct state *st, struct client *c, unsigned *budget)
{
	bool wait = c->group.phase == GROUP_POINTS && st->pointing && st->pointing != c;

	phase_go(st, wait ? st->pointing : c, budget);
}

bool group_step(struct state *st, struct client *c, unsigned budget, int *error, const char **why)
{
	bool published;

	while (budget && group_goes_on(c) && c->group.phase != GROUP_PUBLISHED)
		go(st, c, &budget);
	published = c->group.phase == GROUP_PUBLISHED;
	if (published)
		c->group.phase = GROUP_ABORTS;
	*error = c->group.error;
	*why = c->group.why;
	return published || !group_goes_on(c);
}

bool group_leave(struct state *st, struct client *c, unsigned *budget)
{
	while (*budget && group_goes_on(c)) {
		if (c->group.phase == GROUP_POINTS && st->pointing == c)
			group_fail(c, STATE_E_STALE, NULL);
		else if (c->group.phase == GROUP_COLLECTS || c->group.phase == GROUP_POINTS ||
			 (c->group.phase == GROUP_ABORTS && c->group.error))
			group_end(c); /* its drafts are given back like all others */
		else
			phase_go(st, c, budget);
	}
	return !group_goes_on(c);
}
