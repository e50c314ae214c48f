/* SPDX-License-Identifier: Apache-2.0 */
/* A client never talks to another user's daemon, and never starts another user's program. */
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "client/connection/address.h"
#include "tests/cli/run.h"
#include "tests/harness/own_shm.h"

enum { MALLORY = 60201, VICTIM = 60202, ATTEMPTS = 5000 };

#define NEEDS_ROOT SKIP_UNLESS(geteuid() == 0, "needs root, to be other users")

/* A directory of the test's own that every user can reach. */
struct place {
	char dir[64];
	char path[108]; /* of a socket in that directory */
	int fd;		/* of a listener on that path, or -1 */
};

static struct place place_begin(void)
{
	struct place p = { .dir = "/tmp/tl-trust-XXXXXX", .fd = -1 };

	must(mkdtemp(p.dir));
	must_be(chmod(p.dir, 0755), 0);
	snprintf(p.path, sizeof(p.path), "%s/socket", p.dir);
	return p;
}

static void place_end(struct place *p)
{
	char command[128];

	if (p->fd >= 0)
		close(p->fd);
	snprintf(command, sizeof(command), "rm -rf '%s'", p->dir);
	must_be(system(command), 0);
}

/* Listens as @uid. The kernel tells a client who called listen(), not who accepts. */
static int listen_as(uid_t uid, const char *path)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	must(fd >= 0);
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	must_be(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	must_be(chmod(path, 0666), 0);
	must_be(seteuid(uid), 0);
	must_be(listen(fd, 64), 0);
	must_be(seteuid(0), 0);
	return fd;
}

/* A place where @uid listens. */
static struct place place_listening(uid_t uid)
{
	struct place p = place_begin();

	p.fd = listen_as(uid, p.path);
	return p;
}

static int connect_to(const char *address)
{
	tl_connect_options o = { .size = sizeof(o),
				 .address = address,
				 .timeout_ns = WAIT_S * SECOND };
	tl_client *client = NULL;
	int r = tl_connect(&o, &client);

	if (!r)
		tl_close(client);
	return r;
}

/* ---- Daemons ------------------------------------------------------------------------------- */

TEST(a_daemon_of_another_user_is_not_believed)
{
	struct place p;
	uint32_t uid;

	NEEDS_ROOT;
	p = place_listening(MALLORY);
	{
		cleanup_td struct test_daemon d = td_start(.socket = p.path,
							   .listen_fd_peek = p.fd);

		must_be(connect_to(p.path), -EACCES);
		must_be(tl_last_cause(&uid), TL_CAUSE_UNTRUSTED);
		must_be(uid, MALLORY);
		must(strstr(tl_last_error(), p.path));
		must(strstr(tl_last_error(), "60201"));
		must(strstr(tl_last_error(), "TENSORLEASE_TRUST_UID=60201"));
		must_be(td_status(&d).clients, 0);
	}
	place_end(&p);
}

TEST(a_user_who_is_named_is_trusted)
{
	static const struct {
		const char *list;
		int result;
	} cases[] = {
		{ "60201", 0 },		{ "0,60201", 0 },	   { "60201,7", 0 },
		{ "6020", -EACCES },	{ "602011", -EACCES },	   { "", -EACCES },
		{ "mallory", -EINVAL }, { "7,", -EINVAL },	   { "7 60201", -EINVAL },
		{ "-1", -EINVAL },	{ "4294967295", -EINVAL }, { "4294967296", -EINVAL },
	};
	struct place p;

	NEEDS_ROOT;
	p = place_listening(MALLORY);
	{
		cleanup_td struct test_daemon d = td_start(.socket = p.path,
							   .listen_fd_peek = p.fd);

		for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
			setenv("TENSORLEASE_TRUST_UID", cases[i].list, 1);
			must_be(connect_to(p.path), cases[i].result);
			if (cases[i].result == -EINVAL)
				must(strstr(tl_last_error(), cases[i].list));
		}
		unsetenv("TENSORLEASE_TRUST_UID");
		must_be(td_status(&d).clients, 0);
	}
	place_end(&p);
}

static int is_served(const struct test_daemon *d, void *arg)
{
	(void)arg;
	must_be(connect_to(d->socket), 0);
	return 0;
}

