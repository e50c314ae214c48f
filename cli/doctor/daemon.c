/* SPDX-License-Identifier: Apache-2.0 */
/* doctor: the daemon in use, and a daemon of its own, through which two processes exchange a
 * tensor. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <limits.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/doctor/child.h"
#include "cli/doctor/doctor.h"
#include "cli/format.h"
#include "util/address.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/path.h"

static const int64_t request_ns = 10 * NS_PER_SEC;

/* ---- The one in use ---- */

static const char clients_advice[] = "start it with a larger --max-clients";
static const char nobody_advice
	[] = "run as another user; in a container, map this user in its user namespace (docker run "
	     "--user, /etc/subuid)";

/* Advises after a connection was denied, which must have been the library's last failure. */
static char *access_advice(void)
{
	const struct group *group;
	uint32_t id;

	switch (tl_last_cause(&id)) {
	case TL_CAUSE_UNTRUSTED:
		return cli_text(
			"if you trust that user with all tensors, put the uid into $TENSORLEASE_TRUST_UID; else use another daemon (--socket, $TENSORLEASE_SOCKET)");
	case TL_CAUSE_NAMESPACE:
		return cli_text(
			"ask whoever configures the daemon, or use another namespace (--namespace, $TENSORLEASE_NAMESPACE)");
	case TL_CAUSE_NOBODY:
		return cli_text("%s", nobody_advice);
	case TL_CAUSE_GROUP: /* which is never root's */
		group = getgrgid(id);
		return group ? cli_text("join its group and log in again: usermod -aG %s USER",
					group->gr_name)
			     : cli_text("add this user to the group %u", id);
	default:
		return cli_text(
			"run as the user it belongs to, or use another daemon (--socket, $TENSORLEASE_SOCKET)");
	}
}

/* Returns the path that the library finds, or NULL for one that belongs to this user. */
static const char *socket_of(const struct doctor *d)
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
	const char *path = socket_of(d);

	return path && !strncmp(path, ADDRESS_SYSTEM_DIRECTORY "/",
				strlen(ADDRESS_SYSTEM_DIRECTORY "/"))
		       ? "look at its log: journalctl -u tensorleased"
		       : "look at its log: a daemon in the background has none, so start it in a terminal (tensorleased --foreground)";
}

/* While this socket exists it is everybody's default. */
static bool is_dead_end(int r, const char *path)
{
	return r == -ECONNREFUSED && path && address_is_service(path);
}

static void say_unreachable(struct doctor *d, int r)
{
	const char *environment = getenv("TENSORLEASE_SOCKET");
	bool asked = d->cli->socket || (environment && *environment);
	const char *why = cli_reason(r);
	int fact = (int)strcspn(why, ";"); /* the rest is advice; the doctor has its own */
	char *advice;

	if (!asked && is_dead_end(r, socket_of(d)))
		doctor_say(
			d, DOCTOR_FAIL, "daemon",
			"as root, start the service (systemctl start tensorleased.socket) or remove " ADDRESS_SYSTEM_SOCKET
			"; or use another (--socket, $TENSORLEASE_SOCKET)",
			"%.*s", fact, why);
	else if ((r == -ENOENT || r == -ECONNREFUSED) && !asked)
		doctor_say(d, DOCTOR_OK, "daemon", NULL,
			   "%.*s; put, load and others start one when they need it", fact, why);
	else if (r == -ENOENT || r == -ECONNREFUSED)
		doctor_say(
			d, DOCTOR_FAIL, "daemon",
			"start it (systemctl start tensorleased.socket, or tensorleased --socket PATH), or use another (--socket, $TENSORLEASE_SOCKET)",
			"%.*s", fact, why);
	else if (r == -EACCES) {
		advice = access_advice();
		doctor_say(d, DOCTOR_FAIL, "daemon", advice, "%.*s", fact, why);
		free(advice);
	} else if (r == -EINVAL)
		doctor_say(
			d, DOCTOR_FAIL, "daemon",
			"name another socket (--socket, $TENSORLEASE_SOCKET) or namespace (--namespace, $TENSORLEASE_NAMESPACE)",
			"%s", why);
	else if (r == -EPROTONOSUPPORT)
		doctor_say(
			d, DOCTOR_FAIL, "daemon",
			"library and daemon have different versions: restart the daemon after an update",
			"%.*s", fact, why);
	else if (r == -EUSERS)
		doctor_say(d, DOCTOR_FAIL, "daemon", clients_advice, "%s", why);
	else
		doctor_say(d, DOCTOR_FAIL, "daemon", log_advice(d), "%s", why);
}

