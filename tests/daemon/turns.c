/* SPDX-License-Identifier: Apache-2.0 */
/* Nobody keeps the daemon from serving others; see also tests/unit/turns.c. */
#include <sys/socket.h>

#include "tests/daemon/shm_common.h"

TEST(who_does_not_say_who_it_is_in_time_is_disconnected)
{
	static const char *const extra[] = { "--hello-timeout", "5", NULL };
	cleanup_td struct test_daemon d = td_start(.extra = extra);
	struct raw ready = rc_open(&d), silent = rc_connect(&d), half = rc_connect(&d);
	struct conn_message m;

	rc_hello(&half);
	must_be(rc_receive(&silent, &m), 0);
	rc_must_fail(&m, WIRE_E_PROTOCOL);
	must(memmem(m.bytes, m.header.length, "--hello-timeout", 15));
	must_be(rc_receive(&silent, &m), -ECONNRESET);
	must_be(rc_receive(&half, &m), 0);
	rc_must_fail(&m, WIRE_E_PROTOCOL);
	must_be(rc_receive(&half, &m), -ECONNRESET);
	rc_close(&silent);
	rc_close(&half);
	rc_sync(&ready); /* it is not concerned */
	rc_goodbye(&ready);
}

/* All of it is there before the daemon looks, so that the order is its own. */
TEST(what_one_connection_sends_is_handled_in_its_order_over_many_turns)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw a = rc_open(&d), b = rc_open(&d);
	struct conn_message m;
	uint32_t serial = 0;

	for (unsigned i = 0; i < 50; i++) {
		struct wire_holdings h = { .id = 4711 };

		must_be(rc_send(&a, WIRE_HOLDINGS, &h, sizeof(h), -1), 0);
		serial = serial ? serial : h.header.serial;
	}
	td_thaw(&d);
	for (unsigned i = 0; i < 50; i++) {
		must_be(rc_receive(&a, &m), 0);
		rc_must_fail(&m, WIRE_E_NOT_FOUND);
		must_be(m.header.serial, serial + i);
	}
	rc_sync(&b);
	rc_goodbye(&a);
	rc_goodbye(&b);
}

/* ---- requests that look at much ---- */

enum { LEASES = 5000, BYTES = 64, ASKS = 8 };

static void publish_many(struct raw *rc, uint64_t *refs)
{
	struct wire_draft draft;
	char name[16];

	for (unsigned i = 0; i < LEASES; i++) {
		snprintf(name, sizeof(name), "n%u", i);
		must_be(rc_put_as(rc, name, BYTES, 0, 0, &draft), 0);
		refs[i] = draft.ref;
	}
}

static void ask_clients(struct raw *rc, uint64_t after)
{
	struct wire_clients ask = { .after = after };

	must_be(rc_send(rc, WIRE_CLIENTS, &ask, sizeof(ask), -1), 0);
}

static struct wire_client take_client(struct raw *rc)
{
	struct wire_client client;
	struct conn_message m;

	must_be(rc_receive(rc, &m), 0);
	must_be(m.header.type, WIRE_CLIENT);
	memcpy(&client, m.bytes, sizeof(client));
	return client;
}

static struct wire_client client_after(struct raw *rc, uint64_t after)
{
	ask_clients(rc, after);
	return take_client(rc);
}

TEST(what_a_client_holds_is_summed_right_while_it_changes)
{
	cleanup_td struct test_daemon d = td_start(.max_tensors = 2 * LEASES);
	struct raw asker = rc_open(&d), holder = rc_open(&d);
	struct wire_client seen;
	uint64_t refs[LEASES], id, taken = 0;

	publish_many(&asker, refs);
	id = client_after(&asker, client_after(&asker, 0).id).id;
	while (taken < LEASES) {
		uint64_t before = taken;

		for (unsigned i = 0; i < ASKS; i++)
			ask_clients(&asker, id - 1);
		for (unsigned i = 0; i < LEASES / 10; i++)
			must(rc_hold(&holder, refs[taken++]));
		for (unsigned i = 0; i < ASKS; i++) {
			seen = take_client(&asker);
			must_be(seen.id, id);
			must(seen.leases >= before && seen.leases <= taken);
			must_be(seen.tensors_held, seen.leases);
			must_be(seen.bytes_held, seen.leases * BYTES);
			before = seen.leases;
		}
	}
	must_be(client_after(&asker, id - 1).leases, LEASES);
	rc_goodbye(&asker);
	rc_goodbye(&holder);
}

TEST(clients_are_listed_while_they_end)
{
	cleanup_td struct test_daemon d = td_start(.max_tensors = 2 * LEASES);
	struct raw asker = rc_open(&d), last;
	uint64_t refs[LEASES], me = client_after(&asker, 0).id;

	publish_many(&asker, refs);
	for (unsigned round = 0; round < 10; round++) {
		struct raw victim = rc_open(&d);
		uint64_t gone = client_after(&asker, me).id, next;
		struct wire_holdings h = { .id = gone };
		struct wire_client seen;
		struct conn_message m;

		for (unsigned i = 0; i < LEASES; i++)
			must(rc_hold(&victim, refs[i]));
		last = rc_open(&d);
		next = client_after(&asker, gone).id;
		for (unsigned i = 0; i < ASKS; i++)
			ask_clients(&asker, me);
		must_be(rc_send(&asker, WIRE_HOLDINGS, &h, sizeof(h), -1), 0);
		rc_close(&victim);
		for (unsigned i = 0; i < ASKS; i++) {
			seen = take_client(&asker);
			must(seen.id == gone || seen.id == next);
			must_be(seen.leases, seen.id == gone ? LEASES : 0);
		}
		must_be(rc_receive(&asker, &m), 0);
		if (m.header.type != WIRE_HOLDING)
			rc_must_fail(&m, WIRE_E_NOT_FOUND);
		rc_goodbye(&last);
		rc_sync(&asker);
	}
	rc_goodbye(&asker);
}

