/* SPDX-License-Identifier: Apache-2.0 */
/* What a daemon keeps without our keeper: with systemd, or with nobody. */
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "daemon/keeper/keeper.h"
#include "daemon/keeper/keeper_link.h"
#include "tests/harness/notify.h"
#include "tests/harness/process.h"

TEST(who_is_no_child_of_a_keeper_does_not_believe_its_environment)
{
	struct keeper_link k;

	setenv(KEEPER_ENVIRONMENT, "1 0 0 0 0 0 0 /", 1);
	must_be(keeper_link_init(&k), 0);
	must(!k.here);
	must(!getenv(KEEPER_ENVIRONMENT));
	must_be(keeper_link_keep(&k, "tl-none", 0), 0);
	must_be(keeper_link_forget(&k, "tl-none"), 0);
	keeper_link_deinit(&k);
}

/* ---- systemd ---- */

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

TEST(systemd_is_told_that_the_daemon_is_ready)
{
	struct sockaddr_un a;
	struct keeper_link k;
	int fd;

	fd = notify_socket(&a);
	must_be(keeper_link_init(&k), 0);
	must(!k.here);
	keeper_link_notify(&k, "READY=1");
	must_be(hear(fd, "READY=1"), -1);
	keeper_link_deinit(&k);
	unsetenv("NOTIFY_SOCKET");
	close(fd);
}

static int takes_sockets(const char *number_of_them)
{
	char number[16];
	struct keeper_link k;
	int r;

	process_is_child();
	for (int fd = 3; fd < 6; fd++) /* as systemd numbers them */
		if (fcntl(fd, F_GETFD) < 0)
			must(dup2(0, fd) == fd);
	snprintf(number, sizeof(number), "%d", (int)getpid());
	setenv("LISTEN_PID", number, 1);
	setenv("LISTEN_FDS", number_of_them, 1);
	r = keeper_link_init(&k);
	if (r)
		return -r;
	must_be(k.activated_fd, 3);
	keeper_link_deinit(&k);
	return 0;
}

static int with_sockets(const char *number_of_them)
{
	pid_t pid = fork();
	int status;

	if (pid == 0)
		_exit(takes_sockets(number_of_them));
	must_be(process_wait(pid, &status), 0);
	must(WIFEXITED(status));
	return WEXITSTATUS(status);
}

TEST(a_socket_of_the_service_manager_is_taken)
{
	must_be(with_sockets("1"), 0);
}

/* A drop-in's ListenSequentialPacket= adds to the unit's. Nobody would be served at either. */
TEST(one_socket_too_many_is_refused)
{
	must_be(with_sockets("2"), EINVAL);
}
#endif

int main(void)
{
	return suite_run();
}
