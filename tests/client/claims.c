/* SPDX-License-Identifier: Apache-2.0 */
/* Claims: one makes a tensor, and the others wait for it or for the next claim. */
#include "client/connection/client.h"
#include "tests/client/common.h"

enum { THREADS = 8, CLIENTS = 24 };

static const tl_claim_options forever = { .size = sizeof(forever), .timeout_ns = -1 };

TEST(the_first_has_it_until_the_name_is_published)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *a = td_connect(&d), *b = td_connect(&d);

	must_be(tl_claim(a, "c", NULL), 0);
	must_be(tl_claim(b, "c", NULL), -EBUSY);
	must_be(tl_claim(a, "c", NULL), -EBUSY); /* as another thread of it would be told */
	must_be(tl_claim(b, "other", NULL), 0);
	put_bytes(a, "c", 1, 10);
	must_be(tl_claim(b, "c", NULL), -EEXIST);
	must_be(tl_claim(a, "c", NULL), -EEXIST);
	must_be(tl_unclaim(a, "c"), 0); /* there is none any more */
	must_be(tl_delete(a, "c"), 0);
	must_be(tl_claim(b, "c", NULL), 0);
	must_be(tl_claim(a, "c", NULL), -EBUSY);
	must_be(tl_unclaim(b, "c"), 0);
	td_sync(&d);
	must_be(tl_claim(a, "c", NULL), 0);
	tl_close(a);
	tl_close(b);
}

/* Many: enough for several rounds of requests. */
enum { MANY = 200, CLAIMS_MAX = 256 };

struct names {
	char text[CLAIMS_MAX + 10][32];
	const char *of[CLAIMS_MAX + 10];
};

static void names_make(struct names *names, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		snprintf(names->text[i], sizeof(names->text[i]), "many/%zu", i);
		names->of[i] = names->text[i];
	}
}

TEST(many_are_claimed_at_once)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *a = td_connect(&d), *b = td_connect(&d);
	int outcomes[MANY];
	struct names names;

	names_make(&names, MANY);
	put_bytes(b, names.of[3], 1, 10);
	must_be(tl_claim(b, names.of[100], NULL), 0);
	names.of[MANY - 1] = names.of[0];
	must_be(tl_claim_many(a, names.of, MANY, outcomes), 0);
	for (int i = 0; i < MANY; i++)
		must_be(outcomes[i], i == 3 ? -EEXIST : i == 100 || i == MANY - 1 ? -EBUSY : 0);
	must_be(share_used(a, TL_SHARE_WAITS), MANY - 2);
	must_be(tl_claim(b, names.of[MANY - 2], NULL), -EBUSY);
	must_be(tl_unclaim_many(a, names.of, MANY - 1), 0); /* of which b has two */
	td_sync(&d);
	must_be(share_used(a, TL_SHARE_WAITS), 1);
	must_be(tl_claim(a, names.of[100], NULL), -EBUSY);
	tl_close(a);
	tl_close(b);
}

/* Seven of these go into a message. */
TEST(long_names_are_claimed_at_once)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *other = td_connect(&d);
	char text[40][TENSOR_NAME_MAX + 1];
	const char *names[40];
	int outcomes[40];

	for (int i = 0; i < 40; i++) {
		memset(text[i], 'a' + i % 26, TENSOR_NAME_MAX);
		text[i][0] = i < 26 ? 'x' : 'y';
		text[i][i % 3 ? TENSOR_NAME_MAX : 1] = '\0';
		names[i] = text[i];
	}
	must_be(tl_claim(other, names[22], NULL), 0);
	must_be(tl_claim_many(client, names, 40, outcomes), 0);
	/* 'x' and 'y' are there several times: every third name is one byte. */
	for (int i = 0; i < 40; i++)
		must_be(outcomes[i], i == 22 || (i % 3 == 0 && i != 0 && i != 27) ? -EBUSY : 0);
	must_be(tl_unclaim_many(client, names, 40), 0);
	td_sync(&d);
	must_be(share_used(other, TL_SHARE_WAITS), 1);
	tl_close(client);
	tl_close(other);
}

