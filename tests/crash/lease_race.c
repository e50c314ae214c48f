/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The race that the lease protocol (docs/protocol/leases.md) decides, at full speed: many readers
 * take and release what others replace. The first part runs the bare steps between threads of one
 * process, the second part real clients of a real daemon, for TL_RACE_SECONDS if set. Another
 * client always asks for too much space (press.h), so that prefetched drafts and warm memory may be
 * taken back at any moment.
 */
#include <pthread.h>
#include <sys/mman.h>

#include "tests/crash/press.h"
#include "tests/harness/messages.h"

/* ---- the steps alone ------------------------------------------------------------------------- */

enum { SLOTS = 8, READERS = 3, WORDS = 64, RING = 1 << 16 };

struct model {
	bool skip_t2; /* a deliberate bug */
	_Atomic bool stop;
	_Atomic uint64_t current; /* the ref that the name means */
	_Atomic uint64_t word[SLOTS];
	/* each word is the generation, or 0 after reclaiming */
	_Atomic uint64_t payload[SLOTS][WORDS];
	struct reader {
		struct model *model;
		_Atomic uint32_t held[SLOTS];
		_Atomic uint64_t ring[RING]; /* RELEASED messages */
		_Atomic uint64_t head, tail;
		uint64_t gets;
		_Atomic uint64_t bad;
	} readers[READERS];
	bool retired[SLOTS];
	uint64_t commits, waited;
};

static void tell(struct reader *r, uint64_t ref)
{
	uint64_t head = atomic_load(&r->head);

	while (head - atomic_load(&r->tail) == RING)
		sched_yield();
	atomic_store(&r->ring[head % RING], ref);
	atomic_store(&r->head, head + 1);
}

static void model_drop(struct reader *r, uint32_t slot)
{
	uint64_t word;

	if (atomic_fetch_sub(&r->held[slot], 1) != 1) /* R1 */
		return;
	word = atomic_load(&r->model->word[slot]); /* R2 */
	if (row_word_state(word) == ROW_RETIRED)
		tell(r, ref_make(word >> 2, slot));
}

static void model_check(struct reader *r, uint64_t ref)
{
	_Atomic uint64_t *payload = r->model->payload[ref_slot(ref)];

	for (unsigned i = 0; i < WORDS; i++) {
		if (atomic_load_explicit(&payload[i], memory_order_relaxed) !=
		    ref_generation(ref)) {
			r->bad++;
			return;
		}
	}
}

static void *model_reader(void *arg)
{
	struct reader *r = arg;
	struct model *m = r->model;

	while (!atomic_load_explicit(&m->stop, memory_order_relaxed)) {
		uint64_t ref = atomic_load(&m->current), live;

		if (!ref)
			continue;
		live = row_word(ref_generation(ref), ROW_LIVE);
		if (atomic_load_explicit(&m->word[ref_slot(ref)], memory_order_relaxed) !=
		    live) /* G1 */
			continue;
		atomic_fetch_add(&r->held[ref_slot(ref)], 1);	    /* G2 */
		if (atomic_load(&m->word[ref_slot(ref)]) == live) { /* G3 */
			r->gets++;
			model_check(r, ref);
			model_check(r, ref);
		}
		model_drop(r, ref_slot(ref));
	}
	return NULL;
}

static void model_reclaim(struct model *m, uint32_t slot)
{
	bool held = false;

	for (unsigned i = 0; i < READERS && !m->skip_t2; i++) /* T2 */
		held |= atomic_load(&m->readers[i].held[slot]) != 0;
	m->waited += held;
	m->retired[slot] = held;
	if (held)
		return;
	atomic_store(&m->word[slot], row_word(atomic_load(&m->word[slot]) >> 2, ROW_FREE));
	for (unsigned i = 0; i < WORDS; i++)
		atomic_store_explicit(&m->payload[slot][i], 0, memory_order_relaxed);
}

static void model_messages(struct model *m)
{
	for (unsigned i = 0; i < READERS; i++) {
		struct reader *r = &m->readers[i];

		while (atomic_load(&r->tail) != atomic_load(&r->head)) {
			uint64_t ref = atomic_load(&r->ring[atomic_load(&r->tail) % RING]);

			atomic_fetch_add(&r->tail, 1);
			if (atomic_load(&m->word[ref_slot(ref)]) ==
			    row_word(ref_generation(ref), ROW_RETIRED))
				model_reclaim(m, ref_slot(ref));
		}
	}
}

