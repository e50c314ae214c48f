/* SPDX-License-Identifier: Apache-2.0 */
/* Checks, tests and daemons. */
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>

#include "client/connection/client.h"
#include "client/connection/process.h"
#include "tests/harness/catalogs.h"
#include "tests/harness/harness.h"
#include "tests/harness/log.h"
#include "tests/harness/own_user.h"
#include "tests/harness/process.h"

enum { FDS_MAX = 1024, DIRS_MAX = 16, CHILD_FAILED = 97, CHECK_WRONG = 4 };

/* The current test's directories and daemons. The teardown removes what is left of them, and of its
 * processes, however the test ended. */
static char dirs[DIRS_MAX][64];
static uint64_t instances[DIRS_MAX];
static bool fds_before[FDS_MAX];
static bool has_failed;
static int64_t test_end;

_Noreturn void must_failed(const char *file, int line, const char *what, long long value,
			   long long expected)
{
	char text[1024];

	if (value == expected)
		snprintf(text, sizeof(text), "%s:%d: %s", file, line, what);
	else
		snprintf(text, sizeof(text), "%s:%d: %s is %lld, not %lld (%s)", file, line, what,
			 value, expected, tl_last_error());
	if (process_in_child()) {
		fprintf(stderr, "child: %s\n", text);
		_exit(CHILD_FAILED);
	}
	has_failed = true;
	print_error("%s\n", text);
	_fail(file, line);
	abort();
}

int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * SECOND + ts.tv_nsec;
}

/* ---- What must not be left behind ---- */

/* Calls @visit for each number in /proc/PID/fd. */
static unsigned each_fd(pid_t pid, void (*visit)(int fd))
{
	char path[64];
	unsigned count = 0;
	struct dirent *e;
	DIR *dir;

	snprintf(path, sizeof(path), pid ? "/proc/%d/fd" : "/proc/self/fd", (int)pid);
	dir = opendir(path);
	must(dir);
	while ((e = readdir(dir))) {
		int fd = atoi(e->d_name);

		if (e->d_name[0] == '.' || (!pid && fd == dirfd(dir)))
			continue;
		count++;
		if (visit)
			visit(fd);
	}
	closedir(dir);
	return count;
}

bool test_on_memfds(void)
{
	const char *storage = getenv("TL_TEST_STORAGE");

	return storage && !strcmp(storage, "memfd");
}

bool test_gpu_is_real(void)
{
	const char *which = getenv("TL_TEST_GPU");

	return which && !strcmp(which, "real");
}

bool test_without_keepers(void)
{
	const char *keeper = getenv("TL_TEST_KEEPER");

	return keeper && !strcmp(keeper, "0");
}

unsigned count_fds(pid_t pid)
{
	return each_fd(pid, NULL);
}

static unsigned fds_left;

static void note_fd(int fd)
{
	if (fd < FDS_MAX)
		fds_before[fd] = true;
}

static void close_if_new(int fd)
{
	if (fd >= FDS_MAX || fds_before[fd])
		return;
	fds_left++;
	close(fd);
}

