/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library while its daemon stops, is killed, comes back, does not answer, or is not there yet.
 */
#include <fcntl.h>
#include <limits.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "client/connection/process.h"
#include "tests/client/common.h"
#include "tests/harness/own_shm.h"
#include "tests/harness/process.h"
#include "util/address.h"

TEST(a_client_connects_again)
{
	struct test_daemon first = td_start();
	cleanup_td struct test_daemon second = { .pid = 0 };
	tl_client *client = td_connect(&first);
	static const int64_t shape = 4;
	unsigned char data[4] = { 0 };
	DLTensor source = bytes_tensor(data, &shape);
	DLManagedTensorVersioned *t, *u;
	tl_info info = { .size = sizeof(info) };

	put_bytes(client, "a", 1, 100000);
	t = get(client, "a");
	td_stop(&first);
	must(all_bytes(t, 1, 100000));
	must_be(tl_get(client, "a", NULL, &u), -ENOTCONN);
	must_be(tl_stat(client, "a", &info), -ENOTCONN);
	must_be(tl_delete(client, "a"), -ENOTCONN);
	must(strstr(tl_last_error(), first.socket));
	must_be(tl_put(client, "a", &source, NULL, NULL), -ENOTCONN);
	must_be(tl_put(client, "/a", &source, NULL, NULL), -EINVAL); /* a daemon would not help */
	must(strstr(tl_last_error(), "'/a' is not a name"));

	second = td_start(.socket = first.socket);
	must(td_alive(&second));
	must_be(tl_get(client, "a", NULL, &u), -ENOENT); /* a stopped daemon leaves nothing */
	must(put_bytes(client, "a", 2, 100) > 1);
	u = get(client, "a");
	must(all_bytes(t, 1, 100000) && all_bytes(u, 2, 100));
	drop(t);
	drop(u);
	tl_close(client);
	must_be(td_status(&second).clients, 0);
}

TEST(held_and_mapped_tensors_survive_a_kill)
{
	struct test_daemon first = td_start();
	cleanup_td struct test_daemon second = { .pid = 0 };
	tl_client *client = td_connect(&first);
	DLManagedTensorVersioned *t, *u;
	tl_draft *draft;
	int64_t n = 10;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };

	put_bytes(client, "a", 1, 3 * MIB);
	put_bytes(client, "b", 2, 100);
	t = get(client, "a");
	drop(get(client, "b"));
	must_be(tl_create(client, "d", &spec, &draft), 0);
	td_kill(&first);
	must(all_bytes(t, 1, 3 * MIB));
	u = get(client, "b"); /* it is mapped, so no request is needed */
	must(all_bytes(u, 2, 100));
	drop(u);
	must_be(tl_get(client, "b", &TL_INIT(tl_get_options, .mode = TL_MODE_COPY_ON_WRITE), &u),
		0);
	must_be(u->flags, 0); /* a copy, but not on another device */
	drop(u);
	must_be(tl_remap(t, TL_MODE_COPY_ON_WRITE, &u), 0);
	must_be(u->flags, DLPACK_FLAG_BITMASK_IS_COPIED);
	must(all_bytes(u, 1, 3 * MIB));
	drop(u);
	must_be(tl_put(client, "c", &(DLTensor){ .data = &n, .device = { kDLCPU, 0 }, .dtype = U8 },
		       NULL, NULL),
		-ENOTCONN);
	must_be(tl_commit(draft, NULL), -ESTALE);

	second = td_start(.socket = first.socket);
	must(td_alive(&second));
	put_bytes(client, "c", 3, 100);
	u = get(client, "c");
	must(all_bytes(u, 3, 100) && all_bytes(t, 1, 3 * MIB));
	drop(u);
	drop(t);
	tl_close(client);
}

static void *drop_elsewhere(void *arg)
{
	drop(arg);
	return NULL;
}

