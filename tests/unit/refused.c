/* SPDX-License-Identifier: Apache-2.0 */
/* COMMITs without a waiter: what is known of them, and which thread is told of a failure. */
#include <pthread.h>

#include "client/session/refused.h"
#include "tests/harness/harness.h"

enum { OTHERS = 3, THREADS = REFUSED_THREADS + OTHERS };

struct committing {
	struct refused *r;
	uint32_t serial;
	pthread_barrier_t *committed, *lost;
	int error; /* what the thread was told, and for which name; 0: nothing */
	char text[WIRE_TEXT_MAX + 1];
	pthread_t thread;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void *commit(void *arg)
{
	struct committing *c = arg;
	const char *text = "";
	char name[16];

	snprintf(name, sizeof(name), "%u", c->serial);
	pthread_mutex_lock(&mutex);
	refused_sending(c->r, c->serial, name);
	refused_sent(c->r, c->serial, c->serial, c->serial);
	pthread_mutex_unlock(&mutex);
	pthread_barrier_wait(c->committed);
	pthread_barrier_wait(c->lost);
	pthread_mutex_lock(&mutex);
	c->error = refused_take(c->r, &text);
	snprintf(c->text, sizeof(c->text), "%s", text);
	pthread_mutex_unlock(&mutex);
	return NULL;
}

/* @n threads commit, with the serials from 1 on. Those up to @answered are answered; then the
 * connection ends. */
static void threads_commit(struct refused *r, struct committing *c, unsigned n, uint32_t answered)
{
	pthread_barrier_t committed, lost;

	must_be(pthread_barrier_init(&committed, NULL, n + 1), 0);
	must_be(pthread_barrier_init(&lost, NULL, n + 1), 0);
	for (unsigned i = 0; i < n; i++) {
		c[i] = (struct committing){
			.r = r, .serial = i + 1, .committed = &committed, .lost = &lost
		};
		must_be(pthread_create(&c[i].thread, NULL, commit, &c[i]), 0);
	}
	pthread_barrier_wait(&committed);
	refused_answered(r, answered);
	refused_lost_all(r);
	pthread_barrier_wait(&lost);
	for (unsigned i = 0; i < n; i++)
		must_be(pthread_join(c[i].thread, NULL), 0);
	pthread_barrier_destroy(&committed);
	pthread_barrier_destroy(&lost);
}

/* Is it told of the COMMIT with @serial? */
static bool tells(const struct committing *c, uint32_t serial)
{
	char start[16];

	snprintf(start, sizeof(start), "%u: ", serial);
	return c->error == -ENOTCONN && !strncmp(c->text, start, strlen(start));
}

TEST(each_thread_is_told_of_its_own_commit_unless_that_was_processed)
{
	enum { FEW = 10, ANSWERED = 4 };
	struct refused r = { 0 };
	struct committing c[FEW];

	threads_commit(&r, c, FEW, ANSWERED);
	for (uint32_t i = 0; i < FEW; i++)
		must(i < ANSWERED ? !c[i].error : tells(&c[i], c[i].serial));
	must_be(r.count, 0);
	refused_reset(&r);
}

/* So many threads have entries of their own; the others have one together. */
TEST(of_too_many_threads_one_is_told_for_all_others)
{
	struct refused r = { 0 };
	struct committing c[THREADS];
	unsigned told = 0, own = 0;

	threads_commit(&r, c, THREADS, 0);
	for (unsigned i = 0; i < THREADS; i++) {
		told += c[i].error != 0;
		own += tells(&c[i], c[i].serial);
	}
	must_be(told, REFUSED_THREADS + 1);
	must(own >= REFUSED_THREADS);
	must_be(r.count, 0);
	refused_reset(&r);
}

static void sends(struct refused *r, uint32_t serial, uint32_t newest, uint32_t own)
{
	refused_sending(r, serial, "name");
	refused_sent(r, serial, newest, own);
}

TEST(a_lost_commit_is_named_though_the_next_one_was_not_sent)
{
	struct refused r = { 0 };
	const char *text;

	refused_sending(&r, 1, "first");
	refused_sent(&r, 1, 1, 1);
	refused_sending(&r, 2, "second");
	refused_unsent(&r, 2);
	refused_lost_all(&r);
	must_be(refused_take(&r, &text), -ENOTCONN);
	must(!strncmp(text, "first: ", 7));
	refused_reset(&r);
}

TEST(an_answer_to_one_of_two_commits_says_nothing_of_the_other)
{
	struct refused r = { 0 };
	const char *text;

	r.nthreads = REFUSED_THREADS; /* all of them have COMMITs that may be lost */
	r.threads = calloc(REFUSED_THREADS, sizeof(*r.threads));
	must(r.threads);
	for (unsigned i = 0; i < REFUSED_THREADS; i++)
		r.threads[i] = (struct committer){ .thread = UINT64_MAX - i, .unanswered = 1 };
	sends(&r, 5, 7, 5);
	sends(&r, 6, 7, 6);
	refused_answered(&r, 6);
	must_be(r.others.unanswered, 1);
	refused_answered(&r, 8);
	must_be(r.others.unanswered, 0);
	sends(&r, 9, 9, 9);
	refused_answered(&r, 9);
	refused_lost_all(&r);
	must_be(refused_take(&r, &text), 0);
	refused_reset(&r);
}

/* What is told to the caller, of which other threads hear nothing. */
static void *take(void *refused)
{
	const char *text;

	return (void *)(intptr_t)refused_take(refused, &text);
}

static int other_thread_takes(struct refused *r)
{
	pthread_t thread;
	void *error;

	must_be(pthread_create(&thread, NULL, take, r), 0);
	must_be(pthread_join(thread, &error), 0);
	return (int)(intptr_t)error;
}

/* A client may have that many drafts. */
TEST(a_refusal_finds_its_thread_however_many_commits_came_after_it)
{
	enum { COMMITS = 1024 };
	struct refused r = { 0 };
	const char *text;

	for (uint32_t serial = 1; serial <= COMMITS; serial++)
		sends(&r, serial, COMMITS, serial);
	refused_add(&r, 1, -ENOSPC, "first", 5);
	must_be(other_thread_takes(&r), 0);
	must_be(refused_take(&r, &text), -ENOSPC);
	refused_add(&r, COMMITS, -EDQUOT, "last", 4);
	must_be(other_thread_takes(&r), 0);
	must_be(refused_take(&r, &text), -EDQUOT);
	must_be(r.ncommits, COMMITS - 2);
	refused_answered(&r, COMMITS + 1);
	must_be(r.ncommits, 0);
	refused_reset(&r);
}

TEST(what_was_not_sent_or_was_refused_before_it_was_is_forgotten)
{
	struct refused r = { 0 };
	const char *text;

	refused_sending(&r, 1, "unsent");
	refused_unsent(&r, 1);
	refused_sending(&r, 2, "refused");
	refused_add(&r, 2, -ENOSPC, "text", 4);
	refused_sent(&r, 2, 2, 2);
	must_be(r.ncommits, 0);
	must_be(refused_take(&r, &text), -ENOSPC);
	refused_lost_all(&r);
	must_be(refused_take(&r, &text), 0);
	refused_reset(&r);
}

TEST(the_next_session_tells_what_the_last_one_did_not)
{
	struct refused old = { 0 }, r = { 0 };
	const char *text;

	for (uint32_t serial = 1; serial <= 3; serial++)
		refused_sending(&old, serial, "name");
	refused_add(&old, 1, -ENOSPC, "first", 5);
	refused_add(&old, 2, -EDQUOT, "second", 6);
	refused_inherit(&r, &old);
	must_be(refused_take(&old, &text), 0);
	must_be(refused_take(&r, &text), -ENOSPC);
	must(!strcmp(text, "first"));
	must_be(refused_take(&r, &text), 0);
	refused_reset(&r);
}

struct failing {
	struct refused *r;
	uint32_t serial;
};

static void *fails(void *arg)
{
	const struct failing *f = arg;

	sends(f->r, f->serial, f->serial, f->serial);
	refused_add(f->r, f->serial, -ENOSPC, "text", 4);
	return NULL;
}

static void fails_on_thread(struct refused *r, uint32_t serial)
{
	struct failing f = { r, serial };
	pthread_t thread;

	must_be(pthread_create(&thread, NULL, fails, &f), 0);
	must_be(pthread_join(thread, NULL), 0);
}

/* None of them asks. Their entries are used again, and nothing is kept for ever. */
TEST(what_a_thread_that_has_ended_was_not_told_is_told_to_another)
{
	struct refused r = { 0 };
	const char *text;

	for (uint32_t round = 0; round < 2; round++) {
		for (uint32_t i = 1; i <= REFUSED_THREADS; i++)
			fails_on_thread(&r, round * REFUSED_THREADS + i);
		must_be(r.count, REFUSED_THREADS);
		must_be(r.others.error, 0);
		for (unsigned i = 0; i < REFUSED_THREADS; i++)
			eventually(refused_take(&r, &text) == -ENOSPC);
		must_be(r.count, 0);
		must_be(refused_take(&r, &text), 0);
	}
	fails_on_thread(&r, 1000);
	sends(&r, 1001, 1001, 1001);
	refused_add(&r, 1001, -EDQUOT, "own", 3);
	must_be(refused_take(&r, &text), -EDQUOT);
	eventually(refused_take(&r, &text) == -ENOSPC);
	refused_reset(&r);
}

int main(void)
{
	return suite_run();
}
