/* SPDX-License-Identifier: Apache-2.0 */
/* What a watch tells of the producers of names. */
#include "client/read/watched.h"
#include "client/connection/client.h"
#include "client/connection/session.h"
#include "tests/unit/liar_fixture.h"

enum { DEAD = 5, ALIVE = 6 }; /* clients of the daemon */

static struct watched_names names;

/* Looks at the name "a" as it is now. */
static struct watched *look(tl_client *client)
{
	struct session *s = atomic_load(&client->session);
	struct watched *e = watched_get(&names, 0, "a");
	struct name_entry entry;

	must(e);
	must_be(names_entry(s, 0, &entry), 0);
	watched_found(&names, s, e, &entry);
	return e;
}

static void must_tell(enum tl_watch_what what, uint64_t version)
{
	tl_watch_event event;

	must(watched_take(&names, &event));
	must_be(event.what, what);
	must_be(event.version, version);
}

static void must_tell_nothing(void)
{
	tl_watch_event event;

	must(!watched_take(&names, &event));
}

static void row_is(enum row_state state, uint64_t version, unsigned producer)
{
	liar.catalog->rows[0].version = version;
	atomic_store(&liar.catalog->names[0].producer, catalog_producer(producer, 1));
	atomic_store(&liar.catalog->rows[0].word, row_word(1, state));
}

/* The group is published, but not all of its members are LIVE, and the name still has the former
 * producer. */
LIE_TEST(the_producer_of_a_member_is_not_known_before_that_is_live)
{
	tl_client *client = liar_connect(&liar);
	struct session *s = atomic_load(&client->session);
	struct watched *e;

	watched_init(&names);
	atomic_store(&liar.catalog->clients[DEAD], 0);
	atomic_store(&liar.catalog->members[0].group, 1);
	atomic_store(&liar.catalog->header.groups, 3);
	row_is(ROW_DRAFT, 2, DEAD);
	look(client);
	must_tell(TL_WATCH_PUBLISHED, 2);
	must_tell_nothing();
	row_is(ROW_LIVE, 2, ALIVE);
	e = look(client);
	must_tell_nothing();
	atomic_store(&liar.catalog->clients[ALIVE], 0);
	watched_look_producer(&names, s, e);
	must_tell(TL_WATCH_PRODUCER_GONE, 2);
	must_tell_nothing();
	watched_free_all(&names);
	tl_close(client);
}

LIE_TEST(the_end_of_a_producer_is_not_told_once_another_has_published)
{
	tl_client *client = liar_connect(&liar);

	watched_init(&names);
	atomic_store(&liar.catalog->clients[DEAD], 0);
	row_is(ROW_LIVE, 2, DEAD);
	look(client);
	must_tell(TL_WATCH_PUBLISHED, 2);
	row_is(ROW_LIVE, 2, ALIVE);
	look(client);
	must_tell_nothing();
	watched_free_all(&names);
	tl_close(client);
}

int main(void)
{
	return suite_run();
}
