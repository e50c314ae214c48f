/* SPDX-License-Identifier: Apache-2.0 */
/* Waits that are shorter than it takes to connect again, or to start a daemon. */
#include <limits.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <tensorlease/names.h>
#include <tensorlease/watch.h>

#include "tests/client/common.h"

enum { SHORT_NS = 20000 };

static int get_shortly(tl_client *client, int64_t ns)
{
	const tl_get_options o = { .size = sizeof(o), .timeout_ns = ns };
	DLManagedTensorVersioned *t;
	int r = tl_get(client, "a", &o, &t);

	if (!r)
		drop(t);
	return r;
}

struct shortly {
	tl_client *client;
	_Atomic pid_t tid;
	pthread_t thread;
	int r;
};

static void *gets(void *arg)
{
	struct shortly *s = arg;

	atomic_store(&s->tid, (pid_t)syscall(SYS_gettid));
	s->r = get_shortly(s->client, SHORT_NS);
	return NULL;
}

static void *waits(void *arg)
{
	const tl_wait_options o = { .size = sizeof(o), .timeout_ns = SHORT_NS };
	const tl_wait_item item = { .name = "a" };
	struct shortly *s = arg;
	size_t which;

	atomic_store(&s->tid, (pid_t)syscall(SYS_gettid));
	s->r = tl_wait_many(s->client, &item, 1, &o, &which);
	return NULL;
}

static void *claims(void *arg)
{
	const tl_claim_options o = { .size = sizeof(o), .timeout_ns = SHORT_NS };
	struct shortly *s = arg;

	atomic_store(&s->tid, (pid_t)syscall(SYS_gettid));
	s->r = tl_claim(s->client, "b", &o);
	return NULL;
}

/* A daemon that stands still takes longer to answer than any of these calls waits. */
TEST(short_waits_connect_to_the_next_daemon)
{
	static void *(*const run[])(void *) = { gets, waits, claims };
	enum { N = sizeof(run) / sizeof(*run) };
	struct test_daemon first = td_start();
	cleanup_td struct test_daemon second = { .pid = 0 };
	struct shortly s[N] = { 0 };
	tl_client *other;

	for (int i = 0; i < N; i++)
		s[i].client = td_connect(&first);
	td_kill(&first);
	must_be(get_shortly(s[0].client, SHORT_NS), -ENOTCONN);
	second = td_start(.socket = first.socket);
	must(td_alive(&second));
	other = td_connect(&second);
	put_bytes(other, "a", 1, 100);
	td_freeze(&second);
	for (int i = 0; i < N; i++) {
		must_be(pthread_create(&s[i].thread, NULL, run[i], &s[i]), 0);
		until_it_sleeps(&s[i].tid);
	}
	td_thaw(&second);
	for (int i = 0; i < N; i++) {
		must_be(pthread_join(s[i].thread, NULL), 0);
		must_be(s[i].r, 0);
		tl_close(s[i].client);
	}
	tl_close(other);
}

/* Says how many programs were started that call themselves the daemon, and never listen. */
static unsigned lines_of(const char *path, int *pid)
{
	FILE *f = fopen(path, "re");
	unsigned lines = 0;

	while (f && fscanf(f, "%d", pid) == 1)
		lines++;
	if (f)
		fclose(f);
	return lines;
}

TEST(short_waits_start_one_daemon)
{
	struct test_daemon d = td_start(.no_keeper = "it is to stay dead");
	cleanup_td struct test_daemon cleaner = { .pid = 0 };
	tl_connect_options o = { .size = sizeof(o),
				 .address = d.socket,
				 .timeout_ns = WAIT_S * SECOND,
				 .flags = TL_CONNECT_AUTOSTART };
	char program[PATH_MAX], pids[PATH_MAX];
	tl_client *client;
	FILE *f;
	int pid = 0;

	must_be(tl_connect(&o, &client), 0);
	snprintf(program, sizeof(program), "%s/program", d.dir);
	snprintf(pids, sizeof(pids), "%s/pids", d.dir);
	f = fopen(program, "we");
	must(f);
	fprintf(f, "#!/bin/sh\necho $$ >>%s\nexec sleep 3600\n", pids);
	must_be(fclose(f), 0);
	must_be(chmod(program, 0700), 0);
	setenv("TENSORLEASE_DAEMON", program, 1);
	td_kill(&d);
	eventually(get_shortly(client, 2 * MS) == -ETIMEDOUT && lines_of(pids, &pid));
	for (int i = 0; i < 5; i++)
		must_be(get_shortly(client, 2 * MS), -ETIMEDOUT);
	must_be(lines_of(pids, &pid), 1);
	setenv("TENSORLEASE_DAEMON", "/nonexistent", 1);
	must_be(kill(pid, SIGKILL), 0);
	eventually(get_shortly(client, 2 * MS) == -ENOTCONN);
	must(strstr(tl_last_error(), "killed by signal 9"));
	must_be(waitpid(-1, NULL, WNOHANG), -1);
	must_be(errno, ECHILD);
	unsetenv("TENSORLEASE_DAEMON");
	tl_close(client);
	cleaner = td_start(.socket = d.socket);
	must(td_alive(&cleaner));
	unlink(program);
	unlink(pids);
}

int main(void)
{
	return suite_run();
}
