/* SPDX-License-Identifier: Apache-2.0 */
/* put and load with lifetimes, and kick. */
#include "tests/cli/files.h"

TEST(ttl_and_evictable_are_shown_and_ttl_ends_the_name)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	const struct path f = npy_file(&d);
	cleanup_result struct result r = run(&d, "put", "a", f.text, "--ttl", "1000",
					     "--evictable");
	cleanup_result struct result info = { 0 }, json = { 0 }, brief = { 0 };
	cJSON *object;

	must_exit(&r, 0);
	info = run(&d, "info", "a");
	must_exit(&info, 0);
	must_contain(info.out, "ttl_ns\t");
	must_contain(info.out, "evictable\t1\n");
	must(!strstr(info.out, "owner_bound"));
	json = run(&d, "info", "a", "--json");
	object = json_of(&json);
	must(cJSON_IsTrue(cJSON_GetObjectItem(object, "evictable")));
	must(cJSON_IsFalse(cJSON_GetObjectItem(object, "owner_bound")));
	must(cJSON_GetObjectItem(object, "ttl_ns")->valuedouble > 9e11);
	cJSON_Delete(object);
	brief = run(&d, "put", "b", f.text, "--ttl", "0.01");
	must_exit(&brief, 0);
	eventually(!client_sees(client, "b"));
	must(client_sees(client, "a"));
	tl_close(client);
}

TEST(load_gives_each_tensor_its_lifetime)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	const struct path f = npy_file(&d);
	cleanup_result struct result r = run(&d, "load", "a", f.text, "--ttl", "0.01");

	must_exit(&r, 0);
	eventually(!client_sees(client, "a"));
	tl_close(client);
}

TEST(what_put_owns_stays_as_long_as_put_does)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	const struct path f = npy_file(&d);
	static const int signals[] = { SIGINT, SIGTERM, SIGKILL };

	for (unsigned i = 0; i < 3; i++) {
		struct running putting = start(&d, "put", "a", f.text, "--owner-bound");
		struct result r;

		eventually(client_sees(client, "a"));
		must(waitpid(putting.pid, NULL, WNOHANG) == 0);
		kill(putting.pid, signals[i]);
		r = finish(&putting);
		must(r.code == 0 || r.code == 256 + signals[i]); /* it may not wait yet */
		result_deinit(&r);
		eventually(!client_sees(client, "a"));
	}
	tl_close(client);
}

TEST(put_ends_when_what_it_owns_is_deleted)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	const struct path f = npy_file(&d);
	struct running loading = start(&d, "load", "a", f.text, "--owner-bound");
	cleanup_result struct result r = { 0 };

	eventually(client_sees(client, "a"));
	must_be(tl_delete(client, "a"), 0);
	r = finish(&loading);
	must_exit(&r, 0);
	tl_close(client);
}

static int newest(const tl_client_info *info, void *context)
{
	*(uint64_t *)context = info->id;
	return 0;
}

TEST(restart_says_how_long_nobody_served)
{
	static const char *const with_keeper[] = { "--keeper", "yes", NULL };
	struct test_daemon d = td_start(.extra = with_keeper, .expect_ready = true);

	{
		cleanup_result struct result r = run(&d, "restart");
		cleanup_result struct result status = run(&d, "status");
		cleanup_result struct result json = run(&d, "--json", "restart");

		must_be(r.code, 0);
		must(!strncmp(r.out, "restarted in ", 13));
		must(strstr(r.out, " ms: asked for by user "));
		must(strstr(status.out, "restarts\t1\n"));
		must(!strstr(status.out, "restart_ns\t0\n"));
		must_be(json.code, 0);
		must(strstr(json.out, "\"restarts\":2"));
		must(!strstr(json.out, "\"restart_ns\":0"));
	}
	td_stop(&d);
	d = td_start(.no_keeper = "that is what restart tells of");
	{
		cleanup_result struct result r = run(&d, "restart");

		must_be(r.code, 1);
		must(strstr(r.err, "--keeper no"));
	}
	td_stop(&d);
}

TEST(kick_says_whom_it_disconnected_and_fails_if_there_was_nobody)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *admin = td_connect(&d), *client = td_connect(&d);
	char id[32], uid[32], expected[80];
	tl_info info = { .size = sizeof(info) };
	uint64_t number = 0;

	must_be(tl_list_clients(admin, newest, &number), 0);
	snprintf(id, sizeof(id), "%llu", (unsigned long long)number);
	snprintf(uid, sizeof(uid), "%u", getuid());
	{
		cleanup_result struct result r = run(&d, "kick", id), again = run(&d, "kick", id);

		must_exit(&r, 0);
		snprintf(expected, sizeof(expected), "client %s disconnected\n", id);
		must(!strcmp(r.out, expected));
		must_exit(&again, 3);
	}
	must_be(tl_stat(client, "a", &info), -ECONNABORTED);
	{
		cleanup_result struct result r = run(&d, "kick", "--uid", uid);
		cleanup_result struct result again = run(&d, "--json", "kick", "--uid", uid);

		must_exit(&r, 0);
		snprintf(expected, sizeof(expected), "1 client of user %s disconnected\n", uid);
		must(!strcmp(r.out, expected));
		must_exit(&again, 3);
	}
	must_be(tl_stat(admin, "a", &info), -ECONNABORTED);
	tl_close(client);
	tl_close(admin);
}

TEST(what_cannot_be_meant_is_refused)
{
	static const char *const cases[][6] = {
		{ "put", "a", "f.npy", "--ttl", "0" },
		{ "put", "a", "f.npy", "--ttl", "-1" },
		{ "put", "a", "f.npy", "--ttl", "1e10" },
		{ "put", "a", "f.npy", "--ttl", "soon" },
		{ "put", "a", "f.npy", "--ttl", "nan" },
		{ "get", "a", "--evictable" },
		{ "kick" },
		{ "kick", "one" },
		{ "kick", "1", "2" },
		{ "kick", "1", "--uid", "1" },
		{ "kick", "--uid", "root" },
		{ "kick", "--uid", "4294967295" },
	};
	cleanup_td struct test_daemon d = td_start();

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		cleanup_result struct result r = run_at(d.socket, cases[i]);

		if (r.code != 2)
			print_error("case %zu\n", i);
		must_exit(&r, 2);
	}
}

int main(void)
{
	return suite_run();
}
