/* SPDX-License-Identifier: Apache-2.0 */
/* The command line as users run it: the real program with a real daemon. */
#include <sys/socket.h>
#include <sys/un.h>

#include "tests/cli/files.h"

/* ---- Exit codes and errors ---- */

TEST(exit_codes_tell_what_happened)
{
	cleanup_td struct test_daemon d = td_start(0);
	static const struct {
		int code;
		const char *args[8];
	} cases[] = {
		{ 0, { "ls" } },
		{ 0, { "status" } },
		{ 0, { "--help" } },
		{ 0, { "help", "put" } },
		{ 0, { "help", "help" } },
		{ 0, { "--version" } },
		{ 1, { "put", "a", "/nonexistent/file.npy" } },
		{ 2, { NULL } },
		{ 2, { "dance" } },
		{ 2, { "--dance" } },
		{ 2, { "-q" } },
		{ 2, { "put", "a" } },
		{ 2, { "put", "a", "b", "c" } },
		{ 2, { "ls", "a", "b" } },
		{ 2, { "load", "a" } },
		{ 2, { "load", "a", "file.txt" } },
		{ 2, { "load", "a", "file.npz", "--format", "zip" } },
		{ 2, { "save", "a", "file" } },
		{ 2, { "save", "a", "-" } },
		{ 2, { "show" } },
		{ 2, { "show", "a", "--format", "npy" } },
		{ 2, { "show", "a", "-o", "f.jpg" } },
		{ 2, { "get", "a", "-o", "f.npz" } },
		{ 3, { "get", "a", "-o", "f.NPY" } },
		{ 3, { "show", "a", "-o", "tmp.Xy12" } },
		{ 2, { "ls", "--below" } },
		{ 3, { "rm", "--below", "a" } },
		{ 1, { "load", "a", "/nonexistent/file.npz" } },
		{ 3, { "save", "a", "/nonexistent/file.npz" } },
		{ 3, { "show", "a" } },
		{ 2, { "status", "a" } },
		{ 2, { "rm" } },
		{ 2, { "get" } },
		{ 2, { "get", "a", "--timeout" } },
		{ 2, { "get", "a", "--timeout", "soon" } },
		{ 2, { "get", "a", "--timeout", "-1" } },
		{ 2, { "get", "a", "--newer-than", "x" } },
		{ 2, { "get", "a", "--newer-than", "18446744073709551616" } },
		{ 2, { "ls", "--clients" } },
		{ 2, { "help", "dance" } },
		{ 3, { "get", "a" } },
		{ 3, { "info", "a" } },
		{ 3, { "rm", "a" } },
		{ 4, { "get", "a", "--timeout", "0.05" } },
		{ 4, { "wait", "a", "--timeout", "0.05" } },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		cleanup_result struct result r = run_at(d.socket, cases[i].args);

		if (r.code != cases[i].code)
			print_error("case %zu: %s %s\n", i, cases[i].args[0], cases[i].args[1]);
		must_exit(&r, cases[i].code);
		must(!*r.err == !cases[i].code);
	}
}

TEST(without_a_daemon_it_says_how_to_start_one)
{
	static const char *const commands[] = { "ls", "status" };

	for (size_t i = 0; i < 2; i++) {
		cleanup_result struct result r = run_at(
			NULL, (const char *const[]){ "--socket", "/tmp/tl-no-such-socket",
						     commands[i], NULL });

		must_exit(&r, 1);
		must_contain(r.err, "`tensorleased --socket /tmp/tl-no-such-socket` starts one");
		must_contain(r.err, "--socket said where");
		must(!strstr(r.err, "$TENSORLEASE_SOCKET"));
		must(!*r.out);
	}
}

