/* SPDX-License-Identifier: Apache-2.0 */
/* Reports a share that is used up: its size, who may raise it, and what the user can do. */
#include <stdio.h>
#include <string.h>

#include "daemon/serve/limit_error.h"
#include "daemon/state/namespace.h"
#include "proto/wire.h"

#define DELETE_OR_RELEASE                                                                          \
	"delete tensors, or release those held: tensorlease ls, tensorlease status --clients"
#define MAX_TENSORS "--max-tensors"
#define LIMIT_OF_TENSORS WIRE_BECAUSE(WIRE_E_LIMIT, WIRE_CAUSE_TENSORS)

/* Texts about a share: the unit, the way to free some of it, and the option that sets its pool. */
static const struct share_words {
	const char *things, *help, *option;
	unsigned code; /* of the error when the pool is used up */
} words[SHARE_KINDS] = {
	[SHARE_BYTES] = { "bytes", DELETE_OR_RELEASE, "--capacity", WIRE_E_NO_SPACE },
	[SHARE_TENSORS] = { "tensors", DELETE_OR_RELEASE, MAX_TENSORS, LIMIT_OF_TENSORS },
	[SHARE_NAMES] = { "names", DELETE_OR_RELEASE, MAX_TENSORS, WIRE_E_LIMIT },
	[SHARE_SEGMENTS] = { "segments", DELETE_OR_RELEASE, MAX_TENSORS, WIRE_E_LIMIT },
	[SHARE_DRAFTS] = { "drafts", "commit or abort some", MAX_TENSORS, LIMIT_OF_TENSORS },
	[SHARE_CHUNKS] = { "pieces of long names, shapes and metadata", DELETE_OR_RELEASE,
			   MAX_TENSORS, WIRE_E_LIMIT },
	[SHARE_CONNECTIONS] = { "connections", "close some", "--max-clients", WIRE_E_CLIENTS },
	[SHARE_PARTIAL] = { "connections that have said nothing yet", "try again later",
			    "--max-clients", WIRE_E_CLIENTS },
	[SHARE_DESCRIPTORS] = { "descriptors of memory", "delete tensors and end exports",
				"the limit of open files", WIRE_E_NO_RESOURCES },
	[SHARE_WAITS] = { "waiting requests", "try again later", "--max-clients", WIRE_E_LIMIT },
	[SHARE_MAPPINGS] = { "mapped segments",
			     "delete tensors, or end processes that have used many", MAX_TENSORS,
			     WIRE_E_LIMIT },
	[SHARE_IN_FLIGHT] = { "descriptors in flight", "let its processes read what they are sent",
			      "the limit of open files", WIRE_E_NO_RESOURCES },
	[SHARE_WATCHES] = { "watches", "close some", "a fixed number", WIRE_E_LIMIT },
	[SHARE_DEVICE] = { "bytes on that device", "free some there", "--gpu-capacity",
			   WIRE_E_NO_SPACE },
};

/* Reports bytes of deleted tensors that are still mapped: deleting does not free those. */
static void open_text(uint64_t open, char *text, size_t size)
{
	if (open)
		snprintf(text, size, ", %llu of them in deleted tensors that processes still map",
			 (unsigned long long)open);
}

static const char *mib_text(enum share share, uint64_t used, uint64_t max, char *text, size_t size)
{
	*text = '\0';
	if (share == SHARE_BYTES || share >= SHARE_DEVICE)
		snprintf(text, size, " (%.1f of %.1f MiB)", (double)used / (1 << 20),
			 (double)max / (1 << 20));
	return text;
}

/* Says whose pool it is, and what sets its capacity. */
static const char *pool_owner(const struct state *st, const struct pool *pool,
			      const struct share_words *w, const char **option)
{
	const struct namespace *ns = container_of(st, struct namespace, state);
	bool others = strcmp(ns->config.name, NAMESPACE_DEFAULT) != 0;

	*option = w->option;
	if (pool->share == SHARE_BYTES) {
		*option = st->common->capacity_option;
		if (!pool->above || pool->capacity >= pool->above->capacity)
			return "daemon";
		*option = "its capacity";
		return "namespace";
	}
	if (pool->accounts != &st->accounts)
		return "daemon"; /* all namespaces share it */
	if (ns->config.limits.own_tensors && !strcmp(w->option, MAX_TENSORS))
		*option = "its max-tensors";
	return others || *option != w->option ? "namespace" : "daemon";
}

unsigned share_error_code(enum share share)
{
	return words[share < SHARE_DEVICE ? share : SHARE_DEVICE].code & UINT16_MAX;
}

unsigned share_error_text(struct state *st, struct account *account, int r, const char *what,
			  char *text, size_t size)
{
	enum share share = (enum share)(r & CHARGE_SHARE);
	const struct share_words *w = &words[share < SHARE_DEVICE ? share : SHARE_DEVICE];
	const struct pool *pool = state_pool(st, share);
	char except[64] = "", open[96] = "", mib[64];
	const char *owner, *option;
	uint64_t kept;

	if (r & CHARGE_E_USER) {
		pool = account_tightest(account, pool);
		if (share == SHARE_BYTES)
			open_text(account_top(account)->open, open, sizeof(open));
		snprintf(
			text, size,
			"%s: user %u has %llu of its %llu %s%s%s (limit %s; ask the administrator, "
			"or %s)",
			what, account->uid, (unsigned long long)account_used(account, pool),
			(unsigned long long)account_max(account, pool), w->things,
			mib_text(share, account_used(account, pool), account_max(account, pool),
				 mib, sizeof(mib)),
			open, share_name(share), w->help);
		return w->code == LIMIT_OF_TENSORS ? WIRE_BECAUSE(WIRE_E_QUOTA, WIRE_CAUSE_TENSORS)
						   : WIRE_E_QUOTA;
	}
	if (pool->above && pool_left(pool->above) < pool_left(pool))
		pool = pool->above;
	owner = pool_owner(st, pool, w, &option);
	kept = account_in(account, pool)->privileged ? 0 : pool->kept;
	if (kept)
		snprintf(except, sizeof(except), "; %llu are kept for administrators",
			 (unsigned long long)kept);
	if (share == SHARE_BYTES)
		open_text(st->segments.totals.kept, open, sizeof(open));
	snprintf(text, size, "%s: %llu of the %s's %llu %s%s are in use%s (%s; %s)%s", what,
		 (unsigned long long)pool->used, owner, (unsigned long long)pool->capacity,
		 w->things, mib_text(share, pool->used, pool->capacity, mib, sizeof(mib)), open,
		 option, w->help, except);
	return w->code;
}
