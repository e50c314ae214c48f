/* SPDX-License-Identifier: Apache-2.0 */
/* What tensorlease doctor tells other users, and of daemons and sockets that are not the user's. */
#include "tests/cli/doctor.h"
#include "tests/harness/client.h"
#include "tests/harness/own_shm.h"
#include "tests/harness/own_user.h"

#include <grp.h>
#include <sys/socket.h>
#include <sys/un.h>

/* ---- The daemon in use, for another user ---- */

enum { STRANGER = 60777, NOBODY = 65534, NO_PROGRAM = 77 };

/* What the row "daemon" says of @socket to a user who is in no group of ours. */
struct told {
	const char *socket, *result, *advice, *not_advice;
	uid_t uid; /* 0: STRANGER */
};

static int a_stranger_is_told(const struct test_daemon *d, void *arg)
{
	const struct told *t = arg;
	uid_t uid = t->uid ? t->uid : STRANGER;

	(void)d;
	must_be(setgroups(0, NULL), 0);
	must_be(setresgid(uid, uid, uid), 0);
	must_be(setresuid(uid, uid, uid), 0);
	if (access(cli_path(), X_OK))
		return NO_PROGRAM;
	setenv("TMPDIR", "/tmp", 1);
	cleanup_visit struct visit v = doctor_at(t->socket);

	must_say(&v, "daemon", t->result, t->advice);
	if (uid == NOBODY)
		must_say(&v, "own daemon", "fail", "run as another user");
	must(!t->not_advice || !strstr(member(probe(&v, "daemon"), "advice"), t->not_advice));
	return 0;
}

/* False: such a user cannot run the program where it lies. */
static bool stranger_told(const struct told *t)
{
	int status = td_run_client(NULL, a_stranger_is_told, (void *)(uintptr_t)t);

	if (WIFEXITED(status) && WEXITSTATUS(status) == NO_PROGRAM)
		return false;
	must_be(status, 0);
	return true;
}

GPU_TEST(only_the_group_of_the_socket_is_advised_and_never_roots)
{
	bool can;

	SKIP_UNLESS(geteuid() == 0, "needs root, to be somebody else");
	cleanup_td struct test_daemon d = td_start(.for_others = true);
	char url[160];

	snprintf(url, sizeof(url), "tensorlease://lab%s", d.socket);
	gpu_setenv("FAKECUDA_DEVICES", "0");
	must_be(chown(d.socket, 0, 0), 0);
	can = stranger_told(&(struct told){ d.socket, "fail", "run as the user", "usermod", 0 });
	must_be(chown(d.socket, 0, 60778), 0);
	can = can && stranger_told(&(struct told){ d.socket, "fail", "group 60778", NULL, 0 }) &&
	      stranger_told(&(struct told){ url, "fail", "group 60778", NULL, 0 });
	td_stop(&d);
	SKIP_UNLESS(can, "other users cannot run the program here");
}

static int a_reader_is_told(const struct test_daemon *d, void *arg)
{
	must_be(setgroups(0, NULL), 0);
	must_be(setresuid(STRANGER, STRANGER, STRANGER), 0);
	if (access(cli_path(), X_OK))
		return NO_PROGRAM;
	setenv("TMPDIR", "/tmp", 1);
	cleanup_visit struct visit v = doctor_with(
		d->socket, (const char *const[]){ "doctor", "--json", "--quick", NULL });

	(void)arg;
	must_say(&v, "daemon", "ok", NULL);
	must_say(&v, "round trip", "skipped", NULL);
	must_have_failed(&v, 0);
	return 0;
}

GPU_TEST(quick_is_fine_for_who_may_only_get)
{
	char config[] = "/tmp/tensorlease-test-XXXXXX";
	const char *const extra[] = { "--config", config, NULL };
	int status;

	SKIP_UNLESS(geteuid() == 0, "needs root, to be somebody else");
	must_be(close(mkstemp(config)), 0);
	config_write(config, "[namespace default]\nmode = 0755\n");
	cleanup_td struct test_daemon d = td_start(.for_others = true, .extra = extra);

	must_be(unlink(config), 0);
	must_be(chmod(d.socket, 0666), 0);
	setenv("TENSORLEASE_TRUST_UID", "0", 1);
	status = td_run_client(&d, a_reader_is_told, NULL);
	td_stop(&d);
	SKIP_UNLESS(!WIFEXITED(status) || WEXITSTATUS(status) != NO_PROGRAM,
		    "other users cannot run the program here");
	must_be(status, 0);
}

