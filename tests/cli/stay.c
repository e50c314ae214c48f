/* SPDX-License-Identifier: Apache-2.0 */
/* How put --owner-bound and watch end, and what they do when the daemon does. */
#include <poll.h>
#include <sys/types.h>

#include "tests/cli/files.h"
#include "tests/harness/process.h"

static struct running start_staying(const struct test_daemon *d)
{
	const struct path f = npy_file(d);
	struct running putting = start(d, "put", "a", f.text, "--owner-bound", "--json");

	eventually(has_said(&putting, "\n")); /* it is written once put stays */
	return putting;
}

/* The last object that it printed. */
static void must_fail_saying(const struct running *putting, const char *text)
{
	cleanup_result struct result r = finish(putting);
	const char *newline = strchr(r.out, '\n');
	cJSON *json;

	must_exit(&r, 1);
	must_contain(r.err, text);
	json = newline ? cJSON_Parse(newline + 1) : NULL;
	must(json);
	must_contain(cJSON_GetObjectItem(json, "error")->valuestring, text);
	must_be(cJSON_GetObjectItem(json, "code")->valueint, 1);
	cJSON_Delete(json);
}

TEST(put_fails_when_another_daemon_has_begun_without_its_name)
{
	cleanup_td struct test_daemon first = td_start(.no_keeper = "it would keep the name");
	struct running putting = start_staying(&first);

	process_stop(putting.pid); /* it must not look while there is none */
	td_kill(&first);
	{
		cleanup_td struct test_daemon second = td_start(.socket = first.socket);

		must(td_alive(&second));
		must_be(kill(putting.pid, SIGCONT), 0);
		must_fail_saying(&putting, "'a' is lost: the daemon was restarted without it");
	}
}

static uint64_t waits_on(const struct test_daemon *d)
{
	tl_client *client = td_connect(d);
	uint64_t used = share_used(client, TL_SHARE_WAITS);

	tl_close(client);
	return used;
}

/* Then it has published the name on the other daemon. */
TEST(another_daemon_before_it_has_space_is_stayed_with)
{
	static const char *const commands[] = { "put", "load" };

	for (unsigned i = 0; i < 2; i++) {
		cleanup_td struct test_daemon first = td_start(.capacity = 1 << 20,
							       .no_keeper = "it would keep names");
		const struct path f = in(&first, "big.npy");
		static unsigned char big[700000];
		struct running running;

		write_npy(f.text, 1, "|u1", false, "(700000,)", big, sizeof(big));
		{
			cleanup_result struct result r = run(&first, "put", "full", f.text);

			must_exit(&r, 0);
		}
		running = start(&first, commands[i], "a", f.text, "--owner-bound", "-t", "forever");
		eventually(waits_on(&first) == 1); /* for space */
		process_stop(running.pid);	   /* it must not look while there is none */
		td_kill(&first);
		{
			cleanup_td struct test_daemon second = td_start(.socket = first.socket);
			cleanup_result struct result rm = { 0 }, r = { 0 };

			must(td_alive(&second));
			must_be(kill(running.pid, SIGCONT), 0);
			eventually(has_said(&running, "\n"));
			rm = run(&second, "rm", "a");
			must_exit(&rm, 0);
			r = finish(&running);
			must_exit(&r, 0);
		}
	}
}

TEST(put_stays_when_the_daemon_is_replaced_with_its_names)
{
	static const char *const with_keeper[] = { "--keeper", "yes", NULL };
	cleanup_td struct test_daemon d = td_start(.extra = with_keeper, .expect_ready = true);
	tl_client *client = td_connect(&d);
	struct running putting = start_staying(&d);
	cleanup_result struct result restart = run(&d, "restart"), r = { 0 };

	must_exit(&restart, 0);
	must(client_sees(client, "a"));
	must_be(tl_delete(client, "a"), 0);
	r = finish(&putting);
	must_exit(&r, 0);
	tl_close(client);
}

TEST(put_fails_when_another_client_publishes_the_name)
{
	cleanup_td struct test_daemon d = td_start();
	struct running putting = start_staying(&d);
	const struct path f = npy_file(&d);
	cleanup_result struct result r = run(&d, "put", "a", f.text);

	must_exit(&r, 0);
	must_fail_saying(&putting, "'a' has version 2 now: another client has published it");
}

/* ---- Before it could say that it stays ---- */

