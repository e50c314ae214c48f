/* SPDX-License-Identifier: Apache-2.0 */
/* Attacks by requests: many, slow, or never satisfied. */
#include <sys/ioctl.h>

#include <linux/sockios.h>

#include "bench/hostile/hostile.h"
#include "proto/name_key.h"

enum { MANY = 140000 }; /* tensors; more than the daemon's limit */

static int ask_create(struct attacker *a, unsigned i, uint64_t nbytes, int64_t timeout_ns)
{
	struct wire_create c = { .nbytes = nbytes, .timeout_ns = timeout_ns };

	return attacker_send(a, i, WIRE_CREATE, &c, sizeof(c), -1);
}

static int ask_ref(struct attacker *a, unsigned i, enum wire_type type, uint64_t ref)
{
	struct wire_ref m = { .ref = ref };

	return attacker_send(a, i, type, &m, sizeof(m), -1);
}

/* Takes the answers of a connection, and aborts the drafts in them. Returns how many came. */
static unsigned take_and_abort(struct attacker *a, unsigned i)
{
	struct wire_draft draft;
	struct conn_message m;
	unsigned n = 0;

	for (; attacker_take(a, i, &m); n++) {
		if (m.header.type != WIRE_DRAFT)
			continue;
		memcpy(&draft, m.bytes, sizeof(draft));
		ask_ref(a, i, WIRE_ABORT, draft.ref);
	}
	return n;
}

/* ---- creates that wait for space ---- */

enum { WAITS = 64 };

/* Holds most of its quota, so that the creates fit some day but not now. */
void start_waits(struct attacker *a)
{
	uint64_t capacity, nbytes;
	struct wire_draft draft;
	unsigned n;

	attacker_open(a, a->setup->connections, RAW_READY);
	if (!a->n)
		return;
	capacity = a->raws[0].catalog->capacity;
	nbytes = capacity / 16;
	for (n = 0; n < 9; n++)
		if (rc_create(&a->raws[0], NULL, nbytes, 0, &draft))
			break;
	a->numbers[0] = n > 1 ? n * nbytes : nbytes;
	if (a->numbers[0] > capacity / 2)
		a->numbers[0] = capacity / 2;
	for (unsigned i = 0; i < a->n; i++) {
		for (unsigned k = 0; k < WAITS; k++)
			if (ask_create(a, i, a->numbers[0], -1) == 0)
				atomic_fetch_add(&a->board->things, 1);
	}
}

/* Each answer makes space for another request. */
void step_waits(struct attacker *a)
{
	for (unsigned i = 0; i < a->n; i++) {
		for (unsigned n = take_and_abort(a, i); n > 0; n--)
			ask_create(a, i, a->numbers[0], -1);
	}
}

/* ---- retired tensors ---- */

void start_rescan(struct attacker *a)
{
	attacker_open(a, 1, RAW_READY);
	attacker_publish(a, 0, 100000, true, true);
	attacker_open(a, a->setup->connections, RAW_READY);
}

void step_rescan(struct attacker *a)
{
	unsigned i = attacker_turn(a);

	if (i == a->n || i == 0)
		return;
	atomic_fetch_add(&a->raws[i].ledger->rescan, 1);
	ask_ref(a, i, WIRE_RELEASED, ref_make(1, 0));
	attacker_drain(a, i);
}

void start_retired(struct attacker *a)
{
	attacker_open(a, 1, RAW_READY);
	attacker_publish(a, 0, 50000, true, true);
	attacker_open(a, a->setup->connections, RAW_READY);
}

/* One of the connections ends, and another one begins. */
void step_retired(struct attacker *a)
{
	unsigned i = 1 + (unsigned)(a->numbers[0]++ % ATTACKER_SPARE);

	if (i >= a->n)
		return;
	if (a->raws[i].fd >= 0) {
		rc_close(&a->raws[i]);
		atomic_fetch_sub(&a->board->connections, 1);
	}
	attacker_reopen(a, i, RAW_READY);
}

/* ---- lists ---- */