TEST(what_has_no_space_holds_up_none_of_the_others)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *other = td_connect(&d);
	int outcomes[CLAIMS_MAX];
	struct names names;

	names_make(&names, CLAIMS_MAX + 2);
	put_bytes(other, names.of[5], 1, 10);
	must_be(tl_claim(other, names.of[6], NULL), 0);
	must_be(tl_claim_many(client, names.of + 8, CLAIMS_MAX - 6, outcomes), 0);
	must_be(outcomes[CLAIMS_MAX - 7], 0);
	must_be(tl_claim_many(client, names.of, 8, outcomes), 0); /* there is space for six */
	for (int i = 0; i < 8; i++)
		must_be(outcomes[i], i == 5 ? -EEXIST : i == 6 ? -EBUSY : 0);
	must_be(tl_unclaim(client, names.of[0]), 0);
	must_be(tl_unclaim(client, names.of[1]), 0);
	must_be(tl_claim(client, "one", NULL), 0);
	must_be(tl_claim(client, "two", NULL), 0);
	must_be(tl_claim_many(client, names.of, 8, outcomes), 0); /* and now for none */
	for (int i = 0; i < 8; i++)
		must_be(outcomes[i], i < 2 ? -ENOSPC : i == 5 ? -EEXIST : -EBUSY);
	must_be(share_used(other, TL_SHARE_WAITS), CLAIMS_MAX + 1);
	tl_close(client);
	tl_close(other);
}

TEST(of_too_many_claims_the_first_are_granted)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	int outcomes[CLAIMS_MAX + 10];
	struct names names;

	names_make(&names, CLAIMS_MAX + 10);
	must_be(tl_claim_many(client, names.of, CLAIMS_MAX + 10, outcomes), 0);
	for (int i = 0; i < CLAIMS_MAX + 10; i++)
		must_be(outcomes[i], i < CLAIMS_MAX ? 0 : -ENOSPC);
	must(strstr(tl_last_error(), "256"));
	tl_close(client);
}

TEST(names_that_cannot_be_claimed_claim_nothing)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	const char *names[] = { "a", NULL }, *bad[] = { "a", "b//c" };
	int outcomes[2];

	must_be(tl_claim_many(client, names, 2, outcomes), -EINVAL);
	must(strstr(tl_last_error(), "names[1]"));
	must_be(tl_claim_many(client, bad, 2, outcomes), -EINVAL);
	must(strstr(tl_last_error(), "b//c"));
	must_be(tl_claim_many(client, names, 1, NULL), -EINVAL);
	must_be(tl_claim_many(NULL, names, 1, outcomes), -EINVAL);
	must_be(tl_claim_many(client, NULL, 0, NULL), 0);
	must_be(tl_claim(client, "a", NULL), 0);
	must_be(tl_unclaim_many(client, names, 2), -EINVAL);
	must_be(tl_unclaim_many(client, bad, 2), -EINVAL);
	must_be(tl_unclaim_many(NULL, names, 1), -EINVAL);
	must_be(tl_unclaim_many(client, NULL, 1), -EINVAL);
	must_be(tl_unclaim_many(client, NULL, 0), 0);
	must_be(share_used(client, TL_SHARE_WAITS), 1); /* nothing was given up */
	must_be(tl_unclaim_many(client, names, 1), 0);
	td_sync(&d);
	must_be(share_used(client, TL_SHARE_WAITS), 0);
	tl_close(client);
}

