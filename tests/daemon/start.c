/* SPDX-License-Identifier: Apache-2.0 */
/* How the daemon starts, which clients may connect, and that nothing is left when it ends. */
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "tests/daemon/device_common.h"
#include "tests/harness/catalogs.h"
#include "tests/harness/own_shm.h"

static unsigned count_entries_beside(const char *socket_path)
{
	char command[256], dir[108];
	unsigned n = 0;
	FILE *f;

	snprintf(dir, sizeof(dir), "%s", socket_path);
	*strrchr(dir, '/') = '\0';
	snprintf(command, sizeof(command), "ls -A '%s'", dir);
	f = popen(command, "r");
	must(f);
	while (fgets(command, sizeof(command), f))
		n++;
	pclose(f);
	return n;
}

/* Does the process have that socket open? */
static bool has_socket(pid_t pid, unsigned long inode)
{
	char path[300], target[64] = "", expected[64];
	struct dirent *e;
	bool has = false;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	snprintf(expected, sizeof(expected), "socket:[%lu]", inode);
	dir = opendir(path);
	must(dir);
	while (!has && (e = readdir(dir))) {
		ssize_t n = readlinkat(dirfd(dir), e->d_name, target, sizeof(target) - 1);

		has = n > 0 && n == (ssize_t)strlen(expected) &&
		      !memcmp(target, expected, (size_t)n);
	}
	closedir(dir);
	return has;
}

TEST(the_socket_is_a_path_that_the_group_may_use)
{
	cleanup_td struct test_daemon d = td_start();
	char line[512], path[300];
	unsigned long inode;
	unsigned seen = 0;
	struct stat st;
	FILE *f;

	must_be(stat(d.socket, &st), 0);
	must(S_ISSOCK(st.st_mode));
	must_be(st.st_mode & 0777, 0660);
	f = fopen("/proc/net/unix", "re");
	must(f);
	while (fgets(line, sizeof(line), f)) { /* of those with a name there is one, which is not
						  abstract */
		if (sscanf(line, "%*s %*s %*s %*s %*s %*s %lu %299s", &inode, path) != 2 ||
		    !has_socket(d.pid, inode))
			continue;
		must(!strcmp(path, d.socket));
		seen++;
	}
	fclose(f);
	must(seen >= 1);
}

static int is_not_in_the_group(const struct test_daemon *d, void *arg)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	(void)arg;
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", d->socket);
	must(fd >= 0);
	must_be(setgroups(0, NULL), 0); /* a user who logged in as root is in root's group twice */
	must_be(setegid(1234), 0);
	must_be(seteuid(1234), 0);
	must_be(connect(fd, (struct sockaddr *)&a, sizeof(a)), -1);
	must_be(errno, EACCES);
	return 0;
}

TEST(who_is_not_in_the_group_cannot_connect)
{
	SKIP_UNLESS(geteuid() == 0, "needs root, to be somebody else");
	cleanup_td struct test_daemon d = td_start(.for_others = true);
	must_be(td_run_client(&d, is_not_in_the_group, NULL), 0);
}

static int try_to_say_hello(const struct test_daemon *d, void *arg)
{
	struct wire_hello hello = { .version_min = 1, .version_max = 1 };
	struct raw rc = rc_connect(d);
	struct conn_message m;
	int r;

	(void)arg;
	r = rc_call(&rc, WIRE_HELLO, &hello, sizeof(hello), &m);
	if (r == 0) {
		must_be(m.header.type, WIRE_ERROR);
		r = rc_receive(&rc, &m);
	}
	must(r == -ECONNRESET || r == -EPIPE);
	return 0;
}

TEST(the_overflow_user_is_refused)
{
	struct test_child c;

	SKIP_UNLESS(geteuid() == 0, "needs root, to be user 65534");
	cleanup_td struct test_daemon d = td_start(.for_others = true);
	c = child_start_as(65534, &d, try_to_say_hello, NULL);
	child_must_succeed(&c);
	td_sync(&d);
}

