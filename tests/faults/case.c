/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One case of `make faults`. Only the program that is meant runs with the interposer, and when the
 * fault is over everything must be as if it had not been. The argument is the kind of case. The
 * runner (tests/faults/run) sets TL_FAULT_PRELOAD and TL_FAULT_REPORT, and TL_FAULT except in the
 * first run, which only counts.
 */
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "tests/cli/run.h"
#include "tests/client/common.h"
#include "tests/faults/report.h"
#include "tests/harness/harness.h"
#include "tests/harness/process.h"

enum { CASE_TIMEOUT_S = 90, BYSTANDER = 300 << 10, ATTEMPTS = 4, TALK_FD = 3, EXIT_NOT_FOUND = 3 };

static struct report *report;

static bool fired(void)
{
	return atomic_load(&report->fired);
}

static void arm(bool on)
{
	atomic_store(&report->armed, on);
}

/* A variable that the runner has set. */
static const char *env(const char *name)
{
	const char *value = getenv(name);

	must(value);
	return value;
}

/* From now on the fault may hit programs that are started, if they are the one that is meant. */
static void preload(const char *target, const char *within)
{
	setenv("LD_PRELOAD", env("TL_FAULT_PRELOAD"), 1);
	setenv("TL_FAULT_TARGET", target, 1);
	setenv("TL_FAULT_WITHIN", within, 1);
}

static void preload_no_more(void)
{
	unsetenv("LD_PRELOAD");
}

static void show(const struct test_daemon *d)
{
	char *log = td_log(d);

	print_error("the daemon's stderr:\n%s\n", log);
	free(log);
}

/* If /dev/shm is ours alone, no daemon may have left anything in it. */
static void shm_must_be_empty(void)
{
	DIR *dir = opendir("/dev/shm");
	struct dirent *e;

	must(dir);
	while (getenv("TL_FAULT_OWN_SHM") && (e = readdir(dir))) {
		if (!strncmp(e->d_name, "tensorlease", 11)) {
			print_error("left in /dev/shm: %s\n", e->d_name);
			must(!"nothing is left in /dev/shm");
		}
	}
	closedir(dir);
}

/* ---- The client that does everything ---- */

struct talker {
	pid_t pid;
	int fd; /* the other end of its TALK_FD */
};

static struct talker client_start(const struct test_daemon *d, const char *how)
{
	const char *binary = env("TL_FAULT_CLIENT");
	struct talker c;
	int pair[2];

