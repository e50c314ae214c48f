/* SPDX-License-Identifier: Apache-2.0 */
/* doctor: the daemon in use, and a daemon of its own. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/doctor/doctor.h"
#include "cli/format.h"
#include "util/address.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/path.h"

static const int64_t request_ns = 10 * NS_PER_SEC, quick_ns = NS_PER_SEC;

/* ---- The one in use ---- */

static const char clients_advice[] = "start it with a larger --max-clients";
static const char nobody_advice[] =
	"run as another user; in a container, map this user in its user namespace (docker run --user, /etc/subuid)";

/* Advises after a connection was denied, which must have been the library's last failure. */
static const char *access_advice(void)
{
	static char text[200];
	const struct group *group;
	char number[16];
	uint32_t id;

	switch (tl_last_cause(&id)) {
	case TL_CAUSE_UNTRUSTED:
		return "if you trust that user with all tensors, put the uid into $TENSORLEASE_TRUST_UID; else use another daemon (--socket, $TENSORLEASE_SOCKET)";
	case TL_CAUSE_NAMESPACE:
		return "ask whoever configures the daemon, or use another namespace (--namespace, $TENSORLEASE_NAMESPACE)";
	case TL_CAUSE_NOBODY:
		return nobody_advice;
	case TL_CAUSE_GROUP: /* which is never root's */
		group = getgrgid(id);
		snprintf(number, sizeof(number), "%u", id);
		snprintf(text, sizeof(text),
			 "join its group %1$s and log in again: usermod -aG %1$s USER",
			 group ? group->gr_name : number);
		return text;
	default:
		return "run as the user it belongs to, or use another daemon (--socket, $TENSORLEASE_SOCKET)";
	}
}

/* Returns the path that the library finds, or NULL for one that belongs to this user. */
static const char *socket_in_use(const struct doctor *d)
{
	const char *path = address_path(d->cli->socket);

	if (!path)
		path = address_path(getenv("TENSORLEASE_SOCKET"));
	if (!path && path_may_exist(ADDRESS_SYSTEM_SOCKET))
		path = ADDRESS_SYSTEM_SOCKET;
	return path;
}

/* Says where the log of the daemon in use is. */
static const char *log_advice(const struct doctor *d)
{
	static const char service[] = ADDRESS_SYSTEM_DIRECTORY "/";
	const char *path = socket_in_use(d);

	return path && !strncmp(path, service, strlen(service))
		       ? "look at its log: journalctl -u tensorleased"
		       : "look at its log: a daemon in the background has none, so start it in a terminal (tensorleased --foreground)";
}

static void say_unreachable(struct doctor *d, int r)
{
	const char *environment = getenv("TENSORLEASE_SOCKET"), *path = socket_in_use(d);
	bool asked = d->cli->socket || (environment && *environment) ||
		     d->cli->given & OPTION_QUICK;
	bool nobody = r == -ENOENT || r == -ECONNREFUSED, fine = false;
	const char *advice = log_advice(d), *why = cli_reason(r);

	if (nobody && asked)
		advice =
			"start it (systemctl start tensorleased.socket, or tensorleased --socket PATH), or use another (--socket, $TENSORLEASE_SOCKET)";
	else if (r == -ECONNREFUSED && path && address_is_service(path)) /* everybody's default */
		advice =
			"as root, start the service (systemctl start tensorleased.socket) or remove " ADDRESS_SYSTEM_SOCKET
			"; or use another (--socket, $TENSORLEASE_SOCKET)";
	else if (nobody)
		fine = true;
	else if (r == -EACCES)
		advice = access_advice();
	else if (r == -EINVAL)
		advice =
			"name another socket (--socket, $TENSORLEASE_SOCKET) or namespace (--namespace, $TENSORLEASE_NAMESPACE)";
	else if (r == -EPROTONOSUPPORT)
		advice =
			"library and daemon have different versions: restart the daemon after an update";
	else if (r == -EUSERS)
		advice = clients_advice;
	/* What follows the semicolon is advice of the library's. */
	doctor_say(d, fine ? DOCTOR_OK : DOCTOR_FAIL, "daemon", advice, "%.*s%s",
		   (int)strcspn(why, ";"), why,
		   fine ? "; put, load and others start one when they need it" : "");
}