/* systemd hands sockets over this way: root listened, whatever user the daemon runs as. */
TEST(a_socket_that_root_listens_on_is_for_everybody)
{
	struct test_child child;
	struct place p;

	NEEDS_ROOT;
	p = place_listening(0);
	{
		cleanup_td struct test_daemon d = td_start(.socket = p.path,
							   .listen_fd_peek = p.fd);

		child = child_start_as(VICTIM, &d, is_served, NULL);
		child_must_succeed(&child);
	}
	place_end(&p);
}

/* Gives this process, which must be a child, a user table of its own with root and @name. */
static void have_other_users(const char *file, const char *name, unsigned uid)
{
	FILE *f = fopen(file, "we");

	must(f);
	fprintf(f, "root:x:0:0::/:/bin/sh\n%s:x:%u:%u::/:/bin/false\n", name, uid, uid);
	must_be(fclose(f), 0);
	must_be(unshare(CLONE_NEWNS), 0);
	must_be(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
	must_be(mount(file, "/etc/passwd", NULL, MS_BIND, NULL), 0);
}

struct service {
	const char *dir, *name;
	unsigned uid;
	int result;
};

static int connect_where_users_are_others(const struct test_daemon *d, void *arg)
{
	const struct service *s = arg;
	char file[128];

	snprintf(file, sizeof(file), "%s/passwd", s->dir);
	have_other_users(file, s->name, s->uid);
	must_be(connect_to(d->socket), s->result);
	if (s->result) /* the error names that user */
		must(strstr(tl_last_error(), s->name) || s->uid == 1);
	return 0;
}

static int try_mounting(const struct test_daemon *d, void *arg)
{
	(void)d;
	(void)arg;
	return unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
}

/* The name alone is not enough: an ordinary user may be given it. */
TEST(the_services_user_is_known_by_its_name_and_a_systems_number)
{
	enum { SYSTEM = 321 };
	struct service cases[] = {
		{ .name = "tensorlease", .uid = SYSTEM, .result = 0 },
		{ .name = "tensorleased", .uid = SYSTEM, .result = -EACCES },
		{ .name = "tensorlease", .uid = 1, .result = -EACCES },
		{ .name = "tensorlease", .uid = MALLORY, .result = -EACCES },
	};
	struct place p;

	NEEDS_ROOT;
	SKIP_UNLESS(td_run_client(NULL, try_mounting, NULL) == 0,
		    "needs mounts of its own, to have other users");
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		p = place_listening(cases[i].uid == MALLORY ? MALLORY : SYSTEM);
		{
			cleanup_td struct test_daemon d = td_start(.socket = p.path,
								   .listen_fd_peek = p.fd);

			cases[i].dir = p.dir;
			must_be(td_run_client(&d, connect_where_users_are_others, &cases[i]), 0);
		}
		place_end(&p);
	}
}

/* ---- Ways to be led to one ------------------------------------------------------------------ */

/* Accepts connections and hangs up, so that a client which trusts this server fails at once. */
static int turn_away(const struct test_daemon *d, void *arg)
{
	int fd = *(int *)arg, one;

	(void)d;
	while ((one = accept4(fd, NULL, NULL, SOCK_CLOEXEC)) >= 0)
		close(one);
	return 0;
}

struct lure {
	char in[64], out[64];
};

/* Renames a directory in and out until it is killed. */
static int lead_astray(const struct test_daemon *d, void *arg)
{
	const struct lure *lure = arg;

	(void)d;
	for (;;) {
		(void)!rename(lure->out, lure->in);
		(void)!rename(lure->in, lure->out);
	}
	return 0;
}

/*
 * No path that tl_connect() makes up may lead to another user's socket, whatever happens to its
 * directories meanwhile.
 */
static int connect_often(const struct test_daemon *d, void *arg)
{
	char address[108];

	(void)d;
	snprintf(address, sizeof(address), "%s/socket", (const char *)arg);
	for (int i = 0; i < ATTEMPTS; i++) {
		int r = connect_to(address);

		if (r != -ENOENT && r != -EACCES)
			fprintf(stderr, "attempt %d: %s\n", i, tl_last_error());
		must(r == -ENOENT || r == -EACCES);
	}
	return 0;
}

/* A user id that only this run has, so that nobody else uses its directory below /tmp. */
static uid_t own_uid(void)
{
	return 1000000000U + (uid_t)getpid();
}

