/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns; see turns.h. A single message may take longer than a turn should. The excess is a debt of
 * its account, which is passed over while others are there, until their turns have taken as long
 * (deficit round robin). Nobody pays when nobody waits. Loop thread only.
 */
#include "daemon/serve/turns.h"

/* A debt is paid off in so many rounds at most, so that the next account is always found soon. */
enum { DEBT_ROUNDS_MAX = 64 };

void turns_init(struct turns *turns, struct accounts *accounts)
{
	*turns = (struct turns){ .ready = &accounts->ready };
}

void turns_register(struct turns *turns, enum account_work work, account_step *step, void *context)
{
	turns->works[work].step = step;
	turns->works[work].context = context;
}

void turn_init(struct turn *turn, struct account *account, bool (*run)(struct turn *turn))
{
	*turn = (struct turn){ .account = account, .run = run };
	list_init(&turn->link);
}

void turn_queue(struct turn *turn)
{
	if (!list_empty(&turn->link))
		return;
	list_add_tail(&turn->account->turns, &turn->link);
	account_ready(turn->account);
}

void turn_cancel(struct turn *turn)
{
	list_del(&turn->link);
}

bool turns_wait(const struct turns *turns)
{
	return !list_empty(turns->ready);
}

bool turn_is_over(const struct turns *turns)
{
	return now_mono_ns() - turns->began >= TURN_NS;
}

/* The kinds of work of an account are done in turn, too. */
static void work_run(struct turns *turns, struct account *account)
{
	unsigned work = account->work;

	do {
		work = (work + 1) % ACCOUNT_WORKS;
	} while (!(account->due & 1U << work));
	account->work = work;
	account->due &= ~(1U << work); /* the step may find new work of the same kind */
	if (turns->works[work].step(turns->works[work].context, account))
		account->due |= 1U << work;
}

static void account_run(struct turns *turns, struct account *account)
{
	struct turn *turn;

	if (account->due && (account->work_next || list_empty(&account->turns))) {
		account->work_next = false;
		work_run(turns, account);
		return;
	}
	if (list_empty(&account->turns))
		return; /* they were cancelled */
	account->work_next = true;
	turn = list_first_entry(&account->turns, struct turn, link);
	list_del(&turn->link);
	if (turn->run(turn))
		turn_queue(turn);
}

/* Takes the first account that has no debts out of the queue. */
static struct account *ring_take(struct turns *turns)
{
	struct account *account;

	for (;;) {
		account = list_first_entry(turns->ready, struct account, ready);
		list_del(&account->ready);
		if (account->debt_ns < TURN_NS || list_empty(turns->ready))
			return account;
		account->debt_ns -= TURN_NS;
		list_add_tail(turns->ready, &account->ready);
	}
}

bool turns_next(struct turns *turns)
{
	struct account *account;
	int64_t took;

	if (list_empty(turns->ready))
		return false;
	account = ring_take(turns);
	account->refs++; /* its last connection may end in its turn */
	turns->began = now_mono_ns();
	account_run(turns, account);
	turns->now = now_mono_ns();
	took = turns->now - turns->began;
	account->busy_ns += (uint64_t)took;
	histogram_add(&turns->took, (uint64_t)took);
	if ((uint64_t)took > turns->longest_ns)
		turns->longest_ns = (uint64_t)took;
	account->debt_ns = took < TURN_NS		      ? 0
			   : took > DEBT_ROUNDS_MAX * TURN_NS ? DEBT_ROUNDS_MAX * TURN_NS
							      : took - TURN_NS;
	if (account->due || !list_empty(&account->turns))
		account_ready(account);
	account_unref(account);
	return true;
}
