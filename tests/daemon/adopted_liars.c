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

int main(void)
{
	return suite_run();
}
