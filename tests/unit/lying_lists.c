/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lists of a daemon that lies (tests/harness/liar.h). Each has a maximum length, so that a
 * caller that keeps the entries does not run out of memory. lying_times.c has how long they last.
 */
#include <tensorlease/cuda.h>
#include <tensorlease/stream.h>

#include "tests/unit/liar_fixture.h"
#include "tests/unit/liar_lists.h"

enum { CLIENTS_MOST = 4 * LIAR_CLIENTS, DEVICES_MOST = 64, USERS_MOST = 65536 };

static unsigned told;	    /* by the daemon */
static unsigned told_until; /* from then on there is no more */

static bool so_many(struct liar *l, int socket, struct conn_message *request)
{
	bool list = request->header.type != WIRE_HELLO && request->header.type != WIRE_LEDGER;
	struct wire_plain done = { 0 };

	if (!list || told++ < told_until)
		return liar_one_more(l, socket, request);
	liar_send(socket, request, WIRE_DONE, &done, sizeof(done), -1);
	return true;
}

static int visit_client(const tl_client_info *info, void *visits)
{
	must(info->id);
	++*(unsigned *)visits;
	return 0;
}

static int visit_user(const tl_user_info *info, void *visits)
{
	must_be(info->uid, *(unsigned *)visits);
	++*(unsigned *)visits;
	return 0;
}

static int visit_holding(const tl_holding *holding, void *visits)
{
	must_be(strlen(holding->name), 1);
	++*(unsigned *)visits;
	return 0;
}

static int visit_device(const tl_device_usage *usage, void *visits)
{
	must_be(usage->segments, 0);
	++*(unsigned *)visits;
	return 0;
}

static int visit_stream(const tl_stream_info *info, void *visits)
{
	must_be(strlen(info->name), 1);
	++*(unsigned *)visits;
	return 0;
}

static int visit_member(const tl_member_info *info, void *visits)
{
	must_be(info->role, TL_MEMBER_SUBSCRIBER);
	++*(unsigned *)visits;
	return 0;
}

static int list_clients(tl_client *client, unsigned *n)
{
	return tl_list_clients(client, visit_client, n);
}

static int list_users(tl_client *client, unsigned *n)
{
	return tl_list_users(client, visit_user, n);
}

static int list_holdings(tl_client *client, unsigned *n)
{
	return tl_list_holdings(client, 1, visit_holding, n);
}

static int list_devices(tl_client *client, unsigned *n)
{
	return tl_list_devices(client, visit_device, n);
}

static int count_streams(tl_client *client, unsigned *n)
{
	return tl_list_streams(client, NULL, visit_stream, n);
}

static int count_members(tl_client *client, unsigned *n)
{
	return tl_list_members(client, "s", visit_member, n);
}

static int kick_user(tl_client *client, unsigned *n)
{
	return tl_kick_user(client, 1, n);
}

static const struct list {
	int (*list)(tl_client *client, unsigned *n);
	unsigned most;
	bool counts; /* in *n also when it fails */
} lists[] = {
	{ list_clients, CLIENTS_MOST, true }, { list_users, USERS_MOST, true },
	{ list_holdings, LIAR_SLOTS, true },  { list_devices, DEVICES_MOST, true },
	{ kick_user, CLIENTS_MOST, false },
};

/* The list is of @entries entries. */
static int list_of(const struct list *list, unsigned entries, unsigned *n)
{
	tl_client *client;
	int r;

	honest();
	client = liar_connect(&liar);
	told = 0;
	told_until = entries;
	liar_set_answer(&liar, so_many);
	*n = 0;
	r = list->list(client, n);
	liar_set_answer(&liar, NULL);
	tl_close(client);
	return r;
}

LIE_TEST(a_list_longer_than_its_maximum_is_an_error)
{
	char most[32];
	unsigned n;

	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
		must_be(list_of(&lists[i], UINT32_MAX, &n), -EPROTO);
		must_be(told, lists[i].most + 1);
		must_be(n, lists[i].counts ? lists[i].most : 0);
		snprintf(most, sizeof(most), "more than %u entries", lists[i].most);
		must(strstr(tl_last_error(), most));
	}
}

