/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for one of many names (tl_wait_many()), another lease on a held tensor (tl_remap()), and
 * gets that must not leave the process (TL_GET_LOCAL).
 */
#include <linux/futex.h>
#include <sys/mman.h>

#include "tests/client/common.h"

enum { NAMES = 300 };

/* ---- What the tests of waiting share ---- */

struct names {
	char text[NAMES][32];
	tl_wait_item items[NAMES];
};

static void name_all(struct names *n, const char *prefix)
{
	for (int i = 0; i < NAMES; i++) {
		snprintf(n->text[i], sizeof(n->text[i]), "%s/%d", prefix, i);
		n->items[i] = (tl_wait_item){ .name = n->text[i] };
	}
}

/* A thread in tl_wait_many(). */
struct waiter {
	tl_client *client;
	const tl_wait_item *items;
	size_t count;
	uint32_t *interrupt;
	int64_t timeout_ns;
	pthread_t thread;
	_Atomic pid_t tid;
	int result;
	size_t which;
	_Atomic bool done;
};

static void *waiter_run(void *arg)
{
	struct waiter *w = arg;

	w->which = SIZE_MAX;
	atomic_store(&w->tid, (pid_t)syscall(SYS_gettid));
	w->result = tl_wait_many(
		w->client, w->items, w->count,
		&TL_INIT(tl_wait_options, .timeout_ns = w->timeout_ns, .interrupt = w->interrupt),
		&w->which);
	atomic_store(&w->done, true);
	return NULL;
}

static void waiter_start(struct waiter *w)
{
	must_be(pthread_create(&w->thread, NULL, waiter_run, w), 0);
	until_it_sleeps(&w->tid);
}

static int waiter_join(struct waiter *w)
{
	must_be(pthread_join(w->thread, NULL), 0);
	return w->result;
}

static void wake(uint32_t *word, uint32_t value)
{
	__atomic_store_n(word, value, __ATOMIC_SEQ_CST);
	must(syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0) >= 0);
}

static int wait_now(tl_client *client, const tl_wait_item *items, size_t count, size_t *which)
{
	return tl_wait_many(client, items, count, NULL, which);
}

/* ---- Waiting ---- */

TEST(the_first_that_is_new_enough_is_told)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_wait_item items[3] = { { "w/a", 0 }, { "w/b", 0 }, { "w/c", 0 } };
	size_t which = 77;

	must_be(wait_now(client, items, 3, &which), -ETIMEDOUT);
	must_be(which, 77); /* untouched */
	put_bytes(client, "w/c", 1, 100);
	must_be(wait_now(client, items, 3, &which), 0);
	must_be(which, 2);
	put_bytes(client, "w/b", 1, 100);
	must_be(wait_now(client, items, 3, &which), 0);
	must_be(which, 1); /* the first of two */
	items[1].newer_than = 1;
	must_be(wait_now(client, items, 3, &which), 0);
	must_be(which, 2);
	items[2].newer_than = 1;
	which = 77;
	must_be(wait_now(client, items, 3, &which), -ETIMEDOUT);
	must_be(which, 77);
	must_be(put_bytes(client, "w/b", 2, 100), 2);
	must_be(wait_now(client, items, 3, &which), 0);
	must_be(which, 1);
	must_be(tl_delete(client, "w/b"), 0);
	must_be(wait_now(client, items, 3, &which), -ETIMEDOUT);
	must_be(leases_of(client, getpid()), 0);
	must_be(td_status(&d).retired, 0);
	tl_close(client);
}

TEST(wrong_arguments_are_refused)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_wait_item items[2] = { { "a", 0 }, { "b", 0 } };
	size_t which;

	must_be(wait_now(NULL, items, 2, &which), -EINVAL);
	must_be(wait_now(client, NULL, 2, &which), -EINVAL);
	must_be(wait_now(client, items, 2, NULL), -EINVAL);
	items[1].name = NULL;
	must_be(wait_now(client, items, 2, &which), -EINVAL);
	must(strstr(tl_last_error(), "items[1]"));
	items[1].name = "b//c";
	must_be(wait_now(client, items, 2, &which), -EINVAL);
	must(strstr(tl_last_error(), "b//c"));
	items[1].flags = TL_WAIT_PREFIX;
	must_be(wait_now(client, items, 2, &which), -EINVAL);
	must(strstr(tl_last_error(), "no name can be below 'b//c'"));
	tl_close(client);
}

