/* SPDX-License-Identifier: Apache-2.0 */
/* The command line and streams. */
#include "tests/client/streams.h"
#include "tests/cli/files.h"
#include "tests/cli/run.h"
#include "tests/harness/child.h"

static int put(tl_stream *s, int64_t timeout_ns)
{
	float data[6] = { 1, 2, 3, 4, 5, 6 };
	int64_t shape[2] = { 2, 3 };
	DLTensor t = { .data = data,
		       .device = { kDLCPU, 0 },
		       .ndim = 2,
		       .dtype = { kDLFloat, 32, 1 },
		       .shape = shape };

	return tl_stream_put(s, &(tl_part){ .name = "obs", .tensor = &t }, 1,
			     &TL_INIT(tl_stream_put_options, .timeout_ns = timeout_ns,
				      .metadata = "abc", .metadata_size = 3),
			     NULL);
}

static double number(const cJSON *json, const char *key)
{
	const cJSON *item = cJSON_GetObjectItem(json, key);

	must(cJSON_IsNumber(item));
	return item->valuedouble;
}

static const char *text(const cJSON *json, const char *key)
{
	const cJSON *item = cJSON_GetObjectItem(json, key);

	must(cJSON_IsString(item));
	return item->valuestring;
}

/* Of the members that `stream info` shows, the one in that role. */
static const cJSON *member(const cJSON *info, const char *role)
{
	const cJSON *one;

	cJSON_ArrayForEach(one, cJSON_GetObjectItem(info, "members"))
	{
		if (!strcmp(text(one, "role"), role))
			return one;
	}
	must(!"a member in that role");
	return NULL;
}

TEST(ls_shows_streams_and_not_tensors)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d);
	tl_stream *b = open_broadcast(p, "run/b", 4);
	tl_stream *q = open_queue(p, "run", 8);
	cJSON *json;

	put_bytes(p, "run/t", 1, 10);
	for (int i = 0; i < 3; i++)
		must_be(put(q, 0), 0);
	{
		cleanup_result struct result all = run(&d, "stream", "ls");

		must_exit(&all, 0);
		must(!strcmp(all.out, "run\tqueue\t3\t8\t3\t1\t0\topen\n"
				      "run/b\tbroadcast\t0\t4\t0\t0\t0\topen\n"));
	}
	{
		cleanup_result struct result status = run(&d, "status");
		cleanup_result struct result counts = run(&d, "status", "--json");

		must_exit(&status, 0);
		must_contain(status.out, "\nstreams\t2\nstream_members\t1\n");
		json = json_of(&counts);
		must_be(number(json, "streams"), 2);
		must_be(number(json, "stream_members"), 1);
		cJSON_Delete(json);
	}
	{
		cleanup_result struct result none = run(&d, "stream", "ls", "other");
		cleanup_result struct result below = run(&d, "stream", "ls", "run/", "--json");

		must_exit(&none, 0);
		must(!*none.out);
		must_exit(&below, 0);
		json = json_of(&below);
		must_be(cJSON_GetArraySize(cJSON_GetObjectItem(json, "streams")), 1);
		must(!strcmp(
			text(cJSON_GetArrayItem(cJSON_GetObjectItem(json, "streams"), 0), "mode"),
			"broadcast"));
		cJSON_Delete(json);
	}
	tl_stream_close(b);
	tl_stream_close(q);
	tl_close(p);
}

/* It is stopped while it holds an item, with two more to take. */
static int stopped(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	tl_subscription *sub = subscribe_as(open_broadcast(client, "b", 2), 0);

	(void)arg;
	pause_at(1);
	take(sub);
	pause_at(2);
	return 0;
}