/* A pipe that nobody reads yet, and that has space for nothing. */
struct full_pipe {
	int read, write;
};

static struct full_pipe full_pipe(void)
{
	char page[4096] = "";
	int ends[2];

	must_be(pipe2(ends, O_CLOEXEC), 0);
	must_be(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
	while (write(ends[1], page, sizeof(page)) > 0)
		;
	must_be(errno, EAGAIN);
	must_be(fcntl(ends[1], F_SETFL, 0), 0);
	return (struct full_pipe){ ends[0], ends[1] };
}

/* Starts a command that has published "a" and waits until somebody reads what it prints. */
static struct running start_blocked(const struct test_daemon *d, const char *command,
				    const struct full_pipe *p)
{
	const struct path f = npy_file(d);
	struct running r = start_printing_to(
		p->write, d->socket,
		(const char *const[]){ command, "a", f.text, "--owner-bound", NULL });
	tl_client *client = td_connect(d);

	eventually(client_sees(client, "a"));
	tl_close(client);
	return r;
}

/* Reads until it has ended. */
static void must_fail_once_read(const struct running *running, struct full_pipe *p,
				const char *text)
{
	cleanup_result struct result r = { 0 };
	char page[4096];

	close(p->write);
	while (read(p->read, page, sizeof(page)) > 0)
		;
	close(p->read);
	r = finish(running);
	must_exit(&r, 1);
	must_contain(r.err, text);
}

TEST(what_happens_before_its_output_is_read_is_not_missed)
{
	static const char *const commands[] = { "put", "load" };
	cleanup_td struct test_daemon d = td_start();
	const struct path f = npy_file(&d);

	for (unsigned i = 0; i < 2; i++) {
		struct full_pipe p = full_pipe();
		struct running running = start_blocked(&d, commands[i], &p);
		cleanup_result struct result r = run(&d, "put", "a", f.text), rm = { 0 };

		must_exit(&r, 0);
		must_fail_once_read(&running, &p, "another client has published it");
		rm = run(&d, "rm", "a");
		must_exit(&rm, 0);
	}
}

TEST(another_daemon_before_its_output_is_read_is_not_missed)
{
	static const char *const commands[] = { "put", "load" };

	for (unsigned i = 0; i < 2; i++) {
		cleanup_td struct test_daemon first = td_start(
				.no_keeper = "it would keep the name");
		struct full_pipe p = full_pipe();
		struct running running = start_blocked(&first, commands[i], &p);

		process_stop(running.pid); /* it must not look while there is none */
		td_kill(&first);
		{
			cleanup_td struct test_daemon second = td_start(.socket = first.socket);

			must(td_alive(&second));
			must_be(kill(running.pid, SIGCONT), 0);
			must_fail_once_read(&running, &p, "the daemon was restarted without it");
		}
	}
}

TEST(put_goes_on_ignoring_signals_that_its_parent_ignores)
{
	cleanup_td struct test_daemon d = td_start();
	const struct path f = npy_file(&d);
	cleanup_result struct result r = { 0 };
	struct running putting;

	signal(SIGHUP, SIG_IGN); /* as nohup does */
	signal(SIGINT, SIG_IGN); /* as a shell does for jobs in the background */
	putting = start_staying(&d);
	signal(SIGHUP, SIG_DFL);
	signal(SIGINT, SIG_DFL);
	must_be(kill(putting.pid, SIGHUP) | kill(putting.pid, SIGINT), 0);
	r = run(&d, "put", "a", f.text);
	must_exit(&r, 0);
	must_fail_saying(&putting, "another client"); /* it was there to see that */
}

/* ---- Commands that started their daemon ---- */

struct own {
	char *runtime, *program; /* what the environment said before */
	struct path script, starts;
};

static char *swap_variable(const char *name, const char *value)
{
	const char *now = getenv(name);
	char *before = now ? strdup(now) : NULL;

	if (value)
		setenv(name, value, 1);
	else
		unsetenv(name);
	return before;
}

/* From now on commands without an address start a daemon in @d's directory, by a script that takes
 * note of each start. */
static struct own own_begin(const struct test_daemon *d)
{
	const struct path runtime = in(d, "xdg");
	struct own own = { .script = in(d, "script"), .starts = in(d, "starts") };
	const char *daemon = getenv("TL_TEST_DAEMON");
	char text[512], *real = realpath(daemon ? daemon : "build/bin/tensorleased", NULL);