	must_be(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	fflush(stdout);
	c.pid = fork();
	must(c.pid >= 0);
	process_remember(c.pid);
	if (!c.pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		setenv("TENSORLEASE_SOCKET", d->socket, 1);
		if (pair[0] == TALK_FD)
			fcntl(TALK_FD, F_SETFD, 0);
		else
			dup2(pair[0], TALK_FD);
		execl(binary, binary, "client", how, NULL);
		_exit(127);
	}
	close(pair[0]);
	c.fd = pair[1];
	return c;
}

static void client_must_succeed(struct talker *c, struct test_daemon *d)
{
	int status = 0;

	close(c->fd);
	must_be(process_wait_ms(c->pid, &status, test_left_ms()), 0);
	process_say_if_crashed("the client", status);
	if (status)
		show(d);
	must_be(status, 0);
}

/* Everybody has given back what they had. Only warm memory is left. */
static void numbers_must_be_none(struct test_daemon *d)
{
	struct tl_status s;

	/* what an ended client had is given back in steps */
	eventually((s = td_status(d), !s.clients && s.bytes_used == s.bytes_warm));
	must_be(s.tensors, 0);
	must_be(s.retired, 0);
	must_be(s.drafts, 0);
	must_be(s.bytes_used, s.bytes_warm);
}

/* ---- The fault is in the library ---- */

static void start_daemon(struct test_daemon *d, const char *socket)
{
	*d = td_start(.socket = socket);
}

TEST(the_library_survives_a_failed_call)
{
	cleanup_td struct test_daemon first = td_start(.capacity = 64 * MIB);
	cleanup_td struct test_daemon second = { .pid = 0 };
	struct talker client;
	char byte;

	test_timeout(CASE_TIMEOUT_S);
	arm(true);
	preload("client", "libtensorlease");
	client = client_start(&first, "restart");
	preload_no_more();
	if (read(client.fd, &byte, 1) == 1) { /* it is where the daemon is to be killed */
		td_sync(&first);
		td_kill(&first);
		first.pid = 0;
		start_daemon(&second, first.socket);
		must_be(write(client.fd, &byte, 1), 1);
	}
	client_must_succeed(&client, second.pid ? &second : &first);
	must(second.pid);
	numbers_must_be_none(&second);
}

TEST(the_library_survives_it_while_it_starts_a_daemon)
{
	struct test_daemon d = td_start(.capacity = 64 * MIB);
	struct talker client;
	struct raw rc;

	test_timeout(CASE_TIMEOUT_S);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	td_stop(&d); /* only its directory is wanted */
	arm(true);
	preload("client", "libtensorlease");
	client = client_start(&d, "autostart");
	preload_no_more();
	client_must_succeed(&client, &d);
	rc = rc_open(&d);
	d.pid = (pid_t)rc.catalog->daemon_pid;
	d.instance = rc.welcome.instance;
	rc_goodbye(&rc);
	numbers_must_be_none(&d);
	end_daemon(d.pid);
	must_be(td_objects(&d), 0);
}

/* ---- The fault is in the daemon ---- */

/* The daemon has ended by itself instead of starting. That is right if it says why. */
static void must_have_refused(struct test_daemon *d, int status)
{
	char *log = td_log(d);

	process_say_if_crashed("the daemon", status);
	d->pid = 0;
	print_message("it did not start, status %#x: %s\n", status, log);
	must(fired());
	must(WIFEXITED(status) && WEXITSTATUS(status) >= 1 && WEXITSTATUS(status) <= 3);
	must_contain(log, "tensorleased: ");
	free(log);
	shm_must_be_empty();
}

/* Waits until it serves, and does not only listen. Returns false if it has ended. */
static bool started(struct test_daemon *d)
{
	tl_connect_options o = { .size = sizeof(o),
				 .address = d->socket,
				 .timeout_ns = 20 * SECOND };
	tl_client *client = NULL;
	unsigned rounds = 0;
	int status = 0, r;

	while ((r = tl_connect(&o, &client))) {
		if (waitpid(d->pid, &status, WNOHANG) == d->pid) {
			must_have_refused(d, status);
			return false;
		}
		must(r != -ETIMEDOUT);
		test_pause(&rounds);
	}
	tl_close(client);
	return true;
}

/* A call has failed. Only the fault may be the cause, and there must be a text. */
static void may_fail(int r)
{
	print_message("bystander: %d %s\n", r, tl_last_error());
	must(fired());
	must(r < 0 && r != -ETIMEDOUT && *tl_last_error());
	must(!strstr(tl_last_error(), "killed by signal")); /* said of a daemon that it started */
}

static int bystander_put(tl_client *client, unsigned char *data)
{
	int64_t shape[1] = { BYSTANDER };
	DLTensor t = bytes_tensor(data, shape);

	return tl_put(client, "bystander", &t, NULL, &(uint64_t){ 0 });
}

/* Holds a tensor, and checks it when all is over. */
static int bystander(const struct test_daemon *d, void *arg)
{
	static unsigned char data[BYSTANDER];
	tl_connect_options o = { .size = sizeof(o),
				 .address = d->socket,
				 .timeout_ns = 20 * SECOND };
	DLManagedTensorVersioned *t = NULL, *again = NULL;
	tl_client *client = NULL;
	int r;

	(void)arg;
	memset(data, 5, sizeof(data));
	for (unsigned i = 0; i < ATTEMPTS && (r = tl_connect(&o, &client)); i++)
		may_fail(r);
	must(client);
	for (unsigned i = 0; i < ATTEMPTS && (r = bystander_put(client, data)); i++)
		may_fail(r);
	for (unsigned i = 0; i < ATTEMPTS && (r = tl_get(client, "bystander", NULL, &t)); i++)
		may_fail(r);
	must(t);
	must(all_bytes(t, 5, BYSTANDER));
	pause_at(1);
	must(all_bytes(t, 5, BYSTANDER));
	for (unsigned i = 0; i < ATTEMPTS && (r = tl_get(client, "bystander", NULL, &again)); i++)
		may_fail(r);
	must(again);
	must(all_bytes(again, 5, BYSTANDER));
	drop(t);
	drop(again);
	for (unsigned i = 0; i < ATTEMPTS && (r = tl_delete(client, "bystander")); i++) {
		may_fail(r);
		if (r == -ENOENT && i > 0) /* it was deleted, and only the answer failed */
			break;
	}
	tl_close(client);
	return 0;
}

TEST(the_daemon_survives_a_failed_call)
{
	cleanup_td struct test_daemon d = { .pid = 0 };
	struct test_child by;
	struct talker client;
	struct raw rc;

	test_timeout(CASE_TIMEOUT_S);
	arm(true);
	preload("tensorleased", "");
	d = td_start(.expect_exit = true, .no_keeper = "nothing may hide its death");
	preload_no_more();
	if (!started(&d))
		return;
	by = child_start_ready(&d, bystander, NULL);
	client = client_start(&d, "");
	client_must_succeed(&client, &d);
	child_finish(&by);
	must(td_alive(&d));
	arm(false); /* the harness's own connections do not try again */
	rc = rc_open(&d);
	d.instance = rc.welcome.instance;
	rc_goodbye(&rc);
	numbers_must_be_none(&d);
	arm(true);
	td_stop(&d);
	shm_must_be_empty();
}

TEST(a_daemon_survives_it_while_it_is_started_by_a_client)
{
	struct test_daemon d = td_start(.capacity = 64 * MIB);
	tl_connect_options o = { .size = sizeof(o),
				 .address = d.socket,
				 .flags = TL_CONNECT_AUTOSTART,
				 .timeout_ns = 20 * SECOND };
	tl_client *client = NULL;
	tl_status s = { .size = sizeof(s) };
	int r;

	test_timeout(CASE_TIMEOUT_S);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	td_stop(&d); /* what is wanted is its directory */
	setenv("TENSORLEASE_DAEMON", env("TL_TEST_DAEMON"), 1);
	arm(true);
	preload("tensorleased", "");
	for (unsigned i = 0; i < ATTEMPTS && (r = tl_connect(&o, &client)); i++)
		may_fail(r);
	preload_no_more();
	must(client);
	for (unsigned i = 0; i < ATTEMPTS && (r = bystander_put(client, calloc(1, BYSTANDER))); i++)
		may_fail(r);
	must_be(tl_get_status(client, &s), 0);
	if (s.restarts)
		print_error("crashed: the daemon, %s\n", s.restart_reason);
	must_be(s.restarts, 0); /* its keeper does not hide a death */
	for (unsigned i = 0; i < ATTEMPTS && (r = tl_delete(client, "bystander")); i++)
		may_fail(r);
	tl_close(client);
	end_daemon((pid_t)s.daemon_pid);
	shm_must_be_empty();
}

/* ---- The fault is in the command line ---- */

static void write_file(const char *path, const void *head, size_t head_size,
		       const unsigned char *data, size_t size)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	must(fd >= 0);
	must_be(write(fd, head, head_size), head_size);
	must_be(write(fd, data, size), size);
	close(fd);
}