TEST(a_clean_stop_leaves_nothing_in_shared_memory)
{
	struct test_daemon d = td_start();
	struct raw a = rc_open(&d), b = rc_open(&d);
	struct wire_draft kept, draft;
	struct conn_message m;

	must_be(rc_put(&a, "small", 100, 1, NULL), 0);
	must_be(rc_put(&a, "large", MIB, 2, &kept), 0);
	must_be(rc_create(&a, "draft", MIB, 0, &draft), 0);
	must(rc_hold(&b, kept.ref));
	must(td_objects(&d) >= (test_on_memfds() ? 1 : 3));

	must_be(kill(d.pid, SIGTERM), 0);
	must_be(td_exit_status(&d), 0);
	must_be(td_objects(&d), 0);
	must_be(count_entries_beside(d.socket), 1); /* the lock: somebody may wait for a version */
	must_be(rc_receive(&a, &m), -ECONNRESET);
	must(!(atomic_load(&(
		       (const _Atomic uint64_t
				*)(const void *)((const char *)b.catalog +
						 b.catalog->off_clients))[b.welcome.client_index]) &
	       1));
	rc_close(&a);
	rc_close(&b);
}

TEST(sigint_ends_it_as_sigterm_does)
{
	struct test_daemon d = td_start();

	must_be(kill(d.pid, SIGINT), 0);
	must_be(td_exit_status(&d), 0);
	must_be(td_objects(&d), 0);
	must_be(count_entries_beside(d.socket), 0);
}

/* A second ^C must not stop the cleaning up that the first one began. */
TEST(another_signal_does_not_cut_the_end_short)
{
	enum { TENSORS = 1000 }; /* each has its own object */
	struct test_daemon d = td_start(.capacity = 512 * MIB);
	struct raw rc = rc_open(&d);
	char name[16];

	for (int i = 0; i < TENSORS; i++) {
		snprintf(name, sizeof(name), "n%d", i);
		must_be(rc_put(&rc, name, 300000, i, NULL), 0);
	}
	must_be(kill(d.pid, SIGTERM), 0);
	eventually(td_objects(&d) < TENSORS);
	must(!kill(d.pid, SIGTERM) || errno == ESRCH);
	must(!kill(d.pid, SIGINT) || errno == ESRCH);
	td_exit_status(&d); /* the signal may hit its last moment; all is gone by then in any case
			     */
	must_be(td_objects(&d), 0);
	rc_close(&rc);
}

TEST(the_next_daemon_removes_what_a_killed_one_left)
{
	struct test_daemon dead = td_start(), next;
	struct raw old = rc_open(&dead), rc;
	const _Atomic uint64_t *mine;
	struct wire_draft kept;
	const unsigned char *bytes;

	must_be(rc_put(&old, "a", MIB, 7, &kept), 0);
	must(rc_hold(&old, kept.ref));
	bytes = rc_view(&old, &kept);
	mine = (const _Atomic uint64_t *)(const void *)((const char *)old.catalog +
							old.catalog->off_clients) +
	       old.welcome.client_index;
	must_be(atomic_load(mine), live_word(old.welcome.client_generation));
	td_kill(&dead);
	must(td_objects(&dead) > 0);

	next = td_start(.socket = dead.socket);
	must_be(td_objects(&dead), 0);
	must(next.instance != dead.instance);
	must(atomic_load(mine) != live_word(old.welcome.client_generation)); /* it takes no lease
										any more */
	bytes_must_be(bytes, 7, MIB); /* but it can read what it holds */
	rc = rc_open(&next);
	must_be(rc_delete(&rc, "a"), WIRE_E_NOT_FOUND);
	must_be(rc_put(&rc, "a", MIB, 8, NULL), 0);
	bytes_must_be(bytes, 7, MIB);
	rc_goodbye(&rc);
	rc_close(&old);
	td_stop(&next);
}