TEST(info_says_who_holds_up_a_stream_and_kick_frees_it)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d);
	tl_stream *s = open_broadcast(p, "b", 2);
	struct test_child c = child_start_ready(&d, stopped, NULL);
	char id[32], line[64];
	const cJSON *m;
	cJSON *json;

	for (int i = 0; i < 2; i++)
		must_be(put(s, 0), 0);
	child_step(&c);
	process_stop(c.pid);
	must_be(put(s, 0), 0);
	must_be(put(s, 20 * MS), -ETIMEDOUT);
	{
		cleanup_result struct result info = run(&d, "stream", "info", "b", "--json");
		cleanup_result struct result lines = run(&d, "stream", "info", "b");

		must_exit(&info, 0);
		json = json_of(&info);
		must_be(number(json, "items"), 3);
		must_be(number(json, "length"), 2);
		must_be(number(json, "depth"), 2);
		must(number(json, "rows") >= 3 && number(json, "rate") == 0);
		m = member(json, "subscriber");
		must_be(number(m, "pid"), c.pid);
		must_be(number(m, "lag"), 2);
		must_be(number(m, "held"), 1);
		must(cJSON_IsTrue(cJSON_GetObjectItem(m, "holds_up")));
		must(cJSON_IsFalse(cJSON_GetObjectItem(member(json, "producer"), "holds_up")));
		snprintf(id, sizeof(id), "%.0f", number(m, "client"));
		cJSON_Delete(json);
		must_exit(&lines, 0);
		snprintf(line, sizeof(line), "held_up_by\t%s\t%d\t", id, c.pid);
		must_contain(lines.out, line);
	}
	{
		cleanup_result struct result kick = run(&d, "kick", id);

		must_exit(&kick, 0);
	}
	for (int i = 0; i < 10; i++)
		must_be(put(s, WAIT_S * SECOND), 0);
	td_sync(&d);
	{
		cleanup_result struct result info = run(&d, "stream", "info", "b", "--json");

		must_exit(&info, 0);
		json = json_of(&info);
		must(!strcmp(text(member(json, "subscriber"), "state"), "gone"));
		must_be(number(member(json, "subscriber"), "held"), 1);
		must(cJSON_IsFalse(cJSON_GetObjectItem(member(json, "subscriber"), "holds_up")));
		cJSON_Delete(json);
	}
	must_be(kill(c.pid, SIGCONT), 0);
	child_kill(&c);
	tl_stream_close(s);
	tl_close(p);
}

TEST(tail_prints_each_item_of_a_broadcast_and_holds_up_nobody)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d);
	tl_stream *s = open_broadcast(p, "b", 2);
	tl_stream_info info = { .size = sizeof(info) };
	struct running tail = start(&d, "stream", "tail", "b");
	char first[64];

	for (;;) { /* until it has subscribed */
		must_be(tl_stream_stat(p, "b", &info), 0);
		if (info.subscribers)
			break;
	}
	snprintf(first, sizeof(first), "%" PRIu64 "\t", info.next);
	must_be(put(s, 0), 0);
	eventually(has_said(&tail, "\t0\t3\tobs:float32:2x3\n"));
	must(has_said(&tail, first));
	process_stop(tail.pid);
	for (int i = 0; i < 20; i++)
		must_be(put(s, 0), 0);
	must_be(kill(tail.pid, SIGCONT), 0);
	eventually(has_said(&tail, "\t18\t3\tobs:float32:2x3\n"));
	must_be(tl_stream_end(s, NULL), 0);
	{
		cleanup_result struct result r = finish(&tail);

		must_exit(&r, 0);
	}
	tl_stream_close(s);
	tl_close(p);
}

TEST(tail_takes_nothing_from_a_queue_unless_told)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d);
	tl_stream *s = open_queue(p, "q", 4);
	tl_stream_info info = { .size = sizeof(info) };
	cJSON *json;

	must_be(put(s, 0), 0);
	{
		cleanup_result struct result refused = run(&d, "stream", "tail", "q");

		must_exit(&refused, 1);
		must_contain(refused.err, "--take");
		must_be(tl_stream_stat(p, "q", &info), 0);
		must(info.length == 1 && !info.subscribers);
	}
	{
		cleanup_result struct result r = run(&d, "stream", "tail", "q", "--take",
						     "--timeout", "0", "--json");

		must_exit(&r, 0);
		json = json_of(&r);
		must_be(number(json, "metadata_bytes"), 3);
		must(!strcmp(
			text(cJSON_GetArrayItem(cJSON_GetObjectItem(json, "tensors"), 0), "name"),
			"obs"));
		cJSON_Delete(json);
	}
	must_be(tl_stream_stat(p, "q", &info), 0);
	must_be(info.length, 0);
	{
		cleanup_result struct result r = run(&d, "stream", "tail", "q", "--take",
						     "--timeout", "0.02");

		must_exit(&r, 4);
		must_contain(r.err, "no item of 'q' came within 20 ms");
	}
	must_be(put(s, 0), 0);
	{
		cleanup_result struct result r = run(&d, "stream", "tail", "q", "--take",
						     "--timeout", "0.02");

		must_exit(&r, 4);
		must_contain(r.out, "obs");
		must_contain(r.err, "no further item of 'q' came within 20 ms");
	}
	tl_stream_close(s);
	tl_close(p);
}

