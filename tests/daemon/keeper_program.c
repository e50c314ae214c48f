/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that are installed while a daemon serves: what is published stays, whatever they do. */
#include <fcntl.h>
#include <sys/stat.h>

#include "proto/catalog_layout.h"
#include "tests/daemon/keeper_common.h"
#include "tests/harness/process.h"
#include "tests/harness/program.h"

/* Returns how often it has replaced @text by as many bytes of @instead. */
static unsigned file_copy_with(const char *from, const char *to, const void *text,
			       const void *instead, size_t len)
{
	static char bytes[64 << 20];
	FILE *in = fopen(from, "re"), *out = fopen(to, "we");
	unsigned times = 0;
	size_t n;
	char *at;

	must(in && out);
	n = fread(bytes, 1, sizeof(bytes), in);
	must(n > 0 && n < sizeof(bytes));
	for (; text && (at = memmem(bytes, n, text, len)); times++)
		memcpy(at, instead, len);
	must_be(fwrite(bytes, 1, n, out), n);
	must_be(fchmod(fileno(out), 0755), 0);
	fclose(in);
	must_be(fclose(out), 0);
	return times;
}

static void file_copy(const char *from, const char *to, const char *text, const char *instead)
{
	file_copy_with(from, to, text, instead, text ? strlen(text) : 0);
}

enum { PROGRAM_PATH = PROGRAM_DIR + 16 };

static const char *daemon_path(void)
{
	const char *binary = getenv("TL_TEST_DAEMON");

	return binary ? binary : "build/bin/tensorleased";
}

/* What the program that serves says its version is. */
static void version_of(const struct test_daemon *d, char *out, int size)
{
	char command[64];
	FILE *pipe;

	snprintf(command, sizeof(command), "/proc/%d/exe --version", (int)proper(d));
	pipe = popen(command, "re");
	must(pipe && fgets(out, size, pipe));
	pclose(pipe);
}

static const char *version_text(void)
{
	static char text[32];

	snprintf(text, sizeof(text), "tensorleased %s", tl_version());
	return text;
}

static struct test_daemon start_program(const char *path, const char *const *extra)
{
	const char *before = getenv("TL_TEST_DAEMON");
	char *saved = before ? strdup(before) : NULL;
	struct test_daemon d;

	setenv("TL_TEST_DAEMON", path, 1);
	d = start(extra);
	if (saved)
		setenv("TL_TEST_DAEMON", saved, 1);
	else
		unsetenv("TL_TEST_DAEMON");
	free(saved);
	return d;
}

/* A daemon whose program lies in a directory of its own. */
static struct test_daemon start_copy_with(char dir[PROGRAM_DIR], char path[PROGRAM_PATH],
					  const char *const *extra)
{
	program_directory(dir);
	snprintf(path, PROGRAM_PATH, "%s/tensorleased", dir);
	file_copy(daemon_path(), path, NULL, NULL);
	return start_program(path, extra);
}

static struct test_daemon start_copy(char dir[PROGRAM_DIR], char path[PROGRAM_PATH])
{
	return start_copy_with(dir, path, with_keeper);
}

TEST(another_program_takes_over_and_one_that_does_not_serve_is_not_used)
{
	char dir[PROGRAM_DIR], path[PROGRAM_PATH], later[PROGRAM_PATH + 8], version[64];
	struct test_daemon d = start_copy(dir, path);
	tl_client *c = td_connect(&d);
	FILE *file;

	snprintf(later, sizeof(later), "%s.new", path);
	must_be(put_value(c, "a", 1, NULL), 0);
	file_copy(daemon_path(), later, version_text(), "tensorleased 9.9.9");
	must_be(rename(later, path), 0);
	must_be(tl_restart(c), 0);
	version_of(&d, version, sizeof(version));
	must(!strcmp(version, "tensorleased 9.9.9\n"));

	file = fopen(later, "we");
	must(file);
	fputs("#!/bin/false\n", file);
	must_be(fchmod(fileno(file), 0755), 0);
	fclose(file);
	must_be(rename(later, path), 0);
	must_be(tl_restart(c), -ENOEXEC);
	must(strstr(tl_last_error(), "asked for by user"));
	must(strstr(tl_last_error(), "the new one does not serve"));
	version_of(&d, version, sizeof(version));
	must(!strcmp(version, "tensorleased 9.9.9\n"));
	must_be(td_full_status(&d).tensors, 1);
	file_copy(daemon_path(), later, NULL, NULL);
	must_be(rename(later, path), 0);
	must_be(tl_restart(c), 0);
	version_of(&d, version, sizeof(version));
	must(strcmp(version, "tensorleased 9.9.9\n"));

	must_be(unlink(path), 0);
	kill_proper(&d); /* nothing is there, and it is started all the same */
	must_be(td_full_status(&d).tensors, 1);
	tl_close(c);
	td_stop(&d);
	must_be(rmdir(dir), 0);
}