	must(real);
	snprintf(text, sizeof(text), "#!/bin/sh\necho >>'%s'\nexec '%s' \"$@\"\n", own.starts.text,
		 real);
	free(real);
	write_file(own.script.text, text, strlen(text));
	must_be(chmod(own.script.text, 0700), 0);
	must_be(mkdir(runtime.text, 0700), 0);
	free(swap_variable("TENSORLEASE_SOCKET", NULL));
	own.runtime = swap_variable("XDG_RUNTIME_DIR", runtime.text);
	own.program = swap_variable("TENSORLEASE_DAEMON", own.script.text);
	return own;
}

static void own_end(struct own *own)
{
	free(swap_variable("XDG_RUNTIME_DIR", own->runtime));
	free(swap_variable("TENSORLEASE_DAEMON", own->program));
	free(own->runtime);
	free(own->program);
}

static off_t starts_of(const struct own *own)
{
	struct stat st;

	return stat(own->starts.text, &st) ? 0 : st.st_size;
}

static bool own_answers(void)
{
	cleanup_result struct result r = run_at(NULL, (const char *const[]){ "status", NULL });

	return r.code == 0;
}

/* Its keeper, or the process that started it. */
static pid_t parent_of(pid_t pid)
{
	char path[64];
	int parent = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	f = fopen(path, "re");
	must(f);
	must_be(fscanf(f, "%*d (%*[^)]) %*c %d", &parent), 1);
	fclose(f);
	return parent;
}

/* Waits for its keeper too, since that holds the lock with which the next one begins. */
static void end_own_daemon(void)
{
	cleanup_result struct result r = run_at(NULL,
						(const char *const[]){ "status", "--json", NULL });
	cJSON *json = json_of(&r);
	struct pollfd keeper = { .events = POLLIN };
	pid_t pid;

	must_exit(&r, 0);
	pid = cJSON_GetObjectItem(json, "daemon_pid")->valueint;
	keeper.fd = process_pidfd(parent_of(pid));
	end_daemon(pid);
	must_be(poll(&keeper, 1, WAIT_MS), 1);
	close(keeper.fd);
	cJSON_Delete(json);
}

TEST(put_starts_no_daemon_again_that_was_stopped)
{
	SKIP_UNLESS(access("/run/tensorlease/socket", F_OK), "a system daemon runs here");
	cleanup_td struct test_daemon d = td_start(); /* only for its directory */
	const struct path f = npy_file(&d);
	struct own own = own_begin(&d);
	struct running putting = start_at(
		NULL, (const char *const[]){ "put", "a", f.text, "--owner-bound", NULL });
	cleanup_result struct result r = { 0 };

	eventually(has_said(&putting, "\n"));
	end_own_daemon();
	r = finish(&putting);
	must_exit(&r, 1);
	must_contain(r.err, "the connection to the daemon ended");
	must_be(starts_of(&own), 1);
	own_end(&own);
}

static void own_put(const char *name, const struct path *file)
{
	cleanup_result struct result r = run_at(
		NULL, (const char *const[]){ "put", name, file->text, NULL });

	must_exit(&r, 0);
}

TEST(watch_goes_on_with_the_next_daemon_and_starts_none)
{
	SKIP_UNLESS(access("/run/tensorlease/socket", F_OK), "a system daemon runs here");
	cleanup_td struct test_daemon d = td_start(); /* only for its directory */
	const struct path f = npy_file(&d);
	struct own own = own_begin(&d);
	const char *daemon = getenv("TL_TEST_DAEMON");
	struct running watching = start_at(NULL, (const char *const[]){ "watch", NULL });
	cleanup_result struct result r = { 0 };

	eventually(own_answers());
	own_put("a", &f);
	eventually(has_said(&watching, "published\ta\t"));
	end_own_daemon();
	setenv("TENSORLEASE_DAEMON", daemon ? daemon : "build/bin/tensorleased", 1);
	own_put("b", &f);
	eventually(has_said(&watching, "published\tb\t"));
	must_be(starts_of(&own), 1);
	end_own_daemon();
	kill(watching.pid, SIGTERM);
	r = finish(&watching);
	must_be(r.code, 256 + SIGTERM);
	must_contain(r.out, "restarted\t");
	own_end(&own);
}

int main(void)
{
	return suite_run();
}