TEST(put_puts_files_as_one_item)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d);
	tl_stream *s = open_queue(p, "q", 4);
	tl_subscription *sub = subscribe_as(s, 0);
	const int32_t obs[4] = { 1, 2, 3, 4 };
	struct path a = in(&d, "obs.npy"), b = in(&d, "reward.npy");
	tl_item_info info = { .size = sizeof(info) };
	const DLTensor *t;
	const char *name;
	tl_item *item;

	write_npy(a.text, 1, "<i4", true, "(2, 2)", obs, sizeof(obs));
	write_npy(b.text, 1, "<i4", false, "()", obs, sizeof(*obs));
	{
		cleanup_result struct result r = run(&d, "stream", "put", "q", a.text, b.text,
						     "--metadata", "hello");

		must_exit(&r, 0);
	}
	item = take(sub);
	must_be(tl_item_get_info(item, &info), 0);
	must_be(info.count, 2);
	must(info.metadata_size == 5 && !memcmp(info.metadata, "hello", 5));
	t = tl_item_tensor(item, 0, &name);
	must(!strcmp(name, "obs") && t->ndim == 2);
	must(((const int32_t *)t->data)[1] == 3); /* it was in Fortran order */
	t = tl_item_tensor(item, 1, &name);
	must(!strcmp(name, "reward") && !t->ndim && *(const int32_t *)t->data == 1);
	must_be(tl_item_release(item), 0);
	{
		cleanup_result struct result one = run(&d, "stream", "put", "q", a.text);
		cleanup_result struct result two = run(&d, "stream", "put", "q", a.text, "--json");
		cleanup_result struct result full = run(&d, "stream", "put", "q", a.text);
		cleanup_result struct result waits = run(&d, "stream", "put", "q", a.text,
							 "--timeout", "0.02");
		cleanup_result struct result none = run(&d, "stream", "put", "none", a.text);
		cleanup_result struct result bad = run(&d, "stream", "put", "q", d.socket);

		must_exit(&one, 0);
		must_exit(&two, 0);
		must_contain(two.out, "\"number\":");
		must_exit(&full, 4);
		must_contain(full.err, "is full");
		must_exit(&waits, 4);
		must_exit(&none, 3);
		must_contain(none.err, "no stream is called 'none'");
		must_exit(&bad, 1);
	}
	item = take(sub);
	must(!tl_item_tensor(item, 0, &name)->ndim || !name); /* a single one has no name */
	must_be(tl_item_release(item), 0);
	tl_subscription_close(sub);
	tl_stream_close(s);
	tl_close(p);
}

TEST(close_ends_a_stream_and_rm_deletes_it)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d);
	tl_stream *s = open_broadcast(p, "b", 8);
	tl_subscription *sub = subscribe_as(s, 0);
	tl_item *item;

	must_be(put(s, 0), 0);
	{
		cleanup_result struct result r = run(&d, "stream", "close", "b");
		cleanup_result struct result again = run(&d, "stream", "close", "b", "--json");
		cleanup_result struct result ls = run(&d, "stream", "ls", "b");

		must_exit(&r, 0);
		must_exit(&again, 0);
		must_contain(ls.out, "\tended\n");
	}
	must_be(put(s, 0), -EPIPE);
	must_be(tl_item_release(take(sub)), 0);
	must_be(tl_stream_take(sub, NULL, &item), -EPIPE);
	{
		cleanup_result struct result r = run(&d, "rm", "b");
		cleanup_result struct result gone = run(&d, "stream", "close", "b");

		must_exit(&r, 0);
		must_exit(&gone, 3);
	}
	must_be(put(s, 0), -ESTALE);
	tl_subscription_close(sub);
	tl_stream_close(s);
	s = open_broadcast(p, "run/b", 2);
	put_bytes(p, "run/t", 1, 10);
	{
		cleanup_result struct result r = run(&d, "rm", "--below", "run");

		must_exit(&r, 0);
		must(!strcmp(r.out, "run\t2\n"));
	}
	must_be(put(s, 0), -ESTALE);
	tl_stream_close(s);
	tl_close(p);
}