TEST(what_is_no_daemon_is_not_taken_for_one)
{
	cleanup_td struct test_daemon d = td_start(0); /* only for its directory */
	struct path file = in(&d, "file"), other = in(&d, "other");
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	must(strlen(other.text) < sizeof(address.sun_path));
	memcpy(address.sun_path, other.text, strlen(other.text));
	must(fd >= 0 && !bind(fd, (struct sockaddr *)&address, sizeof(address)) && !listen(fd, 1));
	write_npy(file.text, 1, "<f4", false, "(2, 3)", six, sizeof(six));
	{
		cleanup_result struct result a = run_at(file.text,
							(const char *const[]){ "ls", NULL });
		cleanup_result struct result b = run_at(other.text,
							(const char *const[]){ "ls", NULL });

		must_exit(&a, 1);
		must_contain(a.err, "which is not a socket");
		must_exit(&b, 1);
		must_contain(b.err, "but another program");
	}
	close(fd);
}

TEST(commands_by_other_names_are_named)
{
	cleanup_result struct result r = run_at(NULL, (const char *const[]){ "list", NULL });

	must_exit(&r, 2);
	must_contain(r.err, "unknown command 'list'; it is 'ls' here");
}

static int is_refused(const struct test_daemon *d, void *text)
{
	tl_client *client;

	must_be(tl_connect(&(tl_connect_options){ .size = sizeof(tl_connect_options),
						  .address = d->socket },
			   &client),
		-EACCES);
	must_contain(tl_last_error(), (const char *)text);
	return 0;
}

/* For other users the library says for which group a socket is. */
TEST(a_socket_of_others_says_whose_it_is)
{
	char group[] = "for members of the group 60123: join it (usermod -aG)";
	char user[] = "is for user 0 only";
	struct test_child child;

	SKIP_UNLESS(geteuid() == 0, "needs root, to be another user");
	cleanup_td struct test_daemon d = td_start(.for_others = true);
	must_be(chown(d.socket, 0, 60123), 0);
	must_be(chmod(d.socket, 0660), 0);
	child = child_start_as(60124, &d, is_refused, group);
	child_must_succeed(&child);
	must_be(chmod(d.socket, 0600), 0);
	child = child_start_as(60124, &d, is_refused, user);
	child_must_succeed(&child);
}

TEST(put_starts_a_daemon_where_none_runs_and_ls_does_not)
{
	const char *daemon = getenv("TL_TEST_DAEMON"), *runtime_before = getenv("XDG_RUNTIME_DIR");
	char *old;

	SKIP_UNLESS(access("/run/tensorlease/socket", F_OK), "a system daemon runs here");
	cleanup_td struct test_daemon d = td_start(0); /* only for its directory */
	struct path runtime = in(&d, "xdg"), file = in(&d, "a.npy");

	old = runtime_before ? strdup(runtime_before) : NULL;
	must_be(mkdir(runtime.text, 0700) ? errno : 0, 0);
	setenv("XDG_RUNTIME_DIR", runtime.text, 1);
	if (daemon)
		setenv("TENSORLEASE_DAEMON", daemon, 1);
	unsetenv("TENSORLEASE_SOCKET");
	write_npy(file.text, 1, "<f4", false, "(2, 3)", six, sizeof(six));
	{
		cleanup_result struct result none = run_at(NULL,
							   (const char *const[]){ "ls", NULL });
		cleanup_result struct result put = run_at(
			NULL, (const char *const[]){ "put", "a", file.text, NULL });
		cleanup_result struct result status = run_at(
			NULL, (const char *const[]){ "status", "--json", NULL });
		cJSON *json = json_of(&status);

		must_exit(&put, 0);
		must_exit(&status, 0);
		end_daemon(cJSON_GetObjectItem(json, "daemon_pid")->valueint);
		cJSON_Delete(json);
		must_exit(&none, 1);
		must_contain(none.err, "put, load, wait, watch, record and replay do too");
		must_contain(none.err, "`tensorleased` starts one"); /* it makes the directory */
	}
	if (old)
		setenv("XDG_RUNTIME_DIR", old, 1);
	else
		unsetenv("XDG_RUNTIME_DIR");
	unsetenv("TENSORLEASE_DAEMON");
	free(old);
}

