/* SPDX-License-Identifier: Apache-2.0 */
/* A service manager that keeps descriptors, as systemd does (FileDescriptorStoreMax=): the test is
 * it. */
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "tests/harness/client.h"
#include "tests/harness/notify.h"
#include "tests/harness/process.h"

enum { STORE_MAX = 64, FIRST = 3 };

#ifdef HAVE_SYSTEMD
#define HAS_SYSTEMD true
#else
#define HAS_SYSTEMD false
#endif

struct manager {
	char dir[64], socket[96], notify[96];
	char program[512]; /* absolute, as a unit names it */
	int notify_fd;
	char names[STORE_MAX][64];
	int fds[STORE_MAX];
	unsigned count;
	pid_t pid;
};

static void manager_init(struct manager *m)
{
	const char *binary = getenv("TL_TEST_DAEMON");
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	*m = (struct manager){ .dir = "/tmp/tl-test-manager-XXXXXX" };
	must(mkdtemp(m->dir));
	snprintf(m->socket, sizeof(m->socket), "%s/socket", m->dir);
	snprintf(m->notify, sizeof(m->notify), "%s/notify", m->dir);
	snprintf(m->program, sizeof(m->program), "%s", binary ? binary : "build/bin/tensorleased");
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", m->notify);
	m->notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	must(m->notify_fd >= 0);
	must_be(bind(m->notify_fd, (void *)&a, sizeof(a)), 0);
}

static void forget(struct manager *m, const char *name)
{
	for (unsigned i = 0; i < m->count; i++) {
		if (strcmp(m->names[i], name) != 0)
			continue;
		close(m->fds[i]);
		m->count--;
		m->fds[i] = m->fds[m->count];
		memmove(m->names[i], m->names[m->count], sizeof(m->names[i]));
		i--;
	}
}

/* As systemd, it keeps what it has already once. */
static bool has(const struct manager *m, int fd)
{
	struct stat ours, other;

	must_be(fstat(fd, &ours), 0);
	for (unsigned i = 0; i < m->count; i++) {
		must_be(fstat(m->fds[i], &other), 0);
		if (ours.st_ino == other.st_ino && ours.st_dev == other.st_dev)
			return true;
	}
	return false;
}

static void store(struct manager *m, const char *name, int fd_take)
{
	must(m->count < STORE_MAX);
	must(fd_take >= 0);
	if (has(m, fd_take)) {
		close(fd_take);
		return;
	}
	snprintf(m->names[m->count], sizeof(m->names[0]), "%s", name);
	m->fds[m->count++] = fcntl(fd_take, F_DUPFD_CLOEXEC, 200); /* clear of those to come */
	close(fd_take);
}

/* Does what one message says. True: it was READY=1. */
static bool hear(struct manager *m)
{
	char text[512], *name;
	int fd = notify_receive(m->notify_fd, text, sizeof(text));

	name = strstr(text, "FDNAME=");
	if (name) {
		name += strlen("FDNAME=");
		name[strcspn(name, "\n")] = '\0';
	}
	if (strstr(text, "FDSTOREREMOVE=1"))
		forget(m, name ? name : "");
	else if (strstr(text, "FDSTORE=1"))
		store(m, name ? name : "", fd);
	return strstr(text, "READY=1");
}

/* All that has been said. */
static void hear_rest(struct manager *m)
{
	struct pollfd p = { .fd = m->notify_fd, .events = POLLIN };

	while (poll(&p, 1, 0) == 1)
		hear(m);
}

static _Noreturn void become_daemon(struct manager *m, const char *const *extra)
{
	const char *list[16] = { m->program, "--foreground", "--socket",
				 m->socket,  "--capacity",   "64M" };
	char names[STORE_MAX * 64] = "", number[16];
	int n = 6;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (unsigned i = 0; i < m->count; i++) {
		must(dup2(m->fds[i], FIRST + (int)i) >= 0);
		strcat(names, i ? ":" : "");
		strcat(names, m->names[i]);
	}
	snprintf(number, sizeof(number), "%u", m->count);
	setenv("LISTEN_FDS", number, 1);
	setenv("LISTEN_FDNAMES", names, 1);
	snprintf(number, sizeof(number), "%d", (int)getpid());
	setenv("LISTEN_PID", number, 1);
	setenv("NOTIFY_SOCKET", m->notify, 1);
	setenv("FDSTORE", "64", 1);
	while (extra && *extra)
		list[n++] = *extra++;
	execv(list[0], (char *const *)(const void *)list);
	_exit(127);
}

static void begin(struct manager *m, const char *const *extra)
{
	m->pid = fork();
	if (m->pid == 0)
		become_daemon(m, extra);
	process_remember(m->pid);
	while (!hear(m)) {}
	hear_rest(m);
}

static int ended(struct manager *m)
{
	int status;

	must_be(process_wait(m->pid, &status), 0);
	hear_rest(m);
	return status;
}

