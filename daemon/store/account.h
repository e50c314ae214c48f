/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accounts: all that one uid uses, across connections, in shares: one for each kind of thing that
 * is limited. A pool is what there is of a share in all. Whatever is taken is taken from a pool
 * and counts in an account, when it is asked for and not when it is touched. A namespace has pools
 * and accounts of its own. Those of bytes lie within the daemon's: both are taken from. No I/O.
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
	SHARE_NAMES,   /* those that mean a tensor or that a row carries */
	SHARE_SEGMENTS,
	SHARE_DRAFTS,
	SHARE_CHUNKS,  /* of the catalog: long names, shapes and metadata */
	SHARE_WATCHES, /* names and prefixes that are watched */
	SHARE_CONNECTIONS,
	SHARE_PARTIAL,	   /* connections that have not said HELLO yet */
	SHARE_DESCRIPTORS, /* that the daemon keeps */
	SHARE_WAITS,	   /* creates that wait; claims, and who waits for one */
	SHARE_MAPPINGS,	   /* of segments, each counted for each client that has it mapped */
	SHARE_IN_FLIGHT,   /* descriptors sent to a client that it has not received yet */
	SHARE_DEVICE,	   /* bytes on the first device; the others follow */
	SHARE_COUNT = SHARE_DEVICE + DEVICES_MAX,
	SHARE_KINDS = SHARE_DEVICE + 1, /* all devices count as one kind, which has one maximum */
};

/* What is taken from a pool, or else one of these with the share added to it. */
enum {
	CHARGE_E_FULL = 1 << 8, /* the pool has not so much left */
	CHARGE_E_USER = 1 << 9, /* the account would get over its maximum */
	CHARGE_SHARE = CHARGE_E_FULL - 1,
};

/* Is @r such a refusal? */
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
	uint64_t kept; /* of the capacity, for the privileged */
	enum share share;
	struct accounts *accounts; /* in which it counts; outlive us */
	struct pool *above;	   /* the daemon's, for one of a namespace; NULL */
};

/* What is done for an account in steps, without a message; serve/turns.h says how. */
enum account_work {
	ACCOUNT_STEPS,	 /* steps_go() of state/lease.h */
	ACCOUNT_CREATES, /* creates that wait for room: serve/space.c */
	ACCOUNT_ENDS,	 /* connections that end: serve/peer.c */
	ACCOUNT_PARTS,	 /* parts_go() of state/export.h */
	ACCOUNT_WORKS,
};

struct account {
	struct accounts *accounts; /* outlives us */
	uint32_t uid;
	uint32_t refs;	       /* clients, and accounts below it */
	struct account *above; /* of the same uid in the whole daemon, for one of a namespace */
	bool privileged; /* root's, ours, the owner's: may have over half, and what pools keep */
	uint64_t warm, open; /* bytes: kept warm; ended, but others have them. The daemon's only */
	uint64_t busy_ns;    /* what serving it took of our time; counted in the daemon's only */
	uint64_t max[SHARE_KINDS];
	uint64_t used[SHARE_COUNT];
	unsigned closing; /* descriptors that it sent and that closer.c has not closed yet */
	/* serve/turns.c, in the daemon's only: */
	struct list ready;    /* in accounts.ready while there is something to do for it */
	struct list turns;    /* of struct turn: those that it waits for */
	unsigned due;	      /* one bit for each enum account_work that there is to do */
	unsigned work;	      /* the work that was done last */
	bool work_next;	      /* work comes before turns, since those came last */
	int64_t debt_ns;      /* time that its turns took beyond their bound */
	unsigned looks;	      /* serve/peer.c: ledgers of its clients that workers look at */
	struct list ends;     /* of struct peer, by look: their ends go on in its steps */
	unsigned ending;      /* of its peers: those that have ended and were not looked at yet */
	unsigned newcomers;   /* serve/greet.c: those in greeting.waiting */
	struct log_limit log; /* what is written because of it */