/* None of them waits for another, and the present one for none. */
TEST(each_former_session_ends_with_its_last_tensor)
{
	enum { FORMER = 5 };
	static const int order[FORMER] = { 2, 0, 4, 1, 3 };
	struct test_daemon first = td_start();
	cleanup_td struct test_daemon d = { .pid = 0 };
	tl_client *client = td_connect(&first);
	DLManagedTensorVersioned *held[FORMER];
	unsigned mappings, now;
	uint64_t last, version;
	pthread_t thread;

	last = put_bytes(client, "a", 0, 100);
	held[0] = get(client, "a");
	td_stop(&first);
	for (int i = 1; i <= FORMER; i++) {
		d = td_start(.socket = first.socket);
		must(td_alive(&d));
		version = put_bytes(client, "a", i, 100);
		must(version > last);
		last = version;
		if (i == FORMER)
			break;
		held[i] = get(client, "a");
		td_stop(&d);
	}
	for (int i = 0; i < 1000; i++)
		drop(get(client, "a"));
	mappings = mapped_objects();
	for (int i = 0; i < FORMER; i++) {
		must(all_bytes(held[order[i]], order[i], 100));
		must_be(pthread_create(&thread, NULL, drop_elsewhere, held[order[i]]), 0);
		pthread_join(thread, NULL);
		now = mapped_objects();
		must(now < mappings); /* its catalog, and what it lay in */
		mappings = now;
		drop(get(client, "a"));
	}
	tl_close(client);
	must(mapped_objects() < mappings);
}

TEST(a_waiter_survives_a_restart)
{
	struct test_daemon first = td_start();
	cleanup_td struct test_daemon second = { .pid = 0 };
	tl_client *client = td_connect(&first), *producer;
	struct asleep a = { .client = client };
	pthread_t thread;
	void *got;

	must_be(pthread_create(&thread, NULL, wait_for_later, &a), 0);
	until_it_sleeps(&a.tid);
	td_kill(&first);
	second = td_start(.socket = first.socket);
	must(td_alive(&second));
	producer = td_connect(&second);
	put_bytes(producer, "later", 7, 100);
	pthread_join(thread, &got);
	must(got && all_bytes(got, 7, 100));
	drop(got);
	tl_close(client);
	tl_close(producer);
}

static int waits_for_later(const struct test_daemon *d, void *arg)
{
	const tl_get_options forever = { .size = sizeof(forever), .timeout_ns = -1 };
	tl_client *client = td_connect(d);
	DLManagedTensorVersioned *t;

	(void)arg;
	parent_tell(1);
	must_be(tl_get(client, "later", &forever, &t), 0);
	drop(t);
	tl_close(client);
	return 0;
}

/* Returns how often the process has gone to sleep. */
static unsigned long long sleeps_of(pid_t pid)
{
	return process_status(pid, "voluntary_ctxt_switches", 10);
}