static tl_client *client_of(struct manager *m)
{
	tl_connect_options o = { .size = sizeof(o), .address = m->socket };
	tl_client *client;

	must_be(tl_connect(&o, &client), 0);
	return client;
}

static void put(tl_client *c, const char *name, uint64_t expected)
{
	static uint8_t bytes[1000];
	const int64_t n = sizeof(bytes);
	DLTensor t = bytes_tensor(bytes, &n);
	uint64_t version;

	must_be(tl_put(c, name, &t, NULL, &version), 0);
	must_be(version, expected);
}

static void end(struct manager *m)
{
	char lock[128];

	must_be(kill(m->pid, SIGTERM), 0);
	must_be(ended(m), 0);
	must_be(m->count, 0); /* it keeps nothing for a daemon that ended cleanly */
	close(m->notify_fd);
	unlink(m->notify);
	snprintf(lock, sizeof(lock), "%s.lock", m->socket);
	unlink(lock); /* it may say how far versions have come */
	must_be(rmdir(m->dir), 0);
}

TEST(a_service_manager_keeps_what_is_published)
{
	struct manager m;
	struct tl_status s;
	tl_client *c;

	SKIP_UNLESS(HAS_SYSTEMD, "this build has no libsystemd");
	manager_init(&m);
	begin(&m, NULL);
	c = client_of(&m);
	must_be(client_status(c).keeper, TL_KEEPER_MANAGER);
	put(c, "a", 1);
	for (int i = 0; i < 3; i++) {
		tl_close(c);
		if (i == 1) { /* it gives way */
			must_be(kill(m.pid, SIGUSR2), 0);
			must_be(WEXITSTATUS(ended(&m)), 75);
		} else {
			must_be(kill(m.pid, SIGKILL), 0);
			must(WIFSIGNALED(ended(&m)));
		}
		begin(&m, NULL);
		c = client_of(&m);
		s = client_status(c);
		must_be(s.tensors, 1);
		must_be(s.restarts, i + 1);
		must(strstr(s.restart_reason, "service manager"));
		put(c, "a", (uint64_t)i + 2);
	}
	tl_close(c);
	end(&m);
}

TEST(what_a_service_manager_kept_for_other_limits_is_let_go_of)
{
	static const char *const fewer[] = { "--max-tensors", "64", NULL };
	struct test_daemon other;
	struct manager m;
	tl_client *c;

	SKIP_UNLESS(HAS_SYSTEMD, "this build has no libsystemd");
	manager_init(&m);
	begin(&m, NULL);
	c = client_of(&m);
	put(c, "a", 1);
	tl_close(c);
	must_be(kill(m.pid, SIGKILL), 0);
	must(WIFSIGNALED(ended(&m)));
	m.pid = fork();
	if (m.pid == 0)
		become_daemon(&m, fewer);
	process_remember(m.pid);
	must_be(WEXITSTATUS(ended(&m)), 1); /* on which it is started again */
	other = td_start();		    /* removes what nobody has open */
	td_sync(&other);
	td_stop(&other);
	begin(&m, fewer);
	c = client_of(&m);
	must_be(client_status(c).tensors, 0);
	put(c, "a", 3); /* above what the last daemon may have given out */
	tl_close(c);
	end(&m);
}

static int ignore_client(const tl_client_info *info, void *context)
{
	(void)info;
	(void)context;
	return 0;
}

/* The manager could start none, would give up, and would let go of all that it keeps. */
TEST(a_daemon_whose_program_is_gone_does_not_leave_for_another)
{
	char link[96], later[104], *real;
	struct manager m;
	tl_client *c;

	SKIP_UNLESS(HAS_SYSTEMD, "this build has no libsystemd");
	manager_init(&m);
	real = realpath(m.program, NULL);
	must(real);
	snprintf(link, sizeof(link), "%s/daemon", m.dir);
	snprintf(later, sizeof(later), "%s.later", link);
	must_be(symlink(real, link), 0);
	free(real);
	snprintf(m.program, sizeof(m.program), "%s", link);
	begin(&m, NULL);
	c = client_of(&m);
	put(c, "a", 1);
	must_be(rename(link, later), 0);
	must_be(kill(m.pid, SIGUSR2), 0);
	for (int i = 0; i < 4; i++) /* it sees the signal before the last request */
		must_be(tl_list_clients(c, ignore_client, NULL), 0);
	must_be(tl_restart(c), -ENOENT);
	must(strstr(tl_last_error(), link));
	must_be(client_status(c).restarts, 0);
	must_be(rename(later, link), 0);
	must_be(kill(m.pid, SIGUSR2), 0);
	must_be(WEXITSTATUS(ended(&m)), 75);
	begin(&m, NULL);
	must_be(client_status(c).tensors, 1);
	tl_close(c);
	must_be(unlink(link), 0);
	end(&m);
}

int main(void)
{
	return suite_run();
}