/* The daemon takes that uid for any user that its user namespace does not know. */
GPU_TEST(nobody_is_advised_to_be_another_user)
{
	bool can;

	SKIP_UNLESS(geteuid() == 0, "needs root, to be somebody else");
	cleanup_td struct test_daemon d = td_start(.for_others = true);

	gpu_setenv("FAKECUDA_DEVICES", "0");
	must_be(chmod(d.socket, 0666), 0);
	can = stranger_told(
		&(struct told){ d.socket, "fail", "run as another user", "it belongs to", NOBODY });
	td_stop(&d);
	SKIP_UNLESS(can, "other users cannot run the program here");
}

/* Makes a socket at which nobody listens. */
static void leave_socket(const char *path, mode_t mode)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	must(fd >= 0);
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	must_be(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	must_be(chmod(path, mode), 0);
	close(fd);
}

/* No program starts a daemon there, and everybody's default is that socket while it exists. */
GPU_TEST(a_dead_socket_of_the_system_is_a_failure)
{
	bool can;

	SKIP_UNLESS(own_run(), "may not have a /run of its own");
	gpu_setenv("FAKECUDA_DEVICES", "0");
	must_be(mkdir("/run/tensorlease", 0755), 0);
	leave_socket("/run/tensorlease/socket", 0666);
	can = stranger_told(
		&(struct told){ NULL, "fail", "remove /run/tensorlease/socket", NULL, 0 });
	cleanup_visit struct visit v = doctor_at(NULL);

	must_say(&v, "daemon", "fail", "systemctl start tensorleased.socket");
	SKIP_UNLESS(can, "other users cannot run the program here");
}

/* As root's after `su`, which keeps the variable, and what such a root has made. */
GPU_TEST(a_runtime_directory_of_another_user_is_told)
{
	char runtime[] = "/tmp/tl-run-XXXXXX", dir[64];

	SKIP_UNLESS(geteuid() == 0, "needs root, to give a directory to another user");
	SKIP_UNLESS(own_run(), "may not have a /run of its own");
	gpu_setenv("FAKECUDA_DEVICES", "0");
	must(mkdtemp(runtime));
	snprintf(dir, sizeof(dir), "%s/tensorlease", runtime);
	must_be(mkdir(dir, 0700), 0);
	must_be(chown(dir, 1234, 1234), 0);
	runtime_dir = runtime;
	{
		cleanup_visit struct visit v = doctor_at(NULL);

		must_say(&v, "runtime directory", "fail", dir);
	}
	must_be(chown(runtime, 1234, 1234), 0);
	{
		cleanup_visit struct visit v = doctor_at(NULL);

		must_say(&v, "runtime directory", "warn", "unset XDG_RUNTIME_DIR");
	}
	runtime_dir = NULL;
	rmdir(dir);
	rmdir(runtime);
}

/* Listens there as another program would. */
static int listen_as_stranger(const char *path)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	must(fd >= 0);
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	must_be(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	must_be(listen(fd, 1), 0);
	return fd;
}

/* The service logs to the journal, and a daemon in the background nowhere. */
GPU_TEST(the_advice_to_look_at_a_log_is_right_for_that_daemon)
{
	static const char *const at[][2] = {
		{ "/run/tensorlease/socket", "journalctl -u tensorleased" },
		{ "/run/user/socket", "--foreground" },
		{ "/run/user/run/tensorlease/socket", "--foreground" },
		{ "tensorlease://lab/run/tensorlease/socket", "journalctl -u tensorleased" },
	};

	SKIP_UNLESS(own_run(), "may not have a /run of its own");
	gpu_setenv("FAKECUDA_DEVICES", "0");
	must_be(mkdir("/run/tensorlease", 0755) | mkdir("/run/user", 0755), 0);
	must_be(mkdir("/run/user/run", 0755) | mkdir("/run/user/run/tensorlease", 0755), 0);
	for (int i = 0; i < 4; i++) {
		const char *path = strstr(at[i][0], "/run");
		int fd = listen_as_stranger(path);
		cleanup_visit struct visit v = doctor_at(at[i][0]);

		must_say(&v, "daemon", "fail", at[i][1]);
		unlink(path);
		close(fd);
	}
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
