/* SPDX-License-Identifier: Apache-2.0 */
/* tensorlease doctor, on the machine as it is, and on fake GPUs that each lack something. */
#include "tests/cli/doctor.h"
#include "tests/harness/client.h"
#include "tests/harness/own_shm.h"

/* ---- Without a GPU ---- */

GPU_TEST(what_every_machine_has_is_tried)
{
	static const char *const good[] = { "memfd", "shm object", "own daemon", "exchange" };
	static const char *const there[] = { "kernel",	   "waiting get", "futex_waitv",
					     "membarrier", "limits",	  "/dev/shm",
					     "huge pages", "daemon",	  "device nodes",
					     "driver" };
	cleanup_td struct test_daemon d = td_start(0);

	gpu_setenv("FAKECUDA_DEVICES", "0");
	cleanup_visit struct visit v = doctor_at(d.socket);

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		must_say(&v, good[i], "ok", NULL);
	for (size_t i = 0; i < sizeof(there) / sizeof(there[0]); i++)
		must(probe(&v, there[i]));
	must_say(&v, "daemon", "ok", NULL);
	must_contain(member(probe(&v, "daemon"), "found"), d.socket);
	must_say(&v, "daemon's namespaces", "ok", NULL);
	must_be(td_status(&d).tensors, 0); /* the exchange used another daemon */
	must_be(td_status(&d).commits, 0);
}

GPU_TEST(a_namespace_of_the_environment_is_not_for_its_own_daemon)
{
	cleanup_td struct test_daemon d = td_start(0);

	gpu_setenv("FAKECUDA_DEVICES", "0");
	setenv("TENSORLEASE_NAMESPACE", "team", 1);
	{
		cleanup_visit struct visit v = doctor_at(d.socket);

		must_say(&v, "own daemon", "ok", NULL);
		must_say(&v, "exchange", "ok", NULL);
		must_say(&v, "daemon", "fail", "namespace");
	}
	unsetenv("TENSORLEASE_NAMESPACE");
}

GPU_TEST(a_namespace_that_is_not_there_needs_no_other_group)
{
	cleanup_td struct test_daemon d = td_start(0);

	gpu_setenv("FAKECUDA_DEVICES", "0");
	cleanup_visit struct visit v = doctor_with(
		d.socket, (const char *const[]){ "doctor", "--json", "--namespace", "nope", NULL });

	must_say(&v, "daemon", "fail", "--namespace");
	must(!strstr(v.result.out, "usermod"));
	must_have_failed(&v, 1);
}

/* As of a shell that ran something in the background and became the doctor. */
GPU_TEST(children_of_the_program_before_it_live_on)
{
	struct own_tmp tmp = own_tmp_begin();
	char command[512], line[4096] = "", path[64];
	pid_t child;
	FILE *f;

	gpu_setenv("FAKECUDA_DEVICES", "0");
	snprintf(command, sizeof(command),
		 "sleep 300 >/dev/null 2>&1 & echo $!; exec '%s' doctor 2>&1", cli_path());
	f = popen(command, "re");
	must(f);
	must(fgets(line, sizeof(line), f));
	child = (pid_t)atoi(line);
	must(child > 1);
	while (fgets(line, sizeof(line), f))
		;
	(void)pclose(f);
	snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)child);
	must(names(path, "sleep"));
	must_be(kill(child, SIGKILL), 0);
	own_tmp_end(&tmp);
}

GPU_TEST(a_daemon_that_was_asked_for_and_is_not_there_is_a_failure)
{
	gpu_setenv("FAKECUDA_DEVICES", "1");
	cleanup_visit struct visit v = doctor_at("/nonexistent/socket");

	must_say(&v, "daemon", "fail", "tensorleased --socket");
	must_say(&v, "exchange", "ok", NULL);
	must_have_failed(&v, 1);
}

/* ---- Only the daemon in use ---- */

static const char *const quick[] = { "doctor", "--json", "--quick", NULL };

GPU_TEST(quick_uses_the_daemon_in_use_and_leaves_nothing)
{
	cleanup_td struct test_daemon d = td_start(0);
	cleanup_visit struct visit v = doctor_with(d.socket, quick);

	must_be(cJSON_GetArraySize(cJSON_GetObjectItem(v.json, "probes")), 2);
	must_say(&v, "daemon", "ok", NULL);
	must_say(&v, "round trip", "ok", NULL);
	must_have_failed(&v, 0);
	must_be(td_status(&d).commits, 1);
	must_be(td_status(&d).tensors, 0);
}

