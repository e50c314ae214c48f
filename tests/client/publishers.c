/* SPDX-License-Identifier: Apache-2.0 */
/* Who publishes a name, and who holds its tensors. */
#include <tensorlease/admin.h>

#include "tests/client/common.h"
#include "util/clock.h"

enum { MANY = 300, CLIENTS = 8 };

static tl_identity publisher(tl_client *client, const char *name)
{
	tl_info info = { .size = sizeof(info) };

	must_be(tl_stat(client, name, &info), 0);
	return info.publisher;
}

static int same_as_stat(const tl_info *info, void *context)
{
	const tl_identity by_stat = publisher(context, info->name);

	must(!memcmp(&by_stat, &info->publisher, sizeof(by_stat)));
	return 0;
}

static int find_own(const tl_client_info *info, void *context)
{
	if (!strcmp(info->label, "camera.py"))
		*(tl_client_info *)context = *info;
	return 0;
}

TEST(a_name_tells_who_published_it)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *camera = connect_as(&d, "camera.py"), *looker = connect_as(&d, "looker");
	DLManagedTensorVersioned *t;
	tl_client_info own = { 0 };
	tl_info info = { .size = sizeof(info) };
	tl_identity who;

	put_alone(camera, "a", 1, 10);
	put_alone(looker, "b", 1, 10);
	who = publisher(looker, "a");
	must_be(tl_list_clients(looker, find_own, &own), 0);
	must(who.id && who.id == own.id && who.since_ns == own.since_ns);
	must_be(who.pid, (unsigned)getpid());
	must_be(who.uid, geteuid());
	must(!strcmp(who.label, "camera.py") && !who.gone);
	must(now_real_ns() - (int64_t)who.since_ns < 60 * SECOND);
	must(!strcmp(publisher(camera, "b").label, "looker"));
	must_be(tl_list(looker, "", same_as_stat, looker), 0);
	t = get(looker, "a");
	must_be(tl_tensor_info(t, &info), 0);
	must_be(info.publisher.id, 0); /* only of names */
	drop(t);
	put_alone(looker, "a", 2, 10);
	must(!strcmp(publisher(camera, "a").label, "looker"));
	tl_close(camera);
	tl_close(looker);
}

TEST(a_publisher_that_has_gone_is_still_known)
{
	cleanup_td struct test_daemon d = td_start(.max_clients = CLIENTS);
	tl_client *camera = connect_as(&d, "camera.py"), *looker = connect_as(&d, "looker"), *next;
	tl_identity before, after;

	put_alone(camera, "a", 1, 10);
	before = publisher(looker, "a");
	tl_close(camera);
	td_sync(&d);
	after = publisher(looker, "a");
	must(after.gone);
	after.gone = false;
	must(!memcmp(&before, &after, sizeof(before)));
	for (int i = 0; i < 2 * CLIENTS; i++) { /* one of them gets its index */
		next = connect_as(&d, "another");
		after = publisher(looker, "a");
		must(after.id || i >= 2);
		must(!after.id || (after.gone && !strcmp(after.label, "camera.py")));
		tl_close(next);
		td_sync(&d);
	}
	must_be(after.id, 0);
	tl_close(looker);
}

/* The connection and the catalog go on. */
TEST(a_publisher_is_known_to_the_next_daemon)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *camera = connect_as(&d, "camera.py"), *looker = connect_as(&d, "looker");
	tl_identity before, after;

	put_alone(camera, "a", 1, 10);
	before = publisher(looker, "a");
	daemon_kill(looker);
	after = publisher(looker, "a");
	must(!memcmp(&before, &after, sizeof(before)));
	put_alone(camera, "a", 2, 10);
	after = publisher(looker, "a");
	must(!memcmp(&before, &after, sizeof(before)));
	tl_close(camera);
	tl_close(looker);
}

TEST(a_publisher_through_a_ring_is_known)
{
	const tl_put_options ring = { .size = sizeof(ring), .ring = 4 };
	cleanup_td struct test_daemon d = td_start();
	tl_client *camera = connect_as(&d, "camera.py"), *looker = connect_as(&d, "looker");

	for (int i = 0; i < 20; i++)
		put_as(camera, "a", i, 1000, &ring);
	must(!strcmp(publisher(looker, "a").label, "camera.py"));
	tl_close(camera);
	tl_close(looker);
}

/* ---- Readers ---- */

struct found {
	unsigned count, tensors;
	uint64_t leases;
	uint64_t last; /* client */
	char labels[64];
};