/* Says what keeps this user's own daemon from its usual place. */
static void say_directory(struct doctor *d)
{
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	char directory[PATH_MAX], *advice;
	uid_t owner;

	if (socket_in_use(d))
		return;
	if (runtime && *runtime && address_is_others(runtime))
		doctor_say(d, DOCTOR_WARN, "runtime directory",
			   "log in as this user (su -, sudo -i), or unset XDG_RUNTIME_DIR",
			   "$XDG_RUNTIME_DIR is %s, which belongs to another user: it is not used",
			   runtime);
	address_user_directory(directory, sizeof(directory), runtime);
	if (address_owner(directory, AT_SYMLINK_NOFOLLOW, &owner) || owner == address_uid())
		return;
	advice = cli_text(
		"have root or that user remove it (rm -r %s), or name another socket (--socket, $TENSORLEASE_SOCKET)",
		directory);
	doctor_say(d, DOCTOR_FAIL, "runtime directory", advice,
		   "%s is in the way of a daemon of this user: it belongs to user %u", directory,
		   (unsigned)owner);
	free(advice);
}

/* Whether more than nine tenths are in use. */
static bool nearly_all(uint64_t used, uint64_t max)
{
	return used > max / 10 * 9 + max % 10 * 9 / 10;
}

static void say_use(struct doctor *d, const tl_status *s)
{
	char *used = format_size(s->bytes_used, true), *all = format_size(s->capacity, true);
	char *age = format_age(s->started_ns);
	bool full = nearly_all(s->bytes_used - s->bytes_warm, s->capacity) ||
		    nearly_all(s->tensors, s->max_tensors) ||
		    (s->clients > 1 && nearly_all(s->clients, s->max_clients)); /* one is us */

	doctor_say(
		d, full ? DOCTOR_WARN : DOCTOR_OK, "daemon",
		"it is nearly full: see what it holds (tensorlease ls, tensorlease status --clients), or start it with a larger --capacity, --max-tensors or --max-clients",
		"%s, pid %u, running for %s: %u of %u tensors, %s of %s, %u of %u clients",
		s->address, s->daemon_pid, age, s->tensors, s->max_tensors, used, all, s->clients,
		s->max_clients);
	free(used);
	free(all);
	free(age);
}

static const char *program_of(uint32_t pid, char *out, size_t size)
{
	char path[64];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%u/exe", pid);
	n = readlink(path, out, size - 1);
	out[n > 0 ? n : 0] = '\0';
	return out;
}

/*
 * A running daemon may be older than the one that is installed. This can only be seen for a daemon
 * of the same user. SIGHUP changes nothing if the tensors would be lost. Without a keeper it ends
 * the daemon.
 */
static void say_replaced(struct doctor *d, const tl_status *s)
{
	char program[256], reload[80];

	if (!strstr(program_of(s->daemon_pid, program, sizeof(program)), "tensorleased") ||
	    !strstr(program, " (deleted)"))
		return;
	snprintf(reload, sizeof(reload),
		 "let the new one take over, with the same tensors: kill -HUP %u", s->daemon_pid);
	doctor_say(
		d, DOCTOR_WARN, "daemon's program",
		s->keeper == TL_KEEPER_NONE
			? "start the new one when the tensors may go: this daemon has no keeper, which would hand them over"
			: reload,
		"%s: the program was replaced since it was started", program);
}

static void say_permissions(struct doctor *d, const char *address)
{
	struct stat st;

	if (!stat(address, &st) && st.st_mode & 2)
		doctor_say(
			d, DOCTOR_WARN, "socket",
			"every user of this machine may read every tensor: take that away with chmod o-w",
			"%s has mode %04o", address, st.st_mode & 07777);
}

static int visit_self(const tl_client_info *info, void *context)
{
	*(bool *)context |= info->pid == (uint32_t)getpid() && info->uid == geteuid();
	return 0;
}