/* Both versions stay installed, and a link says which of them is in use. */
TEST(another_program_takes_over_when_a_link_leads_to_it)
{
	char dir[PROGRAM_DIR], link[PROGRAM_PATH], later[PROGRAM_PATH + 8], version[64];
	struct test_daemon d;
	tl_client *c;

	program_directory(dir);
	snprintf(link, sizeof(link), "%s/tensorleased", dir);
	must_be(symlink(daemon_path(), link), 0);
	d = start_program(link, with_keeper);
	c = td_connect(&d);
	snprintf(later, sizeof(later), "%s.new", link);
	file_copy(daemon_path(), later, version_text(), "tensorleased 9.9.9");
	must_be(unlink(link), 0);
	must_be(symlink(later, link), 0);
	must_be(tl_restart(c), 0);
	version_of(&d, version, sizeof(version));
	must(!strcmp(version, "tensorleased 9.9.9\n"));
	tl_close(c);
	td_stop(&d);
	must_be(unlink(link) | unlink(later), 0);
	must_be(rmdir(dir), 0);
}

/* Installs a build whose catalogs have another layout. False: its number cannot be found in the
 * code of this machine. */
static bool install_other_layout(const char *path)
{
	const uint64_t ours = CATALOG_LAYOUT, other = CATALOG_LAYOUT + 1;
	char later[PROGRAM_PATH + 8];
	bool done;

	snprintf(later, sizeof(later), "%s.new", path);
	done = file_copy_with(daemon_path(), later, &ours, &other, sizeof(ours));
	must_be(rename(later, path), 0);
	return done;
}

static void install_script(const char *path, const char *text)
{
	char later[PROGRAM_PATH + 8];

	snprintf(later, sizeof(later), "%s.new", path);
	config_write(later, text);
	must_be(chmod(later, 0755), 0);
	must_be(rename(later, path), 0);
}

static void remove_program(struct test_daemon *d, const char *dir, const char *path)
{
	td_stop(d);
	must_be(unlink(path), 0);
	must_be(rmdir(dir), 0);
}

static bool began_by(const struct test_daemon *d, const char *reason)
{
	/* a daemon that took over nothing, or is of the former program, adds why */
	return !strncmp(td_full_status(d).restart_reason, reason, strlen(reason));
}

/* The former program goes on, and takes over from itself. */
static void reload_must_lose_nothing(struct test_daemon *d, pid_t whom)
{
	pid_t pid = proper(d), next = 0;

	must_be(kill(whom, SIGHUP), 0);
	eventually((next = proper(d)) && next != pid);
	must_be(td_full_status(d).tensors, 1);
	must(began_by(d, "asked for by SIGHUP"));
}

TEST(a_reload_loses_nothing_if_another_layout_was_installed)
{
	char dir[PROGRAM_DIR], path[PROGRAM_PATH];
	struct test_daemon d = start_copy(dir, path);
	tl_client *c = td_connect(&d);

	must_be(put_value(c, "a", 1, NULL), 0);
	SKIP_UNLESS(install_other_layout(path), "the layout is not one number in this code");
	reload_must_lose_nothing(&d, d.keeper);
	must(log_has(&d, "leaving it to the former program"));
	must(!log_has(&d, "set aside"));
	reload_must_lose_nothing(&d, proper(&d));
	kill_proper(&d);
	must_be(td_full_status(&d).tensors, 1);
	tl_close(c);
	remove_program(&d, dir, path);
}

TEST(a_death_loses_nothing_if_another_layout_was_installed)
{
	char dir[PROGRAM_DIR], path[PROGRAM_PATH];
	struct test_daemon d = start_copy(dir, path);
	tl_client *c = td_connect(&d);

	must_be(put_value(c, "a", 1, NULL), 0);
	SKIP_UNLESS(install_other_layout(path), "the layout is not one number in this code");
	for (int i = 0; i < 3; i++) {
		kill_proper(&d);
		must_be(td_full_status(&d).tensors, 1);
	}
	tl_close(c);
	remove_program(&d, dir, path);
}