LIE_TEST(a_list_may_have_its_maximum_length)
{
	unsigned n;

	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
		must_be(list_of(&lists[i], lists[i].most, &n), 0);
		must_be(n, lists[i].most);
	}
}

/* These have an index, which ends them. */
LIE_TEST(streams_and_members_are_no_more_than_there_can_be)
{
	const struct list streams = { .list = count_streams }, members = { .list = count_members };
	unsigned n;

	must_be(list_of(&streams, CATALOG_STREAMS, &n), 0);
	must_be(n, CATALOG_STREAMS);
	must_be(list_of(&streams, UINT32_MAX, &n), -EPROTO);
	must_be(n, CATALOG_STREAMS);
	must_be(list_of(&members, UINT32_MAX, &n), 0);
	must_be(n, STREAM_MEMBERS);
}

static struct wire_held held;
static bool advances; /* from slot to slot, without an end */

static bool tell_held(struct liar *l, int socket, struct conn_message *request)
{
	(void)l;
	if (request->header.type != WIRE_READERS)
		return false;
	told++;
	if (advances)
		held.slot = ((const struct wire_readers *)(const void *)request->bytes)->slot + 1;
	liar_send(socket, request, WIRE_HELD, &held, sizeof(held), -1);
	return true;
}

static int visit_reader(const tl_reader *reader, void *visits)
{
	(void)reader;
	++*(unsigned *)visits;
	return 0;
}

/* The client named has no identity in its catalog, so it is no reader. */
static int list_readers(struct wire_held answer, bool on)
{
	tl_client *client;
	unsigned n = 0;
	int r;

	honest();
	client = liar_connect(&liar);
	held = answer;
	advances = on;
	told = 0;
	liar_set_answer(&liar, tell_held);
	r = tl_list_readers(client, NULL, visit_reader, &n);
	liar_set_answer(&liar, NULL);
	must_be(n, 0);
	tl_close(client);
	return r;
}

LIE_TEST(readers_are_told_in_order_and_end)
{
	const struct wire_held good = { .id = 1, .slot = 1, .count = 1 };
	struct wire_held no_name = good;

	must_be(list_readers(good, false), -EPROTO); /* the same again */
	must_be(told, 2);
	must_be(list_readers(good, true), -EPROTO);
	must_be(told, 4 * LIAR_CLIENTS * LIAR_SLOTS + 1);
	no_name.names[0] = LIAR_NAMES;
	must_be(list_readers(no_name, true), -EPROTO);
	must_be(told, 1);
	must(strstr(tl_last_error(), "the daemon told of name 64 of 64"));
}

LIE_TEST(a_catalog_of_more_clients_than_there_can_be_is_refused)
{
	tl_client *client;

	/* the table would fit, if the daemon said that its catalog is so large */
	liar.welcome.catalog_size = liar.catalog->header.size = 1 << 30;
	must_be(ftruncate(liar.catalog_fd, 1 << 30), 0);
	liar.catalog->header.max_clients = WIRE_CLIENTS_MAX;
	must_be(liar_try_connect(&liar, -1, &client), 0);
	tl_close(client);
	liar.catalog->header.max_clients = WIRE_CLIENTS_MAX + 1;
	must_be(liar_try_connect(&liar, -1, &client), -EPROTO);
}

static bool more_than_were_asked_for(struct liar *l, int socket, struct conn_message *request)
{
	struct wire_claimed claimed = { .yours = UINT64_MAX, .count = WIRE_CLAIMS_MAX };

	if (request->header.type != WIRE_CLAIM)
		return false;
	liar_send(socket, request, WIRE_CLAIMED, &claimed, sizeof(claimed), -1);
	l->answer = NULL; /* the thread has the lock */
	return true;
}

LIE_TEST(an_answer_about_more_names_than_were_claimed_is_refused)
{
	tl_client *client = liar_connect(&liar);
	int outcome[2] = { 1, 1 };

	liar_set_answer(&liar, more_than_were_asked_for);
	must_be(tl_claim(client, "c", NULL), -EPROTO);
	liar_set_answer(&liar, more_than_were_asked_for);
	must_be(tl_claim_many(client, (const char *[]){ "c" }, 1, outcome), 0);
	must_be(outcome[0], -EPROTO);
	must_be(outcome[1], 1);
	tl_close(client);
}

int main(void)
{
	return suite_run();
}
