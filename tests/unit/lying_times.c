/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long calls last with a daemon that lies (tests/harness/liar.h). Every call that may talk to
 * it ends in its time, whatever it does, and does not connect again without a pause.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>

#include <tensorlease/admin.h>
#include <tensorlease/cuda.h>
#include <tensorlease/watch.h>

#include "tests/harness/lateness.h"
#include "tests/harness/process.h"
#include "tests/unit/liar_fixture.h"
#include "tests/unit/liar_lists.h"
#include "util/cleanup.h"

/*
 * The client's timeout and that of calls which have one. What every call does when it waits for an
 * answer is tried with the longer one, which is more than a call may be late: a call that waits
 * once too often is then found.
 */
#define SHORT (30 * MS)
#define LONGER (200 * MS)
static int64_t given; /* one of them */
/* How much longer a call may take, beside what the machine makes it late (lateness.h). */
enum { LATE_MS = 100 };
/* A call that lasts for so many alarms does not end. One alarm may be a pause of the machine. */
enum { HANG_S = 10, HANG_ALARMS = 3 };
/* A call that was to go on for ever would make thousands of connections. */
enum { CONNECTIONS_MAX = 200 };

/* ---- Lies ---- */

static _Atomic unsigned connections;

/* The library waits for an answer, or has just begun to. */
static bool close_it(struct liar *l, int socket, struct conn_message *request)
{
	(void)l;
	(void)request;
	shutdown(socket, SHUT_RDWR);
	return true;
}

static bool stall(struct liar *l, int socket, struct conn_message *request)
{
	(void)l;
	(void)socket;
	(void)request;
	return true;
}

static bool refuse(struct liar *l, int socket, struct conn_message *request)
{
	struct wire_error_reply e = { .code = WIRE_E_DENIED };

	(void)l;
	if (request->header.type != WIRE_ABORT)
		liar_send(socket, request, WIRE_ERROR, &e, sizeof(e), -1);
	return true;
}

static bool other_serial(struct liar *l, int socket, struct conn_message *request)
{
	(void)l;
	(void)socket;
	request->header.serial += 1000;
	return false;
}

/* It says to each message that another daemon has come, which is to be asked again. */
static bool adopt(struct liar *l, int socket, struct conn_message *request)
{
	static uint32_t life;
	struct wire_plain m = { .header = { .type = WIRE_ADOPTED, .length = sizeof(m) } };

	(void)l;
	m.header.life = ++life;
	if (request->header.type != WIRE_RESUMED)
		conn_send(socket, &m, -1, MSG_DONTWAIT);
	return true;
}

/* It sends what nobody has asked for until the client has ended. */
static bool flood(struct liar *l, int socket, struct conn_message *request)
{
	struct wire_plain m = {
		.header = { .type = WIRE_DONE,
			    .length = sizeof(m),
			    .serial = request->header.serial + 1000 },
	};
	int r;

	(void)l;
	while (!(r = conn_send(socket, &m, -1, MSG_DONTWAIT)) || r == -EAGAIN)
		if (r)
			sched_yield();
	return true;
}

/* The catalog says that a name has a ring, and the daemon knows of none. */
static bool no_page(struct liar *l, int socket, struct conn_message *request)
{
	struct wire_error_reply e = { .code = WIRE_E_NOT_FOUND };

	(void)l;
	if (request->header.type != WIRE_PAGE)
		return false;
	liar_send(socket, request, WIRE_ERROR, &e, sizeof(e), -1);
	return true;
}

struct lie {
	liar_answer *tell;
	bool handshake;	 /* in the handshake too */
	bool dead;	 /* the client's word is not live, so it has to connect again */
	bool ring;	 /* "a" has a ring */
	int64_t time_ns; /* what each call is given; 0: SHORT */
};

static struct lie lie;

