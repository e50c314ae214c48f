/* SPDX-License-Identifier: Apache-2.0 */
/* What a daemon keeps without our keeper: with systemd, or with nobody. */
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "daemon/keeper/keep.h"
#include "daemon/keeper/keeper.h"
#include "tests/harness/notify.h"
#include "tests/harness/process.h"

TEST(who_is_no_child_of_a_keeper_does_not_believe_its_environment)
{
	struct keep k;

	setenv(KEEPER_ENVIRONMENT, "1 0 0 0 0 0 0 /", 1);
	must_be(keep_init(&k, NULL), 0);
	must_be(k.kind, KEEP_NOBODY);
	must(!getenv(KEEPER_ENVIRONMENT));
	must_be(keep(&k, "tl-none", 0), 0);
	must_be(keep_forget(&k, "tl-none"), 0);
	keep_deinit(&k);
}

/* ---- systemd's store ---- */

#ifdef HAVE_SYSTEMD
static int notify_socket(struct sockaddr_un *a)
{
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	socklen_t size = sizeof(*a);

	*a = (struct sockaddr_un){ .sun_family = AF_UNIX };
	must(fd >= 0);
	must_be(bind(fd, (void *)a, sizeof(a->sun_family)), 0); /* the kernel chooses a name */
	must_be(getsockname(fd, (void *)a, &size), 0);
	a->sun_path[size - offsetof(struct sockaddr_un, sun_path)] = '\0';
	a->sun_path[0] = '@';
	setenv("NOTIFY_SOCKET", a->sun_path, 1);
	return fd;
}

static int hear(int fd, const char *expected)
{
	char text[256];
	int got = notify_receive(fd, text, sizeof(text));

	if (strcmp(text, expected))
		print_error("heard: %s\n", text);
	must(!strcmp(text, expected));
	return got;
}

TEST(systemd_is_told_what_to_keep)
{
	struct sockaddr_un a;
	struct keep k;
	int fd, kept, pipe_fds[2];

	fd = notify_socket(&a);
	setenv("FDSTORE", "16", 1);
	must_be(pipe2(pipe_fds, O_CLOEXEC), 0);
	must_be(keep_init(&k, NULL), 0);
	must_be(k.kind, KEEP_MANAGER);
	must_be(keep(&k, "tl-pipe", pipe_fds[1]), 0);
	kept = hear(fd, "FDSTORE=1\nFDPOLL=0\nFDNAME=tl-pipe");
	must(kept >= 0);
	must_be(write(kept, "x", 1), 1); /* it is that pipe */
	must_be(keep_forget(&k, "tl-pipe"), 0);
	must_be(hear(fd, "FDSTOREREMOVE=1\nFDNAME=tl-pipe"), -1);
	keep_notify(&k, "READY=1");
	must_be(hear(fd, "READY=1"), -1);
	keep_deinit(&k);
	unsetenv("FDSTORE");
	unsetenv("NOTIFY_SOCKET");
	close(kept);
	close(pipe_fds[0]);
	close(pipe_fds[1]);
	close(fd);
}

static int takes_what_systemd_kept(const char *names)
{
	char number[16];
	struct keep k;
	int r;

	process_is_child();
	for (int fd = 3; fd < 6; fd++) /* as systemd numbers them */
		if (fcntl(fd, F_GETFD) < 0)
			must(dup2(0, fd) == fd);
	snprintf(number, sizeof(number), "%d", (int)getpid());
	setenv("LISTEN_PID", number, 1);
	setenv("LISTEN_FDS", "3", 1);
	setenv("LISTEN_FDNAMES", names, 1);
	r = keep_init(&k, NULL);
	if (r)
		return -r;
	must_be(k.activated_fd, 3);
	must_be(k.list.count, 2);
	must_be(keep_take(&k, "tl-a"), 4);
	must_be(keep_take(&k, "tl-a"), -1);
	keep_deinit(&k);
	must_be(fcntl(5, F_GETFD), -1); /* nobody took it */
	return 0;
}

static int with_names(const char *names)
{
	pid_t pid = fork();
	int status;

	if (pid == 0)
		_exit(takes_what_systemd_kept(names));
	must_be(process_wait(pid, &status), 0);
	must(WIFEXITED(status));
	return WEXITSTATUS(status);
}

TEST(what_systemd_kept_has_names)
{
	must_be(with_names("tensorleased.socket:tl-a:tl-b"), 0);
}

/* A drop-in's ListenSequentialPacket= adds to the unit's. Nobody would be served at either. */
TEST(one_socket_too_many_is_refused)
{
	must_be(with_names("tensorleased.socket:tl-a:tensorleased.socket"), EINVAL);
}
#endif

int main(void)
{
	return suite_run();
}