TEST(status_shows_items_that_clients_hold)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d), *c = td_connect(&d);
	tl_stream *s = open_broadcast(p, "run/b", 2);
	tl_stream *in = open_broadcast(c, "run/b", 2);
	tl_subscription *sub = subscribe_as(in, 0);
	const cJSON *client, *holding;
	unsigned items = 0;
	tl_item *item;
	cJSON *json;

	must_be(put(s, 0), 0);
	item = take(sub);
	{
		cleanup_result struct result lines = run(&d, "status", "--clients");
		cleanup_result struct result all = run(&d, "status", "--clients", "--json");

		must_exit(&lines, 0);
		must_contain(lines.out, "\trun/b\tstream item\t");
		must_exit(&all, 0);
		json = json_of(&all);
		cJSON_ArrayForEach(client, cJSON_GetObjectItem(json, "client_list"))
		{
			cJSON_ArrayForEach(holding, cJSON_GetObjectItem(client, "holdings"))
			{
				must(!strcmp(text(holding, "name"), "run/b"));
				must(!strcmp(text(holding, "kind"), "item"));
				items++;
			}
		}
		must(items >= 2); /* the producer has more memory than for this one */
		cJSON_Delete(json);
	}
	tl_stream_close(s);
	tl_close(p);
	td_sync(&d);
	must_be(tl_delete(c, "run/b"), 0);
	{
		cleanup_result struct result lines = run(&d, "status", "--clients");

		must_contain(lines.out, "\trun/b\tstream item\t");
		must_contain(lines.out, "\tretired\n");
	}
	must_be(tl_item_release(item), 0);
	tl_subscription_close(sub);
	tl_stream_close(in);
	tl_close(c);
}

/* Commands for tensors say which command is for streams, and the reverse. */
TEST(each_kind_names_the_commands_of_the_other)
{
	static const char *const tensors[] = { "ls", "info", "get", "show", "wait" };
	static const char *const streams[] = { "info", "tail", "close" };
	cleanup_td struct test_daemon d = td_start();
	tl_client *p = td_connect(&d);
	tl_stream *s = open_queue(p, "s", 2);

	put_bytes(p, "t", 1, 10);
	for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++) {
		cleanup_result struct result r = run(&d, tensors[i], "s");

		must_exit(&r, 1);
		must_contain(r.err, "'s' is a stream");
		must_contain(r.err, "tensorlease stream");
	}
	for (size_t i = 0; i < sizeof(streams) / sizeof(streams[0]); i++) {
		cleanup_result struct result r = run(&d, "stream", streams[i], "t");

		must_exit(&r, 1);
		must_contain(r.err, "'t' means a tensor");
		must_contain(r.err, "tensorlease info");
	}
	{
		cleanup_result struct result none = run(&d, "stream", "info", "none");
		cleanup_result struct result verb = run(&d, "stream", "list");
		cleanup_result struct result option = run(&d, "stream", "ls", "--take");
		cleanup_result struct result few = run(&d, "stream", "put", "s");

		must_exit(&none, 3);
		must_exit(&verb, 2);
		must_exit(&option, 2);
		must_contain(option.err, "'stream ls' takes no option --take");
		must_exit(&few, 2);
	}
	put_bytes(p, "s/below", 1, 10);
	{
		cleanup_result struct result r = run(&d, "ls", "s");

		must_exit(&r, 0);
		must_contain(r.out, "s/below\t");
	}
	tl_stream_close(s);
	tl_close(p);
}

int main(void)
{
	return suite_run();
}
