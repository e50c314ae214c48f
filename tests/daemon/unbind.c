/* SPDX-License-Identifier: Apache-2.0 */
/* What comes too late for a client that is closed but still holds something, which it tells by
 * UNBIND: answers that nobody reads any more. lifetimes.c has the tensors bound to it. */
#include "tests/client/common.h"
#include "tests/daemon/adopted_common.h"
#include "tests/harness/raw.h"

enum { LARGE = 300 << 10 }; /* made by a worker */

static const char *const with_keeper[] = { "--keeper", "yes", NULL };

/* ---- Helpers ---- */

static void unbind(struct raw *rc)
{
	struct wire_plain m = { 0 };

	must_be(rc_send(rc, WIRE_UNBIND, &m, sizeof(m), -1), 0);
}

/* Asks for a draft, and does not read the answer. */
static void ask(struct raw *rc, uint64_t nbytes, int64_t timeout_ns)
{
	struct wire_create m = { .nbytes = nbytes, .timeout_ns = timeout_ns };

	must_be(rc_send(rc, WIRE_CREATE, &m, sizeof(m), -1), 0);
}

/* Counts the draft in the ledger, as the library does for those that it uses. */
static void use_draft(struct raw *rc, const struct wire_draft *draft)
{
	atomic_fetch_add(rc_held(rc, ref_slot(draft->ref)), 1);
}

/* ---- The same daemon ---- */

TEST(a_create_that_waits_for_space_ends_with_unbind)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 4 * MIB);
	tl_client *client = td_connect(&d);
	struct raw rc = rc_open(&d);

	put_bytes(client, "a", 1, 3 * MIB);
	ask(&rc, 2 * MIB, -1);
	rc_sync(&rc);
	unbind(&rc);
	rc_sync(&rc);
	must_be(tl_delete(client, "a"), 0);
	must_be(td_status(&d).drafts, 0);
	put_bytes(client, "a", 2, 3 * MIB);
	rc_goodbye(&rc);
	tl_close(client);
}

/* More of them than a client may have with workers. */
TEST(a_create_with_a_worker_ends_with_unbind_and_the_connection_goes_on)
{
	enum { MANY = 40 };
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d);
	struct wire_draft draft;

	td_freeze(&d);
	for (unsigned i = 0; i < MANY; i++) {
		ask(&rc, LARGE, 0);
		unbind(&rc);
	}
	td_thaw(&d);
	rc_sync(&rc);
	must_be(td_status(&d).drafts, 0);
	must_be(rc_create(&rc, "a", LARGE, 0, &draft), 0);
	must_be(td_status(&d).drafts, 1);
	rc_goodbye(&rc);
	must_be(td_status(&d).drafts, 0);
}

TEST(unbind_ends_drafts_that_the_ledger_does_not_count)
{
	enum { MANY = 100 };
	cleanup_td struct test_daemon d = td_start();
	struct wire_draft drafts[MANY];
	struct raw rc = rc_open(&d);

	for (unsigned i = 0; i < MANY; i++) {
		must_be(rc_create(&rc, "a", i % 2 ? 100 : LARGE, 0, &drafts[i]), 0);
		if (i % 4 < 2)
			use_draft(&rc, &drafts[i]);
	}
	unbind(&rc);
	rc_sync(&rc);
	must_be(td_status(&d).drafts, MANY / 2);
	must_be(rc_commit(&rc, drafts[2].ref, "late", LARGE), WIRE_E_STALE);
	must_be(rc_commit(&rc, drafts[MANY - 3].ref, "used", 100), 0);
	must_be(td_status(&d).drafts, MANY / 2 - 1);
	rc_goodbye(&rc);
}

/* The answer says which watch it is, so without it the client cannot end that. */
TEST(unbind_ends_watches)
{
	cleanup_td struct test_daemon d = td_start();
	struct raw rc = rc_open(&d), other = rc_open(&d);
	struct {
		struct wire_watch fixed;
		char name[8];
	} m = { .fixed = { .name_len = 1 }, .name = "x" };
	const unsigned watches = TL_SHARE_WATCHES;

	must_be(rc_send(&rc, WIRE_WATCH, &m, sizeof(m.fixed) + 1, -1), 0);
	rc_sync(&rc);
	must_be(rc_user(&other, getuid()).used[watches], 1);
	unbind(&rc);
	rc_sync(&rc);
	must_be(rc_user(&other, getuid()).used[watches], 0);
	rc_goodbye(&rc);
	rc_goodbye(&other);
}

/* ---- Another daemon ---- */

/* Nobody reads ADOPTED, so no RESUMED comes. */
TEST(unbind_ends_drafts_that_a_former_daemon_granted)
{
	struct test_daemon d = td_start(.extra = with_keeper, .expect_ready = true);
	struct raw rc = rc_open(&d);
	tl_client *c = td_connect(&d);
	struct wire_draft used;

	must_be(rc_create(&rc, "used", 100, 0, &used), 0);
	use_draft(&rc, &used);
	ask(&rc, LARGE, 0);
	rc_sync(&rc);
	daemon_kill(c);
	td_sync(&d); /* it has taken over all clients */
	must_be(client_status(c).drafts, 2);
	unbind(&rc);
	eventually(client_status(c).drafts == 1);

	daemon_kill(c);
	td_sync(&d);
	must_be(client_status(c).drafts, 1);
	must_be(rc_ref(&rc, WIRE_ABORT, used.ref), 0);
	eventually(client_status(c).drafts == 0);
	rc_close(&rc);
	tl_close(c);
	td_stop(&d);
}

TEST(the_next_daemon_ends_what_an_unread_unbind_is_about)
{
	struct test_daemon d = td_start(.extra = with_keeper, .expect_ready = true);
	struct raw rc = rc_open(&d);
	tl_client *c = td_connect(&d);
	pid_t pid = daemon_of(c);

	ask(&rc, LARGE, 0);
	rc_sync(&rc);
	must_be(client_status(c).drafts, 1);
	td_freeze(&d);
	ask(&rc, LARGE, 0);
	unbind(&rc);
	must_be(kill(pid, SIGKILL), 0);
	eventually(daemon_of(c) != pid);
	eventually(client_status(c).drafts == 0);
	rc_close(&rc);
	tl_close(c);
	td_stop(&d);
}

/* ---- The library ---- */

TEST(a_draft_that_comes_after_tl_close_ends_though_a_tensor_is_held)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	int64_t n = LARGE;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	DLManagedTensorVersioned *held;
	tl_draft *draft;

	put_bytes(client, "held", 1, 1000);
	held = get(client, "held");
	client_set_timeout(client, 1000000);
	td_freeze(&d);
	must_be(tl_create(client, "late", &spec, &draft), -ETIMEDOUT);
	must_be(tl_close(client), 0);
	td_thaw(&d);
	must_be(td_status(&d).drafts, 0);
	must_be(td_status(&d).clients, 1);
	drop(held);
	must_be(td_status(&d).clients, 0);
}

TEST(prefetched_drafts_end_with_tl_close_though_a_tensor_is_held)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	DLManagedTensorVersioned *held;

	for (unsigned i = 0; i < 2; i++) /* the second time it asks for the next draft */
		put_bytes(client, i ? "b" : "a", 1, LARGE);
	must_be(td_status(&d).drafts, 1);
	held = get(client, "a");
	must_be(tl_close(client), 0);
	must_be(td_status(&d).drafts, 0);
	drop(held);
	must_be(td_status(&d).clients, 0);
}

int main(void)
{
	return suite_run();
}