TEST(a_death_loses_nothing_if_a_program_was_installed_that_does_not_start)
{
	static const char *const scripts[] = {
		"#!/bin/sh\nexit 127\n", /* a library is missing */
		"#!/bin/sh\nexit 2\n",	 /* an option is not known any more */
		"#!/bin/none\n",
	};
	char dir[PROGRAM_DIR], path[PROGRAM_PATH];
	struct test_daemon d;
	tl_client *c;

	for (size_t i = 0; i < sizeof(scripts) / sizeof(*scripts); i++) {
		d = start_copy(dir, path);
		c = td_connect(&d);
		must_be(put_value(c, "a", 1, NULL), 0);
		install_script(path, scripts[i]);
		kill_proper(&d);
		must_be(td_full_status(&d).tensors, 1);
		tl_close(c);
		remove_program(&d, dir, path);
	}
}

static int connect_result(const struct test_daemon *d)
{
	tl_connect_options o = { .size = sizeof(o), .address = d->socket };
	tl_client *c;
	int r = tl_connect(&o, &c);

	if (!r)
		tl_close(c);
	return r;
}

/* The command cannot ask for a restart, since it cannot connect. */
TEST(a_daemon_of_another_layout_is_replaced_as_the_error_says)
{
	char dir[PROGRAM_DIR], path[PROGRAM_PATH], later[PROGRAM_PATH + 8];
	struct test_daemon d = start_copy(dir, path);

	SKIP_UNLESS(install_other_layout(path), "the layout is not one number in this code");
	must_be(kill(d.keeper, SIGUSR2), 0);
	eventually(connect_result(&d) == -EPROTONOSUPPORT);
	must(strstr(tl_last_error(), "of another version"));
	must(strstr(tl_last_error(), "SIGUSR2"));
	snprintf(later, sizeof(later), "%s.new", path);
	file_copy(daemon_path(), later, NULL, NULL);
	must_be(rename(later, path), 0);
	must_be(kill(d.keeper, SIGUSR2), 0);
	eventually(!connect_result(&d));
	must_be(td_full_status(&d).tensors, 0);
	remove_program(&d, dir, path);
}

/* The keeper was told to stop. Removes the program, too. */
static void stop_must_leave_nothing(struct test_daemon *d, const char *dir, const char *path)
{
	must_be(td_exit_status(d), 0);
	must_be(access(d->socket, F_OK), -1);
	must_be(unlink(path), 0);
	must_be(rmdir(dir), 0);
}

/* What removes everything then is the program that has served. */
TEST(a_stop_while_no_daemon_serves_needs_no_new_program)
{
	char dir[PROGRAM_DIR], path[PROGRAM_PATH];
	struct test_daemon d = start_copy(dir, path);
	pid_t pid = proper(&d);
	tl_client *c = td_connect(&d);

	must_be(put_value(c, "a", 1, NULL), 0);
	tl_close(c);
	install_script(path, "#!/bin/sh\nexit 1\n");
	process_stop(d.keeper);
	must_be(kill(d.keeper, SIGTERM), 0);
	must_be(kill(pid, SIGKILL), 0);
	must_be(kill(d.keeper, SIGCONT), 0);
	stop_must_leave_nothing(&d, dir, path);
}

/* It neither serves nor handles signals. */
TEST(a_stop_while_a_new_program_hangs_kills_it)
{
	char dir[PROGRAM_DIR], path[PROGRAM_PATH], pipe[PROGRAM_PATH + 8], script[2 * PROGRAM_PATH];
	struct test_daemon d = start_copy(dir, path);
	tl_client *c = td_connect(&d);
	int fd = -1;

	must_be(put_value(c, "a", 1, NULL), 0);
	tl_close(c);
	snprintf(pipe, sizeof(pipe), "%s.pipe", path);
	must_be(mkfifo(pipe, 0600), 0);
	snprintf(script, sizeof(script), "#!/bin/sh\nexec cat <%s >/dev/null\n", pipe);
	install_script(path, script);
	must_be(kill(d.keeper, SIGUSR2), 0);
	eventually((fd = open(pipe, O_WRONLY | O_NONBLOCK | O_CLOEXEC)) >= 0);
	must_be(kill(d.keeper, SIGTERM), 0);
	must_be(unlink(pipe), 0);
	stop_must_leave_nothing(&d, dir, path);
	close(fd);
}