void start_lists(struct attacker *a)
{
	attacker_open(a, 1, RAW_READY);
	attacker_publish(a, 0, MANY, false, true);
	attacker_open(a, a->setup->connections, RAW_READY);
	if (a->n < 2)
		return;
	/* the daemon must look at all its pages, and finds only the last slot */
	memset((void *)a->raws[1].ledger->touched, 1,
	       a->raws[1].welcome.max_tensors / LEDGER_PAGE_SLOTS);
	atomic_store(rc_held(&a->raws[1], a->raws[1].welcome.max_tensors - 1), 1);
}

void step_lists(struct attacker *a)
{
	struct wire_client client;
	struct conn_message m;

	for (unsigned i = 0; i < a->n; i++) {
		struct wire_clients clients = { .after = 0 };
		struct wire_holdings holdings = { .id = a->numbers[0] + 1 };

		while (attacker_take(a, i, &m)) {
			if (m.header.type != WIRE_CLIENT || a->numbers[0])
				continue;
			memcpy(&client, m.bytes, sizeof(client));
			a->numbers[0] = client.id;
		}
		attacker_send(a, i, WIRE_CLIENTS, &clients, sizeof(clients), -1);
		attacker_send(a, i, WIRE_HOLDINGS, &holdings, sizeof(holdings), -1);
	}
}

/* ---- create and abort ---- */

void start_churn(struct attacker *a)
{
	attacker_open(a, a->setup->connections, RAW_READY);
	for (unsigned i = 0; i < a->n; i++)
		for (unsigned k = 0; k < 8; k++)
			ask_create(a, i, 4096, 0);
}

void step_churn(struct attacker *a)
{
	for (unsigned i = 0; i < a->n; i++) {
		for (unsigned n = take_and_abort(a, i); n > 0; n--)
			ask_create(a, i, 4096, 0);
	}
}

/* ---- full tables ---- */

void start_tensors(struct attacker *a)
{
	attacker_open(a, a->setup->connections, RAW_READY);
	for (unsigned i = 0; i < a->n && i < 4; i++)
		attacker_publish(a, i, MANY, false, false);
}

/* Takes every slot that becomes free. */
void step_tensors(struct attacker *a)
{
	unsigned i = attacker_turn(a);

	if (i < a->n)
		attacker_publish(a, i, 1, false, false);
}

static int ask_export(struct attacker *a, unsigned i)
{
	struct wire_export e = {
		.size = 1 << 20, .part_size = 1 << 20, .kind = SEGMENT_CUDA_IPC, .parts = 1
	};

	e.device[0] = 7;
	memset(e.handle, 0x68, sizeof(e.handle));
	return attacker_send(a, i, WIRE_EXPORT, &e, sizeof(e), -1);
}

void start_exports(struct attacker *a)
{
	int64_t end = now_ns() + 8 * SECOND;
	uint64_t asked = 0;

	attacker_open(a, a->setup->connections, RAW_READY);
	while (asked < MANY && now_ns() < end) {
		unsigned i = attacker_turn(a);

		if (i == a->n)
			return;
		for (unsigned k = 0; k < 32; k++)
			asked += ask_export(a, i) == 0;
		attacker_drain(a, i);
		atomic_store(&a->board->things, (uint32_t)asked);
	}
}

void step_exports(struct attacker *a)
{
	unsigned i = attacker_turn(a);

	if (i == a->n)
		return;
	ask_export(a, i);
	attacker_drain(a, i);
}

/* ---- answers that are not read ---- */

enum {
	PER_CONNECTION = 60
}; /* descriptors; the daemon reads no further at the first that is too many */

/* Lets answers lie until the socket is full. Further ones wait in the daemon. */
static void fill_socket(struct attacker *a, unsigned i)
{
	struct wire_holdings h = { .id = UINT64_MAX };
	int before = -1, now = 0;

	while (now > before && a->raws[i].fd >= 0) {
		before = now;
		for (unsigned k = 0; k < 2; k++)
			attacker_send(a, i, WIRE_HOLDINGS, &h, sizeof(h), -1);
		usleep(300); /* the daemon answers or it does not */
		ioctl(a->raws[i].fd, SIOCINQ, &now);
	}
}