/* Counts, or with @remove unlinks, the objects of an instance. */
static unsigned each_object(const char *dir_name, uint64_t instance, bool remove)
{
	char prefix[64];
	unsigned count = 0;
	struct dirent *e;
	DIR *dir = opendir(dir_name);

	/* of all namespaces, whose ids differ in the last three digits */
	snprintf(prefix, sizeof(prefix), "tensorlease-%013llx", (unsigned long long)instance >> 12);
	if (!dir)
		return 0;
	while ((e = readdir(dir))) {
		if (strncmp(e->d_name, prefix, strlen(prefix)))
			continue;
		count++;
		if (remove)
			unlinkat(dirfd(dir), e->d_name, 0);
	}
	closedir(dir);
	return count;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

void test_init(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	process_kill_on_alarm();
	signal(SIGPIPE, SIG_IGN);
	fork_timeout_ns = WAIT_S * SECOND;
	unsetenv("TENSORLEASE_SOCKET");
	if (!test_gpu_is_real()) /* the fake one's memory is of memfds, which daemons refuse */
		setenv("TENSORLEASE_FAKE_GPU", "1", 1);
}

void test_timeout(unsigned seconds)
{
	alarm(test_limit(seconds));
	test_end = now_ns() + test_limit(seconds) * SECOND;
}

int test_left_ms(void)
{
	int64_t left = (test_end - now_ns()) / (SECOND / 1000) - 5000;

	return left > WAIT_MS ? (int)left : WAIT_MS;
}

int test_setup(void **state)
{
	(void)state;
	has_failed = false;
	memset(fds_before, 0, sizeof(fds_before));
	each_fd(0, note_fd);
	test_timeout(TEST_TIMEOUT_S);
	return 0;
}

int test_teardown(void **state)
{
	unsigned objects = 0;

	(void)state;
	alarm(0);
	process_kill_all();
	process_wait_all();
	for (int i = 0; i < DIRS_MAX; i++) {
		if (dirs[i][0] && has_failed)
			log_show(dirs[i]);
		if (dirs[i][0])
			nftw(dirs[i], remove_one, 8, FTW_DEPTH | FTW_PHYS);
		if (instances[i])
			objects += each_object("/dev/shm", instances[i], true);
	}
	memset(dirs, 0, sizeof(dirs));
	memset(instances, 0, sizeof(instances));
	/* It may have left anything, such as descriptors that the library still means to use. */
	if (has_failed)
		return 0;
	fds_left = 0;
	each_fd(0, close_if_new);
	if (fds_left == 0 && objects == 0)
		return 0;
	print_error("left behind: %u descriptors, %u shm objects\n", fds_left, objects);
	return -1;
}

/* ---- Daemons ---- */

static void make_dir(struct test_daemon *d, bool for_others)
{
	const char *base = for_others ? NULL : getenv("TMPDIR");
	int i = 0;

	must(snprintf(d->dir, sizeof(d->dir), "%s/tl-test-XXXXXX", base ? base : "/tmp") <
	     (int)sizeof(d->dir));
	must(mkdtemp(d->dir));
	must_be(chmod(d->dir, 0755), 0); /* children of other users use it */
	while (dirs[i][0])
		must(++i < DIRS_MAX);
	snprintf(dirs[i], sizeof(dirs[i]), "%s", d->dir);
	d->own_dir = true;
}

static void remember_instance(uint64_t instance)
{
	int i = 0;

	while (instances[i] && instances[i] != instance)
		must(++i < DIRS_MAX);
	instances[i] = instance;
}

static void forget_instance(uint64_t instance)
{
	for (int i = 0; i < DIRS_MAX; i++)
		if (instances[i] == instance)
			instances[i] = 0;
}

static int open_notify_socket(const struct test_daemon *d)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	must(fd >= 0);
	must(snprintf(a.sun_path, sizeof(a.sun_path), "%s/notify", d->dir) <
	     (int)sizeof(a.sun_path));
	unlink(a.sun_path);
	must_be(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	setenv("NOTIFY_SOCKET", a.sun_path, 1);
	return fd;
}

/* Runs in the child that becomes the daemon. Returns 0 or -1. */
static int private_shm(uint64_t size)
{
	char options[64];

	snprintf(options, sizeof(options), "mode=1777,size=%llu", (unsigned long long)size);
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return -1;
	return mount("tl-test", "/dev/shm", "tmpfs", 0, options);
}

/* In a user namespace of its own. Returns 0 or -1. */
static int few_watches(unsigned most)
{
	char number[16];

	snprintf(number, sizeof(number), "%u", most);
	return own_user_namespace(geteuid(), getegid()) &&
			       write_text("/proc/sys/user/max_inotify_watches", number)
		       ? 0
		       : -1;
}

bool test_can_limit_watches(void)
{
	int status;
	pid_t pid = fork();

	if (!pid)
		_exit(few_watches(1) ? 1 : 0);
	must(waitpid(pid, &status, 0) == pid);
	return !status;
}

struct arguments {
	const char *list[40];
	char numbers[4][24];
	int n;
};

static void add_number(struct arguments *a, int which, const char *option, uint64_t value)
{
	if (!value)
		return;
	snprintf(a->numbers[which], sizeof(a->numbers[which]), "%llu", (unsigned long long)value);
	a->list[a->n++] = option;
	a->list[a->n++] = a->numbers[which];
}

static void make_arguments(struct arguments *a, const struct test_daemon *d,
			   const struct td_options *o)
{
	const char *binary = getenv("TL_TEST_DAEMON");

	a->list[a->n++] = binary ? binary : "build/bin/tensorleased";
	a->list[a->n++] = "--foreground";
	a->list[a->n++] = "--hello-timeout"; /* a busy machine may stop a test for long */
	a->list[a->n++] = "60";
	if (o->listen_fd_peek <= 0) {
		a->list[a->n++] = "--socket";
		a->list[a->n++] = d->socket;
	}
	if (o->capacity != UINT64_MAX)
		add_number(a, 0, "--capacity", o->capacity ? o->capacity : 64 * MIB);
	add_number(a, 1, "--uid-capacity", o->uid_capacity);
	add_number(a, 2, "--max-tensors", o->max_tensors);
	add_number(a, 3, "--max-clients", o->max_clients);
	a->list[a->n++] = "--storage";
	a->list[a->n++] = o->storage ? o->storage : test_on_memfds() ? "memfd" : "shm";
	if (o->no_keeper || test_without_keepers()) {
		a->list[a->n++] = "--keeper"; /* what follows wins */
		a->list[a->n++] = "no";
	}
	for (int i = 0; o->extra && o->extra[i]; i++) {
		must(a->n < 38);
		a->list[a->n++] = o->extra[i];
	}
}

/* Runs in the child, which becomes the daemon or exits with 126 or 127. */
static _Noreturn void become_daemon(const struct td_options *o, const char *const *arguments,
				    int log_fd)
{
	struct rlimit limit = { .rlim_cur = o->nofile, .rlim_max = o->nofile };
	struct rlimit size = { .rlim_cur = o->fsize, .rlim_max = o->fsize };
	char pid_text[16];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGPIPE, SIG_DFL);
	dup2(o->stderr_fd_peek > 0 ? o->stderr_fd_peek : log_fd, STDERR_FILENO);
	if (o->listen_fd_peek > 0) {
		if (o->listen_fd_peek == 3)
			fcntl(3, F_SETFD, 0);
		else
			dup2(o->listen_fd_peek, 3);
		snprintf(pid_text, sizeof(pid_text), "%d", (int)getpid());
		setenv("LISTEN_PID", pid_text, 1);
		setenv("LISTEN_FDS", "1", 1);
	}
	if (o->watches && few_watches(o->watches))
		_exit(126);
	if (o->shm_size && private_shm(o->shm_size))
		_exit(126);
	if (o->group && !write_text(o->group, "0"))
		_exit(126);
	if (o->nofile && setrlimit(RLIMIT_NOFILE, &limit))
		_exit(126);
	if (o->fsize && setrlimit(RLIMIT_FSIZE, &size))
		_exit(126);
	execv(arguments[0], (char *const *)(const void *)arguments);
	fprintf(stderr, "%s: %s\n", arguments[0], strerror(errno));
	_exit(127);
}