TEST(a_prefix_waits_for_any_name_below_it)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *producer = td_connect(&d);
	tl_wait_item items[2] = { { .name = "w/a" }, { .name = "w", .flags = TL_WAIT_PREFIX } };
	struct waiter w = { .client = client, .items = items, .count = 2, .timeout_ns = -1 };
	size_t which = 77;

	put_bytes(producer, "v", 1, 100);
	put_bytes(producer, "w", 1, 100);
	put_bytes(producer, "ww", 1, 100);
	must_be(wait_now(client, items, 2, &which), -ETIMEDOUT);
	waiter_start(&w);
	put_bytes(producer, "v/b", 1, 100); /* wakes it for nothing */
	put_bytes(producer, "w/b", 1, 100);
	must_be(waiter_join(&w), 0);
	must_be(w.which, 1);
	must_be(wait_now(client, items, 2, &which), 0);
	must_be(which, 1);
	must_be(tl_delete(producer, "w/b"), 0);
	must_be(wait_now(client, &items[1], 1, &which), -ETIMEDOUT);
	must(strstr(tl_last_error(), "no tensor came below 'w/'"));
	items[1].name = "";
	must_be(wait_now(client, items, 2, &which), 0);
	items[1].newer_than = 1;
	must_be(wait_now(client, items, 2, &which), -EINVAL);
	must(strstr(tl_last_error(), "newer_than"));
	items[1] = (tl_wait_item){ .name = "w", .flags = 2 };
	must_be(wait_now(client, items, 2, &which), -EINVAL);
	must(strstr(tl_last_error(), "flags"));
	must_be(leases_of(client, getpid()), 0);
	tl_close(client);
	tl_close(producer);
}

TEST(time_runs_out_for_many_and_for_none)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	static struct names n;
	uint32_t word = 0;

	name_all(&n, "none");
	for (size_t count = 0; count <= NAMES; count = count ? count * 17 : 1) {
		for (int with = 0; with < 2; with++) {
			int64_t start = now_ns();
			size_t which;

			must_be(tl_wait_many(client, n.items, count,
					     &TL_INIT(tl_wait_options, .timeout_ns = 50 * MS,
						      .interrupt = with ? &word : NULL),
					     &which),
				-ETIMEDOUT);
			must(now_ns() - start >= 50 * MS);
		}
	}
	must_be(tl_wait_many(client, NULL, 0, NULL, NULL), -ETIMEDOUT);
	must_be(tl_wait_many(client, NULL, 0, &TL_INIT(tl_wait_options, .timeout_ns = MS), NULL),
		-ETIMEDOUT);
	tl_close(client);
}

/*
 * However many names there are, a commit wakes a sleeper long before the second after which it
 * looks by itself. On a busy machine this need not happen each time, but it must happen.
 */
TEST(any_of_them_wakes)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *producer = td_connect(&d);
	static const size_t counts[] = { 1, 2, 100, NAMES };
	static struct names n;
	char prefix[16];

	for (size_t c = 0; c < 4; c++) {
		int64_t took = INT64_MAX;

		for (int i = 0; took >= 500 * MS; i++) {
			struct waiter w = { .client = client,
					    .items = n.items,
					    .count = counts[c],
					    .timeout_ns = -1 };
			int64_t start;

			snprintf(prefix, sizeof(prefix), "%zu/%d", c, i);
			name_all(&n, prefix);
			waiter_start(&w);
			start = now_ns();
			put_bytes(producer, n.text[counts[c] - 1], 1, 10);
			must_be(waiter_join(&w), 0);
			must_be(w.which, counts[c] - 1);
			took = now_ns() - start;
		}
	}
	tl_close(client);
	tl_close(producer);
}

