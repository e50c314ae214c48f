/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accounts. Invariants: (1) pool.used is the sum of all charges to the pool; (2) an account lives
 * as long as a client refers to it or it uses anything, so that a user does not get more by
 * connecting again; (3) the list of accounts is sorted by uid. Loop thread only.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/store/account.h"
#include "util/fault.h"

static const char *const names[SHARE_KINDS] = {
	[SHARE_BYTES] = "bytes",
	[SHARE_TENSORS] = "tensors",
	[SHARE_NAMES] = "names",
	[SHARE_SEGMENTS] = "segments",
	[SHARE_DRAFTS] = "drafts",
	[SHARE_CHUNKS] = "chunks",
	[SHARE_CONNECTIONS] = "connections",
	[SHARE_PARTIAL] = "partial",
	[SHARE_DESCRIPTORS] = "descriptors",
	[SHARE_WAITS] = "waits",
	[SHARE_MAPPINGS] = "mappings",
	[SHARE_IN_FLIGHT] = "in-flight",
	[SHARE_WATCHES] = "watches",
	[SHARE_DEVICE] = "gpu-bytes",
};

/*
 * A user that connects again gets no new limit, so limits do not end with accounts. Users whose
 * uids have the same remainder share one. The last is for accounts that are no user's.
 */
enum { LOG_LIMITS = 1024 };
static struct log_limit log_limits[LOG_LIMITS + 1];

static enum share share_kind(enum share share)
{
	return share < SHARE_DEVICE ? share : SHARE_DEVICE;
}

const char *share_name(enum share share)
{
	return names[share_kind(share)];
}

void accounts_init(struct accounts *accounts, uint32_t owner, const struct share_rule *rules,
		   unsigned rule_count)
{
	*accounts = (struct accounts){ .owner = owner, .rules = rules, .rule_count = rule_count };
	list_init(&accounts->ready);
}

void accounts_init_below(struct accounts *accounts, struct accounts *above)
{
	accounts_init(accounts, above->owner, above->rules, above->rule_count);
	accounts->above = above;
}

void accounts_deinit(struct accounts *accounts)
{
	for (unsigned i = 0; i < accounts->count; i++) {
		account_unref(accounts->list[i]->above);
		free(accounts->list[i]);
	}
	free(accounts->list);
	accounts->list = NULL;
	accounts->capacity = accounts->count = 0;
}

struct pool pool_make(struct accounts *accounts, enum share share, uint64_t capacity)
{
	bool countable = share != SHARE_BYTES && share < SHARE_DEVICE;
	uint64_t part = capacity / 16;

	return (struct pool){ .accounts = accounts,
			      .share = share,
			      .capacity = capacity,
			      .kept = !countable  ? 0
				      : part < 64 ? part
						  : 64 };
}

uint64_t pool_left(const struct pool *pool)
{
	return pool->capacity > pool->used ? pool->capacity - pool->used : 0;
}

/* ---- maxima --------------------------------------------------------------------------------- */

/* The groups of a connection. */
struct membership {
	gid_t gid;
	const gid_t *groups;
	unsigned count;
};

static bool rule_is_for(const struct share_rule *rule, uint32_t uid, const struct membership *in)
{
	if (rule->whose != RULE_GROUP)
		return rule->whose == RULE_ANY || rule->id == uid;
	if (!in)
		return false;
	for (unsigned i = 0; i < in->count; i++) {
		if (in->groups[i] == rule->id)
			return true;
	}
	return in->gid == rule->id;
}

static void rules_apply(struct account *account, int whose, const struct membership *in)
{
	const struct accounts *accounts = account->accounts;
	const struct share_rule *rule;

	for (unsigned i = 0; i < accounts->rule_count; i++) {
		rule = &accounts->rules[i];
		if ((int)rule->whose != whose || !rule_is_for(rule, account->uid, in))
			continue;
		for (unsigned kind = 0; kind < SHARE_KINDS; kind++) {
			if (account->max[kind] == SHARE_UNSET)
				account->max[kind] = rule->max[kind];
		}
	}
}

static void account_set_maxima(struct account *account, const struct membership *in)
{
	for (unsigned kind = 0; kind < SHARE_KINDS; kind++)
		account->max[kind] = SHARE_UNSET;
	rules_apply(account, RULE_USER, in);
	rules_apply(account, RULE_GROUP, in);
	rules_apply(account, RULE_ANY, in);
}

void account_set_groups(struct account *account, gid_t gid, const gid_t *groups, unsigned count)
{
	const struct membership in = { gid, groups, count };

	account_set_maxima(account_top(account), &in);
}

/* ---- accounts ------------------------------------------------------------------------------- */