/* How many entries there are in @path, without "." and "..". */
static unsigned count_files(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *e;
	unsigned n = 0;

	must(dir);
	while ((e = readdir(dir)))
		n += e->d_name[0] != '.' || strlen(e->d_name) > 2;
	closedir(dir);
	return n;
}

static void must_end_with(const char *path, const unsigned char *data, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t n = 0;
	char *all_of_it;

	must(fd >= 0);
	all_of_it = read_all(fd, &n);
	close(fd);
	must(n >= size && !memcmp(all_of_it + n - size, data, size));
	free(all_of_it);
}

/*
 * A command is either carried out, or says that it is not and has done nothing. Then it must work
 * the next time.
 */
static void command(const struct test_daemon *d, const char *out_dir, const char *const *args,
		    const char *expected)
{
	for (unsigned attempt = 0;; attempt++) {
		struct result r = run_at(d->socket, args);
		bool done = r.code == 0;

		if (attempt && r.code == EXIT_NOT_FOUND && !strcmp(args[0], "rm"))
			done = true; /* it was done before, and only saying so failed */

		if (!done) {
			print_message("%s: %d: %s", args[0], r.code, r.err);
			must(fired());
			must(attempt < 2);
			must(r.code > 0 && r.code <= EXIT_NOT_FOUND);
			must(*r.err);
			must_be(count_files(out_dir), 0);
		} else if (expected && !r.code) {
			must_contain(r.out, expected);
		}
		result_deinit(&r);
		if (done)
			return;
	}
}