/* The kernel translates our pid into the daemon's PID namespace. */
static void say_namespaces(struct doctor *d, tl_client *client)
{
	bool known = false;
	int r = tl_list_clients(client, visit_self, &known);

	if (r)
		doctor_say(d, DOCTOR_WARN, "daemon's namespaces", log_advice(d), "%s",
			   cli_reason(r));
	else
		doctor_say(
			d, known ? DOCTOR_OK : DOCTOR_WARN, "daemon's namespaces",
			"sharing works, but tensorlease status --clients shows other pids; programs that share plain GPU memory need different PIDs: docker run --pid=host",
			"it %s this process as pid %d, uid %u%s", known ? "knows" : "does not know",
			(int)getpid(), geteuid(),
			known ? "" : ": it runs in another PID or user namespace");
}

/* Connects and says how the daemon is. Returns NULL, after saying why, if it cannot be used. */
static tl_client *enter(struct doctor *d, int64_t timeout_ns, tl_status *status)
{
	tl_connect_options o = { .size = sizeof(o),
				 .address = d->cli->socket,
				 .namespace_name = d->cli->name_space,
				 .timeout_ns = timeout_ns };
	tl_client *client = NULL;
	int r = tl_connect(&o, &client);

	r = r ? r : tl_get_status(client, status);
	if (!r) {
		say_use(d, status);
		return client;
	}
	say_unreachable(d, r);
	tl_close(client);
	return NULL;
}

static void say_daemon(struct doctor *d)
{
	tl_status status = { .size = sizeof(status) };
	tl_client *client;

	say_directory(d);
	client = enter(d, request_ns, &status);
	if (client) {
		say_replaced(d, &status);
		say_permissions(d, status.address);
		say_namespaces(d, client);
	}
	tl_close(client);
}

/* Puts a tensor, gets it and deletes it. Returns 0, or a negative errno with the name of the step
 * that failed in *step. */
static int round_trip(tl_client *client, const char *name, const char **step)
{
	/* Then it goes with this process, however that ends. */
	const tl_put_options o = { .size = sizeof(o), .lifetime = TL_LIFETIME_OWNER_BOUND };
	int64_t sent = now_mono_ns(), shape = 1, got;
	DLTensor source = { .data = &sent,
			    .device = { kDLCPU, 0 },
			    .ndim = 1,
			    .dtype = { kDLInt, 64, 1 },
			    .shape = &shape };
	DLManagedTensorVersioned *tensor;
	int r;

	*step = "put";
	r = tl_put(client, name, &source, &o, NULL);
	if (r)
		return r;
	*step = "get";
	r = tl_get(client, name, NULL, &tensor);
	if (r)
		return r;
	memcpy(&got, tensor->dl_tensor.data, sizeof(got));
	tensor->deleter(tensor);
	if (got != sent)
		return -EBADMSG;
	*step = "delete";
	return tl_delete(client, name);
}

void doctor_quick(struct doctor *d)
{
	tl_status status = { .size = sizeof(status) };
	tl_client *client = enter(d, quick_ns, &status);
	int64_t begin = now_mono_ns();
	uint64_t number = 0;
	const char *step;
	char name[40];
	int r;

	if (!client)
		return;
	(void)!getrandom(&number, sizeof(number), GRND_NONBLOCK); /* pids of containers are alike */
	snprintf(name, sizeof(name), "doctor/%016" PRIx64, number);
	r = round_trip(client, name, &step);
	if (!r)
		doctor_say(d, DOCTOR_OK, "round trip", NULL,
			   "a tensor was put, got and deleted in %.0f us",
			   (double)(now_mono_ns() - begin) / 1e3);
	else if (r == -EACCES)
		doctor_say(d, DOCTOR_SKIPPED, "round trip", NULL, "%s", cli_reason(r));
	else
		doctor_say(d, DOCTOR_FAIL, "round trip", log_advice(d), "%s: %s", step,
			   r == -EBADMSG ? "other bytes came than were put" : cli_reason(r));
	tl_close(client);
}

/* ---- An own one ---- */

static struct {
	char dir[96], socket[108], lock[116]; /* "": there is none */
	tl_client *client;		      /* without one the daemon would end */
	pid_t pid;
} own;

const char *doctor_socket(void)
{
	return own.client ? own.socket : NULL;
}

static void remove_files(void)
{
	unlink(own.socket);
	unlink(own.lock);
	rmdir(own.dir);
}