static int try_connect(const char *path)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	must(fd >= 0);
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	if (connect(fd, (struct sockaddr *)&a, sizeof(a)) == 0)
		return fd;
	close(fd);
	return -1;
}

/*
 * Waits until something listens. READY=1 or a new entry in the directory wakes us. Nothing tells
 * about the step from bind() to listen(), hence the short timeout.
 */
static void wait_until_it_listens(struct test_daemon *d, int notify_fd, int inotify_fd)
{
	int64_t end = now_ns() + WAIT_S * SECOND;
	int pidfd = process_pidfd(d->pid), fd;
	char drain[4096];

	while ((fd = try_connect(d->socket)) < 0) {
		struct pollfd p[] = { { .fd = notify_fd, .events = POLLIN },
				      { .fd = inotify_fd, .events = POLLIN },
				      { .fd = pidfd, .events = POLLIN } };

		poll(p, 3, access(d->socket, F_OK) ? 1000 : 1);
		if (p[2].revents || now_ns() > end) {
			log_show(d->dir);
			must(!"the daemon does not start");
		}
		while (p[0].revents && recv(notify_fd, drain, sizeof(drain), 0) > 0)
			;
		while (p[1].revents && read(inotify_fd, drain, sizeof(drain)) > 0)
			;
	}
	close(fd);
	close(pidfd);
}

