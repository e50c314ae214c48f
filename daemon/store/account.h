/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accounts: all that one uid uses, across connections, divided into shares: one for each kind of
 * limited resource. A pool is the total amount of a share. Each charge is taken from a pool and
 * counts in an account, when it is requested and not when the memory is touched. A namespace has
 * pools and accounts of its own. Its pool of bytes lies within the daemon's: both are charged.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "util/list.h"
#include "util/log.h"

enum { DEVICES_MAX = 64, DEVICES_USER_MAX = DEVICES_MAX / 2 };

enum share {
	SHARE_BYTES,   /* of shared memory */
	SHARE_TENSORS, /* rows, from draft to reclaim */
	SHARE_NAMES,   /* names that mean a tensor or that a row carries */
	SHARE_SEGMENTS,
	SHARE_DRAFTS,
	SHARE_CHUNKS,  /* of the catalog: long names, shapes and metadata */
	SHARE_WATCHES, /* names and prefixes that are watched */
	SHARE_CONNECTIONS,
	SHARE_PARTIAL,	   /* connections that are not READY yet */
	SHARE_DESCRIPTORS, /* that the daemon keeps */
	SHARE_WAITS,	   /* waiting creates; claims, and clients waiting for one */
	SHARE_MAPPINGS,	   /* of segments, each counted for each client that has it mapped */
	SHARE_IN_FLIGHT,   /* descriptors sent to a client that it has not received yet */
	SHARE_DEVICE,	   /* bytes on the first device; the others follow */
	SHARE_COUNT = SHARE_DEVICE + DEVICES_MAX,
	SHARE_KINDS = SHARE_DEVICE + 1, /* all devices count as one kind, which has one maximum */
};

/* Outcomes of charges: one of these with the share added to it. */
enum {
	CHARGE_E_FULL = 1 << 8, /* the pool has less left */
	CHARGE_E_USER = 1 << 9, /* the account would exceed its maximum */
	CHARGE_SHARE = CHARGE_E_FULL - 1,
};

/* True if @r is one of these outcomes, with a share. */
static inline bool charge_is_refused(int r)
{
	return r >= CHARGE_E_FULL;
}

/* A maximum is a number, or a percentage of the pool with this bit set. */
#define SHARE_PERCENT ((uint64_t)1 << 63)
#define SHARE_UNSET (SHARE_PERCENT | 0xff)

struct pool {
	uint64_t capacity; /* UINT64_MAX: no limit */
	uint64_t used;
	uint64_t kept; /* part of the capacity, for the privileged */
	enum share share;
	struct accounts *accounts; /* in which it counts; outlive us */
	struct pool *above;	   /* the daemon's, for a pool of a namespace; else NULL */
};

/* Work that is done for an account in steps, without a message; see serve/turns.h. */
enum account_work {
	ACCOUNT_STEPS,	 /* steps_go() of state/lease.h */
	ACCOUNT_CREATES, /* creates waiting for space: serve/space.c */
	ACCOUNT_ENDS,	 /* connections that end: serve/peer_end.c */
	ACCOUNT_PARTS,	 /* parts_go() of state/export.h */
	ACCOUNT_WORKS,
};

struct account {
	struct accounts *accounts; /* outlives us */
	uint32_t uid;
	uint32_t refs;	       /* clients, and accounts below it */
	struct account *above; /* of the same uid in the whole daemon, for one of a namespace */
	bool privileged;     /* root's, ours, the owner's: may use over half, and what pools keep */
	unsigned going;	     /* of its segments: to destroy, and their space will be free soon */
	uint64_t warm, open; /* bytes kept warm, and ended but still open; the daemon's only */
	uint64_t busy_ns;    /* the daemon's time spent serving it; counted in the daemon's only */
	uint64_t max[SHARE_KINDS]; /* as configured, or SHARE_UNSET; the daemon's only */
	uint64_t used[SHARE_COUNT];
	unsigned closing, closing_next, notices; /* descriptors to close; of these, in the closer's
						    queue; notices due */
	/* serve/turns.c, in the daemon's only: */
	struct list ready;     /* in accounts.ready while there is something to do for it */
	struct list turns;     /* of struct turn: those to be served */
	unsigned due;	       /* one bit for each enum account_work that is due */
	unsigned work;	       /* the work that was done last */
	bool work_next;	       /* work comes before turns, since those came last */
	int64_t debt_ns;       /* time that its turns took beyond their bound */
	unsigned checking;     /* serve/peer_end.c: ledgers of its clients that workers look at */
	struct list ends;      /* of struct peer, by look: their ends have steps to go */
	unsigned ending;       /* of its peers: ended ones that were not checked yet */
	int64_t ended_ns;      /* when the last of these was done with */
	unsigned newcomers;    /* serve/greet.c: those in greeting.waiting */
	struct log_limit *log; /* bounds the log lines that it causes; outlives us */
	/* serve/space.c and jobs.c, in the daemon's only: */
	struct list creates;	/* of struct create: waiting for space, to be tried */
	struct list tried;	/* of struct create: tried since there was space */
	struct list waiter;	/* in space.accounts while it has waiting creates */
	uint64_t space_seen;	/* common.space_freed when its creates began to be tried */
	struct create *gathers; /* of its creates, the one to which later ones give way, or NULL */
	int64_t gather_again;	/* no create gathers before that time */
	struct list jobs;	/* of struct job: they wait for a worker */
	struct list employer;	/* in jobs.accounts while it has any */
	unsigned jobs_running;
	/* state/lease.c, but for the first: */
	struct list parts;    /* state/export.c, of struct device_memory: being closed */
	struct list rows;     /* of struct tensor, by link: RETIRED, to be looked at in its steps */
	struct list stepping; /* in state.stepping, with a reference, while it has steps to go */
	struct list step;     /* in the steps of the account above, as long */
	struct list steps;    /* of struct account, by step */