	/* serve/space.c and job.c, in the daemon's only: */
	struct list creates;  /* of struct create: they wait for room and are to be tried */
	struct list tried;    /* the same, but they have been tried since there was room */
	struct list waiter;   /* in space.accounts while it has any of those */
	uint64_t room_seen;   /* shared.room_made when the creates began to be tried */
	struct list jobs;     /* of struct job: they wait for a worker */
	struct list employer; /* in jobs.accounts while it has any */
	unsigned jobs_running;
	/* state/lease.c, but for the first: */
	struct list parts;    /* state/export.c, of struct device_memory: they are being closed */
	struct list rows;     /* of struct tensor, by link: RETIRED, to be looked at in its steps */
	struct list stepping; /* in state.stepping, with a reference, while it has steps to go */
	struct list step;     /* the same, in the steps of the account above */
	struct list steps;    /* of struct account, by step */

	struct list clients; /* of struct client, by account_link: in its namespace */

	/* state/lost.c: */
	struct list lost; /* of struct tensor, by link */
	unsigned lost_count;
};

/* What the configuration says of one user, of one group, or of every user. */
struct share_rule {
	enum { RULE_USER, RULE_GROUP, RULE_ANY } whose;
	uint32_t id;		   /* uid or gid */
	uint64_t max[SHARE_KINDS]; /* SHARE_UNSET: it does not say */
};

struct accounts {
	struct account **list; /* by uid */
	unsigned count, room;
	struct accounts *above; /* the daemon's, for those of a namespace */
	uint32_t owner;		/* our own uid, or of a namespace in which only its owner publishes
				   that owner */
	const struct share_rule *rules;
	unsigned rule_count;
	struct list ready; /* of struct account: the ring in which they are served */
};

/* The accounts of the daemon, whose uid is @owner. @rules are lent. */
void accounts_init(struct accounts *accounts, uint32_t owner, const struct share_rule *rules,
		   unsigned rule_count);
/* Those of a namespace, with the rules of the daemon's. */
void accounts_init_below(struct accounts *accounts, struct accounts *above);
/* What they still use has ended. */
void accounts_deinit(struct accounts *accounts);

/* Keeps a part of a countable pool for the privileged. */
struct pool pool_make(struct accounts *accounts, enum share share, uint64_t capacity);

/* Refers to the account of @uid, which is made if there is none, and so is the one above it. NULL:
 * no memory. */
struct account *account_ref(struct accounts *accounts, uint32_t uid);
/* It lives on while something is charged to it. */
struct account *account_unref(struct account *account);
/* Finds its maxima anew, for a connection with these groups: those of the user come before those of
 * the first of its groups that the configuration names, and those before everybody's. */
void account_set_groups(struct account *account, gid_t gid, const gid_t *groups, unsigned count);
/* Makes one of the caller's, which is no user's. */
void account_init(struct account *account, struct accounts *accounts);
/* There is something to do for its user: puts the daemon's account of that user at the end of the
 * ring unless it is there. */
void account_ready(struct account *account);
/* There is such work to do. Nothing happens if that is known already. */
void account_due(struct account *account, enum account_work work);
/* The account with the lowest uid from @uid on. NULL: there is none. */
struct account *account_next(const struct accounts *accounts, uint32_t uid);
/* The account of the same uid in the whole daemon. */
static inline struct account *account_top(struct account *account)
{
	return account->above ? account->above : account;
}

/* Its own account, or the one above it, in which the pool counts. */
struct account *account_in(struct account *account, const struct pool *pool);
/* How much the account may have of that pool, and how much it has. */
uint64_t account_max(struct account *account, const struct pool *pool);
uint64_t account_used(struct account *account, const struct pool *pool);
/* Of a pool and those above it, the one of which the account may have the least more. */
const struct pool *account_tightest(struct account *account, const struct pool *pool);

/* Takes @amount from the pool for the account, or nothing: CHARGE_E_USER or CHARGE_E_FULL, in this
 * order, since a user who is over its maximum must not wait for others. */
int account_take(struct account *account, struct pool *pool, uint64_t amount);
void account_give(struct account *account, struct pool *pool, uint64_t amount);
/* The same for what a former daemon gave it, maximum or not: CHARGE_E_FULL, or 0. */
int account_adopt(struct account *account, struct pool *pool, uint64_t amount);
/* @to has it from now on, even beyond its maximum: it gets no more then. */
void account_move(struct account *from, struct account *to, const struct pool *pool, uint64_t n);

/* What was taken for one thing; embedded in it. */
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
