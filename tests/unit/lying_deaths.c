/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library and daemons that die in the midst of a request (tests/harness/liar.h), which a real
 * one would have to be stopped at exactly.
 */
#include <sys/socket.h>

#include "tests/unit/liar_fixture.h"
#include "util/clock.h"

/* ---- While a create waits for space ---- */

enum { DEATHS = 6 };

static _Atomic unsigned creates;

static bool die_of_creates(struct liar *l, int socket, struct conn_message *m)
{
	(void)l;
	if (m->header.type != WIRE_CREATE || atomic_fetch_add(&creates, 1) >= DEATHS)
		return false;
	must_be(shutdown(socket, SHUT_RDWR), 0);
	return true;
}

static int create(tl_client *client, int64_t timeout_ns)
{
	int64_t n = 600;
	tl_spec spec = {
		.size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8, .timeout_ns = timeout_ns
	};
	tl_draft *draft;
	int r = tl_create(client, "c", &spec, &draft);

	if (!r)
		tl_abort(draft);
	return r;
}

LIE_TEST(a_create_waits_for_space_however_many_daemons_die_meanwhile)
{
	tl_client *client = liar_connect(&liar);

	atomic_store(&creates, 0);
	liar_set_answer(&liar, die_of_creates);
	must_be(create(client, WAIT_S * SECOND), 0);
	must_be(atomic_load(&creates), DEATHS + 1);
	tl_close(client);
}

LIE_TEST(a_create_that_does_not_wait_is_not_made_again_for_ever)
{
	tl_client *client = liar_connect(&liar);

	atomic_store(&creates, 0);
	liar_set_answer(&liar, die_of_creates);
	must_be(create(client, 0), -ENOTCONN);
	must(strstr(tl_last_error(), "ends every connection"));
	must(atomic_load(&creates) < DEATHS);
	must_be(create(client, 1), -ENOTCONN);
	tl_close(client);
}

int main(void)
{
	return suite_run();
}
