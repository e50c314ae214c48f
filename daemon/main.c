/* SPDX-License-Identifier: Apache-2.0 */
/* tensorleased: reads options, finds the socket, detaches, runs the server. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef HAVE_SYSTEMD
#include <systemd/sd-daemon.h>
#endif

#include "daemon/instance.h"
#include "daemon/options.h"
#include "daemon/serve/loop.h"
#include "daemon/serve/run.h"
#include "proto/conn.h"
#include "util/fault.h"
#include "util/fd.h"

enum { EXIT_USAGE = 2, EXIT_SERVED = 3 };
enum {
	FD_RESERVE = 32, /* descriptors for ourselves: the loop, the catalog, those on their way */
	FD_CACHE_MAX = 4096, /* descriptors of segments, kept for the next client that maps them */
	FD_DEVICE_MAX = 16384, /* descriptors that open memory on devices */
};

/* The socket of an activated service, or -1. */
static int activated_fd(void)
{
#ifdef HAVE_SYSTEMD
	if (sd_listen_fds(1) == 1)
		return SD_LISTEN_FDS_START;
#endif
	return -1;
}

static void notify(const char *state)
{
#ifdef HAVE_SYSTEMD
	sd_notify(0, state);
#else
	(void)state;
#endif
}

/* Makes a directory of ours into which nobody else can put a socket. */
static int directory_make(const char *path)
{
	struct stat st;

	if (mkdir(path, 0700) && errno != EEXIST)
		return -errno;
	if (lstat(path, &st))
		return -errno;
	return S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 0022) ? 0 : -EPERM;
}

/* Finds the path that tl_connect() tries. */
static int socket_default(char *path, size_t size)
{
	const char *given = getenv("TENSORLEASE_SOCKET"), *runtime = getenv("XDG_RUNTIME_DIR");
	int r;

	if (given && *given) {
		snprintf(path, size, "%s", given);
		return 0;
	}
	if (geteuid() == 0 && !directory_make("/run/tensorlease")) {
		snprintf(path, size, "/run/tensorlease/socket");
		return 0;
	}
	if (runtime && *runtime)
		snprintf(path, size, "%s/tensorlease", runtime);
	else
		snprintf(path, size, "/tmp/tensorlease-%u", geteuid());
	r = directory_make(path);
	if (r) {
		fprintf(stderr,
			"tensorleased: cannot put the socket into %s: %s; it must be a directory "
			"that belongs to user %u and that nobody else can write\n",
			path, strerror(-r), geteuid());
		return r;
	}
	strncat(path, "/socket", size - strlen(path) - 1);
	return 0;
}

/*
 * Raises the limit of open files as far as we may, and divides it: first for the clients, so that
 * we never run out, and one client too many is told so. Half of the rest is for descriptors that
 * open memory on devices, the other half for caching. Returns how many there may be in all.
 */
static unsigned descriptors_plan(struct state_limits *l)
{
	struct rlimit limit;
	rlim_t left, all;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return FD_RESERVE;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit); /* if that is not allowed, the limit stays as it is */
	getrlimit(RLIMIT_NOFILE, &limit);
	left = limit.rlim_cur > FD_RESERVE ? limit.rlim_cur - FD_RESERVE : 1;
	if (left / 2 < l->max_clients) { /* each has a socket and a ledger */
		log_warn("fewer clients than --max-clients: raise the limit of open files",
			 "max_clients=%u now=%llu RLIMIT_NOFILE=%llu", l->max_clients,
			 (unsigned long long)left / 2, (unsigned long long)limit.rlim_cur);
		l->max_clients = (uint32_t)left / 2;
	}
	left -= 2 * (rlim_t)l->max_clients;
	l->device_fds_max = left / 2 < FD_DEVICE_MAX ? (unsigned)(left / 2) : FD_DEVICE_MAX;
	left -= l->device_fds_max;
	l->fds_max = left < FD_CACHE_MAX ? (unsigned)left : FD_CACHE_MAX;
	/* each client has a socket, a ledger, and one on its way to it */
	all = FD_RESERVE + 3ULL * l->max_clients + l->device_fds_max + l->fds_max;
	return (unsigned)(all < limit.rlim_cur ? all : limit.rlim_cur);
}

/* Closes what the caller has open: its locks and pipes must not stay open in the background. */
static void close_inherited(int *keep_fd)
{
	if (*keep_fd != 3 && dup3(*keep_fd, 3, O_CLOEXEC) == 3)
		*keep_fd = 3;
	close_range((unsigned)*keep_fd + 1, ~0U, 0);
}

