/* SPDX-License-Identifier: Apache-2.0 */
/* Paths: ls and watch, and rm --below, with names that other users have too. */
#include "tests/cli/files.h"

#include "cli/cli.h"
#include "cli/out.h"

enum { ALICE = 1111 };

TEST(rm_below_forgets_a_group)
{
	cleanup_td struct test_daemon d = td_start(0);

	put_six(&d, "m");
	put_six(&d, "m/a");
	put_six(&d, "m/b/c");
	put_six(&d, "mm");
	{ /* a "/" at the end changes nothing */
		struct path npz = in(&d, "m.npz");
		cleanup_result struct result save = run(&d, "save", "m/", npz.text);
		cleanup_result struct result rm = run(&d, "rm", "--below", "m/");
		cleanup_result struct result load = run(&d, "load", "m/", npz.text);

		must_exit(&save, 0);
		must_exit(&rm, 0);
		assert_string_equal(rm.out, "m/\t2\n");
		must_exit(&load, 0);
	}
	{
		cleanup_result struct result r = run(&d, "rm", "--below", "m");
		cleanup_result struct result ls = run(&d, "ls");
		cleanup_result struct result again = run(&d, "rm", "m", "-r", "--json");
		cJSON *json = json_of(&again);

		must_exit(&r, 0);
		assert_string_equal(r.out, "m\t2\n");
		must(!strncmp(ls.out, "m\t", 2) && strstr(ls.out, "\nmm\t"));
		must_be(td_status(&d).tensors, 2);
		must_exit(&again, 3);
		must_contain(cJSON_GetObjectItem(json, "error")->valuestring, "below 'm/'");
		cJSON_Delete(json);
	}
	{
		cleanup_result struct result none = run(&d, "rm"),
					     unset = run(&d, "rm", "--below", ""),
					     both = run(&d, "rm", "--everything", "m");

		must_exit(&none, 2);
		must_exit(&unset, 2);
		must_contain(unset.err, "`tensorlease rm --everything` deletes all names");
		must_exit(&both, 2);
		must_be(td_status(&d).tensors, 2);
	}
	{
		cleanup_result struct result r = run(&d, "rm", "--everything", "--json"),
					     again = run(&d, "rm", "--everything");
		cJSON *json = json_of(&r);

		must_exit(&r, 0);
		must_be(cJSON_GetArraySize(cJSON_GetObjectItem(json, "deleted")), 2);
		must_be(td_status(&d).tensors, 0);
		must_exit(&again, 3);
		cJSON_Delete(json);
	}
}

TEST(a_path_is_a_tensor_and_those_below_it)
{
	cleanup_td struct test_daemon d = td_start(0);

	put_six(&d, "w/a");
	put_six(&d, "w");
	put_six(&d, "ww");
	td_sync(&d);
	{
		cleanup_result struct result r = run(&d, "watch", "w", "-t", "0"),
					     ls = run(&d, "ls", "w"), below = run(&d, "ls", "w/"),
					     late = run(&d, "watch", "none", "-t", "0.001");

		must_exit(&r, 0);
		must_contain(r.out, "published\tw\t1\t0\n");
		must_contain(r.out, "published\tw/a\t1\t0\n");
		must(!strstr(r.out, "ww"));
		must_exit(&ls, 0);
		must(!strncmp(ls.out, "w\t", 2) && strstr(ls.out, "\nw/a\t"));
		must(!strstr(ls.out, "ww"));
		must_exit(&below, 0);
		must(!strncmp(below.out, "w/a\t", 4));
		must_exit(&late, 4);
		must_contain(late.err, "nothing happened to 'none' or names below it within 1 ms");
	}
}

static void publish(tl_client *client, const char *name)
{
	unsigned char byte = 7;
	DLTensor tensor = { .data = &byte, .device = { kDLCPU, 0 }, .dtype = { kDLUInt, 8, 1 } };

	must_be(tl_put(client, name, &tensor, NULL, NULL), 0);
}

/* Publishes one more name, and removes what it may. */
static int remove_below(const struct test_daemon *d, void *own)
{
	char prefix[] = "m", *args[] = { prefix, NULL };
	struct cli cli = { .socket = d->socket, .given = OPTION_BELOW, .nargs = 1, .args = args };
	tl_client *client = td_connect(d);
	int out = memory_file(), code;
	char *text;

	publish(client, own);
	must_be(dup2(out, STDOUT_FILENO), STDOUT_FILENO);
	code = command_rm(&cli);
	must_be(cli_flush(), 0);
	text = read_back(out);
	must_be(code, 1);
	must_contain(text, "m\t1\n");
	free(text);
	tl_close(cli.client);
	tl_close(client);
	return 0;
}

TEST(rm_below_counts_what_it_deleted_although_it_might_not_delete_all)
{
	static char names[][4] = { "m/a", "m/b" };

	SKIP_UNLESS(geteuid() == 0, "needs root, to be other users");
	for (unsigned own = 0; own < 2; own++) { /* so that in one case the last one fails */
		cleanup_td struct test_daemon d = td_start(.for_others = true);
		tl_client *client = td_connect(&d);
		struct test_child child;

		publish(client, names[!own]);
		child = child_start_as(ALICE, &d, remove_below, names[own]);
		child_must_succeed(&child);
		tl_close(client);
	}
}

int main(void)
{
	return suite_run();
}