static bool answer(struct liar *l, int socket, struct conn_message *request)
{
	bool handshake = request->header.type == WIRE_HELLO || request->header.type == WIRE_LEDGER;

	if (request->header.type == WIRE_HELLO)
		atomic_fetch_add(&connections, 1);
	if (!lie.tell || (handshake && !lie.handshake))
		return false;
	return lie.tell(l, socket, request);
}

/* ---- Calls ---- */

static DLManagedTensorVersioned *held;
static tl_draft *draft;
static tl_group *group;
static const int64_t few = 600;
static unsigned char bytes[600];

static int create(tl_client *client)
{
	tl_spec spec = {
		.size = sizeof(spec), .shape = &few, .ndim = 1, .dtype = U8, .timeout_ns = given
	};

	return tl_create(client, "d", &spec, &draft);
}

static int create_group(tl_client *client)
{
	static const tl_group_item items[] = {
		{ .name = "x", .shape = &few, .ndim = 1, .dtype = { kDLUInt, 8, 1 } },
		{ .name = "y", .shape = &few, .ndim = 1, .dtype = { kDLUInt, 8, 1 } },
	};

	return tl_group_create(client, items, 2, &TL_INIT(tl_group_options, .timeout_ns = given),
			       &group);
}

static int lease(tl_client *client)
{
	return tl_get(client, "a", NULL, &held);
}

static int get_for(tl_client *client, const char *name, int64_t timeout_ns, uint64_t newer_than)
{
	tl_get_options o = { .size = sizeof(o),
			     .timeout_ns = timeout_ns,
			     .newer_than = newer_than };

	return tl_get(client, name, &o, &held);
}

static int get_wait(tl_client *client)
{
	return get_for(client, "a", given, 0);
}

static int get_absent(tl_client *client)
{
	return get_for(client, "absent", given, 0);
}

static int get_newer(tl_client *client)
{
	return get_for(client, "a", given, 1);
}

static int get_copy(tl_client *client)
{
	return get_as(client, TL_MODE_COPY_ON_WRITE);
}

static int many_for(tl_client *client, const char *second, int64_t timeout_ns)
{
	tl_get_options o = { .size = sizeof(o), .timeout_ns = timeout_ns };
	const char *const names[] = { "a", second };
	DLManagedTensorVersioned *many[2];
	int r = tl_get_many(client, names, 2, &o, many);

	for (int i = 0; !r && i < 2; i++)
		drop(many[i]);
	return r;
}

static int get_many(tl_client *client)
{
	return many_for(client, "b", 0);
}

static int get_many_absent(tl_client *client)
{
	return many_for(client, "absent", given);
}

static int wait_for(tl_client *client, const char *name, uint64_t flags, int64_t timeout_ns)
{
	const tl_wait_item items[] = { { .name = name, .flags = flags }, { .name = "absent too" } };
	size_t which;

	return tl_wait_many(client, items, 2, &TL_INIT(tl_wait_options, .timeout_ns = timeout_ns),
			    &which);
}

static int wait_many(tl_client *client)
{
	return wait_for(client, "a", 0, given);
}

static int wait_absent(tl_client *client)
{
	return wait_for(client, "absent", 0, given);
}

static int wait_prefix(tl_client *client)
{
	return wait_for(client, "abs", TL_WAIT_PREFIX, given);
}

static int wait_not(tl_client *client)
{
	return wait_for(client, "absent", 0, 0);
}

static int commit(tl_client *client)
{
	uint64_t version;

	(void)client;
	return tl_commit(take_ptr(draft), &version);
}

static int commit_group(tl_client *client)
{
	(void)client;
	return tl_group_commit(take_ptr(group));
}

static int abort_draft(tl_client *client)
{
	(void)client;
	tl_abort(take_ptr(draft));
	return 0;
}

static int put(tl_client *client)
{
	tl_put_options o = { .size = sizeof(o), .timeout_ns = given };
	DLTensor t = bytes_tensor(bytes, &few);
	uint64_t version;

	return tl_put(client, "c", &t, &o, &version);
}

