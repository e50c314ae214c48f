/* SPDX-License-Identifier: Apache-2.0 */
/* Options of the command line, and mistakes in them. */
#include "tests/cli/files.h"
#include "tests/cli/run.h"
#include "tests/harness/own_user.h"

enum { NO_NAMESPACE = 77 };

TEST(an_argument_is_not_taken_for_an_option)
{
	cleanup_td struct test_daemon d = td_start(0);
	struct path file = in(&d, "six.npy");

	put_six(&d, "a");
	cleanup_result struct result put = run(&d, "put", "b", file.text, "-m", "--json");
	cleanup_result struct result info = run(&d, "info", "b", "-j");
	cJSON *json = json_of(&info);

	must_exit(&put, 0);
	must_contain(put.out, "b\t1\n");
	must_contain(cJSON_GetObjectItem(json, "metadata_text")->valuestring, "--json");
	cJSON_Delete(json);
}

TEST(mistakes_in_options_are_named)
{
	cleanup_td struct test_daemon d = td_start(0);
	cleanup_result struct result none = run(&d, "status", "--clients=5");
	cleanup_result struct result odd = run(&d, "-\xc3\xa9");
	cleanup_result struct result user = run(&d, "limits", "-U", "0");
	cleanup_result struct result help = run(&d, "limits", "--help");

	must_exit(&none, 2);
	must_contain(none.err, "option '--clients' takes no argument");
	must_exit(&odd, 2);
	must_contain(odd.err, "unknown option '-\\xc3'");
	must_exit(&user, 2);
	must_contain(user.err, "'limits' takes no option --uid");
	must_exit(&help, 0);
	must(!strstr(help.out, "-U"));
	must_contain(help.out, "    --user NAME");
}

/* As a script says them whose variable is not set. */
TEST(empty_names_and_paths_are_refused)
{
	cleanup_td struct test_daemon d = td_start(0);
	cleanup_result struct result rm = run(&d, "-N", "", "rm", "--below", "");
	cleanup_result struct result get = run(&d, "get", "a", "-o", "");

	must_exit(&rm, 2);
	must_contain(rm.err, "--namespace must be a name, not empty");
	must_exit(&get, 2);
	must_contain(get.err, "must be a path, not empty");
}

/* Also where the mistake stands beside the option, in one word or in an abbreviation. */
TEST(mistakes_beside_json_are_told_in_json)
{
	static const char *const cases[][6] = {
		{ "-jq", "status" },
		{ "--js", "--bogus", "status" },
		{ "-cj", "status", "--timeout", "x" },
	};
	cleanup_td struct test_daemon d = td_start(0);

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		cleanup_result struct result r = run_at(d.socket, cases[i]);
		cJSON *json = json_of(&r);

		must_exit(&r, 2);
		must_be(cJSON_GetObjectItem(json, "code")->valueint, 2);
		cJSON_Delete(json);
	}
}

/* It must not take a word before it for its value. */
TEST(an_option_at_the_end_without_its_argument_is_named)
{
	cleanup_td struct test_daemon d = td_start(0);
	cleanup_result struct result get = run(&d, "get", "a", "-o");
	cleanup_result struct result put = run(&d, "put", "a", "f.npy", "--timeout");
	cleanup_result struct result json = run(&d, "-j", "get", "a", "--output");

	must_exit(&get, 2);
	must_contain(get.err, "option '-o' needs an argument");
	must_exit(&put, 2);
	must_contain(put.err, "option '--timeout' needs an argument");
	must_exit(&json, 2);
	must_contain(json.out, "option '--output' needs an argument");
}

/* The name of the program becomes the client's label. */
TEST(a_program_of_any_name_connects)
{
	cleanup_td struct test_daemon d = td_start(0);
	const char *const argv[] = { "a\nb", "--socket", d.socket, "ls", NULL };
	int status;
	pid_t pid;

	must_be(posix_spawn(&pid, cli_path(), NULL, NULL, (char **)(uintptr_t)argv, environ), 0);
	must(waitpid(pid, &status, 0) == pid);
	must(WIFEXITED(status));
	must_be(WEXITSTATUS(status), 0);
}