static struct place lured_place(struct lure *lure)
{
	struct place p = place_begin();

	snprintf(lure->in, sizeof(lure->in), "/tmp/tensorlease-%u", (unsigned)own_uid());
	snprintf(lure->out, sizeof(lure->out), "/tmp/tensorlease-%u-out", (unsigned)own_uid());
	must_be(mkdir(lure->out, 0755), 0);
	snprintf(p.path, sizeof(p.path), "%s/socket", lure->out);
	p.fd = listen_as(MALLORY, p.path);
	must_be(chown(lure->out, MALLORY, MALLORY), 0);
	return p;
}

static void lured_place_end(struct place *p, const struct lure *lure)
{
	char command[256];

	snprintf(command, sizeof(command), "rm -rf '%s' '%s'", lure->in, lure->out);
	must_be(system(command), 0);
	place_end(p);
}

TEST(a_directory_renamed_in_and_out_leads_nobody_astray)
{
	struct test_child server, renamer, victim;
	struct lure lure;
	struct place p;
	int status;

	NEEDS_ROOT;
	p = lured_place(&lure);
	server = child_start_as(MALLORY, NULL, turn_away, &p.fd);
	renamer = child_start_as(MALLORY, NULL, lead_astray, &lure);
	victim = child_start_as(own_uid(), NULL, connect_often, lure.in);
	status = child_wait(&victim);
	child_kill(&renamer);
	child_kill(&server);
	lured_place_end(&p, &lure);
	must_be(status, 0);
}

static int connect_around(const struct test_daemon *d, void *arg)
{
	char address[108];

	(void)d;
	snprintf(address, sizeof(address), "/tmp//%s/socket", strrchr(arg, '/') + 1);
	must_be(connect_to(address), -EACCES);
	snprintf(address, sizeof(address), "/tmp/./%s/socket", strrchr(arg, '/') + 1);
	must_be(connect_to(address), -EACCES);
	return 0;
}

TEST(another_spelling_of_a_path_leads_nobody_astray)
{
	struct test_child server, victim;
	struct lure lure;
	struct place p;
	int status;

	NEEDS_ROOT;
	p = lured_place(&lure);
	must_be(rename(lure.out, lure.in), 0);
	server = child_start_as(MALLORY, NULL, turn_away, &p.fd);
	victim = child_start_as(own_uid(), NULL, connect_around, lure.in);
	status = child_wait(&victim);
	child_kill(&server);
	lured_place_end(&p, &lure);
	must_be(status, 0);
}

static int connect_by_runtime(const struct test_daemon *d, void *arg)
{
	(void)d;
	setenv("XDG_RUNTIME_DIR", arg, 1);
	must_be(connect_to(NULL), -EACCES);
	must(strstr(tl_last_error(), "60201"));
	return 0;
}

/*
 * $XDG_RUNTIME_DIR may be wrong, and then others may have filled even a directory in it that is
 * ours.
 */
TEST(a_runtime_directory_leads_nobody_astray)
{
	struct test_child server, victim;
	struct place p;
	char dir[80];
	int status;

	NEEDS_ROOT;
	SKIP_UNLESS(access("/run/tensorlease/socket", F_OK), "a system daemon runs here");
	p = place_begin();
	snprintf(dir, sizeof(dir), "%s/tensorlease", p.dir);
	must_be(mkdir(dir, 0700), 0);
	snprintf(p.path, sizeof(p.path), "%s/socket", dir);
	p.fd = listen_as(MALLORY, p.path);
	must_be(chown(dir, VICTIM, VICTIM), 0);
	must_be(chown(p.dir, VICTIM, VICTIM), 0);
	server = child_start_as(MALLORY, NULL, turn_away, &p.fd);
	victim = child_start_as(VICTIM, NULL, connect_by_runtime, p.dir);
	status = child_wait(&victim);
	child_kill(&server);
	place_end(&p);
	must_be(status, 0);
}

/* How the default address goes wrong, with a runtime directory. */
struct runtime {
	const char *directory;
	uint32_t flags;
	int expected;
	char words[160];
};