/* The new program stops the keeper, and then shows that it is broken. */
TEST(a_stop_in_the_midst_of_a_restart_needs_no_new_program)
{
	char dir[PROGRAM_DIR], path[PROGRAM_PATH];
	struct test_daemon d = start_copy(dir, path);
	tl_client *c = td_connect(&d);

	must_be(put_value(c, "a", 1, NULL), 0);
	tl_close(c);
	install_script(path, "#!/bin/sh\nkill -TERM $PPID\nexit 127\n");
	must_be(kill(d.keeper, SIGUSR2), 0);
	stop_must_leave_nothing(&d, dir, path);
}

/* A restart may begin anew, and that it was asked for does not depend on earlier reloads. */
TEST(a_reload_for_which_there_is_no_program_does_not_stand_in_the_way_of_a_restart)
{
	char dir[PROGRAM_DIR], path[PROGRAM_PATH], later[PROGRAM_PATH + 8];
	char config[] = "/tmp/tl-config-XXXXXX";
	const char *extra[] = { "--keeper", "yes", "--config", config, NULL };
	int fd = mkstemp(config);
	struct test_daemon d;
	tl_client *c;

	must(fd >= 0);
	config_write(config, "max-tensors = 4096\n");
	d = start_copy_with(dir, path, extra);
	snprintf(later, sizeof(later), "%s.later", path);
	c = td_connect(&d);
	must_be(rename(path, later), 0);
	must_be(kill(proper(&d), SIGHUP), 0);
	eventually(log_has(&d, "its program is not there"));
	must_be(rename(later, path), 0);
	config_write(config, "max-tensors = 8192\n"); /* what a reload may not change */
	must_be(tl_restart(c), 0);
	must_be(td_full_status(&d).restarts, 1);
	must(log_has(&d, "the next daemon does not take over everything"));
	tl_close(c);
	td_stop(&d);
	must_be(unlink(path), 0);
	must_be(rmdir(dir), 0);
	must_be(unlink(config), 0);
	close(fd);
}

/* A program that waits, before it becomes the daemon, as long as there is a pipe without writers.
 */
static void install_waiting(const char *path, const char *real, const char *pipe)
{
	char text[4 * PROGRAM_PATH + 64];

	snprintf(text, sizeof(text), "#!/bin/sh\n[ ! -p %s ] || read x <%s\nexec %s \"$@\"\n", pipe,
		 pipe, real);
	install_script(path, text);
}

/* Kills the daemon. The next one waits until something is written to what this returns. */
static int kill_until_next_waits(const struct test_daemon *d, const char *path,
				 char real[PROGRAM_PATH + 8], char pipe[PROGRAM_PATH + 8])
{
	int fd = -1;

	snprintf(real, PROGRAM_PATH + 8, "%s.real", path);
	snprintf(pipe, PROGRAM_PATH + 8, "%s.pipe", path);
	must_be(rename(path, real), 0);
	must_be(mkfifo(pipe, 0600), 0);
	install_waiting(path, real, pipe);
	must_be(kill(proper(d), SIGKILL), 0);
	eventually((fd = open(pipe, O_WRONLY | O_NONBLOCK | O_CLOEXEC)) >= 0); /* it waits */
	return fd;
}

TEST(a_reload_asked_for_while_the_next_daemon_starts_is_done_when_it_serves)
{
	char dir[PROGRAM_DIR], path[PROGRAM_PATH], real[PROGRAM_PATH + 8], pipe[PROGRAM_PATH + 8];
	char config[] = "/tmp/tl-config-XXXXXX";
	const char *extra[] = { "--keeper", "yes", "--config", config, NULL };
	struct test_daemon d;
	tl_client *lab = NULL;
	int fd = -1;

	must_be(close(mkstemp(config)), 0);
	d = start_copy_with(dir, path, extra);
	fd = kill_until_next_waits(&d, path, real, pipe);
	config_write(config, "[namespace lab]\n");
	must_be(kill(d.keeper, SIGHUP), 0);
	must_be(unlink(pipe), 0);
	must_be(write(fd, "\n", 1), 1);
	close(fd);
	eventually(!tl_connect(
		&TL_INIT(tl_connect_options, .address = d.socket, .namespace_name = "lab"), &lab));
	tl_close(lab);
	must(!strcmp(td_full_status(&d).restart_reason, "asked for by SIGHUP"));
	must_be(unlink(real) | unlink(config), 0);
	remove_program(&d, dir, path);
}