static int put_many(tl_client *client)
{
	DLTensor t = bytes_tensor(bytes, &few);
	const DLTensor *const sources[] = { &t, &t };
	static const char *const names[] = { "x", "y" };

	return tl_put_many(client, names, sources, 2, NULL);
}

static int publish_lease(tl_client *client)
{
	int r = tl_publish(client, "p", held, NULL, NULL, NULL);

	if (!r)
		held = NULL;
	return r;
}

static int publish_copy(tl_client *client)
{
	DLManagedTensorVersioned t = {
		.version = { DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION },
		.dl_tensor = bytes_tensor(bytes, &few),
	};

	return tl_publish(client, "p", &t, NULL, NULL, NULL);
}

static int publish_many(tl_client *client)
{
	DLManagedTensorVersioned t = {
		.version = { DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION },
		.dl_tensor = bytes_tensor(bytes, &few),
	};
	DLManagedTensorVersioned *const both_of_it[] = { &t, &t };

	return tl_publish_many(client, (const char *const[]){ "x", "y" }, both_of_it, 2, NULL,
			       NULL);
}

static int remap(tl_client *client)
{
	DLManagedTensorVersioned *again;
	int r = tl_remap(held, TL_MODE_COPY_ON_WRITE, &again);

	(void)client;
	if (!r)
		drop(again);
	return r;
}

static int delete_version(tl_client *client)
{
	return tl_delete_version(client, "a", 1);
}

static int delete_it(tl_client *client)
{
	return tl_delete(client, "a");
}

static int stat_it(tl_client *client)
{
	tl_info info = { .size = sizeof(info) };

	return tl_stat(client, "a", &info);
}

static int list_it(tl_client *client)
{
	return tl_list(client, NULL, visit, NULL);
}

static int status_of(tl_client *client)
{
	tl_status status = { .size = sizeof(status) };

	return tl_get_status(client, &status);
}

static int visit_client(const tl_client_info *info, void *context)
{
	(void)info;
	(void)context;
	return 0;
}

static int list_clients(tl_client *client)
{
	return tl_list_clients(client, visit_client, NULL);
}

static int visit_user(const tl_user_info *info, void *context)
{
	(void)info;
	(void)context;
	return 0;
}

static int list_users(tl_client *client)
{
	return tl_list_users(client, visit_user, NULL);
}

static int visit_holding(const tl_holding *holding, void *context)
{
	(void)holding;
	(void)context;
	return 0;
}

static int list_holdings(tl_client *client)
{
	return tl_list_holdings(client, 1, visit_holding, NULL);
}

static int get_user(tl_client *client)
{
	tl_user_info info = { .size = sizeof(info) };

	return tl_get_user(client, 1, &info);
}

static int kick(tl_client *client)
{
	return tl_kick(client, 77);
}

static int kick_user(tl_client *client)
{
	uint32_t count;

	return tl_kick_user(client, 1, &count);
}

static int visit_device(const tl_device_usage *usage, void *context)
{
	(void)usage;
	(void)context;
	return 0;
}

static int list_devices(tl_client *client)
{
	return tl_list_devices(client, visit_device, NULL);
}

static int claim_many(tl_client *client)
{
	int outcomes[2], r = tl_claim_many(client, (const char *[]){ "k", "l" }, 2, outcomes);

	return r ? r : outcomes[1];
}

static int claim_wait(tl_client *client)
{
	tl_claim_options o = { .size = sizeof(o), .timeout_ns = given };

	return tl_claim(client, "k", &o);
}

static int unclaim(tl_client *client)
{
	return tl_unclaim_many(client, (const char *[]){ "k", "l" }, 2);
}

static int restart(tl_client *client)
{
	return tl_restart(client);
}

static int connect_anew(tl_client *client)
{
	tl_client *other;
	int r = liar_try_connect(&liar, given, &other);

	(void)client;
	if (!r)
		tl_close(other);
	return r;
}

static int get_longer(tl_client *client)
{
	return get_for(client, "absent", 10 * given, 0);
}