static void wait_until_ready(struct test_daemon *d, int notify_fd)
{
	struct pollfd p = { .fd = notify_fd, .events = POLLIN };
	char text[4096];
	ssize_t n;

	do {
		if (poll(&p, 1, WAIT_MS) != 1) {
			log_show(d->dir);
			must(!"READY=1 never came");
		}
		n = recv(notify_fd, text, sizeof(text) - 1, 0);
		must(n > 0);
		text[n] = '\0';
	} while (!strstr(text, "READY=1"));
}

/* The process that we started. */
static pid_t started(const struct test_daemon *d)
{
	return d->keeper ? d->keeper : d->pid;
}

/* Also whether it has a keeper. */
static void learn_instance(struct test_daemon *d)
{
	struct raw rc = rc_open(d);

	d->instance = rc.welcome.instance;
	if (rc.catalog->daemon_pid != (uint32_t)d->pid) {
		d->keeper = d->pid;
		d->pid = (pid_t)rc.catalog->daemon_pid;
	}
	rc_goodbye(&rc);
	if (!d->own_shm)
		remember_instance(d->instance);
}

static int open_log(const struct test_daemon *d)
{
	char path[128];
	int fd;

	snprintf(path, sizeof(path), "%s/log", d->dir);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_APPEND, 0600);
	must(fd >= 0);
	return fd;
}

static void place_socket(struct test_daemon *d, const struct td_options *o)
{
	char run[80];

	make_dir(d, o->for_others);
	if (o->socket) {
		snprintf(d->socket, sizeof(d->socket), "%s", o->socket);
		return;
	}
	snprintf(run, sizeof(run), "%s/run", d->dir);
	must_be(mkdir(run, 0755), 0);
	snprintf(d->socket, sizeof(d->socket), "%s/socket", run);
}

struct test_daemon td_start_options(const struct td_options *o)
{
	struct test_daemon d = { .own_shm = o->shm_size > 0 };
	struct arguments a = { .n = 0 };
	int log_fd, notify_fd, inotify_fd;
	char run[108];

	place_socket(&d, o);
	make_arguments(&a, &d, o);
	log_fd = open_log(&d);
	notify_fd = open_notify_socket(&d);
	inotify_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	snprintf(run, sizeof(run), "%s", d.socket);
	*strrchr(run, '/') = '\0';
	must(inotify_fd >= 0 &&
	     inotify_add_watch(inotify_fd, run, IN_CREATE | IN_ATTRIB | IN_MOVED_TO) >= 0);

	d.pid = fork();
	must(d.pid >= 0);
	if (d.pid == 0)
		become_daemon(o, a.list, log_fd);
	process_remember(d.pid);
	unsetenv("NOTIFY_SOCKET");
	if (o->expect_ready)
		wait_until_ready(&d, notify_fd);
	if (!o->expect_exit) {
		wait_until_it_listens(&d, notify_fd, inotify_fd);
		learn_instance(&d);
	}
	close(log_fd);
	close(notify_fd);
	close(inotify_fd);
	return d;
}