TEST(the_command_line_does_all_or_says_so)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 64 * MIB);
	static const char npy[] =
		"\x93NUMPY\1\0\x46\0{'descr': '|u1', 'fortran_order': False, 'shape': (70000,), }        \n";
	static const char
		json[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[70000],\"data_offsets\":[0,70000]}}";
	char head[8 + sizeof(json) - 1] = { sizeof(json) - 1 };
	char in_npy[128], in_model[128], out_dir[128], out_npy[160], out_model[160];
	unsigned char *data = malloc(70000);

	must(data);
	test_timeout(CASE_TIMEOUT_S);
	for (unsigned i = 0; i < 70000; i++)
		data[i] = (unsigned char)(i * 7);
	memcpy(head + 8, json, sizeof(json) - 1);
	snprintf(in_npy, sizeof(in_npy), "%s/in.npy", d.dir);
	snprintf(in_model, sizeof(in_model), "%s/in.safetensors", d.dir);
	snprintf(out_dir, sizeof(out_dir), "%s/out", d.dir);
	snprintf(out_npy, sizeof(out_npy), "%s/out.npy", out_dir);
	snprintf(out_model, sizeof(out_model), "%s/out.safetensors", out_dir);
	must_be(sizeof(npy) - 1, 80);
	write_file(in_npy, npy, sizeof(npy) - 1, data, 70000);
	write_file(in_model, head, sizeof(head), data, 70000);
	must_be(mkdir(out_dir, 0700), 0);

	arm(true);
	preload("tensorlease", "");
#define COMMAND(expected, ...)                                                                     \
	command(&d, out_dir, (const char *const[]){ __VA_ARGS__, NULL }, expected)
	COMMAND(NULL, "put", "x", in_npy);
	COMMAND("x", "ls");
	COMMAND("70000", "show", "x");
	COMMAND("tensors", "status", "--clients");
	COMMAND(NULL, "get", "x", "-o", out_npy);
	must_end_with(out_npy, data, 70000);
	must_be(unlink(out_npy), 0);
	COMMAND(NULL, "load", "model", in_model);
	COMMAND("model/a", "ls");
	COMMAND(NULL, "save", "model", out_model);
	must_end_with(out_model, data, 70000);
	must_be(unlink(out_model), 0);
	must_be(count_files(out_dir), 0);
	COMMAND(NULL, "rm", "x");
	COMMAND(NULL, "rm", "--below", "model");
	preload_no_more();
	free(data);
	numbers_must_be_none(&d);
}

static void report_lock_init(void)
{
	pthread_mutexattr_t attributes;

	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&report->lock, &attributes);
	pthread_mutexattr_destroy(&attributes);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		const char *test;
	} cases[] = {
		{ "library", "the_library_survives_a_failed_call" },
		{ "autostart", "the_library_survives_it_while_it_starts_a_daemon" },
		{ "daemon", "the_daemon_survives_a_failed_call" },
		{ "started", "a_daemon_survives_it_while_it_is_started_by_a_client" },
		{ "cli", "the_command_line_does_all_or_says_so" },
	};
	const char *path = getenv("TL_FAULT_REPORT");
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;

	if (fd < 0 || argc < 2) {
		fprintf(stderr, "tests/faults/run runs this\n");
		return 2;
	}
	report = mmap(NULL, sizeof(*report), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (report == MAP_FAILED) {
		perror("mapping the report");
		return 2;
	}
	report_lock_init();
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		if (!strcmp(cases[i].name, argv[1]))
			return suite_run_one(cases[i].test);
	}
	fprintf(stderr, "no kind of case is called %s\n", argv[1]);
	return 2;
}