TEST(errors_are_json_too)
{
	cleanup_td struct test_daemon d = td_start(0);
	cleanup_result struct result usage = run(&d, "get", "--json");
	cleanup_result struct result missing = run(&d, "get", "no/such", "--json");
	cJSON *json;

	must_exit(&usage, 2);
	json = json_of(&usage);
	must_be(cJSON_GetObjectItem(json, "code")->valueint, 2);
	cJSON_Delete(json);
	must_exit(&missing, 3);
	json = json_of(&missing);
	must_be(cJSON_GetObjectItem(json, "code")->valueint, 3);
	must_contain(cJSON_GetObjectItem(json, "error")->valuestring, "no/such");
	cJSON_Delete(json);
	must_contain(missing.err, "no/such");
}

/* Standard output is for the tensor then. */
TEST(an_error_is_not_printed_in_place_of_a_file)
{
	cleanup_td struct test_daemon d = td_start(0);
	cleanup_result struct result r = run(&d, "get", "no/such", "-o", "-", "--json");

	must_exit(&r, 3);
	must(!*r.out);
	must_contain(r.err, "no/such");
}

/* ---- Commands ---- */

TEST(options_stand_before_or_after_the_command)
{
	cleanup_td struct test_daemon d = td_start(0);

	put_six(&d, "a");
	{
		cleanup_result struct result before = run_at(
			NULL,
			(const char *const[]){ "--socket", d.socket, "--json", "info", "a", NULL });
		cleanup_result struct result after = run_at(
			NULL,
			(const char *const[]){ "info", "a", "--json", "--socket", d.socket, NULL });

		must_exit(&before, 0);
		must_exit(&after, 0);
		assert_string_equal(before.out, after.out);
	}
	setenv("POSIXLY_CORRECT", "1", 1);
	{
		cleanup_result struct result r = run(&d, "rm", "--below", "a");

		must_exit(&r, 3); /* and 'a' itself is not deleted */
	}
	{
		cleanup_result struct result r = run(&d, "info", "a");

		must_exit(&r, 0);
	}
	unsetenv("POSIXLY_CORRECT");
}

TEST(json_has_exact_numbers)
{
	static const uint64_t big[2] = { 9007199254740993ULL, UINT64_MAX };
	cleanup_td struct test_daemon d = td_start(0);
	struct path file = in(&d, "big.npy");
	char after;

	write_npy(file.text, 1, "<u8", false, "(2,)", big, sizeof(big));
	{
		cleanup_result struct result put = run(&d, "put", "big", file.text, "--metadata",
						       "exposure 8 ms", "--json");
		cleanup_result struct result get = run(&d, "get", "big", "--json");
		cJSON *json;

		must_exit(&put, 0);
		json = json_of(&put);
		must_be(cJSON_GetObjectItem(json, "version")->valueint, 1);
		cJSON_Delete(json);
		must_exit(&get, 0);
		json = json_of(&get);
		assert_string_equal(cJSON_GetObjectItem(json, "dtype")->valuestring, "uint64");
		assert_string_equal(cJSON_GetObjectItem(json, "metadata_text")->valuestring,
				    "exposure 8 ms");
		assert_string_equal(cJSON_GetObjectItem(json, "metadata_hex")->valuestring,
				    "6578706f737572652038206d73");
		must_be(cJSON_GetObjectItem(json, "bytes")->valueint, 16);
		must_be(cJSON_GetArraySize(cJSON_GetObjectItem(json, "shape")), 1);
		cJSON_Delete(json);
		must_contain(get.out, "\"values\":[9007199254740993,18446744073709551615]");
		must_contain(get.out, "\"min\":9007199254740993,\"max\":18446744073709551615");
		/* 19 digits and no exponent */
		must(sscanf(strstr(get.out, "\"committed_ns\":"), "\"committed_ns\":%*19[0-9]%c",
			    &after) == 1);
		must_be(after, ',');
	}
}

TEST(get_shows_what_the_values_are)
{
	cleanup_td struct test_daemon d = td_start(0);

	put_six(&d, "a");
	{
		cleanup_result struct result r = run(&d, "get", "a");

		must_exit(&r, 0);
		must_contain(r.out, "version\t1\n");
		must_contain(r.out, "dtype\tfloat32\n");
		must_contain(r.out, "shape\t2x3\n");
		must_contain(r.out, "size\t24\n");
		must_contain(r.out, "min\t-2\n");
		must_contain(r.out, "max\t1e+09\n");
		must_contain(r.out, "values\t0 1.5 -2 3 4 1e+09\n");
	}
}

