/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A producer with a ring, and a consumer of one, are killed after each step of
 * docs/protocol/rings.md in turn; then once more, with the daemon proper killed at the
 * same moment and another one taking over. Those who die speak the protocol by hand, so that they
 * can stop between any two steps.
 */
#include <sys/mman.h>

#include "proto/ring_layout.h"
#include "tests/client/common.h"
#include "tests/harness/client.h"
#include "tests/harness/messages.h"

enum { SLOTS = 4, NBYTES = 5000, BYTES_FIRST = 7, BYTES_SECOND = 8, BYTES_OTHERS = 9 };

static const char *const with_keeper[] = { "--keeper", "yes", "--warm-time", "0", NULL };

static _Noreturn void die(void)
{
	kill(getpid(), SIGKILL);
	abort();
}

/* ---- the producer --------------------------------------------------------------------------- */

enum moment {
	GRANTED_UNREAD,
	BEGUN,
	K1,
	K2,
	HALF_WRITTEN,
	P1,
	P2,
	P3,
	P4,
	RETIRE_SENT,
	ENDED_BY_OTHERS,
	COMMIT_SENT,
	MOMENTS
};

struct producer {
	struct raw rc;
	struct wire_draft drafts[SLOTS];
	unsigned char *bytes[SLOTS];
	uint64_t ring;
	struct ring_page *page;
};

static void slots_get(struct producer *p)
{
	for (int i = 0; i < SLOTS; i++) {
		struct wire_draft *d = &p->drafts[i];

		must_be(rc_create(&p->rc, "", NBYTES, 0, d), 0);
		p->bytes[i] = rc_bytes(&p->rc, d);
	}
	memset(p->bytes[0], BYTES_FIRST, NBYTES);
}

static void send_ring(struct producer *p)
{
	unsigned char bytes[sizeof(struct wire_ring) + 9 + (SLOTS - 1) * 8];
	struct wire_ring m = { .ref = p->drafts[0].ref,
			       .count = SLOTS - 1,
			       .tensor = { .dtype_code = 1,
					   .dtype_bits = 8,
					   .dtype_lanes = 1,
					   .ndim = 1,
					   .name_len = 1 } };
	int64_t shape = NBYTES;

	memcpy(bytes, &m, sizeof(m));
	memcpy(bytes + sizeof(m), &shape, 8);
	bytes[sizeof(m) + 8] = 'r';
	for (int i = 1; i < SLOTS; i++)
		memcpy(bytes + sizeof(m) + 1 + (size_t)i * 8, &p->drafts[i].ref, 8);
	must_be(rc_send(&p->rc, WIRE_RING, bytes, sizeof(bytes), -1), 0);
}

static void granted(struct producer *p)
{
	const struct wire_granted *g;
	struct conn_message m;

	must_be(rc_receive(&p->rc, &m), 0);
	must_be(m.header.type, WIRE_GRANTED);
	g = (const void *)m.bytes;
	must_be(g->version, 1);
	p->ring = g->ring;
	p->page = mmap(NULL, RING_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, m.fd, 0);
	must(p->page != MAP_FAILED);
	close(m.fd);
}

/* If this is the moment, the parent does what it wants to, and then we end. */
static void at(enum moment now, const void *last)
{
	if (now != *(const enum moment *)last)
		return;
	pause_at(1);
	die();
}

static void send_retire(struct producer *p)
{
	struct {
		struct wire_retire fixed;
		uint64_t ref;
	} m = { .fixed = { .ring = p->ring, .count = 1 }, .ref = p->drafts[0].ref };

	must_be(rc_send(&p->rc, WIRE_RETIRE, &m, sizeof(m), -1), 0);
}

static void send_commit(struct producer *p)
{
	struct {
		struct wire_commit fixed;
		int64_t shape;
		char name[8];
	} m = { .fixed = { .ref = p->drafts[1].ref,
			   .tensor = { .dtype_code = 1,
				       .dtype_bits = 8,
				       .dtype_lanes = 1,
				       .ndim = 1,
				       .name_len = 1 } },
		.shape = NBYTES,
		.name = "r" };

	must_be(rc_send(&p->rc, WIRE_COMMIT, &m, sizeof(m.fixed) + 9, -1), 0);
}

