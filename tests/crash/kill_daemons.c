/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Daemons with a keeper are killed, each at a random moment, while producers publish and consumers
 * check every byte. Nobody sees an error: what was answered is there, a producer's versions are as
 * many as it published, also through a ring, and what is held stays as it was, also while it is
 * handed on from one consumer to another. TL_DAEMON_KILLS sets how many are killed; with 1000 the
 * times until another one served tell something.
 */
#include <poll.h>
#include <sys/mman.h>
#include <time.h>

#include "tests/harness/harness.h"
#include "tests/harness/number.h"
#include "tests/harness/process.h"
#include "tests/harness/seed.h"

enum { KILLS = 20, KILLS_MAX = 100000, PRODUCERS = 4, CONSUMERS = 4, HELD = 8, LONGEST_US = 20000 };
enum { BOXES = 32 };

/* What each producer has done so far; others read it. */
struct produced {
	_Atomic uint64_t began;	   /* the value that it tries to publish */
	_Atomic uint64_t answered; /* the last one whose version it knows */
};

/* A tensor on its way from one consumer to another. */
struct box {
	_Atomic enum { BOX_EMPTY, BOX_BUSY, BOX_FULL } state;
	unsigned char token[TL_TOKEN_SIZE];
	uint64_t value;
	unsigned producer;
};

struct board {
	struct box boxes[BOXES];
	_Atomic uint64_t handed, received;
	struct produced of[PRODUCERS];
	_Atomic unsigned next; /* who of them comes next */
	_Atomic uint64_t gets;
	_Atomic bool stop;
};

static struct board *board_new(void)
{
	struct board *b = mmap(NULL, sizeof(*b), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			       -1, 0);

	must(b != MAP_FAILED);
	return b;
}

static void name_of(unsigned producer, char name[16])
{
	snprintf(name, 16, "p/%u", producer);
}

/* ---- publishing ----------------------------------------------------------------------------- */

static int put(tl_client *c, unsigned producer, uint64_t value, uint64_t *version)
{
	static uint64_t words[32768];
	static const int64_t sizes[] = { 1, 500, 8000, 32768 };
	bool ring = producer % 2; /* of these, each has a size of its own, and a ring */
	int64_t n = sizes[ring ? producer : value % 4];
	tl_put_options o = { .size = sizeof(o), .ring = ring ? TL_RING_AUTO : TL_RING_NONE };
	DLTensor t = { .data = words,
		       .device = { .device_type = kDLCPU },
		       .ndim = 1,
		       .dtype = { .code = kDLUInt, .bits = 64, .lanes = 1 },
		       .shape = &n };
	char name[16];

	for (int64_t i = 0; i < n; i++)
		words[i] = value << 8 | producer;
	name_of(producer, name);
	return tl_put(c, name, &t, &o, version);
}

static int produce(const struct test_daemon *d, void *arg)
{
	struct board *b = arg;
	unsigned self = atomic_fetch_add(&b->next, 1);
	struct produced *p = &b->of[self];
	tl_client *c = td_connect(d);
	uint64_t version = 0;

	for (uint64_t value = 1; !atomic_load(&b->stop); value++) {
		atomic_store(&p->began, value);
		must_be(put(c, self, value, &version), 0);
		must_be(version, value);
		atomic_store(&p->answered, value);
		if (value == 1)
			parent_tell(1);
	}
	tl_close(c);
	return 0;
}

/* ---- getting -------------------------------------------------------------------------------- */

static uint64_t value_of(const DLManagedTensorVersioned *t, unsigned producer)
{
	const uint64_t *words = t->dl_tensor.data;

	for (int64_t i = 1; i < t->dl_tensor.shape[0]; i++)
		must_be(words[i], words[0]);
	must_be(words[0] & 0xff, producer);
	return words[0] >> 8;
}

struct held {
	DLManagedTensorVersioned *t;
	uint64_t value;
	unsigned producer;
};

static void let_go(struct held *h)
{
	if (!h->t)
		return;
	must_be(value_of(h->t, h->producer), h->value);
	h->t->deleter(h->t);
	h->t = NULL;
}