static int add_reader(const tl_reader *reader, void *context)
{
	struct found *found = context;

	must_be(reader->size, sizeof(*reader));
	must(reader->client.id && !reader->client.gone && reader->leases);
	found->tensors++;
	found->leases += reader->leases;
	if (found->last != reader->client.id) {
		found->count++;
		snprintf(found->labels + strlen(found->labels),
			 sizeof(found->labels) - strlen(found->labels), "%s ",
			 reader->client.label);
	}
	found->last = reader->client.id;
	return 0;
}

static struct found readers(tl_client *client, const char *name)
{
	struct found found = { 0 };

	must_be(tl_list_readers(client, name, add_reader, &found), 0);
	return found;
}

TEST(readers_of_a_name_are_those_that_hold_its_tensors)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *camera = connect_as(&d, "camera.py"), *one = connect_as(&d, "one"),
		  *two = connect_as(&d, "two");
	DLManagedTensorVersioned *a, *old, *newer, *twice;
	struct found found;

	put_alone(camera, "a", 1, 10);
	put_alone(camera, "b", 1, 10);
	must_be(readers(camera, "a").count, 0);
	a = get(one, "a");
	old = get(two, "a");
	twice = get(two, "a");
	found = readers(camera, "a");
	must_be(found.count, 2);
	must_be(found.leases, 3);
	must(!strcmp(found.labels, "one two "));
	must_be(readers(camera, "b").count, 0);
	put_alone(camera, "a", 2, 10);
	newer = get(two, "a"); /* holds two tensors of the name, one of them retired */
	found = readers(camera, "a");
	must_be(found.count, 2);
	must_be(found.tensors, 3);
	must_be(readers(camera, NULL).leases, 4);
	drop(a);
	must(!strcmp(readers(camera, "a").labels, "two "));
	must_be(tl_delete(camera, "a"), 0);
	must_be(readers(camera, "a").count, 0); /* the name means nothing */
	must_be(readers(camera, NULL).count, 0);
	drop(old);
	drop(twice);
	drop(newer);
	must_be(readers(camera, "nothing").count, 0);
	must_be(tl_list_readers(camera, "a//b", add_reader, &found), -EINVAL);
	must_be(tl_list_readers(camera, "a", NULL, &found), -EINVAL);
	must_be(tl_list_readers(NULL, "a", add_reader, &found), -EINVAL);
	tl_close(camera);
	tl_close(one);
	tl_close(two);
}

static int stop_at_two(const tl_reader *reader, void *context)
{
	(void)reader;
	return ++*(int *)context == 2 ? 7 : 0;
}

/* More than fit into one message, and more slots than are looked at in one step. */
TEST(many_leases_of_many_readers_are_listed)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *camera = connect_as(&d, "camera.py"), *one = connect_as(&d, "one"),
		  *two = connect_as(&d, "two");
	DLManagedTensorVersioned *held[2][MANY];
	struct found found;
	char name[16];
	int count = 0;

	for (int i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "n%d", i);
		put_alone(camera, name, 1, 10);
		held[0][i] = get(one, name);
	}
	for (int i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "n%d", i);
		held[1][i] = get(two, name);
	}
	found = readers(camera, NULL);
	must_be(found.count, 2);
	must_be(found.tensors, 2 * MANY);
	must_be(readers(camera, "n7").count, 2);
	must_be(tl_list_readers(camera, NULL, stop_at_two, &count), 7);
	for (int i = 0; i < MANY; i++) {
		drop(held[0][i]);
		drop(held[1][i]);
	}
	must_be(readers(camera, NULL).count, 0);
	tl_close(camera);
	tl_close(one);
	tl_close(two);
}

/* It counts the row that it writes next in its ledger. */
TEST(the_producer_of_a_ring_is_no_reader_of_it)
{
	const tl_put_options ring = { .size = sizeof(ring), .ring = 4 };
	cleanup_td struct test_daemon d = td_start();
	tl_client *camera = connect_as(&d, "camera.py"), *one = connect_as(&d, "one");
	DLManagedTensorVersioned *t;

	for (int i = 0; i < 50; i++) {
		put_as(camera, "a", i, 1000, &ring);
		must_be(readers(one, "a").count, 0);
	}
	t = get(one, "a");
	must(!strcmp(readers(one, "a").labels, "one "));
	drop(t);
	tl_close(camera);
	tl_close(one);
}

int main(void)
{
	return suite_run();
}