/* systemd binds a socket as root, and then gives it to the user and group that it is for. */
TEST(a_waiter_survives_a_socket_that_is_not_for_it_yet)
{
	enum { BOB = 2222, TRIES = 10 }; /* root could use any socket */
	cleanup_td struct test_daemon second = { .pid = 0 };
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct test_daemon first = td_start(.for_others = true);
	struct test_child c = child_start_as(geteuid() ? 0 : BOB, &first, waits_for_later, NULL);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	tl_client *producer;
	mode_t mask;
	unsigned long long sleeps;

	must_be(child_await(&c), 1);
	td_stop(&first);
	unlink(first.socket);
	memcpy(a.sun_path, first.socket, strlen(first.socket) + 1);
	mask = umask(0777);
	must_be(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	umask(mask);
	must_be(listen(fd, 64), 0);
	sleeps = sleeps_of(c.pid);
	eventually(sleeps_of(c.pid) >= sleeps + TRIES);
	must_be(unlink(first.socket), 0);
	close(fd);
	second = td_start(.socket = first.socket, .for_others = true);
	must(td_alive(&second));
	producer = td_connect(&second);
	put_bytes(producer, "later", 7, 100);
	child_must_succeed(&c);
	tl_close(producer);
}

TEST(a_waiters_time_ends_without_a_daemon_too)
{
	struct test_daemon d = td_start();
	cleanup_td struct test_daemon cleaner = { .pid = 0 };
	tl_client *client = td_connect(&d);
	tl_get_options o = { .size = sizeof(o), .timeout_ns = 1500 * MS };
	DLManagedTensorVersioned *t;
	int64_t start = now_ns();

	td_kill(&d);
	must_be(tl_get(client, "later", &o, &t), -ENOTCONN);
	must(now_ns() - start > 1000 * MS); /* it may give up a little early */
	tl_close(client);
	cleaner = td_start(.socket = d.socket); /* removes what the killed one left */
	must(td_alive(&cleaner));
}

TEST(a_daemon_that_does_not_answer_times_out)
{
	cleanup_td struct test_daemon d = td_start();
	tl_connect_options o = { .size = sizeof(o), .address = d.socket, .timeout_ns = 200 * MS };
	tl_client *client, *unserved, *other = td_connect(&d);
	DLManagedTensorVersioned *t;
	int64_t start;
	int r;

	put_bytes(other, "a", 1, 10);
	/* On a busy machine the daemon may miss such a short time by itself. */
	eventually(tl_connect(&o, &client) == 0);
	eventually(tl_get(client, "a", NULL, &t) == 0);
	drop(t);
	td_freeze(&d);
	start = now_ns();
	must_be(tl_delete(client, "a"), -ETIMEDOUT);
	must(now_ns() - start >= 200 * MS);
	must_be(tl_connect(&o, &unserved), -ETIMEDOUT);
	drop(get(client, "a")); /* this needs no daemon */
	td_thaw(&d);
	td_sync(&d);
	eventually((r = tl_delete(client, "a")) != -ETIMEDOUT);
	must_be(r, -ENOENT); /* the answer that came late was not taken for this one */
	tl_close(other);
	tl_close(client);
}

TEST(a_parent_pins_for_a_child_that_gets_no_answer)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	DLManagedTensorVersioned *t;
	int status, go[2];
	pid_t pid;

	put_bytes(client, "a", 1, 100000);
	t = get(client, "a");
	must_be(pipe2(go, O_CLOEXEC), 0);
	td_freeze(&d);
	fork_timeout_ns = 50 * MS;
	pid = fork();
	must(pid >= 0);
	if (pid == 0) {
		char byte;

		close(go[1]);
		(void)!read(go[0], &byte, 1);
		status = all_bytes(t, 1, 100000) ? 0 : 1;
		drop(t);
		_exit(status);
	}
	fork_timeout_ns = WAIT_S * SECOND;
	td_thaw(&d);
	drop(t);
	for (int i = 0; i < 50; i++)
		put_bytes(client, "a", 2, 100000);
	must_be(td_status(&d).retired, 1); /* the parent keeps it for the child */
	close(go[0]);
	close(go[1]);
	must_be(waitpid(pid, &status, 0), pid);
	must_be(status, 0);
	tl_close(client);
	must_be(td_status(&d).retired, 0);
}

TEST(an_address_without_a_daemon_is_named)
{
	tl_connect_options o = { .size = sizeof(o), .address = "/nonexistent/socket" };
	char longer[200];
	tl_client *client;

	must_be(tl_connect(&o, &client), -ENOENT);
	must(strstr(tl_last_error(), "/nonexistent/socket"));
	memset(longer, 'x', sizeof(longer));
	longer[199] = '\0';
	o.address = longer;
	must_be(tl_connect(&o, &client), -EINVAL);
	o.address = "";
	must_be(tl_connect(&o, &client), -EINVAL);
	o.address = NULL;
	o.flags = 128;
	must_be(tl_connect(&o, &client), -EINVAL);
}

/* ---- Relative addresses, in children since they change the directory ---- */

static int leaves_the_directory(const struct test_daemon *d, void *arg)
{
	tl_connect_options o = { .size = sizeof(o), .address = "run/socket" };
	tl_client *client;

	(void)arg;
	must_be(chdir(d->dir), 0);
	must_be(tl_connect(&o, &client), 0);
	must_be(chdir("/"), 0);
	must(!strcmp(client_status(client).address, d->socket));
	pause_at(1); /* meanwhile its daemon is replaced */
	put_bytes(client, "a", 1, 1000);
	tl_close(client);
	return 0;
}

TEST(a_relative_address_means_the_same_socket_in_another_directory)
{
	struct test_daemon d = td_start(.no_keeper = "the next daemon begins anew");
	struct test_child c = child_start_ready(&d, leaves_the_directory, NULL);
	struct test_daemon next;

	td_kill(&d);
	next = td_start(.socket = d.socket);
	child_finish(&c);
	td_stop(&next);
	td_stop(&d);
}