/* Removes everything after ^C too. It only makes calls that a signal handler may make. */
static void on_signal(int number)
{
	if (own.pid)
		kill(own.pid, SIGTERM);
	remove_files();
	_exit(128 + number);
}

static int make_directory(struct doctor *d, const sigset_t *ends)
{
	const char *tmp = getenv("TMPDIR");

	if (!tmp || !*tmp || strlen(tmp) > 60)
		tmp = "/tmp";
	snprintf(own.dir, sizeof(own.dir), "%s/tensorlease-doctor-XXXXXX", tmp);
	if (!mkdtemp(own.dir)) {
		doctor_say(d, DOCTOR_FAIL, "own daemon", "make $TMPDIR, or /tmp, writable",
			   "%s: %m", own.dir);
		own.dir[0] = '\0';
		return -1;
	}
	snprintf(own.socket, sizeof(own.socket), "%s/s", own.dir);
	snprintf(own.lock, sizeof(own.lock), "%s.lock", own.socket);
	for (int i = 1; i < NSIG; i++)
		if (sigismember(ends, i) == 1)
			signal(i, on_signal);
	return 0;
}

static bool names_socket(const char *pid)
{
	char path[300], text[4096];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%s/cmdline", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, text, sizeof(text));
	fd_close(fd);
	return n > 0 && memmem(text, (size_t)n, own.socket, strlen(own.socket) + 1);
}

/*
 * Returns our daemon, or its keeper: it became our child because the child that started it has
 * ended. 0: there is none.
 */
static pid_t adopted(void)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	pid_t found = 0;

	while (proc && !found && (entry = readdir(proc)))
		if (names_socket(entry->d_name) && !waitpid(atoi(entry->d_name), NULL, WNOHANG))
			found = atoi(entry->d_name);
	if (proc)
		closedir(proc);
	return found;
}

/* Advises after a daemon of our own could not be started or used. */
static const char *start_advice(int r)
{
	if (r == -EUSERS)
		return clients_advice;
	if (r == -ENOENT || r == -ENOEXEC) /* no program, or one that is no daemon */
		return "install tensorleased beside this program, or put its path into $TENSORLEASE_DAEMON";
	if (tl_last_cause(NULL) == TL_CAUSE_UNTRUSTED || tl_last_cause(NULL) == TL_CAUSE_NOBODY)
		return nobody_advice; /* the daemon is run by this user */
	return "mend what it says; the rows above tell more of /dev/shm and of limits";
}

static void start_daemon(struct doctor *d)
{
	tl_connect_options o = { .size = sizeof(o),
				 .address = own.socket,
				 .namespace_name = "",
				 .flags = TL_CONNECT_AUTOSTART,
				 .timeout_ns = request_ns };
	int64_t begin = now_mono_ns();
	char *span, program[256];
	int r;

	/* A detached daemon becomes our child, so that we see its end. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	r = tl_connect(&o, &own.client);
	span = format_span((uint64_t)(now_mono_ns() - begin));
	own.pid = adopted(); /* its keeper, which ends it too */
	if (r) {
		doctor_say(d, DOCTOR_FAIL, "own daemon", start_advice(r), "%s", cli_reason(r));
		own.client = NULL;
		doctor_daemon_end(); /* it may be running all the same */
	} else {
		doctor_say(d, DOCTOR_OK, "own daemon", NULL, "%s listened after %s",
			   program_of((uint32_t)own.pid, program, sizeof(program)), span);
	}
	free(span);
}

void doctor_daemon_end(void)
{
	tl_close(own.client);
	own.client = NULL;
	for (; own.pid; own.pid = adopted()) {
		kill(own.pid, SIGTERM);
		doctor_reap(own.pid);
	}
	if (*own.dir)
		remove_files();
}

void doctor_daemons(struct doctor *d)
{
	sigset_t ends, before;

	say_daemon(d);
	cli_end_signals(&ends);
	sigprocmask(SIG_BLOCK, &ends, &before); /* on_signal() needs the daemon's pid first */
	if (!make_directory(d, &ends))
		start_daemon(d);
	sigprocmask(SIG_SETMASK, &before, NULL);
}