static void model_commit(struct model *m, uint32_t slot)
{
	uint64_t generation = (atomic_load(&m->word[slot]) >> 2) + 1,
		 former = atomic_load(&m->current);

	for (unsigned i = 0; i < WORDS; i++)
		atomic_store_explicit(&m->payload[slot][i], generation, memory_order_relaxed);
	atomic_store(&m->word[slot], row_word(generation, ROW_LIVE));
	atomic_store(&m->current, ref_make(generation, slot));
	m->commits++;
	if (!former)
		return;
	atomic_store(&m->word[ref_slot(former)],
		     row_word(ref_generation(former), ROW_RETIRED)); /* T1 */
	model_reclaim(m, ref_slot(former));
}

static uint64_t model_bad(const struct model *m)
{
	uint64_t bad = 0;

	for (unsigned i = 0; i < READERS; i++)
		bad += m->readers[i].bad;
	return bad;
}

/*
 * Returns how many bad leases there were in @ns or, with the planted bug, until the first one. In
 * the end all retired slots must be reclaimed.
 */
static uint64_t model_run(struct model *m, int64_t ns)
{
	pthread_t threads[READERS];
	int64_t end = now_ns() + ns;
	uint64_t gets = 0;
	uint32_t slot = 0;

	for (unsigned i = 0; i < READERS; i++) {
		m->readers[i].model = m;
		must_be(pthread_create(&threads[i], NULL, model_reader, &m->readers[i]), 0);
	}
	for (uint64_t n = 0; n % 1024 || now_ns() < end || (m->skip_t2 && !model_bad(m)); n++) {
		model_messages(m);
		slot = (slot + 1) % SLOTS;
		if (row_word_state(atomic_load(&m->word[slot])) == ROW_FREE)
			model_commit(m, slot);
	}
	atomic_store(&m->stop, true);
	for (unsigned i = 0; i < READERS; i++)
		must_be(pthread_join(threads[i], NULL), 0);
	model_messages(m);
	for (unsigned i = 0; i < SLOTS; i++)
		must(m->skip_t2 || !m->retired[i]); /* no last release was missed */
	for (unsigned i = 0; i < READERS; i++)
		gets += m->readers[i].gets;
	print_message("%llu commits, %llu of them met a lease, %llu leases, %llu bad\n",
		      (unsigned long long)m->commits, (unsigned long long)m->waited,
		      (unsigned long long)gets, (unsigned long long)model_bad(m));
	must(gets > 0);
	return model_bad(m);
}

TEST(the_steps_never_give_a_bad_lease)
{
	struct model *m = calloc(1, sizeof(*m));

	must(m);
	must_be(model_run(m, 2 * SECOND), 0);
	free(m);
}

TEST(without_reading_the_ledgers_there_are_bad_leases)
{
	struct model *m = calloc(1, sizeof(*m));

	must(m);
	m->skip_t2 = true;
	must(model_run(m, 0) > 0);
	free(m);
}

/* ---- real clients ---------------------------------------------------------------------------- */

#ifdef __SANITIZE_THREAD__
/* ThreadSanitizer does not see the daemon, which is what orders the threads of a client. */
enum { THREADS = 1 };
#else
enum { THREADS = 2 };
#endif

enum { NAMES = 8, PRODUCERS = 2, CONSUMERS = 4, BLOCK = 4096, KEPT = 4 };

static const uint32_t sizes[NAMES] = { 4 << 10,	 4 << 10,  4 << 10,   16 << 10,
				       64 << 10, 68 << 10, 256 << 10, 1 << 20 };

struct shared {
	_Atomic bool stop;
	_Atomic uint64_t commits, gets, bad, errors, kept;
};

/* The first and the last bytes of each block of a payload are a stamp. */
struct stamp {
	uint64_t name, version, block, inverse;
};

static struct stamp stamp_of(unsigned name, uint64_t version, uint64_t block)
{
	return (struct stamp){ name, version, block, ~version };
}

static void name_text(unsigned name, char text[16])
{
	snprintf(text, 16, "race/%u", name);
}

static void fill(unsigned char *data, unsigned name, uint64_t version)
{
	for (uint64_t at = 0; at < sizes[name]; at += BLOCK) {
		struct stamp s = stamp_of(name, version, at / BLOCK);

		memcpy(data + at, &s, sizeof(s));
		memcpy(data + at + BLOCK - sizeof(s), &s, sizeof(s));
	}
}

static bool is_whole(const unsigned char *data, unsigned name, uint64_t version)
{
	for (uint64_t at = 0; at < sizes[name]; at += BLOCK) {
		struct stamp s = stamp_of(name, version, at / BLOCK);

		if (memcmp(data + at, &s, sizeof(s)) ||
		    memcmp(data + at + BLOCK - sizeof(s), &s, sizeof(s)))
			return false;
	}
	return true;
}

