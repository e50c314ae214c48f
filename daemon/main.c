/* SPDX-License-Identifier: Apache-2.0 */
/* tensorleased: reads options, finds the socket, detaches, runs the server. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef HAVE_SYSTEMD
#include <systemd/sd-daemon.h>
#endif

#include "daemon/keeper/keeper.h"
#include "daemon/keeper/keeper_link.h"
#include "daemon/options.h"
#include "daemon/serve/http.h"
#include "daemon/serve/loop.h"
#include "daemon/serve/run.h"
#include "daemon/socket_lock.h"
#include "proto/conn.h"
#include "util/address.h"
#include "util/cleanup.h"
#include "util/fault.h"
#include "util/fd.h"
#include "util/memory_limit.h"
#include "util/shm_space.h"

enum { EXIT_USAGE = 2, EXIT_SERVED = 3 };

static void notify(const char *state)
{
#ifdef HAVE_SYSTEMD
	sd_notify(0, state);
#else
	(void)state;
#endif
}

/* Makes a directory of ours where nobody else can create a socket. The umask does not matter. */
static int directory_make(const char *path, mode_t mode)
{
	struct stat st;

	if (mkdir(path, 0700) ? errno != EEXIST : chmod(path, mode))
		return -errno;
	if (lstat(path, &st))
		return -errno;
	return S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 0022) ? 0 : -EPERM;
}

/* Finds the default path of tl_connect(). */
static int socket_default(char *path, size_t size)
{
	/* Clients also take tensorlease://NAMESPACE/PATH, of which the path may be missing. */
	const char *given = address_path(getenv("TENSORLEASE_SOCKET"));
	char owned[64] = "";
	uid_t owner;
	int r;

	if (given) {
		snprintf(path, size, "%s", given);
		return 0;
	}
	/* Everybody looks here first. The socket's mode says who may connect. */
	if (geteuid() == 0 && !directory_make(ADDRESS_SYSTEM_DIRECTORY, 0755)) {
		snprintf(path, size, ADDRESS_SYSTEM_SOCKET);
		return 0;
	}
	address_user_directory(path, size, getenv("XDG_RUNTIME_DIR"));
	r = directory_make(path, 0700);
	if (r) {
		if (!address_owner(path, AT_SYMLINK_NOFOLLOW, &owner) && owner != geteuid())
			snprintf(owned, sizeof(owned), ", and it belongs to user %u", owner);
		fprintf(stderr,
			"tensorleased: cannot put the socket into %s: %s; it must be a directory "
			"that belongs to user %u and that nobody else can write%s: have it "
			"removed, or name another socket with --socket\n",
			path, strerror(-r), geteuid(), owned);
		return r;
	}
	strncat(path, "/socket", size - strlen(path) - 1);
	return 0;
}

/* Closes inherited descriptors: the caller's locks and pipes must not stay open in the
 * background. */
static void close_inherited(int *keep_fd)
{
	if (*keep_fd != 3 && dup3(*keep_fd, 3, O_CLOEXEC) == 3)
		*keep_fd = 3;
	closefrom(*keep_fd + 1); /* also where close_range() is refused */
}

/* The first process waits until the second reports its start, and exits with that status. Returns
 * in the second process only. */
static int detach(int *ready_fd, int activated_fd)
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
	if (activated_fd < 0)
		close_inherited(ready_fd);
	setsid();
	return 0;
}

static void go_into_background(void)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null >= 0) {
		dup2(null, 0);
		dup2(null, 1);
		dup2(null, 2);
		close(null);
	}
	(void)!chdir("/");
}

static void say_how_it_went(int *ready_fd, int r)
{
	unsigned char status = (unsigned char)r;

	if (*ready_fd >= 0)
		(void)!write(*ready_fd, &status, 1);
	*ready_fd = fd_close(*ready_fd);
}

static void ready(struct keeper_link *k, int *ready_fd)
{
	keeper_link_notify(k, "READY=1");
	if (k->detached || *ready_fd >= 0)
		go_into_background();
	say_how_it_went(ready_fd, EXIT_SUCCESS);
}

/* Runs in the keeper, which alone is known to the service manager and to the process that waits for
 * the start. */
static void keeper_notified(void *context, const char *text)
{
	int *ready_fd = context;

	notify(text);
	if (strcmp(text, "READY=1") || *ready_fd < 0)
		return;
	go_into_background();
	say_how_it_went(ready_fd, EXIT_SUCCESS);
}

/* Raises the limit of open files as far as allowed. True: that is enough. */
static bool files_raise(void)
{
	fd_raise_limit();
	if (options_files() >= OPTIONS_FILES_MIN)
		return true;
	fprintf(stderr,
		"tensorleased: cannot start: the limit of open files (RLIMIT_NOFILE) is %llu, "
		"and a daemon for one client needs %d; raise it (ulimit -n, LimitNOFILE=)\n",
		(unsigned long long)options_files(), OPTIONS_FILES_MIN);
	return false;
}