/* The absolute path would not fit into a socket's address. */
static int connects_from_far_below(const struct test_daemon *d, void *arg)
{
	tl_connect_options o = { .size = sizeof(o), .address = "../run/socket" };
	tl_client *client;

	(void)d;
	must_be(chdir(arg), 0);
	must_be(tl_connect(&o, &client), 0);
	must(!strcmp(client_status(client).address, "../run/socket"));
	put_bytes(client, "a", 1, 1000);
	tl_close(client);
	return 0;
}

TEST(a_relative_address_in_a_deep_directory_stays_relative)
{
	cleanup_td struct test_daemon d = td_start();
	char deep[sizeof(d.dir) + 128];

	snprintf(deep, sizeof(deep), "%s/%0100d", d.dir, 0);
	must_be(mkdir(deep, 0700), 0);
	must_be(td_run_client(&d, connects_from_far_below, deep), 0);
	must_be(rmdir(deep), 0);
}

/* ---- Autostart, in children since it depends on the environment ---- */

static int autostarter(const struct test_daemon *d, void *arg)
{
	tl_connect_options o = { .size = sizeof(o), .flags = TL_CONNECT_AUTOSTART };
	tl_client *client = NULL;

	(void)d;
	(void)arg;
	parent_await();
	must_be(tl_connect(&o, &client), 0);
	put_bytes(client, "auto", 1, 1000);
	pause_at((uint64_t)daemon_of(client));
	drop(get(client, "auto"));
	tl_close(client);
	return 0;
}

/* It has a keeper, and so another one has what was published. Returns that one. */
static pid_t survives_kill(pid_t pid)
{
	DLManagedTensorVersioned *t = NULL;
	tl_client *client;
	pid_t next;

	must_be(tl_connect(NULL, &client), 0);
	must_be(kill(pid, SIGKILL), 0);
	eventually((next = daemon_of(client)) != pid);
	eventually(!tl_get(client, "auto", NULL, &t));
	drop(t);
	tl_close(client);
	return next;
}

TEST(a_daemon_is_started_once)
{
	const char *binary = getenv("TL_TEST_DAEMON");
	struct test_child c[4];
	char dir[] = "/tmp/tl-auto-XXXXXX", path[64];
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	socklen_t size = sizeof(to);
	tl_client *client;
	struct stat st;
	uint64_t pid;
	int manager;

	SKIP_UNLESS(access("/run/tensorlease/socket", F_OK), "a system daemon is there");
	must(mkdtemp(dir));
	must_be(chmod(dir, 02700), 0); /* what is made in it has that bit, too */
	manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	must_be(bind(manager, (struct sockaddr *)&to, sizeof(sa_family_t)), 0); /* any name */
	must_be(getsockname(manager, (struct sockaddr *)&to, &size), 0);
	to.sun_path[0] = '@';
	setenv("NOTIFY_SOCKET", to.sun_path, 1);
	setenv("XDG_RUNTIME_DIR", dir, 1);
	setenv("TENSORLEASE_DAEMON", "/bin/false", 1);
	must_be(tl_connect(&(tl_connect_options){ .size = sizeof(tl_connect_options),
						  .flags = TL_CONNECT_AUTOSTART },
			   &client),
		-ECONNREFUSED);
	must(strstr(tl_last_error(), "status 1"));
	setenv("TENSORLEASE_DAEMON", binary ? binary : "build/bin/tensorleased", 1);
	must_be(tl_connect(NULL, &client), -ENOENT);
	for (int i = 0; i < 4; i++) /* at once */
		c[i] = child_start(NULL, autostarter, NULL);
	for (int i = 0; i < 4; i++)
		child_go(&c[i]);
	pid = child_await(&c[0]);
	must(pid > 1);
	for (int i = 1; i < 4; i++)
		must_be(child_await(&c[i]), pid);
	snprintf(path, sizeof(path), "%s/tensorlease", dir);
	must_be(stat(path, &st), 0);
	must_be(st.st_mode & 0777, 0700);
	for (int i = 0; i < 4; i++)
		child_finish(&c[i]);
	end_daemon(survives_kill((pid_t)pid));

	must_be(chmod(path, 0755), 0); /* a directory that is not private is not trusted */
	must_be(tl_connect(&(tl_connect_options){ .size = sizeof(tl_connect_options),
						  .flags = TL_CONNECT_AUTOSTART },
			   &client),
		-EACCES);
	must(strstr(tl_last_error(), "0755"));
	must_be(recv(manager, path, sizeof(path), 0), -1); /* it is told of its own service alone */
	must_be(errno, EAGAIN);
	close(manager);
	unsetenv("NOTIFY_SOCKET");
	snprintf(path, sizeof(path), "rm -rf %s", dir);
	must_be(system(path), 0);
	unsetenv("XDG_RUNTIME_DIR");
	unsetenv("TENSORLEASE_DAEMON");
}