/* When the keeper learns that it serves, its program cannot be told any more. */
TEST(a_daemon_that_dies_as_soon_as_it_serves_loses_nothing_if_another_layout_was_installed)
{
	char dir[PROGRAM_DIR], path[PROGRAM_PATH], real[PROGRAM_PATH + 8], pipe[PROGRAM_PATH + 8];
	struct test_daemon d = start_copy(dir, path);
	tl_client *c = td_connect(&d);
	pid_t pid = 0;
	int fd;

	must_be(put_value(c, "a", 1, NULL), 0);
	tl_close(c);
	fd = kill_until_next_waits(&d, path, real, pipe);
	process_stop(d.keeper);
	must_be(unlink(pipe), 0);
	must_be(write(fd, "\n", 1), 1);
	close(fd);
	eventually((pid = proper(&d)));
	if (!install_other_layout(path))
		must_be(rename(real, path), 0);
	must_be(kill(pid, SIGKILL), 0);
	must_be(kill(d.keeper, SIGCONT), 0);
	eventually(proper(&d) && proper(&d) != pid);
	must_be(td_full_status(&d).tensors, 1);
	unlink(real);
	remove_program(&d, dir, path);
}

/* Whether the process has not read that signal yet. */
static bool is_pending(pid_t pid, int number)
{
	return process_status(pid, "ShdPnd", 16) >> (number - 1) & 1;
}

/* A reload would be refused. */
TEST(a_reload_asked_for_later_does_not_replace_a_restart)
{
	char dir[PROGRAM_DIR], path[PROGRAM_PATH], real[PROGRAM_PATH + 8], pipe[PROGRAM_PATH + 8];
	char config[] = "/tmp/tl-config-XXXXXX";
	const char *extra[] = { "--keeper", "yes", "--config", config, NULL };
	struct test_daemon d;
	tl_client *c;
	int fd;

	must_be(close(mkstemp(config)), 0);
	config_write(config, "max-tensors = 4096\n");
	d = start_copy_with(dir, path, extra);
	c = td_connect(&d);
	must_be(put_value(c, "a", 1, NULL), 0);
	tl_close(c);
	fd = kill_until_next_waits(&d, path, real, pipe);
	config_write(config, "max-tensors = 8192\n");
	must_be(kill(d.keeper, SIGUSR2), 0);
	eventually(!is_pending(d.keeper, SIGUSR2));
	must_be(kill(d.keeper, SIGHUP), 0);
	must_be(unlink(pipe), 0);
	must_be(write(fd, "\n", 1), 1);
	close(fd);
	eventually(began_by(&d, "asked for by SIGUSR2"));
	must_be(unlink(real) | unlink(config), 0);
	remove_program(&d, dir, path);
}

/* The reload goes back to the former program, which does not read the files as they are. */
TEST(a_restart_asked_for_during_a_reload_that_fails_is_done_too)
{
	char dir[PROGRAM_DIR], path[PROGRAM_PATH];
	struct test_daemon d = start_copy(dir, path);
	tl_client *c = td_connect(&d);

	must_be(put_value(c, "a", 1, NULL), 0);
	tl_close(c);
	install_script(path, "#!/bin/sh\nexit 1\n");
	process_stop(d.keeper);
	must_be(kill(d.keeper, SIGHUP), 0); /* which is read first, since its number is lower */
	must_be(kill(d.keeper, SIGUSR2), 0);
	must_be(kill(d.keeper, SIGCONT), 0);
	eventually(began_by(&d, "asked for by SIGUSR2"));
	must_be(td_full_status(&d).tensors, 1);
	remove_program(&d, dir, path);
}

TEST(a_restart_for_which_there_is_no_program_says_so_at_once)
{
	char dir[PROGRAM_DIR], path[PROGRAM_PATH], later[PROGRAM_PATH + 8];
	struct test_daemon d = start_copy(dir, path);
	tl_client *c = td_connect(&d);

	snprintf(later, sizeof(later), "%s.later", path);
	must_be(rename(path, later), 0);
	must_be(tl_restart(c), -ENOENT);
	must(strstr(tl_last_error(), path));
	must_be(rename(later, path), 0);
	must_be(tl_restart(c), 0);
	tl_close(c);
	remove_program(&d, dir, path);
}

int main(void)
{
	return suite_run();
}