void start_descriptors(struct attacker *a)
{
	struct wire_draft draft;

	attacker_open(a, a->setup->connections, RAW_READY);
	if (!a->n || rc_put(&a->raws[0], "a/mapped", 4096, 1, &draft))
		return;
	a->numbers[0] = draft.ref;
	for (unsigned i = 1; i < a->n; i++) {
		if (!rc_hold(&a->raws[i], draft.ref))
			continue;
		fill_socket(a, i);
		for (unsigned k = 0; k < PER_CONNECTION; k++)
			if (ask_ref(a, i, WIRE_MAP, draft.ref) == 0)
				atomic_fetch_add(&a->board->things, 1);
	}
}

/* Connects again where connections were ended, and does the same again. */
void step_descriptors(struct attacker *a)
{
	unsigned i = 1 + (unsigned)(a->numbers[1]++ % (a->n ? a->n : 1));

	if (i >= a->n || a->raws[i].fd >= 0)
		return;
	if (!attacker_reopen(a, i, RAW_READY) || !rc_hold(&a->raws[i], a->numbers[0]))
		return;
	for (unsigned k = 0; k < WIRE_FDS_UNREAD_MAX; k++)
		ask_ref(a, i, WIRE_MAP, a->numbers[0]);
}

/* Asks and never reads. */
void start_unread(struct attacker *a)
{
	attacker_open(a, a->setup->connections, RAW_READY);
}

void step_unread(struct attacker *a)
{
	unsigned i = (unsigned)(a->numbers[0]++ % (a->n ? a->n : 1));
	struct wire_clients ask = { .after = 0 };

	if (!a->n || !attacker_reopen(a, i, RAW_READY))
		return;
	for (unsigned k = 0; k < 64; k++)
		if (attacker_send(a, i, WIRE_CLIENTS, &ask, sizeof(ask), -1))
			return;
}

/* ---- SYNC ---- */

void start_syncs(struct attacker *a)
{
	attacker_open(a, a->setup->connections, RAW_READY);
}

void step_syncs(struct attacker *a)
{
	struct wire_plain sync = { 0 };

	for (unsigned i = 0; i < a->n; i++) {
		for (unsigned k = 0; k < 32; k++)
			attacker_send(a, i, WIRE_SYNC, &sync, sizeof(sync), -1);
		attacker_drain(a, i);
	}
}

/* ---- large memory ---- */

static void start_all(struct attacker *a, uint64_t nbytes)
{
	attacker_open(a, a->setup->connections, RAW_READY);
	a->numbers[0] = nbytes;
	for (unsigned i = 0; i < a->n; i++)
		ask_create(a, i, nbytes, 0);
}

static void step_all(struct attacker *a)
{
	for (unsigned i = 0; i < a->n; i++) {
		if (take_and_abort(a, i))
			ask_create(a, i, a->numbers[0], 0);
	}
}

void start_large(struct attacker *a)
{
	start_all(a, 24 * MIB);
}

void step_large(struct attacker *a)
{
	/* other sizes each time, so that no recycled memory fits */
	a->numbers[0] = (16 + a->numbers[1]++ % 16) * MIB;
	step_all(a);
}

/* Asks for the daemon's whole capacity, which is never free; but the daemon does not refuse it at
 * once. */
void start_unfit(struct attacker *a)
{
	start_all(a, 250 * MIB);
}

void step_unfit(struct attacker *a)
{
	step_all(a);
}

/* ---- groups ---- */

enum { MEMBERS = 65536 };

static void send_member(struct attacker *a, uint64_t ref, unsigned n)
{
	struct {
		struct wire_member fixed;
		char tail[64];
	} m = { .fixed = {
			.ref = ref,
			.tensor = {
				.dtype_code = 1, .dtype_bits = 8, .dtype_lanes = 1, .ndim = 1 } } };
	struct raw *rc = &a->raws[0];
	uint64_t one = 1;

	memcpy(m.tail, &one, sizeof(one));
	m.fixed.tensor.name_len = (uint16_t)snprintf(m.tail + 8, sizeof(m.tail) - 8, "g/%u", n);
	m.fixed.header.serial = 0;
	if (rc->fd >= 0)
		rc_send(rc, WIRE_MEMBER, &m, sizeof(m.fixed) + 8 + m.fixed.tensor.name_len, -1);
}