	struct list clients; /* of struct client, by account_link: in its namespace */
	/* state/state.c: */
	struct list lost; /* of struct tensor, by link */
	unsigned lost_count;
};

/* The configured maxima of one user, of one group, or of every user. */
struct share_rule {
	enum { RULE_USER, RULE_GROUP, RULE_ANY } whose;
	uint32_t id;		   /* uid or gid */
	uint64_t max[SHARE_KINDS]; /* SHARE_UNSET: none configured */
};

struct accounts {
	struct account **list; /* by uid */
	unsigned count, capacity;
	struct accounts *above; /* the daemon's, for those of a namespace */
	uint32_t owner;		/* our own uid, or the owner of a namespace in which only its owner
				   publishes */
	const struct share_rule *rules;
	unsigned rule_count;
	struct list ready; /* of struct account: the queue in which they are served */
};

/* The accounts of the daemon, whose uid is @owner. @rules are lent. */
void accounts_init(struct accounts *accounts, uint32_t owner, const struct share_rule *rules,
		   unsigned rule_count);
/* Accounts of a namespace, with the rules of the daemon's. */
void accounts_init_below(struct accounts *accounts, struct accounts *above);
void accounts_deinit(struct accounts *accounts); /* nothing is charged to them any more */

/* Makes a pool that keeps a part for the privileged if it can be counted. */
struct pool pool_make(struct accounts *accounts, enum share share, uint64_t capacity);
uint64_t pool_left(const struct pool *pool); /* 0 also if more is used than there is */

/* Refers to the account of @uid, and makes it and the one above it if need be. NULL: no memory. */
struct account *account_ref(struct accounts *accounts, uint32_t uid);
/* Gives up a reference. Returns NULL. The account lives on while anything is charged to it. */
struct account *account_unref(struct account *account);
/* Finds the account's maxima again, everywhere, for a connection with these groups. Rules for the
 * user come before those for the first of its groups that are configured, and those before
 * everybody's. */
void account_set_groups(struct account *account, gid_t gid, const gid_t *groups, unsigned count);
/* Initializes an account that the caller owns and that is no user's. */
void account_init(struct account *account, struct accounts *accounts);
/* Puts the daemon's account of that user at the end of the queue, unless it is in the queue
 * already. */
void account_ready(struct account *account);
/* Marks that work as due. Does nothing if it is due already. */
void account_due(struct account *account, enum account_work work);
/* The account with the lowest uid from @uid on. NULL: there is none. */
struct account *account_next(const struct accounts *accounts, uint32_t uid);
/* The account of the same uid in the whole daemon. */
static inline struct account *account_top(struct account *account)
{
	return account->above ? account->above : account;
}

/* The account itself, or the one above it: the one in which the pool counts. */
struct account *account_in(struct account *account, const struct pool *pool);
/* The account's maximum of that pool, how much of it a former daemon may have granted, and its
 * use. */
uint64_t account_max(struct account *account, const struct pool *pool);
uint64_t account_stated_max(struct account *account, const struct pool *pool);
uint64_t account_used(struct account *account, const struct pool *pool);
/* Of a pool and those above it, the one with the least left for the account. */
const struct pool *account_tightest(struct account *account, const struct pool *pool);
/* Charges the account. Returns CHARGE_E_USER before CHARGE_E_FULL: a user over its maximum must not
 * wait for others. */
int account_take(struct account *account, struct pool *pool, uint64_t amount);
void account_give(struct account *account, struct pool *pool, uint64_t amount);
/* Charges what a former daemon granted, even beyond the maximum, and bytes even beyond the pool.
 * Returns CHARGE_E_FULL if another pool has too little left. */
int account_adopt(struct account *account, struct pool *pool, uint64_t amount);
/* Charges what the user itself states, even if the pool has less. Returns CHARGE_E_USER if that is
 * too much. */
int account_adopt_stated(struct account *account, struct pool *pool, uint64_t amount);
/* Moves a charge to @to, even beyond its maximum; then it gets no more. */
void account_move(struct account *from, struct account *to, const struct pool *pool, uint64_t n);

/* The charge of one object; embedded in it. */
struct charge {
	struct account *account; /* NULL: nothing */
	struct pool *pool;
	uint64_t amount;
};

int charge_take(struct charge *charge, struct account *account, struct pool *pool, uint64_t amount);
int charge_adopt(struct charge *charge, struct account *account, struct pool *pool, uint64_t n);
void charge_give(struct charge *charge);
void charge_move(struct charge *charge, struct account *to);

const char *share_name(enum share share);