/* A process with threads waits for an RCU grace period (15 to 40 ms) whenever its table of
 * descriptors grows, and nobody would be served meanwhile. So it is made before there are threads.
 */
static void files_make_table(const struct options *o)
{
	fd_close(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, (int)o->descriptors.all - 1));
}

/* Completes the options, and says what the limit of open files takes from them. */
static void complete(struct options *o)
{
	uint32_t max_clients = o->max_clients;

	options_complete(o);
	if (o->max_clients < max_clients)
		log_warn("fewer clients than --max-clients: raise the limit of open files",
			 "max_clients=%u now=%u RLIMIT_NOFILE=%llu", max_clients, o->max_clients,
			 (unsigned long long)options_files());
	files_make_table(o);
}

/* If we die, the next daemon goes on with what we have read, whatever the files say by then. */
static void config_keep(const struct options *o, struct keeper_link *k)
{
	cleanup_(fd_closep) int fd = -1;
	int r = 0;

	if (!k->here || o->texts.kept)
		return;
	fd = options_texts(o);
	if (fd >= 0)
		r = keeper_link_keep(k, KEEPER_TAG_CONFIG, fd);
	if (r || (fd < 0 && fd != -ENOENT))
		log_warn("the keeper does not keep the configuration", "error=%s",
			 log_str(strerror(r ? -r : -fd)));
}

/* What was made is gone by now, so /dev/shm has as much left as before. */
static void say_what_is_lacking(const struct options *o, int error)
{
	struct shm_space shm = { 0 };
	char what[100];

	snprintf(what, sizeof(what), "cannot make the catalog for %u tensors (--max-tensors)",
		 options_most_tensors(o));
	switch (error) {
	case ENOSPC:
		shm_space_find(&shm);
		fprintf(stderr,
			"tensorleased: %s: %llu of %llu bytes of /dev/shm are left, which are too "
			"few, or no inodes (see df -i /dev/shm); remove files there, mount it with "
			"a larger size, or use a lower --max-tensors\n",
			what, (unsigned long long)shm.left, (unsigned long long)shm.size);
		break;
	case EFBIG:
		fprintf(stderr,
			"tensorleased: %s: it is larger than a file may be by RLIMIT_FSIZE (%llu); "
			"raise that (ulimit -f, LimitFSIZE=), or use a lower --max-tensors\n",
			what, (unsigned long long)fd_size_limit());
		break;
	case ENOENT:
	case ENOTDIR:
		fprintf(stderr,
			"tensorleased: %s: /dev/shm is not there; mount a tmpfs there (mount -t "
			"tmpfs tmpfs /dev/shm)\n",
			what);
		break;
	case EROFS:
		fprintf(stderr,
			"tensorleased: %s: /dev/shm is read-only; make it writable (mount -o "
			"remount,rw /dev/shm)\n",
			what);
		break;
	case EACCES:
	case EPERM:
		fprintf(stderr,
			"tensorleased: %s: user %u may not make files in /dev/shm; allow it (chmod "
			"1777 /dev/shm)\n",
			what, geteuid());
		break;
	case EMFILE:
		fprintf(stderr,
			"tensorleased: cannot make the catalog and the event loop: no descriptors "
			"are left of %llu (RLIMIT_NOFILE), or no inotify instances of this user "
			"(fs.inotify.max_user_instances); raise that limit\n",
			(unsigned long long)options_files());
		break;
	default:
		fprintf(stderr, "tensorleased: cannot make the catalog and the event loop: %s\n",
			strerror(error));
	}
}

static void warn_of_capacity(const struct options *o)
{
	uint64_t limit = memory_limit();
	struct shm_space shm;

	if (o->storage->named && !shm_space_find(&shm) && shm.limited && o->capacity > shm.size)
		log_warn("/dev/shm holds less than the capacity", "capacity=%llu size=%llu",
			 (unsigned long long)o->capacity, (unsigned long long)shm.size);
	if (o->capacity > limit)
		log_warn("the memory limit of the cgroup is below the capacity: the kernel may "
			 "kill the daemon",
			 "capacity=%llu limit=%llu", (unsigned long long)o->capacity,
			 (unsigned long long)limit);
}

