/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns: the order in which users are served. All that the loop does for users is cut into turns,
 * bounded pieces of work of one account each. Accounts that have something to do stand in a queue.
 * The first gets one turn and goes to the end. So a user waits for at most one turn of each other
 * user, however many connections those have. An account's own turns are served in their order.
 *
 * Accounts are the daemon's here, not those of namespaces. A connection, or another object with
 * work of its own, embeds a struct turn. Other work is a bit in account.due. To add a kind of work,
 * for instance for steps in state/:
 *
 *	1. add ACCOUNT_THING to enum account_work;
 *	2. where there is something to do: account_due(account, ACCOUNT_THING);
 *	3. at the start, in serve/: turns_register(turns, ACCOUNT_THING, thing_step, context).
 *
 * thing_step(context, account) does some of it, for TURN_NS or so, and returns whether there is
 * more. state/ need not know serve/ for that. Work alternates with the turns of the same account.
 */
#pragma once

#include "daemon/state/meters.h"
#include "daemon/store/account.h"
#include "util/clock.h"

#define TURN_NS (32 * NS_PER_US) /* the longest that a turn should take */
enum { TURN_MESSAGES = 16 };	 /* messages that a turn reads or sends at most */

struct turn {
	struct list link;	 /* in account->turns while it is queued */
	struct account *account; /* outlives it */
	/* Called off the queue. Returns whether it needs another turn, and may free itself if
	 * not. */
	bool (*run)(struct turn *turn);
};

typedef bool account_step(void *context, struct account *account);

struct turns {
	struct list *ready; /* of struct account */
	struct {
		account_step *step;
		void *context;
	} works[ACCOUNT_WORKS];
	int64_t began; /* the turn that runs, or ran last */
	int64_t now;   /* when it was over */
	uint64_t longest_ns;
	struct histogram took;
};

void turns_init(struct turns *turns, struct accounts *accounts);
void turns_register(struct turns *turns, enum account_work work, account_step *step, void *context);

void turn_init(struct turn *turn, struct account *account, bool (*run)(struct turn *turn));
/* Queues the turn, since it has something to do. Does nothing if it is queued already. */
void turn_queue(struct turn *turn);
void turn_cancel(struct turn *turn);

/* Serves one turn. False: there was nothing to do. */
bool turns_next(struct turns *turns);
bool turns_wait(const struct turns *turns);
/* True if the turn that runs has taken its time. */
bool turn_is_over(const struct turns *turns);