/* Lets clients start a program in @dir, which does @first when it is started for the first time,
 * and @then later. */
static void program_make(const char *dir, const char *first, const char *then)
{
	char path[64];
	FILE *f;

	snprintf(path, sizeof(path), "%s/daemon", dir);
	f = fopen(path, "we");
	must(f);
	fprintf(f, "#!/bin/sh\ncd %s\n[ -e asked ] && %s\n: >asked\n%s\n", dir, then, first);
	must_be(fclose(f), 0);
	must_be(chmod(path, 0700), 0);
	setenv("TENSORLEASE_DAEMON", path, 1);
}

static void program_remove(const char *dir)
{
	char text[64];

	unsetenv("TENSORLEASE_DAEMON");
	snprintf(text, sizeof(text), "rm -r %s", dir);
	must_be(system(text), 0);
}

/* The first program that is started finds the lock of a daemon that is dying. */
TEST(a_daemon_is_started_when_another_one_was_dying)
{
	const char *binary = getenv("TL_TEST_DAEMON");
	char dir[] = "/tmp/tl-auto-XXXXXX", socket[64], path[PATH_MAX], then[PATH_MAX + 32];

	must(mkdtemp(dir));
	must(realpath(binary ? binary : "build/bin/tensorleased", path));
	snprintf(socket, sizeof(socket), "%s/socket", dir);
	snprintf(then, sizeof(then), "exec '%s' \"$@\"", path);
	program_make(dir, "exit 3", then);
	end_daemon(daemon_autostart(socket));
	program_remove(dir);
}

/* 0: it is not there yet */
static int pid_in(const char *path)
{
	FILE *f = fopen(path, "re");
	int pid = 0;

	if (f && fscanf(f, "%d", &pid) != 1)
		pid = 0;
	if (f)
		fclose(f);
	return pid;
}

/* What the user is told does not depend on whether a later program is running at that moment. */
TEST(a_program_that_is_no_daemon_is_told_as_that)
{
	char dir[] = "/tmp/tl-auto-XXXXXX", socket[64], path[64];
	tl_connect_options o = { .size = sizeof(o),
				 .address = socket,
				 .timeout_ns = 5 * SECOND,
				 .flags = TL_CONNECT_AUTOSTART };
	tl_client *client;
	int pid;

	must(mkdtemp(dir));
	snprintf(socket, sizeof(socket), "%s/socket", dir);
	program_make(dir, "exit 0", "{ echo $$ >pid; exec sleep 3600; }");
	must_be(tl_connect(&o, &client), -ENOENT);
	must(strstr(tl_last_error(), socket));
	snprintf(path, sizeof(path), "%s/pid", dir);
	eventually((pid = pid_in(path)));
	must_be(kill(pid, SIGKILL), 0);
	must_be(tl_connect(&o, &client), -ECONNREFUSED); /* it is that program's end */
	must(strstr(tl_last_error(), "killed by signal 9"));
	program_remove(dir);
}

/* A socket on which nobody listens any more. */
static void dead_socket(const char *path, uid_t uid)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	unlink(path);
	must_be(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	must_be(chown(path, uid, 0), 0);
	close(fd);
}