static int serve(struct options *o, struct socket_lock *instance, struct keeper_link *k,
		 int *ready_fd, struct again *again)
{
	struct server_options so = {
		.listen_fd = instance->listen_fd,
		.keeper = k,
		.adopt = instance->adopted,
		.may_leave = reload_check,
		.is_reachable = reload_is_reachable,
		.context = again,
		.idle_exit_ns = o->idle_exit_ns,
		.hello_ns = o->hello_ns,
		.common = { .capacity = o->capacity,
			    .capacity_option =
				    o->idle_exit_ns < 0
					    ? "--capacity"
					    : "--capacity; a client started this daemon: run "
					      "`tensorleased --capacity SIZE` before the programs",
			    .max_tensors = options_most_tensors(o),
			    .rules = o->config.rules,
			    .rule_count = o->config.rule_count,
			    .fds_max = o->descriptors.cached,
			    .device_fds_max = o->descriptors.opening,
			    .flight_fds_max = o->descriptors.in_flight,
			    .device_capacity = o->gpu_capacity,
			    .warm_ns = (uint64_t)o->warm_ns,
			    .versions = instance->versions,
			    .versions_since = instance->versions_since,
			    .keeper = k },
		.namespaces = o->config.namespaces,
		.count = o->config.namespace_count,
		.users = o->config.users,
	};
	const int http_fd = o->metrics ? http_listen(o->metrics) : -1;
	static struct server server; /* what is to be taken over is lost if it cannot be made */
	int r;

	if (o->metrics && http_fd < 0) {
		log_error("cannot serve metrics there", "metrics=%s error=%s", log_str(o->metrics),
			  log_str(strerror(-http_fd)));
		if (!instance->adopted) {
			fd_close(instance->listen_fd);
			return EXIT_FAILURE;
		}
	}
	again->instance = instance;
	r = server_init(&server, instance->id, &so);
	if (r == SERVER_E_STRANGE)
		socket_lock_give_up(instance);
	if (r == SERVER_E_STRANGE || r == SERVER_E_LEFT)
		_exit(EXIT_FAILURE);
	if (r) {
		say_what_is_lacking(o, -r);
		return EXIT_FAILURE;
	}
	log_info("listening", "socket=%s capacity=%llu max_tensors=%u max_clients=%u",
		 log_str(instance->socket), (unsigned long long)o->capacity, o->max_tensors,
		 o->max_clients);
	if (http_fd >= 0 && http_start(&server, http_fd))
		log_error("cannot serve metrics: there is no memory", "metrics=%s",
			  log_str(o->metrics));
	warn_of_capacity(o);
	config_keep(o, k);
	ready(k, ready_fd);
	if (server_run(&server) == SERVER_E_LEFT)
		_exit(KEEPER_EXIT_LEFT);
	keeper_link_notify(k, "STOPPING=1");
	if (server_had_clients(&server))
		instance_note_versions(instance);
	server_deinit(&server);
	log_info("stopped");
	return EXIT_SUCCESS;
}

/* In the background we leave the working directory, so relative paths are made absolute. A path
 * that would be too long for a socket stays as it is. */
static void make_absolute(char *path, size_t size)
{
	char directory[PATH_MAX], absolute[PATH_MAX + 256];

	if (*path == '/' || !getcwd(directory, sizeof(directory)))
		return;
	snprintf(absolute, sizeof(absolute), "%s/%s", directory, path);
	if (strlen(absolute) < sizeof(((struct socket_lock *)0)->socket))
		snprintf(path, size, "%s", absolute);
}

/* From here on the next daemon finds the lock and the socket as they are. Without them it makes new
 * ones, as after a daemon without a keeper. */
static void socket_lock_keep(const struct socket_lock *in, struct keeper_link *k)
{
	int r = keeper_link_keep(k, KEEPER_TAG_PREFIX "lock", in->lock_fd);

	if (!r && !in->activated)
		r = keeper_link_keep(k, KEEPER_TAG_PREFIX "listen", in->listen_fd);
	if (r)
		log_warn("the keeper does not keep the socket", "error=%s", log_str(strerror(-r)));
}

/* The client's thread may be bound to a processor and to the memory of a node, and the daemon
 * serves all programs of its user. */
static void unbind_from_starter(void)
{
	cpu_set_t all[8]; /* the kernel leaves out what is not there, or not in our cpuset */

	if (!getenv(ADDRESS_AUTOSTARTED))
		return;
	unsetenv(ADDRESS_AUTOSTARTED);
	memset(all, 0xff, sizeof(all));
	sched_setaffinity(0, sizeof(all), all);
	syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0);
}