static int get_many_longer(tl_client *client)
{
	return many_for(client, "absent", 10 * given);
}

static int wait_longer(tl_client *client)
{
	return wait_for(client, "absent", 0, 10 * given);
}

static int claim_longer(tl_client *client)
{
	tl_claim_options o = { .size = sizeof(o), .timeout_ns = 10 * given };

	return tl_claim(client, "k", &o);
}

static tl_watch *watch;

static int watch_begin(tl_client *client)
{
	return tl_watch_open(client, "a", NULL, &watch);
}

static int watch_for(int64_t timeout_ns)
{
	tl_watch_event event = { .size = sizeof(event) };
	int r = 0;

	for (int n = 0; !r && n < 3; n++) /* what is there is told at once */
		r = tl_watch_next(watch, &TL_INIT(tl_wait_options, .timeout_ns = timeout_ns),
				  &event);
	return r;
}

static int watch_on(tl_client *client)
{
	int fd, r = tl_watch_fd(watch, &fd);

	(void)client;
	return r ? r : watch_for(given);
}

/* Without a daemon it begins with the next one. */
static int watch_anew(tl_client *client)
{
	int r = watch_begin(client);

	return r ? r : watch_for(given);
}

static int watch_longer(tl_client *client)
{
	int r = watch_begin(client);

	return r ? r : watch_for(10 * given);
}

struct call {
	const char *name;
	int (*prepare)(tl_client *client); /* while the daemon is honest */
	int (*run)(tl_client *client);
	bool asks;	/* for an answer, always: it fails if there is none */
	unsigned times; /* it has so many times @given, its own timeout included; 0: once */
};

static const struct call calls[] = {
	{ "tl_connect", NULL, connect_anew, false },
	{ "tl_get", NULL, lease, true },
	{ "tl_get, mapped", lease, get_copy, false },
	{ "tl_get, waiting", NULL, get_wait, true },
	{ "tl_get, waiting for a name", NULL, get_absent, true },
	{ "tl_get, waiting for a version", lease, get_newer, true },
	{ "tl_get_many", NULL, get_many, true },
	{ "tl_get_many, waiting", NULL, get_many_absent, true },
	{ "tl_wait_many", NULL, wait_many, false },
	{ "tl_wait_many, waiting", NULL, wait_absent, true },
	{ "tl_wait_many, waiting for a prefix", NULL, wait_prefix, true },
	{ "tl_wait_many, only looking", NULL, wait_not, true },
	{ "tl_watch_open", NULL, watch_anew, true },
	{ "tl_watch_next", watch_begin, watch_on, true },
	{ "tl_create", NULL, create, true, 2 },
	{ "tl_commit", create, commit, true },
	{ "tl_abort", create, abort_draft, false },
	{ "tl_put", NULL, put, true, 2 },
	{ "tl_put_many", NULL, put_many, true },
	{ "tl_publish, linking", lease, publish_lease, true },
	{ "tl_publish, copying", NULL, publish_copy, true },
	{ "tl_publish_many", NULL, publish_many, true },
	{ "tl_remap", lease, remap, false },
	{ "tl_delete_version", NULL, delete_version, true },
	{ "tl_group_create", NULL, create_group, true, 2 },
	{ "tl_group_commit", create_group, commit_group, true },
	{ "tl_delete", NULL, delete_it, true },
	{ "tl_stat", NULL, stat_it, false },
	{ "tl_list", NULL, list_it, false },
	{ "tl_get_status", NULL, status_of, false },
	{ "tl_list_clients", NULL, list_clients, true },
	{ "tl_list_users", NULL, list_users, true },
	{ "tl_list_holdings", NULL, list_holdings, true },
	{ "tl_get_user", NULL, get_user, true },
	{ "tl_kick", NULL, kick, true },
	{ "tl_kick_user", NULL, kick_user, true },
	{ "tl_list_devices", NULL, list_devices, true },
	{ "tl_list_streams", NULL, list_streams, true },
	{ "tl_stream_stat", NULL, stat_stream, true },
	{ "tl_list_members", NULL, list_members, true },
	{ "tl_claim, waiting", NULL, claim_wait, true },
	{ "tl_claim_many", NULL, claim_many, true },
	{ "tl_unclaim_many", NULL, unclaim, false },
	{ "tl_restart", NULL, restart, true },
};