/* Requests that were not answered may have been granted. */
TEST(many_that_are_not_answered_are_given_up)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *other = td_connect(&d);
	int outcomes[MANY];
	struct names names;

	names_make(&names, MANY);
	td_freeze(&d);
	client_set_timeout(client, 20 * MS);
	must_be(tl_claim_many(client, names.of, MANY, outcomes), -ETIMEDOUT);
	for (int i = 0; i < MANY; i++)
		must_be(outcomes[i], -ETIMEDOUT);
	td_thaw(&d);
	eventually(share_used(other, TL_SHARE_WAITS) == 0);
	client_set_timeout(client, WAIT_S * SECOND);
	must_be(tl_claim_many(client, names.of, MANY, outcomes), 0);
	for (int i = 0; i < MANY; i++)
		must_be(outcomes[i], 0);
	tl_close(client);
	tl_close(other);
}

/* A tensor, or the handle of a draft, that is forgotten keeps the connection. */
TEST(what_is_bound_to_a_client_ends_when_it_is_closed_whatever_it_holds)
{
	const tl_put_options bound = { .size = sizeof(bound), .lifetime = TL_LIFETIME_OWNER_BOUND };
	static const int64_t n = 10;
	const tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	cleanup_td struct test_daemon d = td_start();
	tl_client *other = td_connect(&d);
	DLManagedTensorVersioned *held, *t;
	tl_info info = { .size = sizeof(info) };

	put_bytes(other, "any", 1, 10);
	for (int forgets = 0; forgets < 2; forgets++) {
		tl_client *client = td_connect(&d);
		tl_draft *draft = NULL;

		put_as(client, "bound", 2, 10, &bound);
		must_be(tl_claim(client, "c", NULL), 0);
		held = get(client, "any");
		t = get(client, "bound");
		if (forgets)
			must_be(tl_create(client, "d", &spec, &draft), 0);
		tl_close(client);
		td_sync(&d);
		must_be(tl_claim(other, "c", NULL), 0);
		must_be(tl_unclaim(other, "c"), 0);
		must_be(tl_stat(other, "bound", &info), -ENOENT);
		must(all_bytes(held, 1, 10) && all_bytes(t, 2, 10));
		drop(held);
		drop(t);
		tl_abort(draft);
	}
	tl_close(other);
}

struct asker {
	pthread_t thread;
	tl_client *client;
	const char *name;
	_Atomic int result; /* 1: none yet */
};

static void *ask(void *arg)
{
	struct asker *a = arg;

	atomic_store(&a->result, tl_claim(a->client, a->name, &forever));
	return NULL;
}

static void asker_start(struct asker *a, tl_client *client, const char *name)
{
	a->client = client;
	a->name = name;
	atomic_store(&a->result, 1);
	must_be(pthread_create(&a->thread, NULL, ask, a), 0);
}

static int asker_end(struct asker *a)
{
	must_be(pthread_join(a->thread, NULL), 0);
	return atomic_load(&a->result);
}

TEST(all_who_wait_are_told_that_it_is_published)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *other = td_connect(&d);
	struct asker askers[THREADS];

	must_be(tl_claim(client, "c", NULL), 0);
	for (unsigned i = 0; i < THREADS; i++)
		asker_start(&askers[i], i % 2 ? client : other, "c");
	eventually(share_used(client, TL_SHARE_WAITS) == 1 + THREADS);
	for (unsigned i = 0; i < THREADS; i++)
		must_be(atomic_load(&askers[i].result), 1);
	put_bytes(other, "c", 1, 10); /* anybody may */
	for (unsigned i = 0; i < THREADS; i++)
		must_be(asker_end(&askers[i]), -EEXIST);
	must_be(share_used(client, TL_SHARE_WAITS), 0);
	tl_close(client);
	tl_close(other);
}

/* 2^31 messages may be sent while one waits for its answer. */
TEST(no_other_request_gets_the_serial_of_one_that_waits)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *other = td_connect(&d);
	struct session *s = atomic_load(&other->session);
	struct asker asker;

	must_be(tl_claim(client, "c", NULL), 0);
	asker_start(&asker, other, "c");
	eventually(share_used(client, TL_SHARE_WAITS) == 2);
	atomic_fetch_sub(&s->serial, 1);
	must_be(tl_delete(other, "nothing"), -ENOENT);
	must_be(atomic_load(&asker.result), 1);
	must_be(tl_unclaim(client, "c"), 0);
	must_be(asker_end(&asker), 0);
	tl_close(client);
	tl_close(other);
}