TEST(the_longest_turn_is_told_and_only_grows)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d);
	uint64_t longest = 0;

	for (unsigned i = 0; i < 20; i++) {
		uint64_t before = longest;

		must_be(rc_put(&rc, "a", BYTES, 1, NULL), 0);
		longest = td_status(&d).longest_turn_ns;
		must(longest > 0 && longest >= before);
	}
	rc_goodbye(&rc);
}

/* ---- groups, and the ends of connections ---- */

enum { MEMBERS = 20000 };

static void send_members(struct raw *rc, uint64_t ref, unsigned count)
{
	struct {
		struct wire_member fixed;
		uint64_t shape;
		char name[16];
	} m = { .fixed = { .ref = ref,
			   .tensor = { .dtype_code = 1,
				       .dtype_bits = 8,
				       .dtype_lanes = 1,
				       .ndim = 1 } },
		.shape = 1 };

	for (unsigned i = 0; i < count; i++) {
		m.fixed.tensor.name_len = (uint16_t)snprintf(m.name, sizeof(m.name), "m/%u", i);
		m.fixed.header.serial = 0;
		must_be(rc_send(rc, WIRE_MEMBER, &m,
				offsetof(__typeof__(m), name) + m.fixed.tensor.name_len, -1),
			0);
	}
}

/* When the first and the last member of the group were looked at, which is how they are stamped. */
static void group_time(const struct raw *rc, uint64_t not_this, uint64_t *first, uint64_t *last)
{
	uint32_t high = atomic_load(&rc->catalog->slots_high);
	unsigned n = 0;

	*first = UINT64_MAX;
	*last = 0;
	for (uint32_t slot = 0; slot < high; slot++) {
		const struct catalog_row *row = rc_row(rc, ref_make(0, slot));

		if (row_word_state(atomic_load(&row->word)) != ROW_LIVE ||
		    slot == ref_slot(not_this))
			continue;
		n++;
		*first = row->committed_ns < *first ? row->committed_ns : *first;
		*last = row->committed_ns > *last ? row->committed_ns : *last;
	}
	must_be(n, MEMBERS);
}

/* Until that is seen: both may have to wait for a processor. */
TEST(others_publish_while_a_large_group_is_published)
{
	cleanup_td struct test_daemon d = td_start(.max_tensors = 3 * MEMBERS);
	struct raw producer = rc_open(&d), other = rc_open(&d);
	struct wire_draft draft, put = { 0 };
	struct conn_message m;
	bool between = false;

	while (!between) {
		struct wire_group group = { .count = MEMBERS };
		uint64_t first, last, times[512] = { 0 };
		unsigned n = 0;

		must_be(rc_create(&producer, NULL, 64, 0, &draft), 0);
		send_members(&producer, draft.ref, MEMBERS);
		group.ref = draft.ref;
		must_be(rc_send(&producer, WIRE_GROUP, &group, sizeof(group), -1), 0);
		while (n < 512 && recv(producer.fd, &m, 1, MSG_PEEK | MSG_DONTWAIT) < 0) {
			must_be(rc_put(&other, "other", BYTES, 1, &put), 0);
			times[n++] = rc_row(&other, put.ref)->committed_ns;
		}
		must_be(rc_receive(&producer, &m), 0);
		must_be(m.header.type, WIRE_DONE);
		must_be(rc_put(&other, "other", BYTES, 1, &put), 0);
		rc_sync(&other);
		group_time(&other, put.ref, &first, &last);
		for (unsigned i = 0; i < n; i++)
			between |= times[i] > first && times[i] < last;
	}
	must_be(td_status(&d).drafts, 0);
	must_be(td_status(&d).retired, 0);
	rc_goodbye(&producer);
	rc_goodbye(&other);
}

TEST(a_group_that_ends_with_its_connection_leaves_nothing)
{
	cleanup_td struct test_daemon d = td_start(.max_tensors = 3 * MEMBERS);
	struct raw producer, other = rc_open(&d);
	struct wire_draft draft;

	for (unsigned round = 0; round < 3; round++) {
		producer = rc_open(&d);
		must_be(rc_create(&producer, NULL, 64, 0, &draft), 0);
		send_members(&producer, draft.ref, MEMBERS);
		if (round == 2) { /* it is given up first, and that goes on meanwhile */
			struct wire_ref abort = { .ref = draft.ref };

			must_be(rc_send(&producer, WIRE_ABORT, &abort, sizeof(abort), -1), 0);
		}
		rc_close(&producer);
		rc_sync(&other);
		must_be(td_status(&d).drafts, 0);
		must_be(td_status(&d).tensors, 0);
		must_be(td_status(&d).clients, 1);
	}
	rc_goodbye(&other);
}

int main(void)
{
	return suite_run();
}
