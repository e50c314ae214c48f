/* SPDX-License-Identifier: Apache-2.0 */
/* Clients whose ledgers lie when a daemon is adopted harm nobody else. */
#include <sys/stat.h>

#include "tests/daemon/adopted_common.h"
#include "tests/harness/child.h"
#include "tests/harness/raw.h"

enum {
	LIAR = 1111,
	ACCOMPLICE = 1112,
	TENSORS = 40,
	LIES = 6,
	LIES_OF_ROOT = 12,
	MAX_TENSORS = 64
};

struct scene {
	char config[32];
	struct test_daemon d;
	tl_client *honest; /* has TENSORS tensors mapped, each in a segment of its own */
};

static void see_all(struct scene *s)
{
	char name[8];

	for (int i = 0; i < TENSORS; i++) {
		snprintf(name, sizeof(name), "t%d", i);
		must_be(get_value(s->honest, name), i);
	}
}

/* Every user may have @mappings mappings. */
static void begin(struct scene *s, unsigned mappings)
{
	const char *const extra[] = { "--keeper", "yes", "--config", s->config, NULL };
	char name[8];
	uint64_t version;
	int fd;

	snprintf(s->config, sizeof(s->config), "/tmp/tl-config-XXXXXX");
	fd = mkstemp(s->config);
	must(fd >= 0 && dprintf(fd, "[user %d]\nmappings = %u\n[user %d]\nmappings = %u\n", LIAR,
				mappings, ACCOMPLICE, mappings) > 0);
	must_be(fchmod(fd, 0644) | close(fd), 0);
	s->d = td_start(.extra = extra, .expect_ready = true, .for_others = true,
			.max_tensors = MAX_TENSORS);
	s->honest = td_connect(&s->d);
	for (int i = 0; i < TENSORS; i++) {
		snprintf(name, sizeof(name), "t%d", i);
		must_be(put(s->honest, name, (uint8_t)i, BYTES, &version), 0);
	}
	see_all(s);
}

static void kill_and_see_all(struct scene *s)
{
	daemon_kill(s->honest);
	see_all(s);
}

static void finish(struct scene *s)
{
	tl_close(s->honest);
	td_stop(&s->d);
	unlink(s->config);
}

static struct raw say_that_all_is_mapped(const struct test_daemon *d)
{
	struct raw rc = rc_open(d);

	for (uint32_t i = 0; i < TENSORS; i++)
		ledger_map_note(rc.ledger, rc.welcome.max_tensors, i, 1);
	return rc;
}

/* @most connections may, and one more is refused. */
static int lie(const struct test_daemon *d, void *most)
{
	struct raw rc[LIES_OF_ROOT + 1];
	int last = *(int *)most, r;
	struct conn_message m;

	for (int i = 0; i <= last; i++)
		rc[i] = say_that_all_is_mapped(d);
	pause_at(1);
	do {
		r = conn_receive(rc[last].fd, WIRE_TO_CLIENT, &m, 0);
	} while (!r && m.header.type == WIRE_ADOPTED);
	must(!r && m.header.type == WIRE_ERROR); /* and then the end */
	must(conn_receive(rc[last].fd, WIRE_TO_CLIENT, &m, 0));
	for (int i = 0; i <= last; i++)
		rc_close(&rc[i]);
	return 0;
}

static void lies_harm_nobody_else(unsigned uid, int most)
{
	struct test_child c;
	struct scene s;

	SKIP_UNLESS(geteuid() == 0, "needs root, to be other users");
	begin(&s, LIES + 1); /* each connection counts as one */
	c = child_start_as(uid, &s.d, lie, &most);
	must_be(child_await(&c), 1);
	kill_and_see_all(&s);
	child_finish(&c);
	finish(&s);
}

/* Beyond its maximum the user may have half of all: it may have had a higher maximum before. */
TEST(who_says_that_it_has_everything_mapped_harms_nobody_else)
{
	lies_harm_nobody_else(LIAR, LIES);
}

/* It has no maximum, but not more than all. */
TEST(root_that_says_that_it_has_everything_mapped_harms_nobody_else)
{
	lies_harm_nobody_else(0, LIES_OF_ROOT);
}

/* No user exceeds its own maximum. */
static int lie_often(const struct test_daemon *d, void *arg)
{
	struct raw rc[LIES];

	(void)arg;
	for (int i = 0; i < LIES; i++)
		rc[i] = say_that_all_is_mapped(d);
	pause_at(1);
	for (int i = 0; i < LIES; i++)
		rc_close(&rc[i]);
	return 0;
}

TEST(users_who_together_say_that_they_have_too_much_mapped_harm_nobody_else)
{
	struct test_child c, other;
	struct scene s;

	SKIP_UNLESS(geteuid() == 0, "needs root, to be other users");
	begin(&s, LIES * (TENSORS + 1));
	c = child_start_as(LIAR, &s.d, lie_often, NULL);
	other = child_start_as(ACCOMPLICE, &s.d, lie_often, NULL);
	must_be(child_await(&c), 1);
	must_be(child_await(&other), 1);
	kill_and_see_all(&s);
	child_finish(&c);
	child_finish(&other);
	kill_and_see_all(&s);
	finish(&s);
}

/* ---- ledgers that are left behind ---- */

enum { CLIENTS = 64 };

/* Connects as often as it may, ends each connection, and keeps the ledger, which holds a tensor. */
static int leave_ledgers(const struct test_daemon *d, void *arg)
{
	const struct wire_draft *held = arg;
	struct raw rc;
	uint64_t n = 0;

	while (n < CLIENTS && rc_try_open(&rc, d->socket, RAW_READY, 0) == 0) {
		must(rc_hold(&rc, held->ref));
		rc.ledger = NULL; /* the mapping stays */
		rc_close(&rc);
		n++;
	}
	pause_at(n);
	return 0;
}

static int connects(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_open(d);

	(void)arg;
	rc_goodbye(&rc);
	return 0;
}

/* Orphans do not count. */
static unsigned clients_served(const struct raw *rc)
{
	const _Atomic uint64_t *words = (const void *)((const char *)rc->catalog +
						       rc->catalog->off_clients);
	unsigned n = 0;

	for (unsigned i = 0; i < rc->catalog->max_clients; i++)
		n += atomic_load(&words[i]) & 1;
	return n;
}

TEST(ledgers_left_behind_with_two_daemons_take_no_connections_of_others)
{
	static const char *const extra[] = { "--keeper", "yes", NULL };
	struct test_child first, second, other;
	struct wire_draft held;
	struct test_daemon d;
	tl_client *c;
	struct raw rc;

	SKIP_UNLESS(geteuid() == 0, "needs root, to be other users");
	d = td_start(.extra = extra, .expect_ready = true, .for_others = true,
		     .max_clients = CLIENTS);
	c = td_connect(&d);
	rc = rc_open(&d);
	must_be(rc_put(&rc, "held", 1, 1, &held), 0);
	first = child_start_as(LIAR, &d, leave_ledgers, &held);
	must(child_await(&first) >= CLIENTS / 4);
	eventually(clients_served(&rc) == 2);
	daemon_kill(c);
	second = child_start_as(LIAR, &d, leave_ledgers, &held);
	child_await(&second);
	other = child_start_as(ACCOMPLICE, &d, connects, NULL);
	child_must_succeed(&other);
	child_kill(&first);
	child_kill(&second);
	rc_close(&rc);
	tl_close(c);
	td_stop(&d);
}

int main(void)
{
	return suite_run();
}