TEST(each_waiter_gets_what_it_waits_for)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *producer = td_connect(&d);
	static struct names n;
	struct waiter w[8];

	name_all(&n, "each");
	for (int i = 0; i < 8; i++) {
		w[i] = (struct waiter){ .client = client,
					.items = &n.items[i * 10],
					.count = 20, /* they overlap */
					.timeout_ns = -1 };
		waiter_start(&w[i]);
	}
	for (int i = 0; i < 8; i++)
		put_bytes(producer, n.text[i * 10 + 19], i, 100 + (size_t)i);
	for (int i = 0; i < 8; i++) {
		must_be(waiter_join(&w[i]), 0);
		must(w[i].which == 19 || (i > 0 && w[i].which == 9));
	}
	must_be(leases_of(client, getpid()), 0);
	tl_close(client);
	tl_close(producer);
}

TEST(another_word_ends_the_wait)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	static const size_t counts[] = { 0, 1, 50, NAMES };
	static struct names n;
	uint32_t word = 1;
	size_t which;

	name_all(&n, "never");
	/* set before the call */
	must_be(tl_wait_many(client, n.items, 3,
			     &TL_INIT(tl_wait_options, .timeout_ns = -1, .interrupt = &word),
			     &which),
		-ECANCELED);
	for (size_t c = 0; c < 4; c++) {
		int64_t took = INT64_MAX;

		for (int i = 0; took >= 500 * MS; i++) {
			struct waiter w = { .client = client,
					    .items = n.items,
					    .count = counts[c],
					    .interrupt = &word,
					    .timeout_ns = -1 };
			int64_t start;

			word = 0;
			waiter_start(&w);
			start = now_ns();
			wake(&word, (uint32_t)i + 1);
			must_be(waiter_join(&w), -ECANCELED);
			must_be(w.which, SIZE_MAX);
			took = now_ns() - start;
		}
	}
	tl_close(client);
}

/* A word that keeps its value does not end the wait, even if its waiters are woken. */
TEST(a_wake_without_a_change_is_no_end)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *producer = td_connect(&d);
	tl_wait_item items[2] = { { "s/a", 0 }, { "s/b", 0 } };
	uint32_t word = 0;
	struct waiter w = {
		.client = client, .items = items, .count = 2, .interrupt = &word, .timeout_ns = -1
	};

	waiter_start(&w);
	for (int i = 0; i < 100; i++)
		wake(&word, 0);
	put_bytes(producer, "s/b", 1, 10);
	must_be(waiter_join(&w), 0);
	must_be(w.which, 1);
	tl_close(client);
	tl_close(producer);
}

static void nothing(int signal)
{
	(void)signal;
}

TEST(a_signal_handler_ends_the_wait)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	struct sigaction action = { .sa_handler = nothing }, before; /* no SA_RESTART */
	static struct names n;

	must_be(sigaction(SIGUSR1, &action, &before), 0);
	name_all(&n, "signal");
	for (size_t count = 0; count <= 50; count = count ? count * 50 : 1) {
		struct waiter w = {
			.client = client, .items = n.items, .count = count, .timeout_ns = -1
		};

		unsigned rounds = 0;

		waiter_start(&w);
		/*
		 * The wait wakes now and then by itself, and a signal at such a moment does not end
		 * it.
		 */
		do {
			must_be(pthread_kill(w.thread, SIGUSR1), 0);
			test_pause(&rounds);
		} while (!atomic_load(&w.done));
		must_be(waiter_join(&w), -EINTR);
	}
	must_be(sigaction(SIGUSR1, &before, NULL), 0);
	tl_close(client);
}

TEST(a_waiter_connects_to_the_next_daemon)
{
	struct test_daemon first = td_start();
	cleanup_td struct test_daemon second = { .pid = 0 };
	tl_client *client = td_connect(&first), *producer;
	tl_wait_item items[2] = { { "next/a", 0 }, { "next/b", 0 } };
	struct waiter w = { .client = client, .items = items, .count = 2, .timeout_ns = -1 };

	waiter_start(&w);
	td_kill(&first);
	second = td_start(.socket = first.socket);
	producer = td_connect(&second);
	put_bytes(producer, "next/b", 1, 10);
	must_be(waiter_join(&w), 0);
	must_be(w.which, 1);
	tl_close(producer);
	tl_close(client);
}

/* ---- Another lease on what is held ---- */