static int connect_with(const struct test_daemon *d, void *arg)
{
	const struct runtime *run = arg;
	tl_connect_options o = { .size = sizeof(o), .flags = run->flags };
	tl_client *client = NULL;

	(void)d;
	setenv("XDG_RUNTIME_DIR", run->directory, 1);
	setenv("TENSORLEASE_DAEMON", "/bin/false", 1);
	must_be(tl_connect(&o, &client), run->expected);
	if (!strstr(tl_last_error(), run->words))
		print_error("%s\n", tl_last_error());
	must(strstr(tl_last_error(), run->words));
	return 0;
}

/* As root's after `su`, which keeps the variable. */
TEST(a_runtime_directory_of_another_user_is_not_used)
{
	struct runtime run = { .expected = -ENOENT };
	struct test_child other;
	struct place p;

	NEEDS_ROOT;
	SKIP_UNLESS(own_run(), "may not have a /run of its own");
	p = place_begin();
	run.directory = p.dir;
	must_be(chown(p.dir, MALLORY, MALLORY), 0);
	snprintf(run.words, sizeof(run.words), "/tmp/tensorlease-%u/socket", (unsigned)VICTIM);
	other = child_start_as(VICTIM, NULL, connect_with, &run);
	child_must_succeed(&other);
	place_end(&p);
}

TEST(a_directory_in_the_way_is_named_with_its_owner)
{
	struct runtime run = { .flags = TL_CONNECT_AUTOSTART, .expected = -EACCES };
	struct test_child victim;
	struct place p;
	char dir[80];

	NEEDS_ROOT;
	SKIP_UNLESS(own_run(), "may not have a /run of its own");
	p = place_begin();
	run.directory = p.dir;
	snprintf(dir, sizeof(dir), "%s/tensorlease", p.dir);
	must_be(mkdir(dir, 0700), 0); /* as a root with this variable made it */
	must_be(chown(p.dir, VICTIM, VICTIM), 0);
	snprintf(run.words, sizeof(run.words),
		 "%s is in the way: it belongs to user 0, not to this one (%u); have that", dir,
		 (unsigned)VICTIM);
	for (int i = 0; i < 2; i++) { /* to start a daemon, and to connect to one */
		victim = child_start_as(VICTIM, NULL, connect_with, &run);
		child_must_succeed(&victim);
		run.flags = 0;
	}
	place_end(&p);
}

/* ---- Programs ------------------------------------------------------------------------------- */

/*
 * Modes and owners of the parts of DIR/a/b/program. @wrong is what trust_program() must say, or
 * NULL.
 */
struct program_case {
	mode_t a, b, program;
	uid_t a_uid, b_uid, program_uid; /* 0: ours */
	gid_t gid;			 /* of all three, if not 0 */
	const char *wrong;
};

static void make_program(const struct place *p, const struct program_case *c, char path[128])
{
	static const char *const parts[] = { "a", "a/b", "a/b/program" };
	const mode_t modes[] = { c->a, c->b, c->program };
	const uid_t uids[] = { c->a_uid, c->b_uid, c->program_uid };

	for (int i = 0; i < 3; i++) {
		snprintf(path, 128, "%s/%s", p->dir, parts[i]);
		if (i < 2)
			must_be(mkdir(path, 0755), 0);
		else
			close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0755));
		if (uids[i] || c->gid)
			must_be(chown(path, uids[i] ? uids[i] : geteuid(), c->gid), 0);
		must_be(chmod(path, modes[i] ? modes[i] : 0755), 0);
	}
}

static void must_be_judged(const struct program_case *c)
{
	char path[128], why[512] = "";
	struct place p = place_begin();
	bool trusted;

	make_program(&p, c, path);
	trusted = trust_program(path, why, sizeof(why));
	if (trusted != !c->wrong || (c->wrong && !strstr(why, c->wrong)))
		print_error("modes %o %o %o: %d, %s\n", c->a, c->b, c->program, trusted, why);
	place_end(&p);
	must(trusted == !c->wrong);
	must(!c->wrong || strstr(why, c->wrong));
}