static void get_one(struct board *b, tl_client *c, unsigned producer, struct held *h,
		    uint64_t *newest)
{
	uint64_t at_least = atomic_load(&b->of[producer].answered);
	tl_info info = { .size = sizeof(info) };
	char name[16];

	let_go(h);
	name_of(producer, name);
	must_be(tl_get(c, name, NULL, &h->t), 0);
	must_be(tl_tensor_info(h->t, &info), 0);
	h->producer = producer;
	h->value = value_of(h->t, producer);
	must(h->value >= at_least);
	must(h->value <= atomic_load(&b->of[producer].began));
	must(info.version >= *newest);
	*newest = info.version;
	atomic_fetch_add(&b->gets, 1);
}

static bool box_take(struct box *box, int from)
{
	int state = from;

	return atomic_compare_exchange_strong((_Atomic int *)&box->state, &state, BOX_BUSY);
}

/* Hands @h on, or what it is when it is released at once. */
static void hand_on(struct board *b, tl_client *c, struct box *box, struct held *h)
{
	if (!h->t || !box_take(box, BOX_EMPTY))
		return;
	must_be(tl_handover(c, h->t, 0, 0, box->token), 0);
	box->value = h->value;
	box->producer = h->producer;
	let_go(h);
	atomic_fetch_add(&b->handed, 1);
	atomic_store(&box->state, BOX_FULL);
}

static void receive(struct board *b, tl_client *c, struct box *box, struct held *h)
{
	if (!box_take(box, BOX_FULL))
		return;
	let_go(h);
	must_be(tl_receive(c, box->token, NULL, &h->t), 0);
	h->producer = box->producer;
	h->value = box->value;
	must_be(value_of(h->t, h->producer), h->value);
	atomic_fetch_add(&b->received, 1);
	atomic_store(&box->state, BOX_EMPTY);
}

/* Receives what is left. */
static void receive_all(struct board *b, const struct test_daemon *d)
{
	tl_client *c = td_connect(d);
	struct held h = { 0 };

	for (unsigned i = 0; i < BOXES; i++)
		receive(b, c, &b->boxes[i], &h);
	let_go(&h);
	tl_close(c);
	must_be(b->received, b->handed);
}

static int consume(const struct test_daemon *d, void *arg)
{
	struct board *b = arg;
	tl_client *c = td_connect(d);
	struct held held[HELD] = { 0 };
	uint64_t newest[PRODUCERS] = { 0 };

	parent_tell(1);
	for (unsigned n = 0; !atomic_load(&b->stop); n++) {
		get_one(b, c, n % PRODUCERS, &held[n % (HELD - 1)], &newest[n % PRODUCERS]);
		if (n % 16 == 0)
			hand_on(b, c, &b->boxes[n / 16 % BOXES], &held[n % (HELD - 1)]);
		else if (n % 16 == 8)
			receive(b, c, &b->boxes[n / 7 % BOXES], &held[HELD - 1]);
	}
	for (unsigned i = 0; i < HELD; i++)
		let_go(&held[i]);
	pause_at(2); /* what was handed on ends with who did it */
	tl_close(c);
	return 0;
}

/* ---- killing -------------------------------------------------------------------------------- */

static bool status_try(const struct test_daemon *d, struct tl_status *s)
{
	tl_connect_options o = { .size = sizeof(o), .address = d->socket };
	tl_client *c;
	int r;

	*s = (struct tl_status){ .size = sizeof(*s) };
	if (tl_connect(&o, &c))
		return false;
	r = tl_get_status(c, s);
	tl_close(c);
	return !r;
}

/* Kills the daemon proper, and returns how long nobody served. */
static uint64_t kill_proper(const struct test_daemon *d)
{
	struct tl_status s;
	uint64_t before;

	eventually(status_try(d, &s));
	before = s.restarts;
	must_be(kill((pid_t)s.daemon_pid, SIGKILL), 0);
	eventually(status_try(d, &s) && s.restarts > before);
	if (strcmp(s.restart_reason, "killed by signal 9 (Killed)"))
		print_error("%s\n", s.restart_reason);
	must(!strcmp(s.restart_reason, "killed by signal 9 (Killed)"));
	return s.restart_ns;
}