/* The library publishes two values of each type, including types that no file can have. */
TEST(get_knows_all_types)
{
	static const struct {
		uint8_t code, bits;
		uint16_t lanes;
		unsigned char bytes[32];
		const char *dtype, *values;
	} cases[] = {
		{ kDLBfloat, 16, 1, { 0x80, 0x3f, 0x20, 0xc0 }, "bfloat16", "1 -2.5" },
		{ kDLFloat, 16, 1, { 0x00, 0x3c, 0x00, 0xfc }, "float16", "1 -inf" },
		{ kDLFloat8_e3m4, 8, 1, { 0x30, 0x70 }, "float8_e3m4", "1 inf" },
		{ kDLFloat8_e4m3, 8, 1, { 0x38, 0x79 }, "float8_e4m3", "1 nan" },
		{ kDLFloat8_e4m3b11fnuz, 8, 1, { 0x58, 0x80 }, "float8_e4m3b11fnuz", "1 nan" },
		{ kDLFloat8_e5m2fnuz, 8, 1, { 0x40, 0x80 }, "float8_e5m2fnuz", "1 nan" },
		{ kDLOpaqueHandle,
		  64,
		  1,
		  { 0 },
		  "opaque64",
		  "(not shown for this type or device)" },
		{ kDLFloat8_e4m3fn, 8, 1, { 0x38, 0x7f }, "float8_e4m3fn", "1 nan" },
		{ kDLFloat8_e4m3fnuz, 8, 1, { 0x40, 0x80 }, "float8_e4m3fnuz", "1 nan" },
		{ kDLFloat8_e5m2, 8, 1, { 0x3c, 0xfc }, "float8_e5m2", "1 -inf" },
		{ kDLFloat8_e8m0fnu, 8, 1, { 0x7f, 0x80 }, "float8_e8m0fnu", "1 2" },
		{ kDLFloat6_e2m3fn,
		  6,
		  1,
		  { 0x08 | (0x1f << 6 & 0xff), 0x1f >> 2 },
		  "float6_e2m3fn",
		  "1 7.5" },
		{ kDLFloat6_e3m2fn,
		  6,
		  1,
		  { 0x0c | (0x1f << 6 & 0xff), 0x1f >> 2 },
		  "float6_e3m2fn",
		  "1 28" },
		{ kDLFloat4_e2m1fn, 4, 1, { 0x2 | 0xf << 4 }, "float4_e2m1fn", "1 -6" },
		{ kDLInt, 4, 1, { 0x7 | 0x8 << 4 }, "int4", "7 -8" },
		{ kDLUInt, 4, 1, { 0x7 | 0x8 << 4 }, "uint4", "7 8" },
		{ kDLBool, 8, 1, { 0, 1 }, "bool", "false true" },
		{ kDLInt, 8, 2, { 1, 0xff, 3, 0x80 }, "int8x2", "1 -1 3 -128" },
	};
	cleanup_td struct test_daemon d = td_start(0);
	tl_client *client = td_connect(&d);
	int64_t shape = 2;
	char line[128];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		tl_spec spec = { .size = sizeof(spec),
				 .shape = &shape,
				 .ndim = 1,
				 .timeout_ns = SECOND,
				 .dtype = { cases[i].code, cases[i].bits, cases[i].lanes } };
		uint64_t version;
		tl_draft *draft;

		must_be(tl_create(client, "t", &spec, &draft), 0);
		memcpy(tl_draft_tensor(draft)->data, cases[i].bytes,
		       (2U * cases[i].bits * cases[i].lanes + 7) / 8);
		must_be(tl_commit(draft, &version), 0);
		{
			cleanup_result struct result r = run(&d, "get", "t");

			must_exit(&r, 0);
			snprintf(line, sizeof(line), "dtype\t%s\n", cases[i].dtype);
			must_contain(r.out, line);
			snprintf(line, sizeof(line), "values\t%s\n", cases[i].values);
			must_contain(r.out, line);
		}
	}
	tl_close(client);
}