static bool autostart_was_tried(int expected)
{
	tl_connect_options o = { .size = sizeof(o),
				 .address = ADDRESS_SYSTEM_SOCKET,
				 .flags = TL_CONNECT_AUTOSTART };
	tl_client *client;

	must_be(tl_connect(&o, &client), expected);
	must(strstr(tl_last_error(), ADDRESS_SYSTEM_SOCKET) ||
	     strstr(tl_last_error(), "/bin/false"));
	return strstr(tl_last_error(), "status 1");
}

/* Whoever stopped the service would find daemons of waiting clients in its place. */
TEST(no_client_starts_a_daemon_in_the_place_of_the_service)
{
	SKIP_UNLESS(own_run(), "may not have a /run of its own");
	must_be(mkdir("/run/tensorlease", 0755), 0);
	setenv("TENSORLEASE_DAEMON", "/bin/false", 1);
	must(!autostart_was_tried(-ENOENT));
	dead_socket(ADDRESS_SYSTEM_SOCKET, 1234);
	must(!autostart_was_tried(-ECONNREFUSED));
	must(strstr(tl_last_error(), "`tensorleased`"));
	dead_socket(ADDRESS_SYSTEM_SOCKET, geteuid());
	must(!autostart_was_tried(-ECONNREFUSED));
	must_be(system("mkdir -p /run/systemd/system && "
		       "touch /run/systemd/system/tensorleased.socket"),
		0);
	must(!autostart_was_tried(-ECONNREFUSED));
	must(strstr(tl_last_error(), "`systemctl start tensorleased.socket`"));
	unsetenv("TENSORLEASE_DAEMON");
}

static int looks_in_tmp(const struct test_daemon *d, void *arg)
{
	tl_client *client;

	(void)d;
	(void)arg;
	parent_await();
	must_be(tl_connect(NULL, &client), -ENOENT);
	must(strstr(tl_last_error(), "/tmp/tensorlease-1234/socket"));
	return 0;
}

/* As a service of this user, or a cron job, beside the user's login session. */
TEST(the_daemon_of_a_login_session_is_found_without_its_variable)
{
	struct test_child hidden;
	struct test_daemon d;
	tl_client *client;
	char dir[64], path[96];

	SKIP_UNLESS(own_run(), "may not have a /run of its own");
	snprintf(dir, sizeof(dir), "/run/user/%u/tensorlease", (unsigned)geteuid());
	snprintf(path, sizeof(path), "mkdir -m 700 -p %s", dir);
	must_be(system(path), 0);
	snprintf(path, sizeof(path), "%s/socket", dir);
	d = td_start(.socket = path);
	unsetenv("XDG_RUNTIME_DIR");
	unsetenv("TENSORLEASE_SOCKET");
	must_be(tl_connect(NULL, &client), 0);
	tl_close(client);
	td_stop(&d);
	must_be(chmod("/run/user", 0), 0); /* as ProtectHome= does it */
	hidden = child_start_as(1234, NULL, looks_in_tmp, NULL);
	child_finish(&hidden);
}

/* As in a service that has closed its standard descriptors. */
static int is_told_why(const struct test_daemon *d, void *arg)
{
	tl_connect_options o = { .size = sizeof(o),
				 .address = "/nonexistent/dir/socket",
				 .flags = TL_CONNECT_AUTOSTART };
	tl_client *client;

	(void)d;
	(void)arg;
	parent_await();
	for (int closed = 1; closed < 4; closed++) {
		for (int fd = 0; fd < 2; fd++)
			if (closed & 1 << fd)
				close(fd);
		must_be(tl_connect(&o, &client), -ECONNREFUSED);
		must(strstr(tl_last_error(), "the directory is missing"));
		while (open("/dev/null", O_RDWR | O_CLOEXEC) <= STDERR_FILENO)
			continue;
	}
	return 0;
}

TEST(a_program_without_standard_descriptors_is_told_why_no_daemon_starts)
{
	const char *binary = getenv("TL_TEST_DAEMON");
	struct test_child c;

	setenv("TENSORLEASE_DAEMON", binary ? binary : "build/bin/tensorleased", 1);
	c = child_start(NULL, is_told_why, NULL);
	child_finish(&c);
	unsetenv("TENSORLEASE_DAEMON");
}

int main(void)
{
	return suite_run();
}