static DLManagedTensorVersioned *remap(const DLManagedTensorVersioned *held, enum tl_mode mode)
{
	DLManagedTensorVersioned *t = NULL;

	must_be(tl_remap(held, mode, &t), 0);
	must(t && t != held);
	must_be(!!(t->flags & DLPACK_FLAG_BITMASK_READ_ONLY), mode == TL_MODE_READ);
	must_be(t->dl_tensor.ndim, held->dl_tensor.ndim);
	must(t->dl_tensor.shape != held->dl_tensor.shape);
	must(!memcmp(t->dl_tensor.shape, held->dl_tensor.shape,
		     sizeof(int64_t) * (size_t)held->dl_tensor.ndim));
	return t;
}

static uint64_t version_of(const DLManagedTensorVersioned *t)
{
	static tl_info info = { .size = sizeof(info) };

	must_be(tl_tensor_info(t, &info), 0);
	return info.version;
}

TEST(each_mode_is_remapped_to_each_mode)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	static const enum tl_mode modes[] = { TL_MODE_READ, TL_MODE_COPY_ON_WRITE };

	for (size_t n = 100; n <= 100000; n *= 1000) {
		put_bytes(client, "r", 1, n);
		for (int from = 0; from < 2; from++) {
			for (int to = 0; to < 2; to++) {
				tl_get_options o = { .size = sizeof(o), .mode = modes[from] };
				DLManagedTensorVersioned *held, *again;

				must_be(tl_get(client, "r", &o, &held), 0);
				if (modes[from] == TL_MODE_COPY_ON_WRITE)
					memset(held->dl_tensor.data, 9, n);
				again = remap(held, modes[to]);
				must(all_bytes(again, 1, n)); /* what was published */
				must_be(again->dl_tensor.data == held->dl_tensor.data,
					!from && !to);
				must_be(leases_of(client, getpid()), 2);
				if (modes[to] == TL_MODE_COPY_ON_WRITE)
					memset(again->dl_tensor.data, 8, n);
				must(all_bytes(held, from ? 9 : 1, n));
				drop(held);
				must_be(leases_of(client, getpid()), 1);
				must(all_bytes(again, to ? 8 : 1, n));
				drop(again);
				must_be(leases_of(client, getpid()), 0);
			}
		}
	}
	tl_close(client);
}

TEST(the_version_stays_whatever_the_name_means)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *producer = td_connect(&d);
	DLManagedTensorVersioned *held, *read, *own;

	put_bytes(producer, "v", 1, 5000);
	held = get(client, "v");
	put_bytes(producer, "v", 2, 5000);
	read = remap(held, TL_MODE_READ);
	own = remap(held, TL_MODE_COPY_ON_WRITE);
	must_be(version_of(read), 1);
	must_be(version_of(own), 1);
	must_be(tl_delete(producer, "v"), 0);
	drop(held);
	must_be(td_status(&d).retired, 1); /* the other leases keep it */
	must(all_bytes(read, 1, 5000));
	memset(own->dl_tensor.data, 7, 5000);
	held = remap(own, TL_MODE_READ);
	drop(own);
	drop(read);
	must(all_bytes(held, 1, 5000));
	must_be(td_status(&d).retired, 1);
	drop(held);
	must_be(td_status(&d).retired, 0);
	tl_close(client);
	tl_close(producer);
}

TEST(it_works_after_the_client_is_closed)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	DLManagedTensorVersioned *held, *read, *own;

	put_bytes(client, "c", 1, 5000);
	held = get(client, "c");
	tl_close(client);
	read = remap(held, TL_MODE_READ);
	drop(held);
	own = remap(read, TL_MODE_COPY_ON_WRITE); /* this one sends a request */
	drop(read);
	must(all_bytes(own, 1, 5000));
	memset(own->dl_tensor.data, 2, 5000);
	must_be(td_status(&d).clients, 1); /* the connection lives as long as they do */
	drop(own);
	must_be(td_status(&d).clients, 0);
}

/* ---- Leases that go from thread to thread while their session closes ---- */

enum { HANDS = 3, ROUNDS = 20000 };

static struct {
	_Atomic(DLManagedTensorVersioned *) tensor;
	_Atomic unsigned rounds;
	_Atomic bool stop;
} passed_on;