static int produce(const struct test_daemon *d, void *last)
{
	struct producer p = { .rc = rc_open(d) };
	uint64_t word, next;

	slots_get(&p);
	send_ring(&p);
	at(GRANTED_UNREAD, last);
	granted(&p);
	word = ring_word(ref_generation(p.drafts[0].ref), 0);
	next = ring_word(ref_generation(p.drafts[1].ref), 1);
	at(BEGUN, last);
	atomic_fetch_add(rc_held(&p.rc, ref_slot(p.drafts[1].ref)), 1);
	at(K1, last);
	must(atomic_load(&p.page->word) == word);
	at(K2, last);
	memset(p.bytes[1], BYTES_SECOND, NBYTES / 2);
	at(HALF_WRITTEN, last);
	memset(p.bytes[1], BYTES_SECOND, NBYTES);
	p.page->entries[1].version = 2;
	p.page->entries[1].committed_ns = 1;
	at(P1, last);
	if (*(enum moment *)last >= ENDED_BY_OTHERS) {
		pause_at(2);
		must(!atomic_compare_exchange_strong(&p.page->word, &word, next));
		at(ENDED_BY_OTHERS, last);
		send_commit(&p);
		at(COMMIT_SENT, last);
	}
	must(atomic_compare_exchange_strong(&p.page->word, &word, next)); /* P2 */
	at(P2, last);
	syscall(SYS_futex, ring_futex(p.page), FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
	at(P3, last);
	atomic_fetch_sub(rc_held(&p.rc, ref_slot(p.drafts[1].ref)), 1);
	at(P4, last);
	send_retire(&p);
	at(RETIRE_SENT, last);
	return 1;
}

/* ---- the consumer --------------------------------------------------------------------------- */

enum consumed { PAGE_UNREAD, PAGE_MAPPED, COUNTED, HOLDING, WATCHED, CONSUMED };

/* What the name "r", the only one, means. */
static uint64_t current(const struct raw *rc)
{
	const struct catalog_name *names = (const void *)((const char *)rc->catalog +
							  rc->catalog->off_names);

	for (uint32_t i = 0; i < rc->catalog->max_names; i++)
		if (names[i].len == 1 && names[i].text[0] == 'r')
			return atomic_load(&names[i].current);
	return 0;
}

static const struct ring_page *page_of(struct raw *rc)
{
	struct conn_message m;
	void *page;

	must_be(rc_receive(rc, &m), 0);
	must_be(m.header.type, WIRE_PAGE_OF);
	page = mmap(NULL, RING_PAGE_SIZE, PROT_READ, MAP_SHARED, m.fd, 0);
	must(page != MAP_FAILED);
	return page;
}

static void at_consumed(enum consumed now, const void *last)
{
	if (now != *(const enum consumed *)last)
		return;
	pause_at(1);
	die();
}

static int consume(const struct test_daemon *d, void *last)
{
	struct raw rc = rc_open(d);
	struct wire_ring_ref m = { .ring = current(&rc) };
	const struct ring_page *page;
	uint64_t word, ref;

	must(m.ring & REF_RING);
	must_be(rc_send(&rc, WIRE_PAGE, &m, sizeof(m), -1), 0);
	at_consumed(PAGE_UNREAD, last);
	page = page_of(&rc);
	at_consumed(PAGE_MAPPED, last);
	word = atomic_load(&page->word);
	ref = ref_make(ring_word_generation(word), page->entries[ring_word_index(word)].slot);
	atomic_fetch_add(rc_held(&rc, ref_slot(ref)), 1); /* G2 */
	at_consumed(COUNTED, last);
	atomic_fetch_sub(rc_held(&rc, ref_slot(ref)), 1);
	must(rc_hold(&rc, ref));
	at_consumed(HOLDING, last);
	m.header = (struct wire_header){ .serial = 0 };
	must_be(rc_send(&rc, WIRE_SLEEP, &m, sizeof(m), -1), 0);
	at_consumed(WATCHED, last);
	return 1;
}

/* ---- the parent ----------------------------------------------------------------------------- */

/* Kills the daemon proper, and waits until another one serves. */
static void kill_proper(tl_client *c)
{
	pid_t pid = (pid_t)client_status(c).daemon_pid;

	must_be(kill(pid, SIGKILL), 0);
	eventually((pid_t)client_status(c).daemon_pid != pid);
}

static bool is_there(tl_client *c)
{
	DLManagedTensorVersioned *t;

	if (tl_get(c, "r", NULL, &t))
		return false;
	drop(t);
	return true;
}

static bool version_is(tl_client *c, uint64_t version)
{
	tl_info info = { .size = sizeof(info) };

	must_be(tl_stat(c, "r", &info), 0);
	return info.version == version;
}

static void must_have(tl_client *c, int value, uint64_t version)
{
	DLManagedTensorVersioned *t = get(c, "r");
	tl_info info = { .size = sizeof(info) };

	must_be(tl_tensor_info(t, &info), 0);
	must_be(info.version, version);
	must(all_bytes(t, value, NBYTES));
	drop(t);
}

static void ends(struct test_child *child)
{
	int wait;

	child_go(child);
	wait = child_wait(child);
	must(WIFSIGNALED(wait) && WTERMSIG(wait) == SIGKILL);
}

static void try_producer(tl_client *c, const struct test_daemon *d, enum moment last, bool kills)
{
	bool published = last >= P2 && last <= RETIRE_SENT;
	struct test_child child = child_start_ready(d, produce, &last);

	eventually(is_there(c));
	if (last >= ENDED_BY_OTHERS) {
		must_be(put_bytes(c, "r", BYTES_OTHERS, NBYTES), 2);
		must_be(child_step(&child), 1);
	}
	if (last == COMMIT_SENT) /* nobody waits for the answer, and it is carried out */
		eventually(version_is(c, 3));
	if (kills)
		kill_proper(c);
	ends(&child);
	eventually(client_status(c).clients == 1 && client_status(c).rings == 0);
	if (last == COMMIT_SENT)
		must_have(c, BYTES_SECOND, 3);
	else if (last == ENDED_BY_OTHERS)
		must_have(c, BYTES_OTHERS, 2);
	else
		must_have(c, published ? BYTES_SECOND : BYTES_FIRST, published ? 2 : 1);
	eventually(client_status(c).retired == 0);
	must_be(client_status(c).tensors, 1);
	must_be(client_status(c).drafts, 0);
	must_be(tl_delete(c, "r"), 0);
}

static void try_producers(bool kills)
{
	for (enum moment last = 0; last < MOMENTS; last++) {
		cleanup_td struct test_daemon d = td_start(.extra = with_keeper,
							   .expect_ready = true);
		tl_client *c = td_connect(&d);

		print_message("moment %d\n", (int)last);
		try_producer(c, &d, last, kills);
		tl_close(c); /* sealed memory stays as long as we have it mapped */
		c = td_connect(&d);
		eventually(client_status(c).segments <= (last >= ENDED_BY_OTHERS)); /* our own */
		tl_close(c);
	}
}

TEST(a_ring_survives_the_death_of_its_producer_at_every_step)
{
	try_producers(false);
}

TEST(a_ring_survives_the_death_of_producer_and_daemon_at_every_step)
{
	try_producers(true);
}

static uint64_t put_ring(tl_client *c, int value)
{
	const tl_put_options o = { .size = sizeof(o), .ring = SLOTS };
	unsigned char data[NBYTES];
	int64_t shape = NBYTES;
	DLTensor t = bytes_tensor(data, &shape);
	uint64_t version = 0;

	memset(data, value, NBYTES);
	must_be(tl_put(c, "r", &t, &o, &version), 0);
	return version;
}

/* The producer goes on before and after that, and has all of its slots again. */
static void try_consumer(const struct test_daemon *d, enum consumed last, bool kills)
{
	tl_client *producer = td_connect(d), *c = td_connect(d);
	uint64_t version = put_ring(producer, 1);
	struct test_child child;

	must_be(client_status(c).rings, 1);
	child = child_start_ready(d, consume, &last);
	must_be(put_ring(producer, 2), ++version);
	if (kills)
		kill_proper(c);
	for (int i = 0; i < 2; i++)
		must_be(put_ring(producer, 3), ++version);
	ends(&child);
	eventually(client_status(c).clients == 2);
	for (int i = 0; i < 100; i++)
		must_be(put_ring(producer, i), ++version);
	must_have(c, 99, version);
	must_be(client_status(c).rings, 1);
	tl_close(producer);
	eventually(client_status(c).rings == 0 && client_status(c).retired == 0);
	must_be(client_status(c).tensors, 1);
	must_have(c, 99, version);
	tl_close(c);
}

static void try_consumers(bool kills)
{
	for (enum consumed last = 0; last < CONSUMED; last++) {
		cleanup_td struct test_daemon d = td_start(.extra = with_keeper,
							   .expect_ready = true);

		print_message("moment %d\n", (int)last);
		try_consumer(&d, last, kills);
	}
}

TEST(a_ring_goes_on_when_a_consumer_dies_at_any_step)
{
	try_consumers(false);
}

TEST(a_ring_goes_on_when_a_consumer_and_the_daemon_die_at_any_step)
{
	try_consumers(true);
}

int main(void)
{
	return suite_run();
}