/* Those that the daemon answers entry by entry. */
static const struct call lists[] = {
	{ "tl_list_clients", NULL, list_clients, true },
	{ "tl_list_users", NULL, list_users, true },
	{ "tl_list_holdings", NULL, list_holdings, true },
	{ "tl_list_devices", NULL, list_devices, true },
	{ "tl_list_streams", NULL, list_streams, true },
	{ "tl_kick_user", NULL, kick_user, true },
};

/* Those that look at "a". */
static const struct call looks[] = {
	{ "tl_get", NULL, lease, true },
	{ "tl_get, waiting", NULL, get_wait, true },
	{ "tl_get_many", NULL, get_many, true },
	{ "tl_wait_many", NULL, wait_many, true },
	{ "tl_wait_many, waiting for a prefix", NULL, wait_prefix, true },
	{ "tl_stat", NULL, stat_it, true },
	{ "tl_list", NULL, list_it, true },
};

/* Those that go on trying until their time is over. */
static const struct call waits[] = {
	{ "tl_get", NULL, get_longer, true, 10 },
	{ "tl_get_many", NULL, get_many_longer, true, 10 },
	{ "tl_wait_many", NULL, wait_longer, true, 10 },
	{ "tl_claim", NULL, claim_longer, true, 10 },
	{ "tl_watch_next", NULL, watch_longer, true, 10 },
};

static const struct call *now_called;
static volatile sig_atomic_t alarms; /* during the call */
static unsigned alarm_s;	     /* from one to the next */
static void (*kill_all)(int);	     /* what SIGALRM does in other tests */

/* A call that never ends is named. */
static void on_hang(int signal)
{
	if (++alarms < HANG_ALARMS) {
		alarm(alarm_s);
		return;
	}
	(void)!write(STDERR_FILENO, "does not end: ", 14);
	(void)!write(STDERR_FILENO, now_called->name, strlen(now_called->name));
	(void)!write(STDERR_FILENO, "\n", 1);
	kill_all(signal);
}

struct stopwatch {
	struct lateness before;
	int64_t began;
};

static struct stopwatch stopwatch_start(void)
{
	struct stopwatch w;

	lateness_begin(&w.before);
	w.began = now_ns();
	return w;
}

/* @name, begun at @w, had @time_ns. */
static void must_end_soon(const char *name, const struct stopwatch *w, int64_t time_ns)
{
	int64_t took = now_ns() - w->began, late = lateness_ns(&w->before);
	int64_t most = time_ns + LATE_MS * TEST_SLOWER * MS;

	if (took - late > most)
		fprintf(stderr, "%s took %lld ms, had %lld ms, and the machine was %lld ms late\n",
			name, (long long)(took / MS), (long long)(time_ns / MS),
			(long long)(late / MS));
	must(took - late <= most);
}