TEST(complex_values_are_pairs)
{
	static const float values[4] = { 1, -2, 3, 0.5F };
	cleanup_td struct test_daemon d = td_start(0);
	struct path file = in(&d, "complex.npy");

	write_npy(file.text, 1, "<c8", false, "(2,)", values, sizeof(values));
	{
		cleanup_result struct result put = run(&d, "put", "c", file.text);
		cleanup_result struct result text = run(&d, "get", "c");
		cleanup_result struct result json = run(&d, "get", "c", "--json");

		must_exit(&put, 0);
		must_contain(text.out, "values\t(1, -2) (3, 0.5)\n");
		must_contain(json.out, "\"mean\":[2,-0.75]");
		must_contain(json.out, "\"values\":[[1,-2],[3,0.5]]");
	}
}

TEST(ls_lists_names_with_that_prefix_in_order)
{
	cleanup_td struct test_daemon d = td_start(0);

	put_six(&d, "b/2");
	put_six(&d, "a");
	put_six(&d, "b/1");
	{
		cleanup_result struct result all = run(&d, "ls");
		cleanup_result struct result some = run(&d, "ls", "b/");
		cleanup_result struct result none = run(&d, "ls", "c");
		cleanup_result struct result json = run(&d, "ls", "--json");
		const char *a = strstr(all.out, "a\t1\tfloat32\t2x3\t24\t");
		const char *b1 = strstr(all.out, "\nb/1\t"), *b2 = strstr(all.out, "\nb/2\t");
		cJSON *object = json_of(&json);

		must_exit(&all, 0);
		must(a == all.out && b1 && b2 && b1 < b2);
		must_exit(&some, 0);
		must(!strncmp(some.out, "b/1\t", 4) && !strstr(some.out, "a\t1"));
		must_exit(&none, 0);
		assert_string_equal(none.out, "");
		must_be(cJSON_GetArraySize(cJSON_GetObjectItem(object, "tensors")), 3);
		cJSON_Delete(object);
	}
}

TEST(rm_forgets_several_and_goes_on_after_a_failure)
{
	cleanup_td struct test_daemon d = td_start(0);

	put_six(&d, "a");
	put_six(&d, "b");
	put_six(&d, "c");
	{
		cleanup_result struct result r = run(&d, "rm", "a", "missing", "b", "--json");
		cleanup_result struct result ls = run(&d, "ls");
		cJSON *json = json_of(&r);

		must_exit(&r, 3);
		must_be(cJSON_GetArraySize(cJSON_GetObjectItem(json, "deleted")), 2);
		must_be(cJSON_GetArraySize(cJSON_GetObjectItem(json, "errors")), 1);
		cJSON_Delete(json);
		must(!strncmp(ls.out, "c\t", 2) && !strstr(ls.out, "\na\t"));
	}
	{
		cleanup_result struct result r = run(&d, "rm", "c", "c/", "missing");

		must_exit(&r, 1); /* an invalid name is a failure, not "not found" */
		must_be(td_status(&d).tensors, 0);
	}
}

TEST(without_space_put_says_how_to_get_some)
{
	cleanup_td struct test_daemon d = td_start(.extra = (const char *const[]){ "--capacity",
										   "1M", NULL });
	struct path file = in(&d, "big.npy"), huge = in(&d, "huge.npy");
	static unsigned char big[2000000];

	write_npy(huge.text, 1, "|u1", false, "(2000000,)", big, sizeof(big));
	write_npy(file.text, 1, "|u1", false, "(700000,)", big, 700000);
	{
		cleanup_result struct result first = run(&d, "put", "a", file.text);
		cleanup_result struct result now = run(&d, "put", "b", file.text);
		cleanup_result struct result late = run(&d, "put", "b", file.text, "-t", "0.05");
		cleanup_result struct result load = run(&d, "load", "b", file.text, "-t", "0.05");
		cleanup_result struct result never = run(&d, "put", "b", huge.text);

		must_exit(&never, 1);
		must_contain(never.err, "never fit");
		must(!strstr(never.err, "tensorlease rm"));
		must_exit(&first, 0);
		must_exit(&now, 1);
		must_contain(now.err, "tensorlease status --clients");
		must(!strstr(now.err, " ms"));
		must_exit(&late, 4);
		must_contain(late.err, "no space came within 50 ms");
		must_exit(&load, 4);
	}
}