/* Also if the first part that could not be written was flushed earlier. */
TEST(output_that_could_not_be_written_is_named)
{
	SKIP_UNLESS(!access("/dev/full", W_OK), "no /dev/full");
	cleanup_td struct test_daemon d = td_start(0);
	char command[512], said[256] = "";
	FILE *f;

	put_six(&d, "a");
	snprintf(command, sizeof(command), "%s --socket %s watch --timeout 0 2>&1 >/dev/full",
		 cli_path(), d.socket);
	f = popen(command, "re");
	must(f);
	(void)!fread(said, 1, sizeof(said) - 1, f);
	must(pclose(f) > 0);
	must_contain(said, "writing standard output: No space left on device");
}

TEST(watch_ends_with_its_reader)
{
	cleanup_td struct test_daemon d = td_start(0);
	const char *const args[] = { "watch", NULL };
	struct running watches;
	int ends[2];
	char first;

	put_six(&d, "a");
	must_be(pipe2(ends, O_CLOEXEC), 0);
	watches = start_printing_to(ends[1], d.socket, args);
	close(ends[1]);
	must_be(read(ends[0], &first, 1), 1);
	close(ends[0]);
	cleanup_result struct result r = finish(&watches);

	must_exit(&r, 1);
	must_be(*r.err, '\0');
}

/* The kernel accepts the connection, but nobody answers. */
TEST(a_timeout_bounds_the_wait_for_a_silent_daemon)
{
	cleanup_td struct test_daemon d = td_start(0);
	int64_t begun;

	td_freeze(&d);
	begun = now_ns();
	{
		cleanup_result struct result r = run(&d, "wait", "a", "-t", "0.05");

		must_exit(&r, 4);
		must_contain(r.err, "did not answer in time");
	}
	must(now_ns() - begun < 9 * SECOND); /* 10 without it */
	td_thaw(&d);
}

/* In a user namespace where we are user 1000, whom the daemon knows by another number. */
static int shows_what_the_daemon_knows(const struct test_daemon *d, void *uid)
{
	if (!own_user_namespace(1000, 1000))
		return NO_NAMESPACE;
	cleanup_result struct result r = run(d, "limits", "--json");
	cJSON *json = json_of(&r);

	must_exit(&r, 0);
	must_be(cJSON_GetObjectItem(json, "uid")->valueint, *(uid_t *)uid);
	cJSON_Delete(json);
	return 0;
}

TEST(limits_are_of_the_user_that_the_daemon_knows)
{
	uid_t uid = geteuid();
	int status;

	cleanup_td struct test_daemon d = td_start(0);
	status = td_run_client(&d, shows_what_the_daemon_knows, &uid);
	td_stop(&d);
	SKIP_UNLESS(!WIFEXITED(status) || WEXITSTATUS(status) != NO_NAMESPACE,
		    "this user may not make a user namespace");
	must_be(status, 0);
}

TEST(status_tells_of_programs_that_share_a_name)
{
	unsigned char byte = 7;
	DLTensor tensor = { .data = &byte, .device = { kDLCPU, 0 }, .dtype = { kDLUInt, 8, 1 } };
	cleanup_td struct test_daemon d = td_start(0);
	tl_client *client = td_connect(&d);

	must_be(tl_put(client, "shared/name", &tensor, NULL, NULL), 0);
	put_six(&d, "shared/name"); /* another type, of another program */
	td_sync(&d);
	{
		cleanup_result struct result text = run(&d, "status"),
					     r = run(&d, "status", "--json");
		cJSON *json = json_of(&r);

		must_contain(text.out, "\nretyped\t1\nretyped_name\tshared/name\n");
		must_be(cJSON_GetObjectItem(json, "retyped")->valueint, 1);
		must_contain(cJSON_GetObjectItem(json, "retyped_name")->valuestring, "shared/name");
		cJSON_Delete(json);
	}
	tl_close(client);
}

int main(void)
{
	return suite_run();
}