TEST(a_daemon_removes_what_killed_ones_of_its_user_left_at_other_sockets)
{
	struct test_daemon dead = td_start();
	struct raw rc = rc_open(&dead);

	must_be(rc_put(&rc, "a", MIB, 7, NULL), 0);
	rc_close(&rc);
	td_kill(&dead);
	eventually(catalogs_left(&dead) == 0);
}

TEST(a_second_daemon_on_the_same_socket_is_refused)
{
	cleanup_td struct test_daemon d = td_start();
	struct test_daemon second = td_start(.socket = d.socket, .expect_exit = true);
	int status = td_exit_status(&second);
	char *log = td_log(&second);

	must(WIFEXITED(status) && WEXITSTATUS(status) != 0);
	if (!strstr(log, d.socket))
		print_error("its message: %s\n", log);
	must(strstr(log, d.socket)); /* it says which socket */
	free(log);
	td_sync(&d);
	must(td_objects(&d) > 0);
}

/* Somebody has removed the files of the first, as with its directory. */
TEST(a_daemon_removes_no_socket_of_another_one)
{
	struct test_daemon d = td_start(), next;
	char lock[128];
	struct raw rc;

	snprintf(lock, sizeof(lock), "%s.lock", d.socket);
	must_be(unlink(d.socket), 0);
	must_be(unlink(lock), 0);
	next = td_start(.socket = d.socket);
	td_stop(&d);
	must_be(access(lock, F_OK), 0);
	rc = rc_open(&next);
	rc_goodbye(&rc);
	td_stop(&next);
}

static int bind_at(const char *path, int type)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

	must(fd >= 0);
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	must_be(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	return fd;
}

static int listen_at(const char *path)
{
	int fd = bind_at(path, SOCK_SEQPACKET);

	must_be(listen(fd, 16), 0);
	return fd;
}

/* Its message must have both words. */
static void must_not_start(const struct td_options *options, const char *word, const char *other)
{
	struct test_daemon d = td_start_options(options);
	int status = td_exit_status(&d);
	char *log = td_log(&d);

	if (!strstr(log, word) || !strstr(log, other))
		print_error("its message: %s\n", log);
	must(WIFEXITED(status) && WEXITSTATUS(status) != 0);
	must(strstr(log, word) && strstr(log, other));
	free(log);
}

TEST(a_socket_of_another_type_is_not_removed)
{
	static const int types[] = { SOCK_DGRAM, SOCK_STREAM };
	cleanup_td struct test_daemon d = td_start();
	struct stat before, after;
	char socket[108];

	snprintf(socket, sizeof(socket), "%s/other", d.dir);
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		int fd = bind_at(socket, types[i]);

		must_be(stat(socket, &before), 0);
		must_not_start(&(struct td_options){ .socket = socket, .expect_exit = true },
			       socket, "SOCK_SEQPACKET");
		must_be(stat(socket, &after), 0);
		must(before.st_ino == after.st_ino && before.st_dev == after.st_dev);
		must_be(unlink(socket), 0);
		close(fd);
	}
}

/* Writes a lock file for SOCKET which says that the daemon of @instance died there. */
static void leave_lock(const char *socket, uint64_t instance, char path[128])
{
	int fd;

	snprintf(path, 128, "%s.lock", socket);
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	must(fd >= 0);
	must(dprintf(fd, "1 %016llx\n", (unsigned long long)instance) > 0);
	close(fd);
}

