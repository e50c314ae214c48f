/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client is killed after each step of its life in turn, and what must hold then is checked. The
 * clients speak the protocol by hand, so that they can stop between any two steps.
 */
#include <sys/mman.h>

#include "tests/harness/harness.h"
#include "tests/harness/messages.h"

enum { SMALL = 5000, LARGE = 300000 };

static _Noreturn void die(void)
{
	kill(getpid(), SIGKILL);
	abort();
}

struct situation {
	const struct test_daemon *d;
	struct raw rc; /* another client, which stays alive */
	uint64_t nbytes;
	struct wire_draft draft;   /* "theirs", published by it */
	const unsigned char *view; /* the payload of that */
	unsigned fds, objects;
};

/* ---- What the children do; each kills itself ---- */

static int after_connect(const struct test_daemon *d, void *arg)
{
	(void)arg;
	rc_connect(d);
	die();
}

static int after_welcome(const struct test_daemon *d, void *arg)
{
	struct raw rc = rc_connect(d);

	(void)arg;
	rc_hello(&rc);
	die();
}

static int with_welcome_unread(const struct test_daemon *d, void *arg)
{
	struct wire_hello hello = { .version_min = 1, .version_max = 1, .label = "dies" };
	struct raw rc = rc_connect(d);

	(void)arg;
	must_be(rc_send(&rc, WIRE_HELLO, &hello, sizeof(hello), -1), 0);
	die();
}

static int after_ledger(const struct test_daemon *d, void *arg)
{
	(void)arg;
	rc_open(d);
	die();
}

/* A new connection with a draft for "mine". */
static struct raw open_with_draft(const struct test_daemon *d, const struct situation *s,
				  struct wire_draft *draft)
{
	struct raw rc = rc_open(d);

	must_be(rc_create(&rc, "mine", s->nbytes, 0, draft), 0);
	return rc;
}

/* Writes the first @n bytes of it. */
static void write_draft(const struct raw *rc, const struct wire_draft *draft, size_t n)
{
	memset(rc_bytes(rc, draft), 7, n);
}

static int after_create(const struct test_daemon *d, void *arg)
{
	struct wire_draft draft;

	open_with_draft(d, arg, &draft);
	die();
}

static int with_draft_unread(const struct test_daemon *d, void *arg)
{
	const struct situation *s = arg;
	struct wire_create c = { .nbytes = s->nbytes };
	struct raw rc = rc_open(d);

	must_be(rc_send(&rc, WIRE_CREATE, &c, sizeof(c), -1), 0);
	die();
}

static int while_writing(const struct test_daemon *d, void *arg)
{
	const struct situation *s = arg;
	struct wire_draft draft;
	struct raw rc = open_with_draft(d, s, &draft);

	write_draft(&rc, &draft, s->nbytes / 2);
	die();
}

/* Sends COMMIT of uint8[nbytes] and does not wait for the answer. */
static void send_commit(struct raw *rc, const struct wire_draft *draft, const char *name,
			uint64_t nbytes)
{
	struct {
		struct wire_commit fixed;
		char tail[264];
	} c = { .fixed = { .ref = draft->ref,
			   .tensor = { .dtype_code = 1,
				       .dtype_bits = 8,
				       .dtype_lanes = 1,
				       .ndim = 1,
				       .name_len = (uint16_t)strlen(name) } } };

	memcpy(c.tail, &nbytes, 8);
	memcpy(c.tail + 8, name, c.fixed.tensor.name_len);
	must_be(rc_send(rc, WIRE_COMMIT, &c, sizeof(c.fixed) + 8 + c.fixed.tensor.name_len, -1), 0);
}

static int after_commit(const struct test_daemon *d, void *arg)
{
	const struct situation *s = arg;
	struct wire_draft draft;
	struct raw rc = open_with_draft(d, s, &draft);

	write_draft(&rc, &draft, s->nbytes);
	send_commit(&rc, &draft, "mine", s->nbytes);
	die();
}

/*
 * The daemon is stopped meanwhile. When it reads all this, nobody is left to take its answer to the
 * CREATE.
 */
static int after_commit_behind_a_request(const struct test_daemon *d, void *arg)
{
	const struct situation *s = arg;
	struct wire_create c = { .nbytes = s->nbytes, .flags = WIRE_CREATE_PREFETCH };
	struct wire_draft draft;
	struct raw rc = open_with_draft(d, s, &draft);

	write_draft(&rc, &draft, s->nbytes);
	kill(d->pid, SIGSTOP);
	must_be(rc_send(&rc, WIRE_CREATE, &c, sizeof(c), -1), 0);
	c.header.serial = 0;
	must_be(rc_send(&rc, WIRE_CREATE, &c, sizeof(c), -1), 0);
	send_commit(&rc, &draft, "mine", s->nbytes);
	die();
}