/* The whole doctor only says that put would start one. */
GPU_TEST(quick_fails_without_a_daemon)
{
	SKIP_UNLESS(access("/run/tensorlease/socket", F_OK), "this machine has a daemon");
	cleanup_visit struct visit v = doctor_with(NULL, quick);

	must_say(&v, "daemon", "fail", "start it");
	must(!probe(&v, "round trip"));
	must_have_failed(&v, 1);
}

GPU_TEST(quick_fails_if_nothing_can_be_put_or_nobody_answers)
{
	enum { TENSORS = 64 };
	cleanup_td struct test_daemon d = td_start(.max_tensors = TENSORS);
	const int64_t n = 1;
	const DLTensor source = bytes_tensor("x", &n);
	tl_client *client = td_connect(&d);
	char name[16];

	for (int i = 0; i < TENSORS; i++) {
		snprintf(name, sizeof(name), "%d", i);
		must_be(tl_put(client, name, &source, NULL, NULL), 0);
	}
	{
		cleanup_visit struct visit v = doctor_with(d.socket, quick);

		must_say(&v, "daemon", "warn", "nearly full");
		must_say(&v, "round trip", "fail", "log");
		must_contain(member(probe(&v, "round trip"), "found"), "put: ");
		must_have_failed(&v, 1);
	}
	must_be(tl_close(client), 0);
	td_freeze(&d);
	{
		cleanup_visit struct visit v = doctor_with(d.socket, quick);

		must_contain(member(probe(&v, "daemon"), "found"), "did not answer");
		must_have_failed(&v, 1);
	}
	td_thaw(&d);
}

GPU_TEST(quick_is_not_for_cleaning)
{
	struct result r = run_at("/nonexistent/socket",
				 (const char *const[]){ "doctor", "--quick", "--clean", NULL });

	must_exit(&r, 2);
	must_contain(r.err, "exclude each other");
	result_deinit(&r);
}

/* ---- Its own daemon ---- */

GPU_TEST(without_tensorleased_it_says_so_and_goes_on)
{
	const char *before = getenv("TENSORLEASE_DAEMON");
	char *saved = before ? strdup(before) : NULL;

	setenv("TENSORLEASE_DAEMON", "/nonexistent/tensorleased", 1);
	{
		cleanup_visit struct visit v = doctor_at(NULL);

		must_say(&v, "own daemon", "fail", "$TENSORLEASE_DAEMON");
		must_say(&v, "exchange", "skipped", NULL);
		must_say(&v, "driver", "ok", NULL);
		must_be(v.result.code, 1);
	}
	unsetenv("TENSORLEASE_DAEMON");
	if (saved)
		setenv("TENSORLEASE_DAEMON", saved, 1);
	free(saved);
}

/*
 * A program that the library started may run on though it cannot be used as a daemon. Here it is
 * not a daemon at all. Its command line contains the doctor's socket, by which doctor_at() finds
 * it.
 */
GPU_TEST(a_daemon_that_cannot_be_used_is_ended)
{
	const char *before = getenv("TENSORLEASE_DAEMON");
	char *saved = before ? strdup(before) : NULL;
	cleanup_td struct test_daemon d = td_start(0); /* only for its directory */
	struct path program = in(&d, "program"), pid = in(&d, "pid");
	char script[512];

	snprintf(script, sizeof(script), "#!/bin/sh\ntail -F \"$2\" 2>/dev/null &\necho $! >%s\n",
		 pid.text);
	write_file(program.text, script, strlen(script));
	must_be(chmod(program.text, 0700), 0);
	setenv("TENSORLEASE_DAEMON", program.text, 1);
	{
		cleanup_visit struct visit v = doctor_at(d.socket);

		must_say(&v, "own daemon", "fail", "$TENSORLEASE_DAEMON");
		must_say(&v, "exchange", "skipped", NULL);
	}
	must_be(access(pid.text, F_OK) ? errno : 0, 0); /* it was started */
	unsetenv("TENSORLEASE_DAEMON");
	if (saved)
		setenv("TENSORLEASE_DAEMON", saved, 1);
	free(saved);
}

GPU_TEST(what_killed_daemons_left_is_told)
{
	SKIP_UNLESS(own_shm(), "may not have a /dev/shm of its own");
	cleanup_td struct test_daemon d = td_start(0);
	gpu_setenv("FAKECUDA_DEVICES", "0");
	{
		cleanup_visit struct visit v = doctor_at(d.socket);

		must(!probe(&v, "left behind")); /* that daemon is alive */
	}
	td_kill(&d);
	{
		cleanup_visit struct visit v = doctor_at(d.socket);

		must_say(&v, "left behind", "warn", "doctor --clean");
		must_contain(member(probe(&v, "left behind"), "found"), "with 1 catalog of");
	}
}