/* Checks that the daemon refuses to start, says why, and removes nothing of that instance. */
static void must_refuse_lock(const struct test_daemon *named, const char *socket, const char *word)
{
	unsigned objects = td_objects(named);
	struct test_daemon d = td_start(.socket = socket, .expect_exit = true);
	int status = td_exit_status(&d);
	char *log = td_log(&d), path[128];

	snprintf(path, sizeof(path), "%s.lock", socket);
	if (!strstr(log, path) || !strstr(log, word))
		print_error("its message: %s\n", log);
	must(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	must(strstr(log, path) && strstr(log, word));
	free(log);
	must_be(td_objects(named), objects);
	must(access(socket, F_OK));
}

/* The lock file decides what is removed from shared memory. */
TEST(a_lock_file_that_others_could_have_written_is_not_believed)
{
	cleanup_td struct test_daemon d = td_start();
	char socket[108], path[128], other[128];

	snprintf(socket, sizeof(socket), "%s/second", d.dir);
	snprintf(other, sizeof(other), "%s/precious", d.dir);
	leave_lock(socket, d.instance, path);
	must_be(chmod(path, 0622), 0);
	must_refuse_lock(&d, socket, "0622");
	must_be(chmod(path, 0600), 0);

	must_be(link(path, other), 0); /* the daemon would write over it */
	must_refuse_lock(&d, socket, "2 names");
	must_be(unlink(path), 0);
	must_be(symlink(other, path), 0);
	must_refuse_lock(&d, socket, "cannot open");
	must_be(unlink(path), 0);
	must_be(mkfifo(path, 0600), 0);
	must_refuse_lock(&d, socket, "not a regular file");
	must_be(unlink(path), 0);
	if (geteuid() == 0) {
		leave_lock(socket, d.instance, path);
		must_be(chown(path, 1234, 1234), 0);
		must_refuse_lock(&d, socket, "user 1234");
		must_be(unlink(path), 0);
	}
	td_sync(&d);
}

/* A socket to be handed to daemons. */
struct given {
	char dir[64], path[108];
	int fd;
};

static struct given given_begin(void)
{
	struct given g;

	snprintf(g.dir, sizeof(g.dir), "%s/tl-given-XXXXXX",
		 getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	must(mkdtemp(g.dir));
	snprintf(g.path, sizeof(g.path), "%s/socket", g.dir);
	g.fd = listen_at(g.path);
	return g;
}

static void given_end(struct given *g)
{
	close(g->fd);
	must_be(unlink(g->path), 0); /* it belongs to the service manager */
	rmdir(g->dir);
}

TEST(it_serves_a_socket_that_it_was_given)
{
	struct test_daemon d;
	struct given g = given_begin();

	for (int i = 0; i < 2; i++) { /* the second time, as systemd starts it for the next
					 connection */
		d = td_start(.socket = g.path, .listen_fd_peek = g.fd);
		td_sync(&d);
		td_stop(&d);
	}
	given_end(&g);
}

/* The kernel lets a path fill its 108 bytes, with no space for a NUL. */
TEST(a_given_socket_whose_path_no_client_could_have_is_refused)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	char path[sizeof(a.sun_path) + 1] = "";
	struct given g = given_begin();
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	size_t n = strlen(g.dir);

	must(fd >= 0);
	memset(path, 'x', sizeof(a.sun_path));
	memcpy(path, g.dir, n);
	path[n] = '/';
	memcpy(a.sun_path, path, sizeof(a.sun_path));
	must_be(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	must_be(listen(fd, 16), 0);
	must_not_start(
		&(struct td_options){ .socket = g.path, .listen_fd_peek = fd, .expect_exit = true },
		path, "107 bytes");
	must_be(unlink(path), 0);
	close(fd);
	given_end(&g);
}

TEST(it_says_when_it_is_ready)
{
#ifndef HAVE_SYSTEMD
	SKIP_UNLESS(false, "built without libsystemd");
#else
	struct test_daemon d = td_start(.expect_ready = true);

	td_stop(&d);
#endif
}

TEST(one_client_too_many_is_told_so)
{
	cleanup_td struct test_daemon d = td_start(.max_clients = 4);
	struct wire_hello hello = { .version_min = 1, .version_max = 1 };
	struct raw full[4], more;
	struct conn_message m;

	for (int i = 0; i < 4; i++)
		full[i] = rc_open(&d);
	for (int i = 0; i < 20; i++) {
		tl_connect_options o = { .size = sizeof(o), .address = d.socket };
		tl_client *client = NULL;

		hello.header.serial = 0;
		more = rc_connect(&d);
		rc_send(&more, WIRE_HELLO, &hello, sizeof(hello), -1); /* fails if it was told
									  before it asked */
		must_be(rc_receive(&more, &m), 0);
		rc_must_fail(&m, WIRE_E_CLIENTS);
		must_be(rc_receive(&more, &m), -ECONNRESET);
		rc_close(&more);
		must_be(tl_connect(&o, &client), -EUSERS);
		must(!client);
	}
	rc_sync(&full[3]);
	rc_goodbye(&full[0]);
	more = rc_open(&d);
	rc_goodbye(&more);
	for (int i = 1; i < 4; i++)
		rc_close(&full[i]);
}

TEST(without_a_common_version_both_ranges_are_named)
{
	cleanup_td struct test_daemon d = td_start();
	struct wire_hello hello = { .version_min = 4711, .version_max = 4712 };
	struct raw rc = rc_connect(&d);
	struct conn_message m;

	must_be(rc_call(&rc, WIRE_HELLO, &hello, sizeof(hello), &m), 0);
	rc_must_fail(&m, WIRE_E_VERSION);
	must(memmem(m.bytes, m.header.length, "4711", 4) &&
	     memmem(m.bytes, m.header.length, "4712", 4));
	must(memmem(m.bytes, m.header.length, "1", 1));
	must_be(rc_receive(&rc, &m), -ECONNRESET);
	rc_close(&rc);
}

/* A daemon that exits when it has been idle for a second, and a client that keeps it from being
 * idle. */
struct idling {
	struct test_daemon d;
	struct raw rc;
	struct given given;
};

static void idling_begin(struct idling *i)
{
	static const char *const extra[] = { "--idle-exit=1", NULL };
	struct test_daemon before = { 0 };

	i->given = given_begin();
	snprintf(before.socket, sizeof(before.socket), "%s", i->given.path);
	i->rc = rc_connect(&before);
	i->d = td_start(.socket = i->given.path, .listen_fd_peek = i->given.fd, .extra = extra);
	rc_hello(&i->rc);
	rc_ledger(&i->rc);
}

static void idling_must_end(struct idling *i)
{
	rc_goodbye(&i->rc);
	must_be(td_exit_status(&i->d), 0);
	must_be(td_objects(&i->d), 0);
	given_end(&i->given);
}

/* Waits longer than the second that the daemon was told to wait. */
static void must_stay_alive(struct test_daemon *d)
{
	must_be(poll(NULL, 0, 1400), 0);
	must(td_alive(d));
}

TEST(an_idle_daemon_ends_but_not_while_anything_is_there)
{
	struct idling i;

	idling_begin(&i);
	must_stay_alive(&i.d); /* there is a client */
	must_be(rc_put(&i.rc, "a", 10, 1, NULL), 0);
	rc_goodbye(&i.rc);
	must_stay_alive(&i.d); /* there is a tensor */
	i.rc = rc_open(&i.d);
	must_be(rc_delete(&i.rc, "a"), 0);
	idling_must_end(&i);
}

/* As when a test's temporary directory is removed. */
TEST(an_idle_daemon_that_nobody_can_reach_ends_with_its_tensors)
{
	static const char *const extra[] = { "--idle-exit=1", NULL };
	struct test_daemon d = td_start(.extra = extra);
	struct raw rc = rc_open(&d);

	must_be(rc_put(&rc, "a", 10, 1, NULL), 0);
	must_be(unlink(d.socket), 0);
	must_stay_alive(&d); /* there is a client */
	rc_goodbye(&rc);
	must_be(td_exit_status(&d), 0);
	must_be(td_objects(&d), 0);
}

TEST(an_idle_daemon_does_not_stay_for_what_is_lost)
{
	struct wire_segment_ref seg;
	struct idling i;

	idling_begin(&i);
	seg = export_ipc(&i.rc, 1000);
	must_be(rc_place(&i.rc, &seg, NULL, .name = "a", .nbytes = 10), 0);
	idling_must_end(&i); /* the tensor's bytes are gone with its producer */
}

TEST(wrong_options_are_refused_with_a_word)
{
	static const char *const wrong[][3] = {
		{ "--no-such-option", NULL }, { "--capacity=a-lot", NULL },
		{ "--max-tensors=0", NULL },  { "--max-tensors=99999999", NULL },
		{ "--max-clients=-1", NULL }, { "--config=/nonexistent/x", NULL },
		{ "--log-level=loud", NULL },
	};

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct test_daemon d = td_start(.extra = wrong[i], .expect_exit = true);
		int status = td_exit_status(&d);
		char *log = td_log(&d);

		if (!WIFEXITED(status) || WEXITSTATUS(status) == 0 || !*log)
			print_error("with %s: status %x, says \"%s\"\n", wrong[i][0], status, log);
		must(WIFEXITED(status) && WEXITSTATUS(status) != 0 && *log);
		free(log);
	}
}

TEST(a_missing_directory_is_said)
{
	const char *const there[] = { "--socket=/nonexistent/directory/socket", NULL };
	struct test_daemon d = td_start(.extra = there, .expect_exit = true);
	int status = td_exit_status(&d);
	char *log = td_log(&d);

	must(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	must(strstr(log, "/nonexistent/directory/socket.lock: the directory is missing"));
	free(log);
}

TEST(what_is_lacking_at_the_start_is_named_with_its_limit)
{
	static const char *const few[] = { "--capacity=4096", NULL };

	must_not_start(&(struct td_options){ .fsize = MIB, .expect_exit = true },
		       "catalog for 131072 tensors (--max-tensors)", "RLIMIT_FSIZE (1048576)");
	must_not_start(&(struct td_options){ .nofile = 20, .extra = few, .expect_exit = true },
		       "RLIMIT_NOFILE", "20");
}

TEST(a_dev_shm_that_cannot_be_used_is_named)
{
	struct td_options options = { .storage = "shm", .expect_exit = true };

	SKIP_UNLESS(own_mount("/dev/shm", "size=64k"), "may not have a /dev/shm of its own");
	must_not_start(&options, "catalog for 131072 tensors", "65536 bytes of /dev/shm");
	must(own_mount("/dev/shm", "nr_inodes=1"));
	must_not_start(&options, "catalog for 131072 tensors", "df -i /dev/shm");
	must_be(mount(NULL, "/dev/shm", NULL, MS_REMOUNT | MS_RDONLY, ""), 0);
	must_not_start(&options, "/dev/shm is read-only", "remount");
}

TEST(a_configuration_without_an_end_is_refused)
{
	static const char *const endless[] = { "--config=/dev/zero", NULL };
	static const char *const none[] = { "--config=/dev/null", NULL };
	char path[128], option[150];
	const char *const large[] = { option, NULL };
	cleanup_td struct test_daemon d = td_start(.extra = none);

	must_not_start(&(struct td_options){ .extra = endless, .expect_exit = true }, "/dev/zero",
		       "not a regular file");
	snprintf(path, sizeof(path), "%s/large", d.dir);
	snprintf(option, sizeof(option), "--config=%s", path);
	must_be(close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600)), 0);
	must_be(truncate(path, 1LL << 40), 0);
	must_not_start(&(struct td_options){ .extra = large, .expect_exit = true }, path, "16 MiB");
	must_be(unlink(path), 0);
}

