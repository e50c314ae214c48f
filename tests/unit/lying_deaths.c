/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library and daemons that die in the midst of a request (tests/harness/liar.h), or are slow
 * there, which a real one would have to be stopped at exactly.
 */
#include <fcntl.h>
#include <semaphore.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <tensorlease/watch.h>

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

/* Ends the segment of the first draft, and has no space as long as somebody can write to its
 * memory. It is told only after the library has let go of that. */
static bool end_what_is_mapped(struct liar *l, int socket, struct conn_message *m)
{
	struct wire_error_reply e = { .code = WIRE_E_NO_SPACE };
	unsigned n = m->header.type == WIRE_CREATE ? atomic_fetch_add(&creates, 1) : 0;

	if (n == 1) {
		atomic_store(&l->catalog->segments[l->draft.segment].word, 1 << 1);
		eventually(!fcntl(atomic_load(&l->descriptor), F_ADD_SEALS, F_SEAL_WRITE));
		liar_send(socket, m, WIRE_ERROR, &e, sizeof(e), -1);
	} else if (n == 2) {
		l->draft.segment++;
		atomic_store(&l->descriptor, -1);
	}
	return n == 1;
}

LIE_TEST(a_create_is_made_again_if_memory_was_let_go_while_its_answer_was_on_its_way)
{
	tl_client *client = liar_connect(&liar);
	int fd = memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	must_be(ftruncate(fd, LIAR_SEGMENT_BYTES), 0);
	must_be(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
	liar.catalog->segments[liar.draft.segment].flags = SEGMENT_SEALED;
	atomic_store(&liar.descriptor, fd);
	atomic_store(&creates, 0);
	liar_set_answer(&liar, end_what_is_mapped);
	must_be(create(client, 0), 0);
	must_be(create(client, 0), 0);
	must_be(atomic_load(&creates), 3);
	tl_close(client);
	close(fd);
}

/* ---- While names are watched ---- */

/* The next one says that it is the same one, though its tables are smaller. */
static bool die_and_shrink(struct liar *l, int socket, struct conn_message *m)
{
	if (m->header.type == WIRE_HELLO)
		l->catalog->header.max_names = 1;
	if (m->header.type != WIRE_CREATE || atomic_fetch_add(&creates, 1))
		return false;
	must_be(shutdown(socket, SHUT_RDWR), 0);
	return true;
}

LIE_TEST(a_watch_believes_no_name_beyond_the_next_ones_tables)
{
	tl_client *client = liar_connect(&liar);
	tl_watch_options o = { .size = sizeof(o), .flags = TL_WATCH_PREFIX };
	tl_watch_event event = { .size = sizeof(event) };
	const int64_t shape[1] = { 8 };
	tl_watch *watch;

	liar_publish(&liar, LIAR_NAMES - 1, "a/1", 1, shape, 0, 0);
	must_be(tl_watch_open(client, "a/", &o, &watch), 0);
	must_be(tl_watch_next(watch, NULL, &event), 0);
	must_be(event.what, TL_WATCH_PUBLISHED);
	atomic_store(&creates, 0);
	liar_set_answer(&liar, die_and_shrink);
	must_be(create(client, WAIT_S * SECOND), 0);
	must_be(tl_watch_next(watch, NULL, &event), 0);
	must_be(event.what, TL_WATCH_RESTARTED);
	must_be(tl_watch_next(watch, NULL, &event), -EAGAIN);
	must_be(tl_watch_close(watch), 0);
	tl_close(client);
}

/* ---- Requests that were begun during a fork ---- */

/* What a name means cannot be seen meanwhile. */
struct begun {
	tl_client *client;
	enum wire_type type;
	int (*call)(struct begun *b);
	sem_t ready, begin, fork_begun, fork_may_end;
	_Atomic pid_t tid;
	_Atomic unsigned requests; /* of that type */
	DLManagedTensorVersioned *got;
	int result;
};

static int delete_it(struct begun *b)
{
	int r = tl_delete(b->client, "a");

	drop(b->got);
	return r;
}

static int publish_it(struct begun *b)
{
	return tl_publish(b->client, "b", b->got, NULL, NULL, NULL);
}

/* Carries the first request out and dies, and is the next daemon. If that was DELETE, somebody has
 * published under the name again. The child's connection has to wait. */
static bool carry_out_and_die(struct liar *l, int socket, struct conn_message *m)
{
	struct wire_plain adopted = {
		.header = { .type = WIRE_ADOPTED, .length = sizeof(adopted), .life = 1 }
	};
	const int64_t shape[] = { 2, 3, 100 };
	struct begun *b = l->context;
	struct catalog_row *row;

	if (m->header.type == WIRE_HELLO) {
		must_be(sem_post(&b->fork_begun), 0);
		must_be(sem_wait(&b->fork_may_end), 0);
	}
	if (m->header.type != b->type || atomic_fetch_add(&b->requests, 1))
		return m->header.type == WIRE_RESUMED;
	if (b->type == WIRE_DELETE) {
		liar_publish(l, 2, "d", 3, shape, 0, 8192)->name = 0;
		atomic_store(&l->catalog->rows[0].word, row_word(1, ROW_RETIRED));
		atomic_store(&l->catalog->names[0].current, ref_make(1, 2));
	} else {
		row = liar_publish(l, 2, "d", 3, shape, 0, 256);
		row->name = 1;
		row->version = 2;
		atomic_store(&l->catalog->names[1].current, ref_make(1, 2));
	}
	must_be(conn_send(socket, &adopted, -1, MSG_DONTWAIT), 0);
	return true;
}

/* Its first call would wait for the end of the fork. */
static void *begin_a_call(void *arg)
{
	struct begun *b = arg;

	must_be(tl_get(b->client, "a", NULL, &b->got), 0);
	must_be(sem_post(&b->ready), 0);
	must_be(sem_wait(&b->begin), 0);
	atomic_store(&b->tid, (pid_t)gettid());
	b->result = b->call(b);
	return NULL;
}

static void *fork_a_child(void *arg)
{
	pid_t child = fork();

	(void)arg;
	if (!child)
		_exit(0);
	must_be(waitpid(child, NULL, 0), child);
	return NULL;
}

static void must_be_made_once(enum wire_type type, int (*call)(struct begun *b))
{
	struct begun b = { .client = liar_connect(&liar), .type = type, .call = call };
	pthread_t caller, forker;

	must_be(sem_init(&b.ready, 0, 0) | sem_init(&b.begin, 0, 0), 0);
	must_be(sem_init(&b.fork_begun, 0, 0) | sem_init(&b.fork_may_end, 0, 0), 0);
	liar.context = &b;
	must_be(pthread_create(&caller, NULL, begin_a_call, &b), 0);
	must_be(sem_wait(&b.ready), 0);
	liar_set_answer(&liar, carry_out_and_die);
	must_be(pthread_create(&forker, NULL, fork_a_child, NULL), 0);
	must_be(sem_wait(&b.fork_begun), 0);
	must_be(sem_post(&b.begin), 0);
	until_it_sleeps(&b.tid);
	must_be(sem_post(&b.fork_may_end), 0);
	must_be(pthread_join(forker, NULL), 0);
	must_be(pthread_join(caller, NULL), 0);
	must_be(b.result, 0);
	must_be(atomic_load(&b.requests), 1);
	tl_close(b.client);
	must_be(sem_destroy(&b.ready) | sem_destroy(&b.begin), 0);
	must_be(sem_destroy(&b.fork_begun) | sem_destroy(&b.fork_may_end), 0);
}

LIE_TEST(a_delete_that_began_during_a_fork_deletes_nothing_that_came_later)
{
	SKIP_UNLESS(MAY_FORK_AMONG_THREADS, "AddressSanitizer does not fork among threads");
	must_be_made_once(WIRE_DELETE, delete_it);
}

LIE_TEST(a_publish_that_began_during_a_fork_is_not_made_twice)
{
	SKIP_UNLESS(MAY_FORK_AMONG_THREADS, "AddressSanitizer does not fork among threads");
	must_be_made_once(WIRE_LINK, publish_it);
}

int main(void)
{
	return suite_run();
}