static void report(const struct board *b, uint64_t *took, unsigned kills)
{
	uint64_t published = 0;

	times_print("kills: served again", took, kills);
	for (unsigned i = 0; i < PRODUCERS; i++)
		published += b->of[i].answered;
	print_message("%llu published, %llu got, %llu handed on, %llu received\n",
		      (unsigned long long)published, (unsigned long long)b->gets,
		      (unsigned long long)b->handed, (unsigned long long)b->received);
}

static struct test_daemon start(void)
{
	static const char *const with_keeper[] = { "--keeper", "yes", NULL };

	return td_start(.extra = with_keeper, .expect_ready = true, .capacity = 256 * MIB);
}

TEST(nothing_is_lost_when_daemons_are_killed_under_load)
{
	unsigned kills = test_number("TL_DAEMON_KILLS", KILLS);
	struct test_child children[PRODUCERS + CONSUMERS];
	struct board *b = board_new();
	struct test_daemon d;
	uint64_t *took;

	must(kills < KILLS_MAX);
	test_timeout(TEST_TIMEOUT_S + kills / 5);
	took = calloc(kills, sizeof(*took));
	must(took);
	setenv("TENSORLEASE_KEEPER_IMMORTAL", "1", 1);
	d = start();
	unsetenv("TENSORLEASE_KEEPER_IMMORTAL");
	for (unsigned i = 0; i < PRODUCERS + CONSUMERS; i++)
		children[i] = child_start_ready(&d, i < PRODUCERS ? produce : consume, b);
	srandom((unsigned)test_seed(1));
	for (unsigned i = 0; i < kills; i++) {
		/* not to wait for something, but to find another moment each time */
		nanosleep(&(struct timespec){ .tv_nsec = random() % LONGEST_US * 1000 }, NULL);
		took[i] = kill_proper(&d);
	}
	atomic_store(&b->stop, true);
	for (unsigned i = PRODUCERS; i < PRODUCERS + CONSUMERS; i++)
		must_be(child_await(&children[i]), 2);
	receive_all(b, &d);
	for (unsigned i = 0; i < PRODUCERS; i++)
		must_be(child_wait(&children[i]), 0);
	eventually(td_status(&d).retired == 0);
	for (unsigned i = PRODUCERS; i < PRODUCERS + CONSUMERS; i++)
		child_finish(&children[i]);
	report(b, took, kills);
	free(took);
	munmap(b, sizeof(*b));
	td_stop(&d);
}

/* ---- both ----------------------------------------------------------------------------------- */

static pid_t proper(const struct test_daemon *d)
{
	struct tl_status s;

	eventually(status_try(d, &s));
	return (pid_t)s.daemon_pid;
}

/* What is held stays readable, and the next daemon on the socket removes what is left. */
static void both_die(bool keeper_first)
{
	struct test_daemon d = start(), next;
	tl_client *c = td_connect(&d);
	DLManagedTensorVersioned *t;
	pid_t pid = proper(&d);
	uint64_t version;

	must_be(put(c, 0, 4, &version), 0);
	must_be(tl_get(c, "p/0", NULL, &t), 0);
	if (keeper_first) {
		struct pollfd p = { .fd = process_pidfd(pid), .events = POLLIN };

		td_kill_keeper(&d);
		must_be(kill(pid, SIGKILL), 0);
		must_be(poll(&p, 1, WAIT_MS), 1);
		close(p.fd);
	} else {
		td_kill(&d);
	}
	must_be(value_of(t, 0), 4);
	next = td_start(.socket = d.socket);
	must_be(td_objects(&d), 0);
	must_be(value_of(t, 0), 4);
	t->deleter(t);
	eventually(!put(c, 0, 5, &version));
	must(version > 1);
	tl_close(c);
	td_stop(&next);
}

TEST(the_keeper_dies_and_then_the_daemon)
{
	both_die(true);
}

TEST(the_daemon_dies_and_then_the_keeper)
{
	both_die(false);
}

int main(void)
{
	return suite_run();
}