/* Mounts /dev/shm behind something whose options take more than 255 bytes. */
static bool shm_behind_long_options(void)
{
	char options[512], directory[256];
	int n = snprintf(options, sizeof(options), "lowerdir");

	if (!own_shm())
		return false;
	for (int c = 'a'; c <= 'b'; c++) {
		snprintf(directory, sizeof(directory), "/dev/shm/%0200d", c);
		must_be(mkdir(directory, 0755), 0);
		n += snprintf(options + n, sizeof(options) - (size_t)n, "%c%s",
			      c == 'a' ? '=' : ':', directory);
	}
	return !mount("tl-test", "/run", "overlay", MS_RDONLY, options) &&
	       !mount("tl-test", "/dev/shm", "tmpfs", 0, "mode=1777,size=64M");
}

GPU_TEST(a_dev_shm_is_found_behind_a_mount_with_long_options)
{
	SKIP_UNLESS(shm_behind_long_options(), "may not mount an overlay before a /dev/shm");
	gpu_setenv("FAKECUDA_DEVICES", "0");
	cleanup_visit struct visit v = doctor_at(NULL);

	must_contain(member(probe(&v, "/dev/shm"), "found"), "size=65536k");
}

GPU_TEST(a_dev_shm_without_a_limit_is_large)
{
	bool large = sysconf(_SC_PHYS_PAGES) >= (2L << 30) / sysconf(_SC_PAGESIZE);

	SKIP_UNLESS(large, "half of this machine's memory is less than 1 GiB");
	SKIP_UNLESS(own_shm_without_limit(), "may not have a /dev/shm of its own");
	gpu_setenv("FAKECUDA_DEVICES", "0");
	cleanup_visit struct visit v = doctor_at(NULL);

	must_say(&v, "/dev/shm", "ok", NULL);
	must_contain(member(probe(&v, "/dev/shm"), "found"), "no limit");
	must_say(&v, "exchange", "ok", NULL);
}

/* The doctor itself is one of the clients. */
GPU_TEST(a_daemon_for_few_clients_is_not_full_without_any)
{
	for (unsigned max = 1; max <= 4; max += 3) {
		cleanup_td struct test_daemon d = td_start(.max_clients = max, .max_tensors = 4);

		gpu_setenv("FAKECUDA_DEVICES", "0");
		cleanup_visit struct visit v = doctor_at(d.socket);

		must_say(&v, "daemon", "ok", NULL);
	}
}

GPU_TEST(a_daemon_that_is_nearly_full_is_told)
{
	cleanup_td struct test_daemon d = td_start(.max_clients = 3);
	struct raw a = rc_open(&d), b = rc_open(&d);

	gpu_setenv("FAKECUDA_DEVICES", "0");
	{
		cleanup_visit struct visit v = doctor_at(d.socket);

		must_say(&v, "daemon", "warn", "--max-clients");
	}
	rc_goodbye(&a);
	rc_goodbye(&b);
}

GPU_TEST(an_address_that_is_none_sends_nobody_to_the_log)
{
	gpu_setenv("FAKECUDA_DEVICES", "0");
	cleanup_visit struct visit v = doctor_at("http://x");

	must_say(&v, "daemon", "fail", "$TENSORLEASE_SOCKET");
}

/* Starts a copy of the daemon's program, and removes that, as an upgrade does. */
static struct test_daemon start_replaced(const struct test_daemon *place, const char *keeper)
{
	const char *before = getenv("TL_TEST_DAEMON"), *extra[] = { "--keeper", keeper, NULL };
	char *saved = before ? strdup(before) : NULL, command[512];
	struct path program = in(place, "tensorleased");
	struct test_daemon d;

	snprintf(command, sizeof(command), "cp '%s' '%s'", saved ? saved : "build/bin/tensorleased",
		 program.text);
	must_be(system(command), 0);
	setenv("TL_TEST_DAEMON", program.text, 1);
	d = td_start(.extra = extra);
	if (saved)
		setenv("TL_TEST_DAEMON", saved, 1);
	else
		unsetenv("TL_TEST_DAEMON");
	free(saved);
	must_be(unlink(program.text), 0);
	return d;
}