TEST(hints_name_what_would_do)
{
	cleanup_td struct test_daemon d = td_start(0);
	struct path npz = in(&d, "m.npz");

	put_six(&d, "m/a");
	{
		cleanup_result struct result save = run(&d, "save", "m", npz.text);
		cleanup_result struct result put = run(&d, "put", "x", npz.text);
		cleanup_result struct result below = run(&d, "save", "m/a", npz.text);
		cleanup_result struct result late = run(&d, "wait", "x", "-t", "0.01");

		must_exit(&save, 0);
		must_exit(&put, 1);
		must_contain(put.err, "`tensorlease load` takes it");
		must_exit(&below, 3);
		must_contain(below.err, "one of that very name: a .npy or .pb file takes it");
		must_exit(&late, 4);
		must_contain(late.err, "no tensor called 'x' came within 10 ms");
	}
}

TEST(wait_ends_when_a_newer_version_comes)
{
	cleanup_td struct test_daemon d = td_start(0);
	struct running waits;

	put_six(&d, "a");
	td_sync(&d);
	waits = start(&d, "wait", "a", "--newer-than", "1", "--timeout", "forever");
	eventually(td_status(&d).clients == 1);
	put_six(&d, "a");
	{
		cleanup_result struct result r = finish(&waits);

		must_exit(&r, 0);
		assert_string_equal(r.out, "a\t2\n");
	}
	{
		cleanup_result struct result r = run(&d, "wait", "a", "--newer-than", "2",
						     "--timeout", "0.05");

		must_exit(&r, 4);
	}
	{
		cleanup_result struct result r = run(&d, "wait", "a");

		must_exit(&r, 0);
	}
}

/* It may be deleted between the two calls that wait and look: that takes luck. */
TEST(wait_goes_on_when_what_came_is_deleted_at_once)
{
	enum { TRIALS = 30, ROUNDS = 200 };
	cleanup_td struct test_daemon d = td_start(0);
	tl_client *c = td_connect(&d);
	uint8_t byte = 0;
	int64_t shape[1] = { 1 };
	const DLTensor t = { .data = &byte,
			     .device = { kDLCPU, 0 },
			     .ndim = 1,
			     .dtype = { kDLUInt, 8, 1 },
			     .shape = shape };

	for (int trial = 0; trial < TRIALS; trial++) {
		struct running waits = start(&d, "wait", "a", "--timeout", "1000");

		eventually(td_status(&d).clients == 2);
		for (int i = 0; i < ROUNDS; i++) {
			must_be(tl_put(c, "a", &t, NULL, NULL), 0);
			must_be(tl_delete(c, "a"), 0);
		}
		must_be(tl_put(c, "a", &t, NULL, NULL), 0);
		{
			cleanup_result struct result r = finish(&waits);

			must_exit(&r, 0);
		}
		must_be(tl_delete(c, "a"), 0);
		eventually(td_status(&d).clients == 1);
	}
	must_be(tl_close(c), 0);
}

TEST(watch_tells_what_becomes_of_names)
{
	cleanup_td struct test_daemon d = td_start(0);
	struct running watches;
	tl_client *client;

	put_six(&d, "w/a");
	put_six(&d, "v");
	td_sync(&d);
	{
		cleanup_result struct result r = run(&d, "watch", "w/", "-t", "0");

		must_exit(&r, 0);
		must_contain(r.out, "published\tw/a\t1\t0\n");
		must_contain(r.out, "producer-gone\tw/a\t1\t0\n");
		must(!strstr(r.out, "v"));
	}
	watches = start(&d, "watch", "-j", "-t", "0.3");
	eventually(has_said(&watches, "\"name\":\"v\""));
	client = td_connect(&d);
	must_be(tl_delete(client, "w/a"), 0);
	tl_close(client);
	{
		cleanup_result struct result r = finish(&watches);

		must_exit(&r, 4);
		must_contain(r.out, "{\"event\":\"published\",\"name\":\"v\",\"version\":1,"
				    "\"skipped\":0,\"publisher\":{\"client\":");
		must_contain(r.err, "nothing happened to any name within 300 ms");
	}
	{
		cleanup_result struct result r = run(&d, "watch", "a", "b");

		must_exit(&r, 2);
	}
}