TEST(a_capacity_that_the_memory_does_not_have_is_logged)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 1ull << 50, .storage = "shm");
	tl_client *client = td_connect(&d);
	char *log = td_log(&d);

	must(strstr(log, "/dev/shm holds less than the capacity"));
	free(log);
	tl_close(client);
}

/* What a user in no group of ours is told without an address. */
static int is_told_of_the_systems_socket(const struct test_daemon *d, void *arg)
{
	tl_connect_options o = { .size = sizeof(o) };
	tl_client *client;

	(void)d;
	must_be(setgroups(0, NULL), 0);
	must_be(setegid(1234), 0);
	must_be(setresuid(1234, 1234, 0), 0);
	must_be(tl_connect(&o, &client), -EACCES);
	if (!strstr(tl_last_error(), arg))
		print_error("%s\n", tl_last_error());
	must(strstr(tl_last_error(), arg));
	return 0;
}

static void must_be_told_of_the_systems_socket(const char *what)
{
	must_be(td_run_client(NULL, is_told_of_the_systems_socket, (void *)(uintptr_t)what), 0);
}

/* Without a socket, root's daemon serves where everybody looks first. */
TEST(roots_daemon_is_in_the_way_of_nobody_and_found_by_all)
{
	const char *binary = getenv("TL_TEST_DAEMON");
	struct test_daemon d = { .socket = "/run/tensorlease/socket" };
	tl_status status = { .size = sizeof(status) };
	char command[512];
	tl_client *client;
	struct stat st;

	SKIP_UNLESS(own_run(), "may not have a /run of its own");
	unsetenv("TENSORLEASE_SOCKET");
	snprintf(command, sizeof(command), "umask 077; exec '%s' >/dev/null 2>&1",
		 binary ? binary : "build/bin/tensorleased");
	must_be(system(command), 0);
	client = td_connect(&d);
	must_be(tl_get_status(client, &status), 0);
	must_be(stat("/run/tensorlease", &st), 0);
	must_be(st.st_mode & 07777, 0755);
	must_be_told_of_the_systems_socket("socket is for user 0 only");
	must_be(chmod("/run/tensorlease", 0700), 0); /* nobody is to take it for absent then */
	must_be_told_of_the_systems_socket("socket is not for this user");
	tl_close(client);
	end_daemon((pid_t)status.daemon_pid);
}