static void try_call(const struct call *call)
{
	tl_client *client;
	struct stopwatch w;
	bool fails;
	int r;

	now_called = call;
	honest();
	client = liar_connect(&liar);
	if (call->prepare)
		must_be(call->prepare(client), 0);
	client_set_timeout(client, given);
	liar_set_answer(&liar, answer);
	if (lie.dead)
		atomic_store(&liar.catalog->clients[0], 0);
	if (lie.ring)
		atomic_store(&liar.catalog->names[0].current, REF_RING | ref_make(1, 0));
	atomic_store(&connections, 0);
	alarms = 0;
	alarm(alarm_s);
	w = stopwatch_start();
	r = call->run(client);
	must_end_soon(call->name, &w, (call->times ? call->times : 1) * given);
	/* a daemon that only says of the client that it has ended may still answer about a draft */
	fails = call->asks && (lie.tell || !call->prepare);
	if (fails ? r >= 0 : r > 0)
		fprintf(stderr, "%s returned %d\n", call->name, r);
	must(fails ? r < 0 : r <= 0);
	if (atomic_load(&connections) > CONNECTIONS_MAX)
		fprintf(stderr, "%s connected %u times\n", call->name, atomic_load(&connections));
	must(atomic_load(&connections) <= CONNECTIONS_MAX);

	w = stopwatch_start();
	if (watch)
		tl_watch_close(take_ptr(watch));
	if (draft)
		tl_abort(take_ptr(draft));
	if (group)
		tl_group_abort(take_ptr(group));
	if (held)
		drop(take_ptr(held));
	tl_close(client);
	must_end_soon("tl_close", &w, given);
}

static void try_calls(const struct lie *told, const struct call *list, size_t count)
{
	lie = *told;
	given = lie.time_ns ? lie.time_ns : SHORT;
	alarm_s = test_limit(HANG_S);
	kill_all = signal(SIGALRM, on_hang);
	lateness_start();
	for (size_t i = 0; i < count; i++)
		try_call(&list[i]);
	lateness_stop();
	signal(SIGALRM, kill_all);
	liar_set_answer(&liar, NULL);
}

static void all_calls_end(const struct lie *told)
{
	try_calls(told, calls, sizeof(calls) / sizeof(calls[0]));
}

/* ---- The tests ---- */

LIE_TEST(calls_end_when_every_connection_is_closed_at_once)
{
	all_calls_end(&(struct lie){ .tell = close_it, .handshake = true, .dead = true });
}

LIE_TEST(calls_end_when_every_request_ends_the_connection)
{
	all_calls_end(&(struct lie){ .tell = close_it });
}

LIE_TEST(calls_end_when_connections_are_accepted_and_not_answered)
{
	all_calls_end(&(struct lie){ .tell = stall, .handshake = true, .dead = true });
}

LIE_TEST(calls_end_when_requests_are_not_answered)
{
	all_calls_end(&(struct lie){ .tell = stall, .time_ns = LONGER });
}

LIE_TEST(calls_end_when_every_connection_is_refused)
{
	all_calls_end(&(struct lie){ .tell = refuse, .handshake = true, .dead = true });
}

LIE_TEST(calls_end_when_requests_are_refused)
{
	all_calls_end(&(struct lie){ .tell = refuse });
}

LIE_TEST(calls_end_when_answers_have_other_serial_numbers)
{
	all_calls_end(&(struct lie){ .tell = other_serial });
}

LIE_TEST(calls_end_when_other_daemons_take_over_all_the_time)
{
	all_calls_end(&(struct lie){ .tell = adopt });
}

LIE_TEST(calls_end_when_messages_for_nobody_come_without_end)
{
	all_calls_end(&(struct lie){ .tell = flood });
}

LIE_TEST(lists_end_when_there_is_always_one_more)
{
	try_calls(&(struct lie){ .tell = liar_one_more }, lists, sizeof(lists) / sizeof(lists[0]));
}

LIE_TEST(looks_end_when_a_ring_has_no_page)
{
	try_calls(&(struct lie){ .tell = no_page, .ring = true }, looks,
		  sizeof(looks) / sizeof(looks[0]));
}

LIE_TEST(calls_end_when_the_client_never_becomes_live)
{
	all_calls_end(&(struct lie){ .dead = true });
}

LIE_TEST(waits_pause_between_connections_that_do_not_last)
{
	const size_t count = sizeof(waits) / sizeof(waits[0]);

	try_calls(&(struct lie){ .dead = true }, waits, count);
	try_calls(&(struct lie){ .tell = close_it }, waits, count);
	try_calls(&(struct lie){ .tell = close_it, .handshake = true, .dead = true }, waits, count);
}

int main(void)
{
	return suite_run();
}