/* Says what keeps this user's own daemon from its usual place. */
static void say_directory(struct doctor *d)
{
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	char directory[PATH_MAX], *advice;
	uid_t owner;

	if (socket_of(d))
		return;
	if (runtime && *runtime && address_is_others(runtime) && !address_owner(runtime, 0, &owner))
		doctor_say(d, DOCTOR_WARN, "runtime directory",
			   "log in as this user (su -, sudo -i), or unset XDG_RUNTIME_DIR",
			   "$XDG_RUNTIME_DIR is %s, which belongs to user %u: it is not used",
			   runtime, (unsigned)owner);
	address_user_directory(directory, sizeof(directory), runtime);
	if (address_owner(directory, AT_SYMLINK_NOFOLLOW, &owner) || owner == address_uid())
		return;
	advice = cli_text("have root or that user remove it (rm -r %s), or name another socket "
			  "(--socket, $TENSORLEASE_SOCKET)",
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

/* SIGHUP changes nothing if the tensors would be lost. Without a keeper it ends the daemon. */
static char *replaced_advice(const tl_status *s)
{
	if (s->keeper == TL_KEEPER_NONE)
		return cli_text(
			"start the new one when the tensors may go: this daemon has no keeper, which would hand them over");
	return cli_text("let the new one take over, with the same tensors: kill -HUP %u",
			s->daemon_pid);
}

/*
 * A running daemon may be older than the one that is installed. This can only be seen for a daemon
 * of the same user.
 */
static void say_replaced(struct doctor *d, const tl_status *s)
{
	char path[64], program[256] = "", *advice;

	snprintf(path, sizeof(path), "/proc/%u/exe", s->daemon_pid);
	if (readlink(path, program, sizeof(program) - 1) <= 0 || !strstr(program, "tensorleased") ||
	    !strstr(program, " (deleted)"))
		return;
	advice = replaced_advice(s);
	doctor_say(d, DOCTOR_WARN, "daemon's program", advice,
		   "%s: the program was replaced since it was started", program);
	free(advice);
}

static void say_permissions(struct doctor *d, const char *address)
{
	const struct passwd *user;
	const struct group *group;
	char owner[64], members[64];
	struct stat st;

	if (stat(address, &st)) {
		doctor_say(d, DOCTOR_WARN, "socket",
			   "new processes cannot connect: restart the daemon", "%s: %m", address);
		return;
	}
	user = getpwuid(st.st_uid);
	snprintf(owner, sizeof(owner), "%s", user ? user->pw_name : "?");
	group = getgrgid(st.st_gid);
	snprintf(members, sizeof(members), "%s", group ? group->gr_name : "?");
	doctor_say(
		d, st.st_mode & 2 ? DOCTOR_WARN : DOCTOR_OK, "socket",
		"every user of this machine may read every tensor: take that away with chmod o-w",
		"mode %04o, owner %s (%u), group %s (%u)", st.st_mode & 07777, owner, st.st_uid,
		members, st.st_gid);
}

static int visit_self(const tl_client_info *info, void *context)
{
	*(bool *)context |= info->pid == (uint32_t)getpid() && info->uid == geteuid();
	return 0;
}

/* The kernel translates our pid into the daemon's PID namespace. */
static void say_daemon_namespace(struct doctor *d, tl_client *client)
{
	bool known = false;
	int r = tl_list_clients(client, visit_self, &known);

	if (r)
		doctor_say(d, DOCTOR_WARN, "daemon's namespaces", log_advice(d), "%s",
			   cli_reason(r));
	else if (!known)
		doctor_say(
			d, DOCTOR_WARN, "daemon's namespaces",
			"sharing works, but tensorlease status --clients shows other pids; for GPU memory see the probe of PID namespaces below",
			"it does not know this process as pid %d, uid %u: it runs in another PID or user namespace",
			(int)getpid(), geteuid());
	else
		doctor_say(d, DOCTOR_OK, "daemon's namespaces", NULL,
			   "it knows this process as pid %d, uid %u", (int)getpid(), geteuid());
}

static void say_daemon(struct doctor *d)
{
	tl_connect_options o = { .size = sizeof(o),
				 .address = d->cli->socket,
				 .namespace_name = d->cli->name_space,
				 .timeout_ns = request_ns };
	tl_status status = { .size = sizeof(status) };
	tl_client *client;
	int r = tl_connect(&o, &client);

	say_directory(d);
	if (r) {
		say_unreachable(d, r);
		return;
	}
	r = tl_get_status(client, &status);
	if (r) {
		say_unreachable(d, r);
	} else {
		say_use(d, &status);
		say_replaced(d, &status);
		say_permissions(d, status.address);
		say_daemon_namespace(d, client);
	}
	tl_close(client);
}

/* ---- An own one ---- */

static struct doctor *interrupted;

/* Removes everything after ^C too. It only makes calls that a signal handler may make. */
static void on_signal(int number)
{
	char path[128];

	if (interrupted->daemon)
		kill(interrupted->daemon, SIGTERM);
	if (*interrupted->socket) {
		unlink(interrupted->socket);
		strcpy(stpcpy(path, interrupted->socket), ".lock");
		unlink(path);
	}
	rmdir(interrupted->dir);
	_exit(128 + number);
}

static void on_end_signals(void (*handler)(int))
{
	sigset_t ends;

	cli_end_signals(&ends);
	for (int i = 1; i < NSIG; i++) {
		if (sigismember(&ends, i) == 1)
			signal(i, handler);
	}
}

static int make_directory(struct doctor *d)
{
	const char *tmp = getenv("TMPDIR");

	if (!tmp || !*tmp || strlen(tmp) > 60)
		tmp = "/tmp";
	snprintf(d->dir, sizeof(d->dir), "%s/tensorlease-doctor-XXXXXX", tmp);
	if (mkdtemp(d->dir)) {
		snprintf(d->socket, sizeof(d->socket), "%s/s", d->dir);
		interrupted = d;
		on_end_signals(on_signal);
		return 0;
	}
	doctor_say(d, DOCTOR_FAIL, "own daemon", "make $TMPDIR, or /tmp, writable", "%s: %m",
		   d->dir);
	d->dir[0] = '\0';
	return -1;
}

static bool has_argument(const char *pid, const char *argument)
{
	char path[300], text[4096];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%s/cmdline", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, text, sizeof(text));
	fd_close(fd);
	return n > 0 && memmem(text, (size_t)n, argument, strlen(argument) + 1);
}

/*
 * Returns our daemon, or its keeper: it became our child because the child that started it has
 * ended. 0: there is none. The program that became this one may have had other children.
 */
static pid_t adopted(const struct doctor *d)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	pid_t found = 0;

	while (proc && !found && (entry = readdir(proc))) {
		char path[300], text[512] = "", *end;
		int parent;

		if (*entry->d_name < '0' || *entry->d_name > '9')
			continue;
		snprintf(path, sizeof(path), "/proc/%s/stat", entry->d_name);
		end = strrchr(doctor_read(path, text, sizeof(text)), ')');
		if (end && sscanf(end + 1, " %*c %d", &parent) == 1 && parent == getpid() &&
		    has_argument(entry->d_name, d->socket))
			found = (pid_t)atoi(entry->d_name);
	}
	if (proc)
		closedir(proc);
	return found;
}

static void end_process(pid_t pid)
{
	const struct timespec nap = { .tv_nsec = NS_PER_MS };
	int64_t deadline = deadline_after(request_ns);

	kill(pid, SIGTERM);
	while (waitpid(pid, NULL, WNOHANG) == 0) {
		if (deadline_passed(deadline))
			kill(pid, SIGKILL);
		nanosleep(&nap, NULL);
	}
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
				 .address = d->socket,
				 .namespace_name = "",
				 .flags = TL_CONNECT_AUTOSTART,
				 .timeout_ns = request_ns };
	tl_status status = { .size = sizeof(status) };
	int64_t begin = now_mono_ns();
	char *span, path[64], program[256] = "";
	sigset_t ends, before;
	int r;

	cli_end_signals(&ends);
	sigprocmask(SIG_BLOCK, &ends, &before); /* on_signal() needs the daemon's pid first */
	if (make_directory(d)) {
		sigprocmask(SIG_SETMASK, &before, NULL);
		return;
	}
	/* A detached daemon becomes our child, so that we see its end. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	r = tl_connect(&o, &d->client);
	span = format_span((uint64_t)(now_mono_ns() - begin));
	if (!r)
		r = tl_get_status(d->client, &status);
	if (r) {
		doctor_say(d, DOCTOR_FAIL, "own daemon", start_advice(r), "%s", cli_reason(r));
		while ((d->daemon = adopted(d))) /* it may be running all the same */
			end_process(d->daemon);
		d->socket[0] = '\0';
	} else {
		d->daemon = adopted(d); /* its keeper, which ends it too */
		snprintf(path, sizeof(path), "/proc/%d/exe", (int)d->daemon);
		if (readlink(path, program, sizeof(program) - 1) < 0)
			strcpy(program, "tensorleased");
		doctor_say(d, DOCTOR_OK, "own daemon", NULL, "%s listened after %s", program, span);
	}
	sigprocmask(SIG_SETMASK, &before, NULL);
	free(span);
}