/* The same, but the answer had come before the client died and was not read. */
static int after_commit_with_an_answer_unread(const struct test_daemon *d, void *arg)
{
	const struct situation *s = arg;
	struct wire_create c = { .nbytes = s->nbytes, .flags = WIRE_CREATE_PREFETCH };
	struct wire_draft draft;
	struct raw rc = open_with_draft(d, s, &draft);

	write_draft(&rc, &draft, s->nbytes);
	must_be(rc_send(&rc, WIRE_CREATE, &c, sizeof(c), -1), 0);
	td_sync(d); /* by another connection: the answer is in our socket */
	kill(d->pid, SIGSTOP);
	send_commit(&rc, &draft, "mine", s->nbytes);
	die();
}

static int after_abort(const struct test_daemon *d, void *arg)
{
	struct wire_draft draft;
	struct raw rc = open_with_draft(d, arg, &draft);

	must_be(rc_ref(&rc, WIRE_ABORT, draft.ref), 0);
	die();
}

/* Dies with a prefetched draft, which it has taken into use or not. */
static int with_prefetch(const struct test_daemon *d, void *arg, bool in_use)
{
	const struct situation *s = arg;
	struct wire_create c = { .nbytes = s->nbytes, .flags = WIRE_CREATE_PREFETCH };
	struct raw rc = rc_open(d);
	struct conn_message m;
	struct wire_draft draft;

	must_be(rc_call(&rc, WIRE_CREATE, &c, sizeof(c), &m), 0);
	must_be(m.header.type, WIRE_DRAFT);
	memcpy(&draft, m.bytes, sizeof(draft));
	if (in_use)
		atomic_fetch_add(rc_held(&rc, ref_slot(draft.ref)), 1);
	die();
}

static int with_an_unused_prefetched_draft(const struct test_daemon *d, void *arg)
{
	return with_prefetch(d, arg, false);
}

static int with_a_prefetched_draft_in_use(const struct test_daemon *d, void *arg)
{
	return with_prefetch(d, arg, true);
}

static int between_g2_and_g3(const struct test_daemon *d, void *arg)
{
	const struct situation *s = arg;
	struct raw rc = rc_open(d);

	atomic_fetch_add(rc_held(&rc, ref_slot(s->draft.ref)), 1); /* G2 */
	pause_at(1);
	die();
}

/* A new connection with a lease of "theirs". */
static struct raw open_with_lease(const struct test_daemon *d, const struct situation *s)
{
	struct raw rc = rc_open(d);

	must(rc_hold(&rc, s->draft.ref));
	return rc;
}

static int a_holder_between_g2_and_g3(const struct test_daemon *d, void *arg)
{
	const struct situation *s = arg;
	struct raw rc = open_with_lease(d, s);

	rc_drop(&rc, s->draft.ref);
	atomic_fetch_add(rc_held(&rc, ref_slot(s->draft.ref)), 1);
	pause_at(1);
	die();
}

static int holding(const struct test_daemon *d, void *arg)
{
	const struct situation *s = arg;
	struct raw rc = open_with_lease(d, s);

	must(rc_hold(&rc, s->draft.ref));
	rc_view(&rc, &s->draft);
	pause_at(1);
	die();
}

static int between_r1_and_r2(const struct test_daemon *d, void *arg)
{
	const struct situation *s = arg;
	struct raw rc = open_with_lease(d, s);

	pause_at(1);
	must_be(atomic_fetch_sub(rc_held(&rc, ref_slot(s->draft.ref)), 1), 1); /* R1 */
	die();
}

static int after_released(const struct test_daemon *d, void *arg)
{
	const struct situation *s = arg;
	struct raw rc = open_with_lease(d, s);

	pause_at(1);
	rc_drop(&rc, s->draft.ref);
	die();
}

static int with_rescan_set(const struct test_daemon *d, void *arg)
{
	const struct situation *s = arg;
	struct raw rc = open_with_lease(d, s);

	pause_at(1);
	atomic_fetch_sub(rc_held(&rc, ref_slot(s->draft.ref)), 1);
	atomic_store(&rc.ledger->rescan, 1); /* and the second attempt to send was not made */
	die();
}

static int after_map(const struct test_daemon *d, void *arg)
{
	const struct situation *s = arg;
	struct wire_map map = { .ref = s->draft.ref, .name = CATALOG_NONE };
	struct raw rc = open_with_lease(d, s);

	/* the answer will carry a descriptor */
	must_be(rc_send(&rc, WIRE_MAP, &map, sizeof(map), -1), 0);
	die();
}