static int run(struct options *o, struct keeper_link *k, int *ready_fd, struct again *again)
{
	struct instance_fds fds = { .activated = take_fd(&k->activated_fd),
				    .lock = keeper_link_take(k, KEEPER_TAG_PREFIX "lock"),
				    .listen = keeper_link_take(k, KEEPER_TAG_PREFIX "listen"),
				    .adopt = k->here && !k->fresh,
				    .must_adopt = k->must_adopt };
	struct socket_lock instance;
	char path[256] = "", why[512];
	int r;

	/* They wait until the server handles them, since by default they would end us halfway. */
	server_mask_ends(SIG_BLOCK);
	complete(o);
	if (fds.activated < 0 && o->socket)
		snprintf(path, sizeof(path), "%s", o->socket);
	else if (fds.activated < 0 && socket_default(path, sizeof(path)))
		return EXIT_FAILURE;
	if (*path && *path != '/' && !k->in_directory) {
		fprintf(stderr,
			"tensorleased: cannot start: the directory is gone that the path %s began "
			"in\n",
			path);
		return EXIT_FAILURE;
	}
	if (!o->foreground && fds.activated < 0)
		make_absolute(path, sizeof(path));
	r = loop_start_workers();
	if (r) {
		fprintf(stderr,
			"tensorleased: cannot start: no memory or no thread for libuv's workers: "
			"%s; see ulimit -u\n",
			strerror(-r));
		return EXIT_FAILURE;
	}
	r = socket_lock_init(&instance, path, &fds, why, sizeof(why));
	if (r) {
		fprintf(stderr, "tensorleased: %s\n", why);
		return r == SOCKET_LOCK_E_SERVED ? EXIT_SERVED : EXIT_FAILURE;
	}
	socket_lock_keep(&instance, k);
	r = serve(o, &instance, k, ready_fd, again);
	socket_lock_deinit(&instance);
	return r;
}

static int run_keeper(char **argv, struct keeper_link *k, int *ready_fd)
{
	return keeper_run(&(struct keeper_options){ .argv = argv,
						    .activated_fd = take_fd(&k->activated_fd),
						    .detached = *ready_fd >= 0,
						    .notified = keeper_notified,
						    .context = ready_fd });
}

/* Fails as options_init(). < 0: with a configuration that was right once, so another try, or
 * another program, may help. */
static int options_read(struct options *o, int argc, char **argv, struct keeper_link *k)
{
	cleanup_(fd_closep) int fd = keeper_link_take(k, KEEPER_TAG_CONFIG);
	int r;

	if (!k->same_config)
		fd = fd_close(fd);
	r = options_init_again(o, argc, argv, fd);
	return r == OPTIONS_E_USAGE && fd >= 0 ? -EINVAL : r;
}

int main(int argc, char **argv)
{
	struct options o;
	struct keeper_link k;
	struct again again = { .argc = argc, .argv = argv, .now = &o };
	int ready_fd = -1, r;

	if (geteuid() != address_uid()) {
		fprintf(stderr,
			"tensorleased: cannot run within fakeroot, which hides that this is user "
			"%u; run it outside\n",
			(unsigned)address_uid());
		return EXIT_FAILURE;
	}
	if (access("/proc/self/fd", F_OK)) {
		fprintf(stderr, "tensorleased: needs /proc, which is not mounted here: mount -t "
				"proc proc /proc\n");
		return EXIT_FAILURE;
	}
	fd_keep_standard();
	unbind_from_starter();
	signal(SIGCHLD, SIG_DFL); /* who ignores it cannot wait for its children */
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN); /* EFBIG comes instead */
	r = keeper_link_init(&k); /* it may change the directory, where configuration files are */
	if (r) {
		fprintf(stderr, "tensorleased: cannot start: %s\n", strerror(-r));
		keeper_link_deinit(&k);
		return EXIT_FAILURE;
	}
	r = options_read(&o, argc, argv, &k);
	if (r) {
		keeper_link_deinit(&k);
		options_deinit(&o);
		return r == OPTIONS_E_DONE ? EXIT_SUCCESS : r < 0 ? EXIT_FAILURE : EXIT_USAGE;
	}
	(void)!getcwd(again.directory, sizeof(again.directory));
	if (!files_raise()) {
		keeper_link_deinit(&k);
		options_deinit(&o);
		return EXIT_FAILURE;
	}
	log_set_level(o.log_level);
	fault_init_from_env();
	conn_debug_init("tensorleased");
	if (!o.foreground && !k.here && detach(&ready_fd, k.activated_fd)) {
		perror("tensorleased: cannot detach (--foreground does not)");
		keeper_link_deinit(&k);
		options_deinit(&o);
		return EXIT_FAILURE;
	}
	if (o.keeper && !k.here)
		r = run_keeper(argv, &k, &ready_fd);
	else
		r = run(&o, &k, &ready_fd, &again);
	say_how_it_went(&ready_fd, r); /* unless that was done already */
	keeper_link_deinit(&k);
	options_deinit(&o);
	if (loop_is_broken())
		_exit(r); /* libuv's end would wait for workers that do not exist, and abort */
	return r;
}