static uint64_t publish(tl_client *client, unsigned name, uint64_t version, bool ask)
{
	int64_t shape = sizes[name];
	tl_spec spec = { .size = sizeof(spec),
			 .shape = &shape,
			 .ndim = 1,
			 .timeout_ns = WAIT_S * SECOND,
			 .ring = version % 97 && name % 4 < 2 ? 3 + name : 0, /* they begin and end
									       */
			 .dtype = { .code = 1, .bits = 8, .lanes = 1 } };
	uint64_t given = version;
	tl_draft *draft = NULL;
	char text[16];

	name_text(name, text);
	must_be(tl_create(client, text, &spec, &draft), 0);
	fill(tl_draft_tensor(draft)->data, name, version);
	must_be(tl_commit(draft, ask ? &given : NULL), 0);
	must_be(given, version);
	return version;
}

struct role {
	struct shared *shared;
	unsigned number;
};

/* Replaces every second name as fast as it can. */
static int produce(const struct test_daemon *d, void *arg)
{
	const struct role *role = arg;
	tl_client *client = td_connect(d);
	uint64_t versions[NAMES] = { 0 }, n = 0;

	for (unsigned name = role->number; name < NAMES; name += PRODUCERS)
		versions[name] = publish(client, name, 1, true);
	parent_tell(1);
	while (!atomic_load(&role->shared->stop)) {
		for (unsigned name = role->number; name < NAMES; name += PRODUCERS) {
			if (name >= 5 && n % 8) /* publish large ones less often */
				continue;
			versions[name] = publish(client, name, versions[name] + 1, n % 64 == 0);
			atomic_fetch_add(&role->shared->commits, 1);
		}
		n++;
	}
	tl_close(client);
	return 0;
}

struct consumer {
	struct shared *shared;
	tl_client *client;
	uint64_t x, gets, newest[NAMES];
	struct kept {
		DLManagedTensorVersioned *tensor;
		unsigned name;
		uint64_t version;
	} kept[KEPT];
};

static void consumer_fault(struct consumer *c, _Atomic uint64_t *count, const char *what,
			   unsigned name, uint64_t version)
{
	if (atomic_fetch_add(count, 1) < 3)
		fprintf(stderr, "%s: name %u version %llu (%s)\n", what, name,
			(unsigned long long)version, tl_last_error());
	(void)c;
}

static void verify(struct consumer *c, const struct kept *k)
{
	struct stamp first;

	if (is_whole(k->tensor->dl_tensor.data, k->name, k->version))
		return;
	memcpy(&first, k->tensor->dl_tensor.data, sizeof(first));
	fprintf(stderr, "says name %llu version %llu block %llu\n", (unsigned long long)first.name,
		(unsigned long long)first.version, (unsigned long long)first.block);
	consumer_fault(c, &c->shared->bad, "BAD", k->name, k->version);
}

static void get_one(struct consumer *c, tl_info *info)
{
	struct kept k = { .name = (unsigned)(c->x >> 8) % 5 },
		    *slot = &c->kept[(c->x >> 20) % KEPT];
	char text[16];
	int r;

	if (c->x % 64 == 0)
		k.name = (unsigned)(c->x >> 32) % NAMES;
	name_text(k.name, text);
	r = tl_get(c->client, text, NULL, &k.tensor);
	if (r) {
		consumer_fault(c, &c->shared->errors, "tl_get failed", k.name, (uint64_t)-r);
		return;
	}
	must_be(tl_tensor_info(k.tensor, info), 0);
	k.version = info->version;
	if (k.version < c->newest[k.name] || info->nbytes != sizes[k.name] ||
	    strcmp(info->name, text))
		consumer_fault(c, &c->shared->bad, "another tensor", k.name, k.version);
	c->newest[k.name] = k.version;
	verify(c, &k);
	c->gets++;
	if (c->x % 256 < 8) { /* Keep this one for a while, and give another one back. */
		if (slot->tensor) {
			verify(c, slot);
			slot->tensor->deleter(slot->tensor);
		}
		*slot = k;
		atomic_fetch_add(&c->shared->kept, 1);
		return;
	}
	k.tensor->deleter(k.tensor);
}

static void *consume_thread(void *arg)
{
	struct consumer *c = arg;
	tl_info *info = calloc(1, sizeof(*info));

	must(info);
	info->size = sizeof(*info);
	while (!atomic_load_explicit(&c->shared->stop, memory_order_relaxed)) {
		samples_random(&c->x);
		get_one(c, info);
		if (c->gets % 256 == 0)
			atomic_fetch_add(&c->shared->gets, 256);
	}
	for (unsigned i = 0; i < KEPT; i++) {
		if (c->kept[i].tensor) {
			verify(c, &c->kept[i]);
			c->kept[i].tensor->deleter(c->kept[i].tensor);
		}
	}
	free(info);
	return NULL;
}