TEST(status_tells_who_holds_what)
{
	cleanup_td struct test_daemon d = td_start(0);
	DLManagedTensorVersioned *tensor;
	tl_client *client;

	put_six(&d, "cam0/rgb");
	client = td_connect(&d);
	must_be(tl_get(client, "cam0/rgb", NULL, &tensor), 0);
	put_six(&d, "cam0/rgb");
	{
		cleanup_result struct result text = run(&d, "status", "--clients");
		cleanup_result struct result r = run(&d, "status", "-cj");
		cJSON *json = json_of(&r), *clients = cJSON_GetObjectItem(json, "client_list"), *c;
		int found = 0;

		must_exit(&text, 0);
		must_contain(text.out, "\tcam0/rgb\t1\t24\t1\tretired\n");
		must_exit(&r, 0);
		must_be(cJSON_GetObjectItem(json, "tensors")->valueint, 1);
		must_be(cJSON_GetObjectItem(json, "retired")->valueint, 1);
		must_be(cJSON_GetObjectItem(json, "capacity")->valuedouble, 64 * MIB);
		must_be(cJSON_GetObjectItem(json, "daemon_pid")->valueint, d.pid);
		cJSON_ArrayForEach(c, clients)
		{
			const cJSON *h = cJSON_GetArrayItem(cJSON_GetObjectItem(c, "holdings"), 0);

			if (cJSON_GetObjectItem(c, "pid")->valueint != getpid())
				continue;
			found++;
			must_be(cJSON_GetObjectItem(c, "leases")->valueint, 1);
			must_be(cJSON_GetObjectItem(c, "bytes_held")->valueint, 24);
			must(h && !strcmp(cJSON_GetObjectItem(h, "name")->valuestring, "cam0/rgb"));
			must(cJSON_IsTrue(cJSON_GetObjectItem(h, "retired")));
		}
		must_be(found, 1);
		cJSON_Delete(json);
	}
	tensor->deleter(tensor);
	tl_close(client);
}

TEST(status_and_limits_tell_what_users_have)
{
	cleanup_td struct test_daemon d = td_start(.max_tensors = 160);
	char uid[16], row[64];

	put_six(&d, "mine");
	snprintf(uid, sizeof(uid), "%u", geteuid());
	{
		cleanup_result struct result text = run(&d, "status", "--users");
		cleanup_result struct result limits = run(&d, "limits");
		cleanup_result struct result named = run(&d, "limits", "--user", uid, "--json");
		cleanup_result struct result r = run(&d, "status", "--users", "--json");
		cleanup_result struct result wrong = run(&d, "limits", "--user", "no such user");
		cJSON *json = json_of(&r), *mine = json_of(&named), *user;

		must_exit(&text, 0);
		snprintf(row, sizeof(row), "%s\t", uid);
		must_contain(text.out, row);
		must_contain(text.out, "\t1/160\t1/");
		must_exit(&limits, 0);
		must_contain(limits.out, "tensors\t1\t160\t1\t160\n");
		must_contain(limits.out, "gpu-bytes\t0\tnone\t0\tnone\n");
		must_exit(&r, 0);
		user = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "users"), 0);
		must_be(cJSON_GetObjectItem(user, "uid")->valueint, geteuid());
		must_exit(&named, 0);
		user = cJSON_GetObjectItem(cJSON_GetObjectItem(mine, "shares"), "names");
		must_be(cJSON_GetObjectItem(user, "used")->valueint, 1);
		must_exit(&wrong, 2);
		cJSON_Delete(json);
		cJSON_Delete(mine);
	}
}

/* Fails if a character that reverses or breaks a line, or is invisible, was printed. */
static void must_hide_nothing(const struct result *r)
{
	static const char *const hidden[] = { "\u202e", "\u2066", "\u200b",	"\u2028",  "\u2029",
					      "\u00ad", "\ufeff", "\U000e0041", "\xc2\x9b" };

	for (size_t i = 0; i < sizeof(hidden) / sizeof(hidden[0]); i++) {
		if (strstr(r->out, hidden[i]) || strstr(r->err, hidden[i]))
			print_error("hidden character %zu in\n%s\n%s\n", i, r->out, r->err);
		must(!strstr(r->out, hidden[i]) && !strstr(r->err, hidden[i]));
	}
}