static void remove_directory(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *entry;

	while (dir && (entry = readdir(dir)))
		unlinkat(dirfd(dir), entry->d_name, 0);
	if (dir)
		closedir(dir);
	rmdir(path);
}

void doctor_daemon_end(struct doctor *d)
{
	tl_close(d->client);
	d->client = NULL;
	if (d->daemon)
		end_process(d->daemon);
	d->daemon = 0;
	if (*d->dir)
		remove_directory(d->dir);
	on_end_signals(SIG_DFL);
	d->dir[0] = '\0';
}

/* ---- An exchange ---- */

enum { EXCHANGED = 4 << 20 };

static DLManagedTensorVersioned *get(tl_client *client, const char *name, uint64_t newer_than,
				     int64_t *ns)
{
	tl_get_options o = { .size = sizeof(o),
			     .timeout_ns = request_ns,
			     .newer_than = newer_than };
	DLManagedTensorVersioned *tensor;
	int64_t begin = now_mono_ns();
	int r = tl_get(client, name, &o, &tensor);

	*ns = now_mono_ns() - begin;
	return r ? NULL : tensor;
}

/* Returns whether the bytes are the other process's, after reporting it if not. */
static bool right(struct doctor *d, DLManagedTensorVersioned *tensor, unsigned seed)
{
	static const char advice[] = "run the tests: make test";
	ssize_t wrong;

	if (!tensor) {
		doctor_say(d, DOCTOR_FAIL, "exchange", advice, "getting: %s", tl_last_error());
		return false;
	}
	wrong = doctor_compare(tensor->dl_tensor.data, EXCHANGED, seed);
	if (wrong >= 0)
		doctor_say(d, DOCTOR_FAIL, "exchange", advice,
			   "byte %zd is not what the other process wrote", wrong);
	return wrong < 0;
}