int td_exit_status(struct test_daemon *d)
{
	int status = 0;

	must_be(process_wait(started(d), &status), 0);
	process_say_if_crashed("a daemon", status);
	d->pid = d->keeper = 0;
	return status;
}

const char *td_inspector(void)
{
	static char path[PATH_MAX];
	const char *build = getenv("TL_TEST_BUILD");

	snprintf(path, sizeof(path), "%s/tests/inspect/inspect", build ? build : "build");
	return path;
}

/* In the child; prints into the file "check". */
static _Noreturn void become_check(const struct test_daemon *d)
{
	const char *program = td_inspector();
	char path[128];
	int fd;

	snprintf(path, sizeof(path), "%s/check", d->dir);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	dup2(fd, STDOUT_FILENO);
	dup2(fd, STDERR_FILENO);
	/* This process may have a thread of a sanitizer's, and then it may not enter a namespace.
	 */
	snprintf(path, sizeof(path), "--mount=/proc/%d/ns/mnt", (int)d->pid);
	if (d->own_shm)
		execlp("nsenter", "nsenter", path, program, d->socket, NULL);
	else
		execl(program, program, d->socket, NULL);
	_exit(127);
}

int td_check(const struct test_daemon *d, bool quiet)
{
	char path[128], text[4096] = "";
	pid_t pid = fork();
	FILE *f;
	int status;

	must(pid >= 0);
	if (pid == 0)
		become_check(d);
	process_remember(pid);
	must_be(process_wait(pid, &status), 0);
	process_say_if_crashed("tests/inspect", status);
	must(WIFEXITED(status));
	snprintf(path, sizeof(path), "%s/check", d->dir);
	f = quiet || !WEXITSTATUS(status) ? NULL : fopen(path, "re");
	if (f) {
		(void)!fread(text, 1, sizeof(text) - 1, f);
		fclose(f);
		print_error("%stests/inspect says:\n%s",
			    WEXITSTATUS(status) == CHECK_WRONG ? "damaged: " : "", text);
	}
	return WEXITSTATUS(status);
}

void td_stop(struct test_daemon *d)
{
	int status;

	if (process_in_child() || d->pid <= 0)
		return;
	must_be(td_check(d, false), 0);
	must_be(kill(started(d), SIGTERM), 0);
	status = td_exit_status(d);
	if (status)
		log_show(d->dir);
	must_be(status, 0);
	log_must_have_no_crash(d->dir);
	if (d->own_shm)
		return;
	must_be(td_objects(d), 0);
	forget_instance(d->instance);
}

/* The daemon that serves now, or is a zombie; 0: its keeper has none. */
static pid_t proper(const struct test_daemon *d)
{
	char path[64];
	int pid = 0;
	FILE *f;

	if (!d->keeper)
		return d->pid;
	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)d->keeper, (int)d->keeper);
	f = fopen(path, "re");
	if (f && fscanf(f, "%d", &pid) != 1)
		pid = 0;
	if (f)
		fclose(f);
	return pid;
}

/* Of a keeper that stands still. When it returns everything that the child had open is closed. */
static void kill_child(const struct test_daemon *d)
{
	struct pollfd p = { .events = POLLIN };
	pid_t pid = proper(d);

	if (!pid)
		return;
	p.fd = process_pidfd(pid);
	must_be(kill(pid, SIGKILL), 0);
	must_be(poll(&p, 1, WAIT_MS), 1);
	close(p.fd);
}

void td_kill_keeper(struct test_daemon *d)
{
	pid_t pid = proper(d);
	int status;

	must_be(kill(d->keeper, SIGKILL), 0);
	must_be(process_wait(d->keeper, &status), 0);
	must(WIFSIGNALED(status));
	d->pid = pid;
	d->keeper = 0;
}