TEST(a_missing_proc_is_named)
{
	const char *binary = getenv("TL_TEST_DAEMON");
	char command[512], said[512] = "";
	FILE *f;

	SKIP_UNLESS(own_mount("/proc", "mode=0755"), "may not have a /proc of its own");
	snprintf(command, sizeof(command), "'%s' --foreground --socket /tmp/none/socket 2>&1",
		 binary ? binary : "build/bin/tensorleased");
	f = popen(command, "re");
	must(f);
	(void)!fread(said, 1, sizeof(said) - 1, f);
	must(pclose(f) > 0);
	must(strstr(said, "needs /proc, which is not mounted here"));
	must_be(umount("/proc"), 0);
}

/* It counts as a tmpfs of the default size, which is half of the machine's memory. */
TEST(a_dev_shm_without_a_limit_has_room)
{
	static const char *const half[] = { "--capacity=50%", NULL };
	uint64_t ram = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t capacity;

	SKIP_UNLESS(own_shm_without_limit(), "may not have a /dev/shm of its own");
	cleanup_td struct test_daemon d = td_start(.extra = half);
	struct raw rc = rc_open(&d);

	capacity = td_status(&d).capacity;
	must(capacity > ram / 5 && capacity <= ram / 4);
	must_be(rc_put(&rc, "a", MIB, 1, NULL), 0);
	rc_goodbye(&rc);
}

/* A look must leave the exit status to who stops it. */
TEST(a_daemon_that_has_died_can_be_looked_at)
{
	cleanup_td struct test_daemon d = td_start(.no_keeper = "its end is the end");

	must_be(kill(d.pid, SIGKILL), 0);
	eventually(!td_alive(&d));
	td_kill(&d);
	cleanup_td struct test_daemon cleaner = td_start(.socket = d.socket);
	must(td_alive(&cleaner));
}

int main(void)
{
	return suite_run();
}