TEST(a_program_is_trusted_if_nobody_else_can_change_it)
{
	static const struct program_case cases[] = {
		{ .a = 0 },
		{ .a = 0700, .b = 0710, .program = 0500 },
		{ .program = 0757, .wrong = "/a/b/program: it has mode 0757" },
		{ .b = 0777, .wrong = "/a/b: it has mode 0777" },
		/* others can add a program to it */
		{ .b = 01777, .wrong = "/a/b: it has mode 1777" },
		{ .a = 0777, .wrong = "/a: it has mode 0777" },
		{ .a = 01777 }, /* nobody else can rename what is ours in there */
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		must_be_judged(&cases[i]);
}

TEST(a_program_of_another_user_or_group_is_not_trusted)
{
	static const struct program_case cases[] = {
		{ .a_uid = MALLORY, .wrong = "/a belongs to user 60201" },
		{ .a = 01777, .b_uid = MALLORY, .wrong = "/a/b belongs to user 60201" },
		{ .program_uid = MALLORY, .wrong = "/a/b/program belongs to user 60201" },
		{ .program = 0775, .gid = MALLORY, .wrong = "mode 0775 and group 60201" },
		{ .b = 0775, .gid = MALLORY, .wrong = "mode 0775 and group 60201" },
		{ .a = 0775, .b = 0775, .program = 0775 }, /* the group is root's own */
		{ .gid = MALLORY },
	};

	NEEDS_ROOT;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		must_be_judged(&cases[i]);
}

static void shell(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void shell(const char *format, ...)
{
	char command[1024];
	va_list args;

	va_start(args, format);
	must(vsnprintf(command, sizeof(command), format, args) < (int)sizeof(command));
	va_end(args);
	must_be(system(command), 0);
}

/*
 * Installs the command line with its library, and in the daemon's place a program that leaves a
 * mark.
 */
static void install_copy(const struct place *p)
{
	const char *cli = cli_path();
	int folder = (int)(strrchr(cli, '/') - cli);

	shell("mkdir -p '%s/bin' '%s/lib'", p->dir, p->dir);
	shell("cp '%s' '%s/bin/tensorlease'", cli, p->dir);
	shell("cp '%.*s/../lib/libtensorlease.so.'* '%s/lib/'", folder, cli, p->dir);
	shell("printf '#!/bin/sh\\n>%s/mark\\nexit 9\\n' >'%s/bin/tensorleased'", p->dir, p->dir);
	shell("chmod 755 '%s/bin/tensorleased'", p->dir);
}

static struct result run_copy(const struct place *p)
{
	const char *const args[] = { "wait", "a", "--timeout", "0.05", NULL };
	struct result r;
	char path[128];

	snprintf(path, sizeof(path), "%s/bin/tensorlease", p->dir);
	setenv("TL_TEST_CLI", path, 1);
	setenv("XDG_RUNTIME_DIR", p->dir, 1);
	r = run_at(NULL, args);
	unsetenv("XDG_RUNTIME_DIR");
	return r;
}

/* A program is started only where nobody else can write, and otherwise the error says why not. */
TEST(autostart_starts_no_program_that_others_could_have_put_there)
{
	const char *before = getenv("TL_TEST_CLI");
	char *cli, mark[80];
	struct place p;

	SKIP_UNLESS(access("/run/tensorlease/socket", F_OK), "a system daemon runs here");
	SKIP_UNLESS(access("/usr/local/bin/tensorleased", F_OK), "a daemon is installed here");
	SKIP_UNLESS(system("command -v tensorleased >/dev/null"), "a daemon is in $PATH");
	cli = before ? strdup(before) : NULL;
	p = place_begin();
	install_copy(&p);
	snprintf(mark, sizeof(mark), "%s/mark", p.dir);
	shell("chmod 777 '%s/bin'", p.dir);
	{
		cleanup_result struct result r = run_copy(&p);

		must_exit(&r, 1);
		must_contain(r.err, "/bin/tensorleased, since others can write");
		must_contain(r.err, "mode 0777");
		must_contain(r.err, "$TENSORLEASE_DAEMON");
		must(access(mark, F_OK));
	}
	shell("chmod 755 '%s/bin'", p.dir);
	{
		cleanup_result struct result r = run_copy(&p);

		must_exit(&r, 1);
		must_contain(r.err, "ended with status 9");
		must_be(access(mark, F_OK), 0);
	}
	place_end(&p);
	if (cli)
		setenv("TL_TEST_CLI", cli, 1);
	else
		unsetenv("TL_TEST_CLI");
	free(cli);
}

int main(void)
{
	return suite_run();
}