/* The index in the list of the first account whose uid is not below @uid. */
static unsigned index_of(const struct accounts *accounts, uint32_t uid)
{
	unsigned low = 0, high = accounts->count, middle;

	while (low < high) {
		middle = (low + high) / 2;
		if (accounts->list[middle]->uid < uid)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct account *account_next(const struct accounts *accounts, uint32_t uid)
{
	unsigned index = index_of(accounts, uid);

	return index < accounts->count ? accounts->list[index] : NULL;
}

static bool list_has_space(struct accounts *accounts)
{
	unsigned capacity = accounts->capacity ? accounts->capacity * 2 : 16;
	struct account **list;

	if (accounts->count < accounts->capacity)
		return true;
	list = realloc(accounts->list, capacity * sizeof(struct account *));
	if (!list)
		return false;
	accounts->list = list;
	accounts->capacity = capacity;
	return true;
}

static bool is_privileged(const struct accounts *accounts, uint32_t uid)
{
	return uid == 0 || uid == accounts->owner ||
	       (accounts->above && uid == accounts->above->owner);
}

void account_init(struct account *account, struct accounts *accounts)
{
	*account = (struct account){ .accounts = accounts, .log = &log_limits[LOG_LIMITS] };
	list_init(&account->ready);
	list_init(&account->turns);
	list_init(&account->creates);
	list_init(&account->tried);
	list_init(&account->waiter);
	list_init(&account->jobs);
	list_init(&account->employer);
	list_init(&account->rows);
	list_init(&account->stepping);
	list_init(&account->step);
	list_init(&account->steps);
	list_init(&account->clients);
	list_init(&account->lost);
	list_init(&account->ends);
	list_init(&account->parts);
}

static struct account *account_new(struct accounts *accounts, uint32_t uid, unsigned index)
{
	struct account *account = NULL, *above = NULL;

	if (!fault("account_new") && list_has_space(accounts))
		account = calloc(1, sizeof(*account));
	if (account && accounts->above)
		above = account_ref(accounts->above, uid);
	if (!account || !above != !accounts->above) {
		free(account);
		return NULL;
	}
	account_init(account, accounts);
	account->above = above;
	account->uid = uid;
	account->log = &log_limits[uid % LOG_LIMITS];
	account->privileged = is_privileged(accounts, uid);
	if (!above)
		account_set_maxima(account, NULL);
	memmove(&accounts->list[index + 1], &accounts->list[index],
		(accounts->count - index) * sizeof(struct account *));
	accounts->list[index] = account;
	accounts->count++;
	return account;
}

struct account *account_ref(struct accounts *accounts, uint32_t uid)
{
	unsigned index = index_of(accounts, uid);
	struct account *account = index < accounts->count ? accounts->list[index] : NULL;

	if (!account || account->uid != uid)
		account = account_new(accounts, uid, index);
	if (account)
		account->refs++;
	return account;
}

static void account_end_unused(struct account *account)
{
	struct accounts *accounts = account->accounts;
	struct account *above = account->above;
	unsigned index;

	if (account->refs)
		return;
	for (unsigned i = 0; i < SHARE_COUNT; i++) {
		if (account->used[i])
			return;
	}
	assert(list_empty(&account->turns));
	list_del(&account->ready);
	index = index_of(accounts, account->uid);
	accounts->count--;
	memmove(&accounts->list[index], &accounts->list[index + 1],
		(accounts->count - index) * sizeof(struct account *));
	free(account);
	account_unref(above);
}

struct account *account_unref(struct account *account)
{
	if (account && --account->refs == 0)
		account_end_unused(account);
	return NULL;
}

/* ---- work ----------------------------------------------------------------------------------- */

void account_ready(struct account *account)
{
	account = account_top(account);
	if (list_empty(&account->ready))
		list_add_tail(&account->accounts->ready, &account->ready);
}

void account_due(struct account *account, enum account_work work)
{
	account_top(account)->due |= 1U << work;
	account_ready(account);
}

/* ---- amounts -------------------------------------------------------------------------------- */

struct account *account_in(struct account *account, const struct pool *pool)
{
	while (account->accounts != pool->accounts)
		account = account->above;
	return account;
}

uint64_t account_max(struct account *account, const struct pool *pool)
{
	uint64_t max = account_top(account)->max[share_kind(pool->share)], percent;

	if (max == SHARE_UNSET)
		max = SHARE_PERCENT | (account_in(account, pool)->privileged ? 100 : 50);
	if (!(max & SHARE_PERCENT))
		return max;
	percent = max & ~SHARE_PERCENT;
	if (pool->capacity == UINT64_MAX)
		return UINT64_MAX;
	/* rounded up, so that a pool of one can be used */
	return pool->capacity / 100 * percent + (pool->capacity % 100 * percent + 99) / 100;
}

uint64_t account_used(struct account *account, const struct pool *pool)
{
	return account_in(account, pool)->used[pool->share];
}

const struct pool *account_tightest(struct account *account, const struct pool *pool)
{
	const struct pool *tightest = pool;
	uint64_t least = UINT64_MAX, max, used;

	for (; pool; pool = pool->above) {
		max = account_max(account, pool);
		used = account_used(account, pool);
		if (max <= used || max - used < least) {
			least = max > used ? max - used : 0;
			tightest = pool;
		}
	}
	return tightest;
}

/* ---- charges -------------------------------------------------------------------------------- */

static bool is_beyond_max(struct account *account, const struct pool *pool, uint64_t amount)
{
	uint64_t max = account_max(account, pool), used = account_used(account, pool);

	/* an account that may have everything has no maximum */
	return max < pool->capacity && (amount > max || used > max - amount);
}

static bool is_beyond_pool(struct account *account, const struct pool *pool, uint64_t amount)
{
	uint64_t left = pool_left(pool);
	uint64_t kept = account_in(account, pool)->privileged ? 0 : pool->kept;

	return left < kept || amount > left - kept;
}

static void used_take(struct account *account, struct pool *pool, uint64_t amount)
{
	for (struct pool *p = pool; p; p = p->above) {
		account_in(account, p)->used[p->share] += amount;
		p->used += amount;
	}
}

/* A capacity in bytes may be configured lower than what is in use; then nobody gets more for a
 * while. The other pools are as large as tables. */
int account_adopt(struct account *account, struct pool *pool, uint64_t amount)
{
	bool bytes = pool->share == SHARE_BYTES || pool->share >= SHARE_DEVICE;

	for (const struct pool *p = pool; p && !bytes; p = p->above) {
		if (amount > pool_left(p))
			return CHARGE_E_FULL | (int)p->share;
	}
	used_take(account, pool, amount);
	return 0;
}

/* A maximum may have become lower than what the last daemon granted. */
uint64_t account_stated_max(struct account *account, const struct pool *pool)
{
	uint64_t max = account_max(account, pool), half = pool->capacity / 2;

	if (max > pool->capacity)
		return pool->capacity;
	return max > half ? max : half;
}

int account_adopt_stated(struct account *account, struct pool *pool, uint64_t amount)
{
	uint64_t most = account_stated_max(account, pool), used = account_used(account, pool);

	if (used > most || amount > most - used)
		return CHARGE_E_USER | (int)pool->share;
	used_take(account, pool, amount);
	return 0;
}

int account_take(struct account *account, struct pool *pool, uint64_t amount)
{
	struct pool *p;

	for (p = pool; p; p = p->above) {
		if (is_beyond_max(account, p, amount))
			return CHARGE_E_USER | (int)p->share;
	}
	for (p = pool; p; p = p->above) {
		if (is_beyond_pool(account, p, amount))
			return CHARGE_E_FULL | (int)p->share;
	}
	used_take(account, pool, amount);
	return 0;
}

/* Gives back from the top down, since the account above lives at least as long as the one below
 * it. */
static void used_give(struct account *account, const struct pool *pool, uint64_t amount)
{
	struct account *here;

	assert(pool);
	here = account_in(account, pool);
	if (pool->above)
		used_give(account, pool->above, amount);
	assert(amount <= here->used[pool->share]);
	here->used[pool->share] -= amount;
	if (!here->refs)
		account_end_unused(here);
}

void account_give(struct account *account, struct pool *pool, uint64_t amount)
{
	for (struct pool *p = pool; p; p = p->above) {
		assert(amount <= p->used);
		p->used -= amount;
	}
	used_give(account, pool, amount);
}

void account_move(struct account *from, struct account *to, const struct pool *pool, uint64_t n)
{
	for (const struct pool *p = pool; p; p = p->above)
		account_in(to, p)->used[p->share] += n;
	used_give(from, pool, n);
}

int charge_take(struct charge *charge, struct account *account, struct pool *pool, uint64_t amount)
{
	int r = account_take(account, pool, amount);

	if (!r)
		*charge = (struct charge){ account_in(account, pool), pool, amount };
	return r;
}

int charge_adopt(struct charge *charge, struct account *account, struct pool *pool, uint64_t n)
{
	int r = account_adopt(account, pool, n);

	if (!r)
		*charge = (struct charge){ account_in(account, pool), pool, n };
	return r;
}

void charge_give(struct charge *charge)
{
	if (charge->account)
		account_give(charge->account, charge->pool, charge->amount);
	*charge = (struct charge){ 0 };
}

void charge_move(struct charge *charge, struct account *to)
{
	if (!charge->account)
		return;
	to = account_in(to, charge->pool);
	if (charge->account == to)
		return;
	account_move(charge->account, to, charge->pool, charge->amount);
	charge->account = to;
}