/* The publisher chooses a name, and others read it on their terminals. */
TEST(names_cannot_disguise_themselves)
{
	static const char name[] = "a\u202eb\u2066/\u200b\u00ad\ufeffc\u2028\u2029/\U000e0041";
	static const char shown[] = "a\\xe2\\x80\\xaeb\\xe2\\x81\\xa6/";
	static const char *const commands[][6] = {
		{ "ls" },
		{ "info", name },
		{ "get", name },
		{ "show", name },
		{ "wait", name },
		{ "wait", name, "--newer-than", "7", "--timeout", "0.01" },
		{ "status", "--clients" },
		{ "put", name, "FILE" },
		{ "load", name, "FILE" },
		{ "rm", name },
		{ "rm", name },
		{ "rm", "--below", name },
		{ "info", name },
		{ "get", name },
		{ "save", name, "/dev/null", "-f", "npz" },
	};
	cleanup_td struct test_daemon d = td_start(0);
	struct path file = in(&d, "six.npy");
	DLManagedTensorVersioned *held;
	tl_client *client = td_connect(&d);

	put_six(&d, name);
	must_be(tl_get(client, name, NULL, &held), 0);
	for (size_t i = 0; i < 2 * sizeof(commands) / sizeof(commands[0]); i++) {
		const char *args[9] = { i % 2 ? "--json" : "--socket",
					i % 2 ? "--json" : d.socket };
		const char *const *command = commands[i / 2];
		bool removes = !strcmp(command[0], "rm");

		for (int k = 0; k < 6 && command[k]; k++)
			args[2 + k] = !strcmp(command[k], "FILE") ? file.text : command[k];
		{
			cleanup_result struct result r = run_at(d.socket, args);

			must_hide_nothing(&r);
			if (i % 2) {
				cJSON_Delete(json_of(&r));
				/* The text of an error is escaped twice. */
				must(strstr(r.out, "a\\u202eb\\u2066/") ||
				     (r.code && strstr(r.out, "a\\\\xe2\\\\x80\\\\xaeb")));
			} else if (!removes || r.code) {
				must_contain(*r.err ? r.err : r.out, shown);
			}
		}
		if (i % 2 == 0 && removes && i / 2 == 9)
			put_six(&d, name); /* for the same command with --json */
	}
	held->deleter(held);
	tl_close(client);
}

/* Texts of errors are shown by all kinds of programs. */
TEST(errors_do_not_carry_what_others_hid_in_names)
{
	cleanup_td struct test_daemon d = td_start(0);
	tl_client *client = td_connect(&d);

	must_be(tl_delete(client, "a\u202eb"), -ENOENT); /* the daemon's text */
	must_contain(tl_last_error(), "a\\xe2\\x80\\xaeb");
	must_be(tl_delete(client, "\u00e4\u65e5"), -ENOENT); /* visible characters stay */
	must_contain(tl_last_error(), "\u00e4\u65e5");
	must_be(tl_delete(client, "a\n\u200b"), -EINVAL); /* the library's text */
	must_contain(tl_last_error(), "a\\x0a\\xe2\\x80\\x8b");
	tl_close(client);
}

TEST(help_tells_the_exit_codes)
{
	static const char *const commands[] = { "put", "get",  "load", "save",	 "show",
						"ls",  "info", "rm",   "status", "wait" };

	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		cleanup_result struct result r = run_at(
			NULL, (const char *const[]){ commands[i], "--help", NULL });

		must_exit(&r, 0);
		must_contain(r.out, "Exit codes:");
		must_contain(r.out, commands[i]);
		must_contain(r.out, "--json");
	}
	{
		cleanup_result struct result r = run_at(NULL,
							(const char *const[]){ "help", NULL });

		must_exit(&r, 0);
		must_contain(r.out, "4  timeout");
	}
}

int main(void)
{
	return suite_run();
}