void start_groups(struct attacker *a)
{
	attacker_open(a, 1, RAW_READY);
}

void step_groups(struct attacker *a)
{
	struct wire_group group = { 0 };
	struct wire_draft draft;
	unsigned made = 0;

	if (!attacker_reopen(a, 0, RAW_READY) || rc_create(&a->raws[0], NULL, 4096, 0, &draft)) {
		usleep(1000);
		return;
	}
	for (; made < MEMBERS && a->raws[0].fd >= 0; made++) {
		send_member(a, draft.ref, made);
		if (made % 64 == 0)
			attacker_drain(a, 0);
	}
	atomic_fetch_add(&a->board->things, made);
	group.ref = draft.ref;
	group.count = made;
	a->raws[0].wait_ms = 10000;
	while (attacker_send(a, 0, WIRE_GROUP, &group, sizeof(group), -1) == -EAGAIN)
		attacker_drain(a, 0);
	ask_ref(a, 0, WIRE_ABORT, draft.ref);
}

/* ---- a bucket that is full ---- */

void start_bucket(struct attacker *a)
{
	char target[40], name[24];
	struct name_key key;
	uint32_t mask, bucket;
	unsigned found = 0;

	attacker_open(a, 1, RAW_READY);
	if (!a->n)
		return;
	newcomer_name(target, sizeof(target), PHASE_ATTACK, 0);
	mask = a->raws[0].catalog->bucket_mask;
	key = name_key(target, strlen(target));
	bucket = name_hash_bucket(name_hash(&key, a->raws[0].catalog->name_seed), mask);
	for (uint64_t n = 0; found < 64; n++) {
		int length = snprintf(name, sizeof(name), "b%llx", (unsigned long long)n);
		struct wire_draft draft;

		key = name_key(name, (size_t)length);
		if (name_hash_bucket(name_hash(&key, a->raws[0].catalog->name_seed), mask) !=
		    bucket)
			continue;
		found++;
		if (rc_create(&a->raws[0], name, 0, 0, &draft) == 0 &&
		    rc_commit(&a->raws[0], draft.ref, name, 0) == 0)
			atomic_fetch_add(&a->board->things, 1);
	}
}

void step_bucket(struct attacker *a)
{
	attacker_drain(a, 0);
	usleep(1000);
}

/* ---- watches of every length that come and go ---- */

enum { EACH_WATCHES = 64 };

static void ask_watch(struct attacker *a, unsigned i)
{
	struct {
		struct wire_watch fixed;
		char text[TENSOR_NAME_MAX];
	} m = { .fixed = { .flags = WIRE_WATCH_PREFIX } };
	unsigned length = 1 + (unsigned)(a->numbers[0]++ % TENSOR_NAME_MAX);

	memset(m.text, 'w', length);
	m.text[0] = (char)('a' + a->numbers[0] % 26);
	m.fixed.name_len = (uint16_t)length;
	if (!attacker_send(a, i, WIRE_WATCH, &m, sizeof(m.fixed) + length, -1))
		atomic_fetch_add(&a->board->things, 1);
}

void start_watches(struct attacker *a)
{
	attacker_open(a, a->setup->connections, RAW_READY);
	for (unsigned i = 0; i < a->n; i++)
		for (unsigned k = 0; k < EACH_WATCHES / 2; k++)
			ask_watch(a, i);
}

/* Ends each watch and begins others, so that the daemon's marks of unwatched names are useless. */
void step_watches(struct attacker *a)
{
	unsigned i = attacker_turn(a);
	struct wire_watch_ref end;
	struct conn_message m;

	if (i == a->n)
		return;
	for (unsigned n = 0; n < EACH_WATCHES && attacker_take(a, i, &m); n++) {
		if (m.header.type == WIRE_WATCHED) {
			memcpy(&end, m.bytes, sizeof(end));
			end.header = (struct wire_header){ 0 };
			attacker_send(a, i, WIRE_UNWATCH, &end, sizeof(end), -1);
		}
		ask_watch(a, i);
	}
}