static int after_link(const struct test_daemon *d, void *arg)
{
	const struct situation *s = arg;
	struct {
		struct wire_link fixed;
		char name[8];
	} c = { .fixed = { .ref = s->draft.ref, .name_len = 4 }, .name = "mine" };
	struct raw rc = open_with_lease(d, s);

	must_be(rc_send(&rc, WIRE_LINK, &c, sizeof(c.fixed) + 4, -1), 0);
	die();
}

static int waiting_for_space(const struct test_daemon *d, void *arg)
{
	struct wire_create c = { .nbytes = 15 * MIB, .timeout_ns = -1 };
	struct raw rc = rc_open(d);
	struct wire_draft draft;

	(void)arg;
	must_be(rc_create(&rc, "mine", 10 * MIB, 0, &draft), 0);
	must_be(rc_send(&rc, WIRE_CREATE, &c, sizeof(c), -1), 0);
	td_sync(d);
	die();
}

static int while_space_is_made(const struct test_daemon *d, void *arg)
{
	struct wire_create c = { .nbytes = 14 * MIB };
	struct raw rc = rc_open(d);

	(void)arg;
	must_be(rc_send(&rc, WIRE_CREATE, &c, sizeof(c), -1), 0);
	die();
}

/* ---- The parent's side ---- */

static void must_be_nothing_of_it(struct situation *s)
{
	must_be(rc_delete(&s->rc, "mine"), WIRE_E_NOT_FOUND);
}

/* The ref of the live tensor of that name according to the rows, or 0. */
static uint64_t find(const struct raw *rc, const char *name)
{
	const struct catalog_name *names = (const void *)((const char *)rc->catalog +
							  rc->catalog->off_names);
	uint32_t high = atomic_load(&rc->catalog->slots_high);

	for (uint32_t slot = 0; slot < high; slot++) {
		const struct catalog_row *row = rc_row(rc, slot);
		uint64_t word = atomic_load(&row->word);

		if (row_word_state(word) == ROW_LIVE && names[row->name].len == strlen(name) &&
		    !memcmp(names[row->name].text, name, strlen(name)))
			return ref_make(word >> 2, slot);
	}
	return 0;
}

/* The dead client's tensor is published, and every byte of it was written. */
static void must_be_published(struct situation *s, int byte)
{
	const struct catalog_row *row;
	struct wire_draft found;
	uint64_t ref = find(&s->rc, "mine");

	must(ref);
	must(rc_hold(&s->rc, ref));
	row = rc_row(&s->rc, ref);
	must_be(row->nbytes, s->nbytes);
	found = (struct wire_draft){ .ref = ref,
				     .offset = row->offset,
				     .segment = row->segment,
				     .segment_generation = row->segment_generation,
				     .segment_size = rc_segment(&s->rc, row->segment)->size };
	bytes_must_be(rc_view(&s->rc, &found), byte, s->nbytes);
	rc_drop(&s->rc, ref);
	must_be(rc_delete(&s->rc, "mine"), 0);
}

static void whole_7(struct situation *s)
{
	must_be_published(s, 7);
}

static void whole_3(struct situation *s)
{
	must_be_published(s, 3);
}

/* The tensor of the living client is as it was. */
static void must_be_unharmed(struct situation *s)
{
	must_be(find(&s->rc, "theirs"), s->draft.ref);
	bytes_must_be(s->view, 3, s->nbytes);
}

struct step {
	const char *name;
	child_fn *fn;
	void (*check)(struct situation *s);
	enum {
		NO_PAUSE,
		PAUSES,	     /* once, before its last step */
		THEIRS_GOES, /* and meanwhile "theirs" is deleted, but stays for its last step */
		THEIRS_GOES_AT_ONCE,
	} pause;
};