/* A restart may begin without the tensors, and a reload may not. */
GPU_TEST(a_replaced_program_is_to_be_reloaded_with_its_tensors)
{
	cleanup_td struct test_daemon place = td_start(0); /* only for its directory */
	cleanup_td struct test_daemon d = start_replaced(&place, "yes");

	gpu_setenv("FAKECUDA_DEVICES", "0");
	cleanup_visit struct visit v = doctor_at(d.socket);

	must_say(&v, "daemon's program", "warn", "kill -HUP");
	must(!strstr(member(probe(&v, "daemon's program"), "advice"), "restart"));
}

GPU_TEST(a_replaced_program_without_a_keeper_is_not_to_be_reloaded)
{
	cleanup_td struct test_daemon place = td_start(0);
	cleanup_td struct test_daemon d = start_replaced(&place, "no");

	gpu_setenv("FAKECUDA_DEVICES", "0");
	cleanup_visit struct visit v = doctor_at(d.socket);

	must_say(&v, "daemon's program", "warn", "no keeper");
	must(!strstr(member(probe(&v, "daemon's program"), "advice"), "kill"));
}

/* A daemon that was started and ended needs no installation. */
GPU_TEST(a_daemon_that_ended_at_its_start_needs_no_other_program)
{
	const char *before = getenv("TENSORLEASE_DAEMON");
	char *saved = before ? strdup(before) : NULL;

	setenv("TENSORLEASE_DAEMON", "/bin/false", 1);
	gpu_setenv("FAKECUDA_DEVICES", "0");
	{
		cleanup_visit struct visit v = doctor_at(NULL);

		must_say(&v, "own daemon", "fail", "/dev/shm");
		must(!strstr(member(probe(&v, "own daemon"), "advice"), "install"));
	}
	unsetenv("TENSORLEASE_DAEMON");
	if (saved)
		setenv("TENSORLEASE_DAEMON", saved, 1);
	free(saved);
}

/* ---- Without a driver ---- */

GPU_TEST(without_libcuda_the_rest_is_tried)
{
	const char *now = getenv("LD_LIBRARY_PATH"); /* gpu_init() has set it */
	char *path = strdup(now ? now : "");
	bool real = !access("/dev/nvidiactl", F_OK);

	unsetenv("LD_LIBRARY_PATH"); /* because the fake is in it */
	if (!real) {
		cleanup_visit struct visit v = doctor_at(NULL);

		must_say(&v, "driver", "skipped", "install its driver");
		must_contain(member(probe(&v, "driver"), "found"), "libcuda.so.1");
		must_say(&v, "exchange", "ok", NULL);
		must(!probe(&v, "gpu 0"));
		must_have_failed(&v, 0);
	}
	setenv("LD_LIBRARY_PATH", path, 1);
	free(path);
	SKIP_UNLESS(!real, "there is a driver on this machine");
}

static void interrupt_after(unsigned after)
{
	char dir[128];
	int status;
	pid_t pid;

	gpu_setenv("FAKECUDA_DELAY_US", "2000000"); /* so that the GPUs take long */
	snprintf(dir, sizeof(dir), "%s/visit-XXXXXX", short_tmp());
	must(mkdtemp(dir));
	pid = fork();
	if (!pid) {
		setenv("TMPDIR", dir, 1);
		signal(SIGINT, SIG_IGN);
		must(freopen("/dev/null", "w", stdout));
		execl(cli_path(), "tensorlease", "doctor", (char *)NULL);
		_exit(126);
	}
	/* 1: its daemon starts; 3: and both ends of an exchange. */
	eventually(command_lines(dir) >= after);
	must_be(kill(pid, SIGINT) | kill(pid, SIGHUP), 0);
	must(waitpid(pid, &status, 0) == pid);
	must_be(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 128 + SIGHUP);
	eventually(entries_of(dir) == 2);
	eventually(command_lines(dir) == 0);
	must_be(rmdir(dir) ? errno : 0, 0);
}

GPU_TEST(interrupted_it_leaves_nothing_behind)
{
	for (unsigned after = 1; after <= 3; after++)
		interrupt_after(after);
}