/* Takes the tensor, takes another lease on it, and gives back the one that another thread took. */
static void *hand_on(void *arg)
{
	(void)arg;
	while (atomic_load(&passed_on.rounds) < ROUNDS) {
		DLManagedTensorVersioned *held = atomic_exchange(&passed_on.tensor, NULL), *again;

		if (!held)
			continue;
		again = remap(held, TL_MODE_READ);
		drop(held);
		must(all_bytes(again, 1, 64));
		atomic_fetch_add(&passed_on.rounds, 1);
		atomic_store(&passed_on.tensor, again);
	}
	return NULL;
}

/* Whenever a session ends, somebody looks at the counts of all sessions that are closing. */
static void *close_others(void *arg)
{
	while (!atomic_load(&passed_on.stop))
		tl_close(td_connect(arg));
	return NULL;
}

TEST(a_closing_session_stays_while_its_lease_goes_from_hand_to_hand)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	pthread_t hands[HANDS], other;

	atomic_store(&passed_on.rounds, 0);
	atomic_store(&passed_on.stop, false);
	put_bytes(client, "c", 1, 5000);
	atomic_store(&passed_on.tensor, get(client, "c"));
	tl_close(client);
	must_be(pthread_create(&other, NULL, close_others, &d), 0);
	for (int i = 0; i < HANDS; i++)
		must_be(pthread_create(&hands[i], NULL, hand_on, NULL), 0);
	for (int i = 0; i < HANDS; i++)
		pthread_join(hands[i], NULL);
	atomic_store(&passed_on.stop, true);
	pthread_join(other, NULL);
	drop(atomic_load(&passed_on.tensor));
	must_be(td_status(&d).clients, 0);
}

TEST(tensors_without_bytes_or_dimensions_are_remapped)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	DLTensor scalar = bytes_tensor(&(char){ 5 }, NULL);
	DLManagedTensorVersioned *held, *again;
	uint64_t version;

	put_bytes(client, "empty", 0, 0);
	scalar.ndim = 0;
	must_be(tl_put(client, "scalar", &scalar, NULL, &version), 0);
	for (int mode = TL_MODE_READ; mode <= TL_MODE_COPY_ON_WRITE; mode++) {
		held = get(client, "empty");
		again = remap(held, (enum tl_mode)mode);
		must(!again->dl_tensor.data);
		drop(held);
		drop(again);
		held = get(client, "scalar");
		must_be(tl_remap(held, (enum tl_mode)mode, &again), 0);
		must(all_bytes(again, 5, 1) && !again->dl_tensor.shape &&
		     !again->dl_tensor.strides);
		drop(again);
		drop(held);
	}
	must_be(leases_of(client, getpid()), 0);
	tl_close(client);
}

static void foreign_delete(DLManagedTensorVersioned *t)
{
	++*(int *)t->manager_ctx;
}

TEST(only_tensors_from_tl_get_are_remapped)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_spec spec = { .size = sizeof(spec), .shape = &(int64_t){ 100 }, .ndim = 1, .dtype = U8 };
	DLManagedTensorVersioned *held, *exported, *out = NULL;
	int deleted = 0;
	DLManagedTensorVersioned foreign = { .version = { DLPACK_MAJOR_VERSION, 0 },
					     .manager_ctx = &deleted,
					     .deleter = foreign_delete };
	tl_draft *draft;

	put_bytes(client, "f", 1, 100);
	held = get(client, "f");
	must_be(tl_create(client, "f", &spec, &draft), 0);
	must_be(tl_draft_to_dlpack(draft, &exported), 0);
	foreign.dl_tensor = held->dl_tensor; /* having the same memory does not make it ours */
	must_be(tl_remap(&foreign, TL_MODE_READ, &out), -EINVAL);
	must(strstr(tl_last_error(), "tl_get()"));
	must_be(tl_remap(exported, TL_MODE_READ, &out), -EINVAL);
	must_be(tl_remap(NULL, TL_MODE_READ, &out), -EINVAL);
	must_be(tl_remap(held, TL_MODE_READ, NULL), -EINVAL);
	must_be(tl_remap(held, (enum tl_mode)2, &out), -EINVAL);
	must(strstr(tl_last_error(), "tl_remap: the mode is 2; it may be TL_MODE_READ (0)"));
	must_be(tl_remap(held, (enum tl_mode) - 1, &out), -EINVAL);
	must(!out);
	must_be(deleted, 0);
	must_be(leases_of(client, getpid()), 1);
	drop(exported);
	drop(held);
	must_be(leases_of(client, getpid()), 0);
	tl_close(client);
}