/* The first process waits until the second says how its start went, and exits with that status.
 * Returns in the second process only. */
static int detach(int *ready_fd)
{
	unsigned char status = EXIT_FAILURE;
	int pipe_fds[2];
	pid_t pid;

	if (pipe2(pipe_fds, O_CLOEXEC))
		return -errno;
	pid = fork();
	if (pid < 0)
		return -errno;
	if (pid > 0) {
		close(pipe_fds[1]);
		if (read(pipe_fds[0], &status, 1) != 1)
			status = EXIT_FAILURE;
		_exit(status);
	}
	*ready_fd = pipe_fds[1];
	if (!getenv("LISTEN_FDS"))
		close_inherited(ready_fd);
	setsid();
	return 0;
}

static void ready(int *ready_fd)
{
	unsigned char ok = 0;
	int null;

	notify("READY=1");
	if (*ready_fd < 0)
		return;
	null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null >= 0) {
		dup2(null, 0);
		dup2(null, 1);
		dup2(null, 2);
		close(null);
	}
	(void)!chdir("/");
	(void)!write(*ready_fd, &ok, 1);
	*ready_fd = fd_close(*ready_fd);
}

static int serve(const struct options *o, struct instance *instance, int *ready_fd)
{
	struct server_options so = {
		.listen_fd = instance->listen_fd,
		.idle_exit_ns = o->idle_exit_ns,
		.limits = { .capacity = o->capacity,
			    .user_capacity = o->uid_capacity,
			    .device_capacity = o->gpu_capacity,
			    .device_user_capacity = o->gpu_uid_capacity,
			    .max_tensors = o->max_tensors,
			    .max_clients = o->max_clients,
			    .warm_ns = (uint64_t)o->warm_ns },
	};
	struct server *server = calloc(1, sizeof(*server));
	int r;

	so.fds = descriptors_plan(&so.limits);
	r = server ? server_init(server, instance->id, &so) : -ENOMEM;

	if (r) {
		fprintf(stderr, "tensorleased: cannot make the catalog and the event loop: %s\n",
			strerror(-r));
		free(server);
		return EXIT_FAILURE;
	}
	log_info("listening", "socket=%s capacity=%llu max_tensors=%u max_clients=%u",
		 log_str(instance->socket), (unsigned long long)o->capacity, o->max_tensors,
		 so.limits.max_clients);
	ready(ready_fd);
	server_run(server);
	notify("STOPPING=1");
	server_deinit(server);
	free(server);
	log_info("stopped");
	return EXIT_SUCCESS;
}

static int run(const struct options *o, int *ready_fd)
{
	struct instance instance;
	char path[256] = "", why[512];
	int fd = activated_fd(), r;

	if (fd < 0 && o->socket)
		snprintf(path, sizeof(path), "%s", o->socket);
	else if (fd < 0 && socket_default(path, sizeof(path)))
		return EXIT_FAILURE;
	r = loop_start_workers();
	if (r) {
		fprintf(stderr, "tensorleased: cannot start worker threads: %s\n", strerror(-r));
		return EXIT_FAILURE;
	}
	r = instance_init(&instance, path, fd, why, sizeof(why));
	if (r) {
		fprintf(stderr, "tensorleased: %s\n", why);
		return r == INSTANCE_E_SERVED ? EXIT_SERVED : EXIT_FAILURE;
	}
	r = serve(o, &instance, ready_fd);
	instance_deinit(&instance);
	return r;
}

int main(int argc, char **argv)
{
	struct options o;
	int ready_fd = -1, r;
	unsigned char status;

	r = options_init(&o, argc, argv);
	if (r) {
		options_deinit(&o);
		return r == OPTIONS_E_DONE ? EXIT_SUCCESS : EXIT_USAGE;
	}
	signal(SIGPIPE, SIG_IGN);
	log_set_level(o.log_level);
	fault_init_from_env();
	conn_debug_init("tensorleased");
	if (!o.foreground && detach(&ready_fd)) {
		perror("tensorleased: cannot detach (--foreground does not)");
		options_deinit(&o);
		return EXIT_FAILURE;
	}
	r = run(&o, &ready_fd);
	if (ready_fd >= 0) { /* the start failed */
		status = (unsigned char)r;
		(void)!write(ready_fd, &status, 1);
	}
	options_deinit(&o);
	return r;
}
