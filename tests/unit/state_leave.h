/* SPDX-License-Identifier: Apache-2.0 */
/* The ends of the clients of state_clients.h, which includes this. */
#pragma once

/* Goes on with the end of a client, and says where it has come to. */
static inline enum client_left fx_end_steps(struct tester *t)
{
	enum client_left left;

	while ((left = client_end_step(&t->c, &st, 16)) == CLIENT_MORE)
		;
	return left;
}

/* Its connection ends. */
static inline void fx_end(struct tester *t)
{
	client_end(&t->c, &st);
	assert_int_equal(fx_end_steps(t), CLIENT_LOOK);
}

/* Looks whether the ledger is mapped, as a worker does for serve/. */
static inline bool fx_look(struct tester *t)
{
	client_unmap_ledger(&t->c);
	client_looked(&t->c, ledger_is_mapped(t->c.ledger_fd));
	return fx_end_steps(t) == CLIENT_OVER;
}

/* Its process ends: its mappings go before its connection does. */
static inline void fx_leave(struct tester *t)
{
	munmap(t->ledger, t->size);
	fx_end(t);
	assert_true(fx_look(t));
	fx_drain();
}

/* Its connection ends, but its process keeps using what it holds until fx_die(). */
static inline void fx_orphan(struct tester *t)
{
	fx_end(t);
	assert_false(fx_look(t));
	assert_false(fx_look(t));
	fx_drain();
}

static inline void fx_die(struct tester *t)
{
	munmap(t->ledger, t->size);
	assert_true(fx_look(t));
	fx_drain();
}