TEST(mapped_tensors_are_remapped_without_their_daemon)
{
	struct test_daemon first = td_start();
	cleanup_td struct test_daemon second = { .pid = 0 };
	tl_client *client = td_connect(&first);
	DLManagedTensorVersioned *held, *out = NULL;

	put_bytes(client, "d", 1, 5000);
	held = get(client, "d");
	td_kill(&first);
	out = remap(held, TL_MODE_READ);
	must(all_bytes(out, 1, 5000));
	drop(out);
	out = NULL;
	for (int i = 0; i < 2; i++) { /* there is no descriptor to be had: it is a copy */
		out = remap(held, TL_MODE_COPY_ON_WRITE);
		must(all_bytes(out, 1, 5000));
		memset(out->dl_tensor.data, 2, 5000);
		must(all_bytes(held, 1, 5000));
		drop(out);
		if (!i) { /* removes what the killed one left */
			second = td_start(.socket = first.socket);
			must(td_alive(&second));
		}
	}
	drop(held);
	tl_close(client);
}

/* ---- Gets that must not leave the process ---- */

static int get_local(tl_client *client, const char *name, tl_get_options *o,
		     DLManagedTensorVersioned **out)
{
	o->size = sizeof(*o);
	o->flags = TL_GET_LOCAL;
	*out = NULL;
	return tl_get(client, name, o, out);
}

TEST(local_gets_take_what_is_mapped)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *producer = td_connect(&d);
	DLManagedTensorVersioned *t;
	tl_get_options o = { 0 };

	must_be(get_local(client, "l", &o, &t), -EDEADLK); /* there is no such name */
	must(strstr(tl_last_error(), "'l'"));
	put_bytes(producer, "l", 1, 5000);
	must_be(get_local(client, "l", &o, &t), -EDEADLK); /* not mapped */
	must_be(leases_of(client, getpid()), 0);
	drop(get(client, "l"));
	must_be(get_local(client, "l", &o, &t), 0);
	must(all_bytes(t, 1, 5000) && t->flags == DLPACK_FLAG_BITMASK_READ_ONLY);
	drop(t);

	o.newer_than = 1;
	must_be(get_local(client, "l", &o, &t), -EDEADLK); /* there is no newer version */
	o = (tl_get_options){ .timeout_ns = -1, .newer_than = 1 };
	must_be(get_local(client, "l", &o, &t), -EDEADLK); /* nor does it wait */
	o = (tl_get_options){ .mode = TL_MODE_COPY_ON_WRITE };
	must_be(get_local(client, "l", &o, &t), -EDEADLK); /* a private mapping would be a new one
							    */
	must(!t);

	must_be(tl_delete(producer, "l"), 0);
	o = (tl_get_options){ 0 };
	must_be(get_local(client, "l", &o, &t), -EDEADLK);
	must_be(leases_of(client, getpid()), 0);
	o.flags = 0;
	must_be(tl_get(client, "l", &o, &t), -ENOENT); /* the full call says why */
	tl_close(client);
	tl_close(producer);
}

TEST(local_gets_need_no_daemon)
{
	struct test_daemon first = td_start();
	cleanup_td struct test_daemon second = { .pid = 0 };
	tl_client *client = td_connect(&first);
	DLManagedTensorVersioned *t;
	tl_get_options o = { 0 };

	put_bytes(client, "l", 1, 5000);
	drop(get(client, "l"));
	td_kill(&first);
	must_be(get_local(client, "l", &o, &t), 0);
	must(all_bytes(t, 1, 5000));
	drop(t);
	second = td_start(.socket = first.socket);
	must(td_alive(&second));
	must_be(get_local(client, "l", &o, &t), -EDEADLK); /* only the full call connects again */
	must_be(tl_get(client, "l", NULL, &t), -ENOENT);
	tl_close(client);
}

int main(void)
{
	return suite_run();
}
