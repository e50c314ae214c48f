/* SPDX-License-Identifier: Apache-2.0 */
/* Checks, tests and daemons. */
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>

#include "client/session/client.h"
#include "client/session/fork.h"
#include "tests/harness/harness.h"
#include "tests/harness/process.h"

enum { PIDS_MAX = 512, FDS_MAX = 1024, DIRS_MAX = 16, CHILD_FAILED = 97 };

/* The current test's processes, directories and daemons. The teardown removes what is left of them,
 * however the test ended. */
static pid_t pids[PIDS_MAX];
static char dirs[DIRS_MAX][64];
static uint64_t instances[DIRS_MAX];
static bool fds_before[FDS_MAX];
static bool in_child, has_failed;
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
	if (in_child) {
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

void process_remember(pid_t pid)
{
	for (int i = 0; i < PIDS_MAX; i++) {
		if (pids[i] == 0) {
			pids[i] = pid;
			return;
		}
	}
	must(!"too many processes");
}

static void forget_pid(pid_t pid)
{
	for (int i = 0; i < PIDS_MAX; i++)
		if (pids[i] == pid)
			pids[i] = 0;
}

void process_is_child(void)
{
	in_child = true;
	memset(pids, 0, sizeof(pids));
}

static void kill_all(void)
{
	for (int i = 0; i < PIDS_MAX; i++)
		if (pids[i] > 0)
			kill(pids[i], SIGKILL);
}

static void on_alarm(int signal)
{
	static const char text[] = "TIMEOUT: the test took too long\n";

	(void)signal;
	kill_all();
	(void)!write(STDERR_FILENO, text, sizeof(text) - 1);
	_exit(124);
}

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

	snprintf(prefix, sizeof(prefix), "tensorlease-%016llx-", (unsigned long long)instance);
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
	signal(SIGALRM, on_alarm);
	signal(SIGPIPE, SIG_IGN);
	fork_timeout_ns = WAIT_S * SECOND;
	unsetenv("TENSORLEASE_SOCKET");
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
	kill_all();
	for (int i = 0; i < PIDS_MAX; i++)
		if (pids[i] > 0)
			waitpid(pids[i], NULL, 0);
	memset(pids, 0, sizeof(pids));
	for (int i = 0; i < DIRS_MAX; i++) {
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
	if (o->listen_fd_peek <= 0) {
		a->list[a->n++] = "--socket";
		a->list[a->n++] = d->socket;
	}
	add_number(a, 0, "--capacity", o->capacity ? o->capacity : 64 * MIB);
	add_number(a, 1, "--uid-capacity", o->uid_capacity);
	add_number(a, 2, "--max-tensors", o->max_tensors);
	add_number(a, 3, "--max-clients", o->max_clients);
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
	char pid_text[16];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGPIPE, SIG_DFL);
	dup2(log_fd, STDERR_FILENO);
	if (o->listen_fd_peek > 0) {
		if (o->listen_fd_peek == 3)
			fcntl(3, F_SETFD, 0);
		else
			dup2(o->listen_fd_peek, 3);
		snprintf(pid_text, sizeof(pid_text), "%d", (int)getpid());
		setenv("LISTEN_PID", pid_text, 1);
		setenv("LISTEN_FDS", "1", 1);
	}
	if (o->shm_size && private_shm(o->shm_size))
		_exit(126);
	if (o->nofile && setrlimit(RLIMIT_NOFILE, &limit))
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

static int pidfd_of(pid_t pid)
{
	int fd = (int)syscall(SYS_pidfd_open, pid, 0);

	must(fd >= 0);
	return fd;
}

static void show_log(const struct test_daemon *d)
{
	char *log = td_log(d);

	print_error("the daemon's stderr:\n%s\n", log);
	free(log);
}

/*
 * Waits until something listens. READY=1 or a new entry in the directory wakes us. Nothing tells
 * about the step from bind() to listen(), hence the short timeout.
 */
static void wait_until_it_listens(struct test_daemon *d, int notify_fd, int inotify_fd)
{
	int64_t end = now_ns() + WAIT_S * SECOND;
	int pidfd = pidfd_of(d->pid), fd;
	char drain[4096];

	while ((fd = try_connect(d->socket)) < 0) {
		struct pollfd p[] = { { .fd = notify_fd, .events = POLLIN },
				      { .fd = inotify_fd, .events = POLLIN },
				      { .fd = pidfd, .events = POLLIN } };

		poll(p, 3, access(d->socket, F_OK) ? 1000 : 1);
		if (p[2].revents || now_ns() > end) {
			show_log(d);
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
			show_log(d);
			must(!"READY=1 never came");
		}
		n = recv(notify_fd, text, sizeof(text) - 1, 0);
		must(n > 0);
		text[n] = '\0';
	} while (!strstr(text, "READY=1"));
}

static void learn_instance(struct test_daemon *d)
{
	struct raw rc = rc_open(d);

	d->instance = rc.welcome.instance;
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
	if (o->want_ready)
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

int process_wait(pid_t pid, int *status, int timeout_ms)
{
	struct pollfd p = { .fd = pidfd_of(pid), .events = POLLIN };
	int r;

	r = poll(&p, 1, timeout_ms);
	close(p.fd);
	if (r != 1)
		return -ETIMEDOUT;
	must_be(waitpid(pid, status, 0), pid);
	forget_pid(pid);
	return 0;
}

int td_exit_status(struct test_daemon *d)
{
	int status = 0;

	must_be(process_wait(d->pid, &status, WAIT_MS), 0);
	d->pid = 0;
	return status;
}

void td_stop(struct test_daemon *d)
{
	int status;

	if (in_child || d->pid <= 0)
		return;
	must_be(kill(d->pid, SIGTERM), 0);
	status = td_exit_status(d);
	if (status)
		show_log(d);
	must_be(status, 0);
	if (d->own_shm)
		return;
	must_be(td_objects(d), 0);
	forget_instance(d->instance);
}

void td_kill(struct test_daemon *d)
{
	must_be(kill(d->pid, SIGKILL), 0);
	must(WIFSIGNALED(td_exit_status(d)));
}

bool td_alive(const struct test_daemon *d)
{
	return d->pid > 0 && waitpid(d->pid, NULL, WNOHANG) == 0;
}

void end_daemon(pid_t pid)
{
	struct pollfd p = { .fd = pidfd_of(pid), .events = POLLIN };

	must_be(kill(pid, SIGTERM), 0);
	must_be(poll(&p, 1, WAIT_MS), 1);
	close(p.fd);
	waitpid(pid, NULL, WNOHANG); /* a child of ours, if we are its subreaper */
}

void td_freeze(const struct test_daemon *d)
{
	int status;

	must_be(kill(d->pid, SIGSTOP), 0);
	must_be(waitpid(d->pid, &status, WUNTRACED), d->pid);
	must(WIFSTOPPED(status));
}

void td_thaw(const struct test_daemon *d)
{
	must_be(kill(d->pid, SIGCONT), 0);
}

char *td_log(const struct test_daemon *d)
{
	char path[128];
	char *text = calloc(1, 64 * KIB);
	FILE *f;

	snprintf(path, sizeof(path), "%s/log", d->dir);
	f = fopen(path, "re");
	must(text && f);
	(void)!fread(text, 1, 64 * KIB - 1, f);
	fclose(f);
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

void td_settle(const struct test_daemon *d)
{
	struct raw rc = rc_open(d);

	rc_settle(&rc);
	rc_goodbye(&rc);
}

struct tl_status td_status(const struct test_daemon *d)
{
	struct raw rc = rc_open(d);
	const struct catalog_header *h = rc.catalog;
	struct tl_status s = { .size = sizeof(s) };

	rc_settle(&rc);
	s.capacity = h->capacity;
	s.bytes_used = atomic_load(&h->bytes_used);
	s.bytes_warm = atomic_load(&h->bytes_warm);
	s.commits = atomic_load(&h->commits);
	s.tensors = atomic_load(&h->tensors);
	s.retired = atomic_load(&h->retired);
	s.drafts = atomic_load(&h->drafts);
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