static int consume(const struct test_daemon *d, void *arg)
{
	const struct role *role = arg;
	tl_client *client = td_connect(d);
	struct consumer consumers[THREADS];
	pthread_t threads[THREADS];

	for (unsigned i = 0; i < THREADS; i++) {
		consumers[i] = (struct consumer){ .shared = role->shared,
						  .client = client,
						  .x = 88172645463325252ULL *
						       (role->number * THREADS + i + 1) };
		must_be(pthread_create(&threads[i], NULL, consume_thread, &consumers[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++)
		must_be(pthread_join(threads[i], NULL), 0);
	tl_close(client);
	return 0;
}

/* All clients have ended, so nothing may be left. */
static void all_must_be_back(const struct test_daemon *d)
{
	tl_client *client = td_connect(d);
	struct tl_status s;
	char text[16];

	for (unsigned name = 0; name < NAMES; name++) {
		name_text(name, text);
		must_be(tl_delete(client, text), 0);
	}
	tl_close(client);
	s = td_status(d);
	must_be(s.clients, 0);
	must_be(s.tensors, 0);
	must_be(s.retired, 0);
	must_be(s.drafts, 0);
	must_be(s.bytes_used, s.bytes_warm);
	eventually(td_objects(d) == s.segments + 1);
}

static void race(struct test_daemon *d, uint64_t capacity, double seconds)
{
	struct press *press = press_new(capacity);
	struct shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct test_child producers[PRODUCERS], consumers[CONSUMERS];
	struct role roles[PRODUCERS + CONSUMERS];
	struct timespec ts = { .tv_sec = (time_t)seconds,
			       .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9) };

	struct test_child presser = press_start(d, press);
	char *log;
	int failed = 0;

	must(shared != MAP_FAILED);
	for (unsigned i = 0; i < PRODUCERS; i++) {
		roles[i] = (struct role){ shared, i };
		producers[i] = child_start_ready(d, produce, &roles[i]);
	}
	for (unsigned i = 0; i < CONSUMERS; i++) {
		roles[PRODUCERS + i] = (struct role){ shared, i };
		consumers[i] = child_start(d, consume, &roles[PRODUCERS + i]);
	}
	nanosleep(&ts, NULL); /* This is how long the race lasts, not a wait for something. */
	eventually(atomic_load(&shared->gets) > 1000 && atomic_load(&shared->commits) > 100);
	atomic_store(&shared->stop, true);
	for (unsigned i = 0; i < CONSUMERS; i++)
		failed |= child_wait(&consumers[i]);
	for (unsigned i = 0; i < PRODUCERS; i++)
		failed |= child_wait(&producers[i]);
	if (failed || !td_alive(d)) {
		log = td_log(d);
		print_error("the daemon's log:\n%s\n", log);
		free(log);
	}
	must(td_alive(d));
	must_be(failed, 0);
	press_stop(press, &presser, 100);
	print_message("%llu gets, %llu of them kept, %llu commits, %llu errors, %llu bad\n",
		      (unsigned long long)shared->gets, (unsigned long long)shared->kept,
		      (unsigned long long)shared->commits, (unsigned long long)shared->errors,
		      (unsigned long long)shared->bad);
	must_be(shared->bad, 0);
	must_be(shared->errors, 0);
	munmap(shared, sizeof(*shared));
	all_must_be_back(d);
}

static double race_seconds(double usual)
{
	const char *text = getenv("TL_RACE_SECONDS");
	double seconds = text && atof(text) > 0 ? atof(text) : usual;

	test_timeout((unsigned)seconds + 2 * TEST_TIMEOUT_S);
	return seconds;
}

#define CAPACITY (512 * MIB)

TEST(no_reader_sees_a_tensor_change)
{
	cleanup_td struct test_daemon d = td_start(.capacity = CAPACITY, .max_tensors = 4096);

	race(&d, CAPACITY, race_seconds(5));
}

TEST(no_reader_sees_a_tensor_change_when_no_memory_is_kept_warm)
{
	static const char *const extra[] = { "--warm-time", "0", NULL };
	cleanup_td struct test_daemon d = td_start(.capacity = CAPACITY, .max_tensors = 4096,
						   .extra = extra);

	race(&d, CAPACITY, race_seconds(3));
	must_be(td_status(&d).bytes_used, 0);
	eventually(td_objects(&d) == 1);
}

int main(void)
{
	return suite_run();
}
