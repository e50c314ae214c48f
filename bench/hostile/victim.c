/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The victims, which use the library as any program does: a producer that commits one tensor after
 * another, a consumer that waits for each, and newcomers that connect and publish a first tensor.
 */
#include <err.h>
#include <time.h>

#include "bench/hostile/hostile.h"

const char victim_name[] = "victim";

#define THINK_NS 150000		/* between two commits */
#define NEWCOMER_NS 20000000	/* between two newcomers */
#define TIMEOUT_NS (3 * SECOND) /* of a request */

static void rest(int64_t ns)
{
	nanosleep(&(struct timespec){ .tv_nsec = ns }, NULL);
}

/*
 * Notes a sample. @phase is the one in which the attempt began, since it may end long after that.
 */
static void note(struct board *board, unsigned phase, enum measure measure, int64_t began, int r)
{
	struct track *t;
	uint32_t n;

	if (phase >= PHASES)
		return;
	t = &board->tracks[phase][measure];
	n = atomic_load(&t->count);
	if (n < TRACK_MAX)
		t->ns[n] = (float)(now_ns() - began);
	atomic_store(&t->count, n + 1);
	if (r == 0)
		return;
	if (!atomic_load(&t->failed))
		snprintf(t->why, sizeof(t->why), "%s", tl_last_error());
	atomic_fetch_add(&t->failed, 1);
}

static int connect_to(const struct setup *setup, tl_client **client)
{
	tl_connect_options options = { .size = sizeof(options),
				       .address = setup->socket,
				       .timeout_ns = TIMEOUT_NS };

	return tl_connect(&options, client);
}

/* The tensor begins with the time at which its producer began to make it. */
static int publish(tl_client *client, const char *name, uint64_t nbytes, int64_t began)
{
	int64_t shape = (int64_t)nbytes;
	tl_spec spec = {
		.size = sizeof(spec), .shape = &shape, .ndim = 1, .dtype = { kDLUInt, 8, 1 }
	};
	tl_draft *draft;
	uint64_t version;
	int r;

	r = tl_create(client, name, &spec, &draft);
	if (r)
		return r;
	memcpy(tl_draft_tensor(draft)->data, &began, sizeof(began));
	return tl_commit(draft, &version);
}

static _Noreturn void produce(const struct setup *setup, uint64_t nbytes)
{
	tl_client *client = NULL;

	if (connect_to(setup, &client))
		errx(1, "the victim cannot connect: %s", tl_last_error());
	for (;;) {
		unsigned phase = atomic_load(&setup->board->phase);
		int64_t began = now_ns();
		int r = publish(client, victim_name, nbytes, began);

		note(setup->board, phase, MEASURE_COMMIT, began, r);
		if (r == 0)
			atomic_fetch_add(&setup->board->commits, 1);
		rest(THINK_NS);
	}
}

static _Noreturn void consume(const struct setup *setup)
{
	tl_get_options options = { .size = sizeof(options), .timeout_ns = TIMEOUT_NS };
	tl_client *client = NULL;

	if (connect_to(setup, &client))
		errx(1, "the victim cannot connect: %s", tl_last_error());
	for (;;) {
		unsigned phase = atomic_load(&setup->board->phase);
		DLManagedTensorVersioned *tensor;
		int64_t began = now_ns();
		int r = tl_get(client, victim_name, &options, &tensor);

		if (r == 0) {
			memcpy(&began, tensor->dl_tensor.data, sizeof(began));
			tl_tensor_version(tensor, &options.newer_than);
			tensor->deleter(tensor);
			atomic_fetch_add(&setup->board->seen, 1);
		}
		note(setup->board, phase, MEASURE_GET, began, r);
		if (r)
			rest(THINK_NS);
	}
}

void newcomer_name(char *text, size_t size, unsigned phase, unsigned n)
{
	snprintf(text, size, "newcomer/%u/%u", phase, n);
}

static void note_turn(struct board *board, unsigned phase, tl_client *client)
{
	tl_status status = { .size = sizeof(status) };

	if (phase == PHASE_ATTACK && tl_get_status(client, &status) == 0)
		atomic_store(&board->longest_turn_ns, status.longest_turn_ns);
}

static _Noreturn void arrive(const struct setup *setup, uint64_t nbytes)
{
	unsigned counts[PHASES + 1] = { 0 };

	for (;;) {
		unsigned phase = atomic_load(&setup->board->phase);
		tl_client *client = NULL;
		int64_t began = now_ns();
		char name[40];
		int r;

		newcomer_name(name, sizeof(name), phase, counts[phase]);
		r = connect_to(setup, &client);
		if (r == 0)
			r = publish(client, name, nbytes, began);
		note(setup->board, phase, MEASURE_CONNECT, began, r);
		if (phase < PHASES)
			counts[phase]++;
		if (r == 0)
			tl_delete(client, name);
		if (r == 0)
			note_turn(setup->board, phase, client);
		tl_close(client);
		rest(NEWCOMER_NS);
	}
}

void victim_run(const struct setup *setup, enum victim which, uint64_t nbytes)
{
	char uid[24];

	snprintf(uid, sizeof(uid), "%u", (unsigned)DAEMON_UID);
	setenv("TENSORLEASE_TRUST_UID", uid, 1);
	switch (which) {
	case VICTIM_PRODUCER:
		produce(setup, nbytes);
	case VICTIM_CONSUMER:
		consume(setup);
	default:
		arrive(setup, nbytes);
	}
}

void spinner_run(void)
{
	for (;;)
		__asm__ volatile("");
}