TEST(time_runs_out_and_the_place_in_the_queue_is_given_back)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *a = td_connect(&d), *b = td_connect(&d);
	tl_claim_options soon = { .size = sizeof(soon), .timeout_ns = 20 * MS };
	int64_t start = now_ns();

	must_be(tl_claim(a, "c", NULL), 0);
	must_be(tl_claim(b, "c", &soon), -ETIMEDOUT);
	must(now_ns() - start >= 20 * MS);
	must_be(tl_unclaim(a, "c"), 0);
	td_sync(&d);
	must_be(share_used(a, TL_SHARE_WAITS), 0);
	must_be(tl_claim(a, "c", NULL), 0);
	tl_close(a);
	tl_close(b);
}

static void *ask_soon(void *arg)
{
	const tl_claim_options soon = { .size = sizeof(soon), .timeout_ns = 20 * MS };
	struct asker *a = arg;

	atomic_store(&a->result, tl_claim(a->client, a->name, &soon));
	return NULL;
}

/* The time is for others who have the claim. */
TEST(a_busy_daemon_takes_no_time_from_who_claims_what_is_free)
{
	cleanup_td struct test_daemon d = td_start();
	struct asker asker = { .client = td_connect(&d), .name = "c", .result = 1 };
	int64_t start = now_ns();

	td_freeze(&d);
	must_be(pthread_create(&asker.thread, NULL, ask_soon, &asker), 0);
	eventually(now_ns() - start > 60 * MS);
	must_be(atomic_load(&asker.result), 1);
	td_thaw(&d);
	must_be(asker_end(&asker), 0);
	tl_close(asker.client);
}

static int claim_and_wait(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);

	(void)arg;
	must_be(tl_claim(client, "c", NULL), 0);
	pause_at(1);
	tl_close(client);
	return 0;
}

TEST(who_dies_gives_it_to_the_one_who_has_waited_longest)
{
	cleanup_td struct test_daemon d = td_start();
	struct test_child c = child_start_ready(&d, claim_and_wait, NULL);
	tl_client *a = td_connect(&d), *b = td_connect(&d);
	struct asker first, second;

	asker_start(&first, a, "c");
	eventually(share_used(a, TL_SHARE_WAITS) == 2);
	asker_start(&second, b, "c");
	eventually(share_used(a, TL_SHARE_WAITS) == 3);
	child_kill(&c);
	must_be(asker_end(&first), 0);
	must_be(atomic_load(&second.result), 1);
	tl_close(a); /* as tl_unclaim() does */
	must_be(asker_end(&second), 0);
	must_be(share_used(b, TL_SHARE_WAITS), 1);
	tl_close(b);
}

static int try_in_a_child(const struct test_daemon *d, void *arg)
{
	tl_client *client = arg;

	(void)d;
	must_be(tl_claim(client, "c", NULL), -EBUSY);
	must_be(tl_unclaim(client, "c"), 0); /* it is not the child's */
	must_be(tl_claim(client, "c", NULL), -EBUSY);
	tl_close(client);
	return 0;
}

TEST(a_forked_child_does_not_have_its_parents_claims)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	struct test_child c;

	must_be(tl_claim(client, "c", NULL), 0);
	c = child_start(&d, try_in_a_child, client);
	child_must_succeed(&c);
	must_be(tl_claim(client, "c", NULL), -EBUSY);
	tl_close(client);
}

static int get_in_line_in_a_child(const struct test_daemon *d, void *arg)
{
	tl_client *client = arg;
	tl_claim_options soon = { .size = sizeof(soon), .timeout_ns = SECOND / 50 };

	(void)d;
	must_be(tl_claim(client, "c", &soon), -ETIMEDOUT);
	tl_close(client);
	return 0;
}