static void exchange(struct doctor *d, struct doctor_child *child)
{
	DLManagedTensorVersioned *first = NULL, *again = NULL, *newer = NULL;
	int64_t ns1, ns2, ns3, late;
	tl_info info = { .size = sizeof(info) };

	first = get(d->client, "doctor/cpu", 0, &ns1);
	if (right(d, first, 1)) {
		again = get(d->client, "doctor/cpu", 0, &ns2);
		doctor_go(child);
		newer = get(d->client, "doctor/cpu", 1, &ns3);
		late = now_real_ns();
		if (right(d, newer, 2) && !tl_tensor_info(newer, &info))
			doctor_say(
				d, DOCTOR_OK, "exchange", NULL,
				"4 MiB from another process: first get %.1f us, second %.2f us; a waiting get returned %.1f us after the commit; all bytes are right",
				(double)ns1 / 1e3, (double)ns2 / 1e3,
				(double)(late - (int64_t)info.committed_ns) / 1e3);
	}
	if (first)
		first->deleter(first);
	if (again)
		again->deleter(again);
	if (newer)
		newer->deleter(newer);
}

static void say_exchange(struct doctor *d)
{
	struct doctor_child child = { 0 };
	char *words;
	int r;

	if (!*d->socket) {
		doctor_say(d, DOCTOR_SKIPPED, "exchange", NULL,
			   "there is no daemon to exchange through");
		return;
	}
	r = doctor_spawn(&child, APART_NOTHING,
			 (const char *const[]){ "put", d->socket, "doctor/cpu", "4194304", NULL });
	if (r) {
		doctor_say(d, DOCTOR_FAIL, "exchange", "raise the limit on processes: ulimit -u",
			   "starting a process: %s", strerror(-r));
		return;
	}
	if (doctor_answer(&child, &words))
		exchange(d, &child);
	else
		doctor_say(d, DOCTOR_FAIL, "exchange", "see above", "the other process: %s", words);
	free(words);
	doctor_end(&child);
}

void doctor_daemons(struct doctor *d)
{
	say_daemon(d);
	start_daemon(d);
	say_exchange(d);
}

/* The other process publishes once, and again each time it is told to. */
int child_put(char *const *args)
{
	tl_connect_options o = { .size = sizeof(o),
				 .address = args[0],
				 .namespace_name = "",
				 .timeout_ns = request_ns };
	int64_t size = strtoll(args[2], NULL, 10);
	tl_spec spec = { .size = sizeof(spec),
			 .shape = &size,
			 .ndim = 1,
			 .dtype = { kDLUInt, 8, 1 },
			 .timeout_ns = request_ns };
	tl_client *client;
	uint64_t version;
	int r = tl_connect(&o, &client);

	if (r) {
		child_answer(false, "%s", tl_last_error());
		return CLI_FAILURE;
	}
	for (unsigned seed = 1; !r && (seed == 1 || child_await()); seed++) {
		tl_draft *draft;

		r = tl_create(client, args[1], &spec, &draft);
		if (!r) {
			doctor_fill(tl_draft_tensor(draft)->data, (size_t)size, seed);
			r = tl_commit(draft, &version);
		}
		child_answer(!r, "%s", r ? tl_last_error() : "published");
	}
	tl_close(client);
	return r ? CLI_FAILURE : CLI_OK;
}