void td_kill(struct test_daemon *d)
{
	struct catalogs_held held = { 0 };
	int status;

	if (!d->own_shm)
		catalogs_hold(d->instance, &held);
	if (d->keeper) {
		process_stop(d->keeper);
		kill_child(d);
	}
	must_be(kill(started(d), SIGKILL), 0);
	status = td_exit_status(d);
	must(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	log_must_have_no_crash(d->dir);
	if (!d->own_shm)
		must_be(td_check(d, false), 0);
	catalogs_release(&held);
}

bool td_alive(const struct test_daemon *d)
{
	siginfo_t info = { .si_pid = 0 };
	const unsigned pid = (unsigned)started(d);

	/* its zombie is left to who stops it, and its number to nobody else until then */
	if (d->pid <= 0 || waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT))
		return false;
	if (info.si_pid && info.si_code != CLD_EXITED)
		process_say_if_crashed("a daemon", info.si_status);
	return !info.si_pid;
}

void end_daemon(pid_t pid)
{
	struct pollfd p = { .fd = process_pidfd(pid), .events = POLLIN };

	must_be(kill(pid, SIGTERM), 0);
	must_be(poll(&p, 1, WAIT_MS), 1);
	close(p.fd);
	waitpid(pid, NULL, WNOHANG); /* a child of ours, if we are its subreaper */
}

void td_freeze(const struct test_daemon *d)
{
	process_stop(proper(d));
}

void td_thaw(const struct test_daemon *d)
{
	pid_t pid = proper(d);

	must(pid > 0); /* 0 would be our own process group */
	must_be(kill(pid, SIGCONT), 0);
}

char *td_log(const struct test_daemon *d)
{
	char *text = log_read(d->dir);

	must(text);
	return text;
}

unsigned td_objects(const struct test_daemon *d)
{
	char path[64];

	if (!d->own_shm)
		return each_object("/dev/shm", d->instance, false);
	snprintf(path, sizeof(path), "/proc/%d/root/dev/shm", (int)d->pid);
	return each_object(path, d->instance, false);
}

void td_sync(const struct test_daemon *d)
{
	struct raw rc = rc_open(d);

	rc_sync(&rc);
	rc_goodbye(&rc);
}

struct tl_status td_status(const struct test_daemon *d)
{
	struct raw rc = rc_open(d);
	const struct catalog_header *h = rc.catalog;
	struct tl_status s = { .size = sizeof(s) };

	rc_sync(&rc);
	s.capacity = h->capacity;
	s.bytes_used = atomic_load(&h->bytes_used);
	s.bytes_warm = atomic_load(&h->bytes_warm);
	s.bytes_kept = atomic_load(&h->bytes_kept);
	s.longest_turn_ns = atomic_load(&h->longest_turn_ns);
	s.commits = atomic_load(&h->commits);
	s.tensors = atomic_load(&h->tensors);
	s.retired = atomic_load(&h->retired);
	s.drafts = atomic_load(&h->drafts);
	s.rings = atomic_load(&h->rings);
	s.ring_slots = atomic_load(&h->ring_slots);
	s.segments = atomic_load(&h->segments);
	s.clients = atomic_load(&h->clients) - 1;
	s.max_tensors = h->max_tensors;
	s.max_clients = h->max_clients;
	s.daemon_pid = h->daemon_pid;
	rc_goodbye(&rc);
	return s;
}

void td_must_be_empty(const struct test_daemon *d)
{
	struct tl_status s = td_status(d);

	must_be(s.clients, 0);
	must_be(s.tensors, 0);
	must_be(s.retired, 0);
	must_be(s.drafts, 0);
	must_be(s.segments, 0);
	must_be(s.bytes_used, 0);
}

tl_client *td_connect(const struct test_daemon *d)
{
	tl_connect_options o = { .size = sizeof(o),
				 .address = d->socket,
				 .timeout_ns = WAIT_S * SECOND };
	tl_client *client = NULL;

	must_be(tl_connect(&o, &client), 0);
	return client;
}

void client_set_timeout(tl_client *client, int64_t timeout_ns)
{
	client->timeout_ns = timeout_ns;
	atomic_load(&client->session)->timeout_ns = timeout_ns;
}