/* The child's thread has a client in which others of the parent were waiting. */
TEST(a_fork_while_threads_wait_for_a_claim_disturbs_neither)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *owner = td_connect(&d), *client = td_connect(&d);
	struct asker askers[THREADS];
	struct test_child c;

	must_be(tl_claim(owner, "c", NULL), 0);
	for (unsigned i = 0; i < THREADS; i++)
		asker_start(&askers[i], client, "c");
	eventually(share_used(owner, TL_SHARE_WAITS) == 1 + THREADS);
	for (unsigned i = 0; i < 4; i++) {
		c = child_start(&d, get_in_line_in_a_child, client);
		child_must_succeed(&c);
	}
	eventually(share_used(owner, TL_SHARE_WAITS) == 1 + THREADS);
	must_be(tl_unclaim(owner, "c"), 0);
	eventually(share_used(owner, TL_SHARE_WAITS) == THREADS); /* one has it, the others wait on
								   */
	put_bytes(owner, "c", 1, 10);
	for (unsigned i = 0, got = 0; i < THREADS; i++) {
		int r = asker_end(&askers[i]);

		got += r == 0;
		must(got <= 1 && (r == 0 || r == -EEXIST));
	}
	tl_close(owner);
	tl_close(client);
}

/* Each asks until the name is there; who has the claim counts, and publishes or gives up. */
struct worker {
	struct asker asker;
	_Atomic unsigned *makers, *now;
	unsigned number;
};

static void *work(void *arg)
{
	struct worker *w = arg;
	int r;

	while ((r = tl_claim(w->asker.client, "c", &forever)) == 0) {
		must_be(atomic_fetch_add(w->now, 1), 0); /* nobody else is at it */
		atomic_fetch_add(w->makers, 1);
		atomic_fetch_sub(w->now, 1);
		if (atomic_load(w->makers) < CLIENTS / 2)
			must_be(tl_unclaim(w->asker.client, "c"), 0);
		else
			put_bytes(w->asker.client, "c", 1, 10);
	}
	atomic_store(&w->asker.result, r);
	return NULL;
}

TEST(one_at_a_time_makes_it_until_one_has)
{
	cleanup_td struct test_daemon d = td_start();
	_Atomic unsigned makers = 0, now = 0;
	struct worker workers[CLIENTS];

	for (unsigned i = 0; i < CLIENTS; i++) {
		workers[i] = (struct worker){ .makers = &makers, .now = &now, .number = i };
		workers[i].asker.client = td_connect(&d);
		must_be(pthread_create(&workers[i].asker.thread, NULL, work, &workers[i]), 0);
	}
	for (unsigned i = 0; i < CLIENTS; i++)
		must_be(asker_end(&workers[i].asker), -EEXIST);
	must_be(atomic_load(&makers), CLIENTS / 2);
	must_be(share_used(workers[0].asker.client, TL_SHARE_WAITS), 0);
	for (unsigned i = 0; i < CLIENTS; i++)
		tl_close(workers[i].asker.client);
}

TEST(there_are_no_more_than_a_client_may_have)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	char name[16];

	for (unsigned i = 0; i < 256; i++) {
		snprintf(name, sizeof(name), "c/%u", i);
		must_be(tl_claim(client, name, NULL), 0);
	}
	must_be(tl_claim(client, "one/more", NULL), -ENOSPC);
	must(strstr(tl_last_error(), "256"));
	must_be(tl_unclaim(client, "c/7"), 0);
	must_be(tl_claim(client, "one/more", NULL), 0);
	must_be(tl_claim(client, "no//name", NULL), -EINVAL);
	must_be(tl_claim(client, NULL, NULL), -EINVAL);
	must_be(tl_unclaim(NULL, "c"), -EINVAL);
	tl_close(client);
}

int main(void)
{
	return suite_run();
}