static const struct step steps[] = {
	{ "after connect", after_connect, must_be_nothing_of_it },
	{ "after WELCOME", after_welcome, must_be_nothing_of_it },
	{ "with WELCOME unread", with_welcome_unread, must_be_nothing_of_it },
	{ "after LEDGER", after_ledger, must_be_nothing_of_it },
	{ "after CREATE", after_create, must_be_nothing_of_it },
	{ "with DRAFT unread", with_draft_unread, must_be_nothing_of_it },
	{ "while writing", while_writing, must_be_nothing_of_it },
	{ "after COMMIT", after_commit, whole_7 },
	{ "after COMMIT behind a request", after_commit_behind_a_request, whole_7 },
	{ "after COMMIT with an answer unread", after_commit_with_an_answer_unread, whole_7 },
	{ "after ABORT", after_abort, must_be_nothing_of_it },
	{ "with an unused prefetched draft", with_an_unused_prefetched_draft,
	  must_be_nothing_of_it },
	{ "with a prefetched draft in use", with_a_prefetched_draft_in_use, must_be_nothing_of_it },
	{ "between G2 and G3", between_g2_and_g3, must_be_nothing_of_it, THEIRS_GOES_AT_ONCE },
	{ "a holder between G2 and G3", a_holder_between_g2_and_g3, must_be_nothing_of_it,
	  THEIRS_GOES },
	{ "between G2 and G3, live", between_g2_and_g3, must_be_unharmed, PAUSES },
	{ "holding", holding, must_be_nothing_of_it, THEIRS_GOES },
	{ "holding, live", holding, must_be_unharmed, PAUSES },
	{ "between R1 and R2", between_r1_and_r2, must_be_nothing_of_it, THEIRS_GOES },
	{ "between R1 and R2, live", between_r1_and_r2, must_be_unharmed, PAUSES },
	{ "after RELEASED", after_released, must_be_nothing_of_it, THEIRS_GOES },
	{ "with rescan set", with_rescan_set, must_be_nothing_of_it, THEIRS_GOES },
	{ "after MAP", after_map, must_be_unharmed },
	{ "after LINK", after_link, whole_3 },
	{ "waiting for space", waiting_for_space, must_be_nothing_of_it },
	{ "while space is made", while_space_is_made, must_be_nothing_of_it },
};

/* Everybody who held it has ended, so no tensor is left. */
static void check_deleted(const struct situation *s)
{
	struct tl_status status = td_status(s->d);

	must_be(status.retired, 0);
	must_be(status.tensors, 0);
}

static void meet_child(struct situation *s, const struct step *step, struct test_child *c)
{
	struct tl_status status;
	int wait;

	if (step->pause != NO_PAUSE)
		child_await(c);
	if (step->pause >= THEIRS_GOES) {
		must_be(rc_delete(&s->rc, "theirs"), 0);
		status = td_status(s->d);
		must_be(status.retired, step->pause == THEIRS_GOES);
		must_be(status.tensors, 0);
	}
	if (step->pause != NO_PAUSE)
		child_go(c);
	wait = child_wait(c);
	kill(s->d->pid, SIGCONT);
	must(WIFSIGNALED(wait) && WTERMSIG(wait) == SIGKILL);
	td_sync(s->d);
}

/* Nothing but the daemon itself is left. */
static void must_be_empty(const struct situation *s)
{
	td_must_be_empty(s->d);
	/* the kernel may still count the dead process as one that writes */
	eventually(td_objects(s->d) == s->objects);
	must_be(count_fds(s->d->pid), s->fds);
}

static void try_step(const struct test_daemon *d, const struct step *step, uint64_t nbytes)
{
	struct situation s = { .d = d, .nbytes = nbytes, .rc = { .fd = -1 } };
	struct test_child c;

	must_be(td_status(d).clients, 0);
	s.fds = count_fds(d->pid);
	s.objects = td_objects(d);
	s.rc = rc_open(d);
	must_be(rc_put(&s.rc, "theirs", nbytes, 3, &s.draft), 0);
	s.view = rc_view(&s.rc, &s.draft);

	c = child_start(d, step->fn, &s);
	meet_child(&s, step, &c);
	must_be(td_status(d).clients, 1);
	must_be(td_status(d).drafts, 0);
	step->check(&s);
	if (step->pause >= THEIRS_GOES)
		check_deleted(&s);
	else
		must_be(rc_delete(&s.rc, "theirs"), 0);
	/*
	 * The living client continues, and what it gets now is not memory that the dead one may
	 * use.
	 */
	must_be(rc_put(&s.rc, "theirs", nbytes, 4, NULL), 0);
	must_be(rc_delete(&s.rc, "theirs"), 0);
	rc_goodbye(&s.rc);
	munmap((void *)(s.view - s.draft.offset), s.draft.segment_size);
	must_be_empty(&s);
}

static void try_all(uint64_t nbytes)
{
	static const char *const extra[] = { "--warm-time", "0", NULL };
	cleanup_td struct test_daemon d = td_start(.capacity = 16 * MIB, .extra = extra);

	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		print_message("killed %s\n", steps[i].name);
		try_step(&d, &steps[i], nbytes);
	}
}

TEST(small_tensors_survive_a_death_at_every_step)
{
	try_all(SMALL);
}

TEST(large_tensors_survive_a_death_at_every_step)
{
	try_all(LARGE);
}

int main(void)
{
	return suite_run();
}