GPU_TEST(lines_have_five_columns)
{
	unsigned lines = 0;
	char *save = NULL;

	gpu_setenv("FAKECUDA_DEVICES", "0");
	cleanup_result struct result r = run_at(NULL, (const char *const[]){ "doctor", NULL });
	for (char *l = strtok_r(r.out, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
		unsigned tabs = 0;

		for (const char *p = l; *p; p++)
			tabs += *p == '\t';
		must_be(tabs, 4);
		must(!strncmp(l, "ok\t", 3) || !strncmp(l, "warn\t", 5) ||
		     !strncmp(l, "fail\t", 5) || !strncmp(l, "skipped\t", 8));
		lines++;
	}
	must(lines > 10);
}

/* ---- On fake GPUs ---- */

GPU_TEST(on_good_gpus_all_works)
{
	static const char *const good[] = { "driver",	   "gpu 0",	     "gpu 0 vmm",
					    "gpu 0 order", "gpu 0 survival", "gpu 0 legacy",
					    "gpu 1 vmm",   "gpu 1 legacy",   "peer access" };

	test_timeout(360);
	gpu_setenv("FAKECUDA_DELAY_US", "20000"); /* so that the order is tried */
	{
		cleanup_visit struct visit v = doctor_at(NULL);

		for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
			must_say(&v, good[i], "ok", NULL);
		must_contain(member(probe(&v, "gpu 0"), "found"),
			     "GPU-fa4ecda0-1020-4030-8050-607011223300");
		must_contain(member(probe(&v, "gpu 0 order"), "found"), "waited");
		must_have_failed(&v, 0);
	}
	must_be(gpu_violations(FAKE_FREED_WHILE_OPEN), 0);
	must_be(gpu_violations(FAKE_BAD_ACCESS), 0);
}

GPU_TEST(what_a_gpu_lacks_is_told_with_advice)
{
	static const struct {
		const char *variable, *value, *probe, *result, *advice, *works;
		int fails;
	} cases[] = {
		{ "FAKECUDA_NO_VMM", "1", "gpu 0 vmm", "fail", "tl_publish()", "gpu 0 legacy", 1 },
		{ "FAKECUDA_NO_LEGACY", "1", "gpu 0 legacy", "fail", "tl_create() on the GPU",
		  "gpu 0 survival", 1 },
		{ "FAKECUDA_FAIL", "cuIpcOpenMemHandle:1:201", "gpu 0 legacy", "fail", "--pid=host",
		  "gpu 0 vmm", 1 },
		{ "FAKECUDA_FAIL", "cuMemImportFromShareableHandle:1:800", "gpu 0 vmm", "fail",
		  "cudaMalloc", "gpu 0 legacy", 1 },
		{ "FAKECUDA_INTEGRATED", "1", "gpu 0 legacy", "warn", "tl_create() on the GPU",
		  "gpu 0 vmm", 0 },
	};

	gpu_setenv("FAKECUDA_DEVICES", "1");
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		setenv(cases[i].variable, cases[i].value, 1);
		{
			cleanup_visit struct visit v = doctor_at(NULL);

			must_say(&v, cases[i].probe, cases[i].result, cases[i].advice);
			must_say(&v, cases[i].works, "ok", NULL);
			must_say(&v, "exchange", "ok", NULL);
			must_have_failed(&v, cases[i].fails);
		}
		unsetenv(cases[i].variable);
	}
}

/* A driver without a device, or a stub, is a failure only if the machine shows a GPU. */
GPU_TEST(a_driver_that_cannot_be_used_is_told_with_advice)
{
	static const struct {
		const char *variable, *value, *found, *advice;
	} cases[] = {
		{ "CUDA_VISIBLE_DEVICES", "", "no device", "CUDA_VISIBLE_DEVICES" },
		{ "FAKECUDA_DEVICES", "0", "no device", "--gpus" },
		{ "FAKECUDA_INIT", "34", "stub", "stubs" },
		{ "FAKECUDA_VERSION", "10000", "too old", "driver" },
	};
	bool gpu = !access("/dev/nvidiactl", F_OK);

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		setenv(cases[i].variable, cases[i].value, 1);
		{
			cleanup_visit struct visit v = doctor_at(NULL);

			must_say(&v, "driver", gpu ? "fail" : "warn", cases[i].advice);
			must_contain(member(probe(&v, "driver"), "found"), cases[i].found);
			must(!probe(&v, "gpu 0"));
			must_have_failed(&v, gpu);
		}
		unsetenv(cases[i].variable);
	}
}

GPU_TEST(what_surrounds_a_gpu_is_told)
{
	gpu_setenv("FAKECUDA_MIG", "1");
	gpu_setenv("FAKECUDA_NO_PEER", "1");
	{
		cleanup_visit struct visit v = doctor_at(NULL);

		must_contain(member(probe(&v, "gpu 0"), "found"), "MIG-fa4d");
		must_say(&v, "peer access", "warn", "copy");
		must_have_failed(&v, 0);
	}
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
