/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keeper; see keeper.h. After several deaths in a short time the next daemon is told to start
 * afresh, since the state that it takes over may be the cause. If it goes on dying the keeper gives
 * up. A daemon that could not be started, that says that it cannot start, or that dies before it
 * serves, may lack something for a while. So the keeper tries again, after pauses that grow.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/keeper/keeper.h"
#include "daemon/keeper/keeper_protocol.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/log.h"

enum {
	RETRY_MS = 50,	       /* until the keeper tries again to start a daemon */
	RETRY_DOUBLINGS = 7,   /* how often that time is doubled, from one try to the next */
	LEAVE_S = 5,	       /* for a daemon to end by itself */
	CLEAN_S = 300,	       /* for a daemon that only removes what the last one left */
	START_MS = 30000,      /* for a new program to serve */
	EXIT_NO_LIBRARY = 127, /* of a program that the dynamic linker could not load */
};

/* The daemon: NONE -- start() --> STARTING -- it serves --> SERVES -- for another one --> RENEWING;
 * it may end in each of them, and may stay instead of giving way. */
enum child_stage { CHILD_NONE, CHILD_STARTING, CHILD_SERVES, CHILD_RENEWING };

/* RUNS -- SIGTERM --> STOPPING -- one more daemon removes all --> LAST; OVER: the keeper ends. */
enum keeper_stage { KEEPER_RUNS, KEEPER_STOPPING, KEEPER_LAST, KEEPER_OVER };

struct keeper {
	const struct keeper_options *options;
	char exe[PATH_MAX], directory[PATH_MAX];
	struct kept_table table;
	sigset_t mask_before;
	int signal_fd;
	int fd; /* to the daemon */
	enum keeper_stage stage;
	enum child_stage child_stage;
	pid_t child;		      /* of the present daemon, unless there is NONE */
	bool was_ready;		      /* any daemon has served */
	uint64_t forgotten;	      /* how many things this daemon has had us forget */
	bool forgotten_owed;	      /* the daemon has not been told that number yet */
	int64_t renew_ns;	      /* since when it is RENEWING */
	int64_t kill_ns;	      /* when the present daemon is killed; 0: never */
	char asked[KEEPER_TEXT_SIZE]; /* why it is RENEWING */
	enum keeper_op due;  /* what a signal asked for, when the next daemon serves; 0: nothing */
	bool new_config;     /* no daemon has served with the files as they are */
	bool new_program;    /* no daemon of the program at @exe has served yet */
	bool former_program; /* none ever will: @program is used */
	bool must_adopt;     /* the next one may give up nothing: @program can adopt it */
	int program;	     /* of the last daemon that served, or -1 */
	bool fresh;	     /* the next one is to start afresh */
	uint64_t restarts;   /* how often a daemon has served and ended */
	int64_t ended_ns;    /* when the last of these ended */
	char reason[KEEPER_TEXT_SIZE];	   /* why it ended */
	int64_t recent[KEEPER_DEATHS_MAX]; /* the times of the last deaths, used in turn */
	bool immortal;			   /* never give up, however many die; for tests */
	unsigned recent_count;		   /* since the last fresh start */
	int64_t fresh_ns;		   /* when the last fresh start was; 0: never */
	unsigned tries;			   /* tries to start a daemon, since one served */
	unsigned failures;		   /* daemons that failed to start since then */
	int64_t start_ns;		   /* when to try again, if there is no daemon */
	int status;			   /* when it is OVER */
};

static bool is_stopping(const struct keeper *k)
{
	return k->stage != KEEPER_RUNS;
}

static bool has_served(const struct keeper *k)
{
	return k->child_stage >= CHILD_SERVES;
}

/* ---- starting ------------------------------------------------------------------------------- */

static void list_line(const struct kept *kept, void *file)
{
	fprintf(file, "kept %d %s\n", kept->fd, kept->tag);
}

/* Writes a line with a path. A path with a line break is left out, and not known to the daemon. */
static void list_path(FILE *file, const char *word, const char *path)
{
	if (!strchr(path, '\n'))
		fprintf(file, "%s %s\n", word, path);
}

/* The daemon inherits the descriptors under their numbers. Returns the descriptor of the list, or
 * an error. */
static int list_make(const struct keeper *k)
{
	cleanup_(fd_closep) int fd = memfd_create("tensorleased-kept", MFD_CLOEXEC);
	int copy = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
	FILE *file = copy < 0 ? NULL : fdopen(copy, "w");
	int r = -errno;

	if (!file) {
		fd_close(copy);
		return r;
	}
	kept_each(&k->table, list_line, file);
	fprintf(file, "detached %d\nfresh %d\nrestarts %llu\nended %lld\nreason %s\n",
		k->options->detached, k->fresh, (unsigned long long)k->restarts,
		(long long)k->ended_ns, k->reason);
	list_path(file, "directory", k->directory);
	list_path(file, "program", k->exe);
	fprintf(file, "must-adopt %d\nsame-config %d\nformer-program %d\n", k->must_adopt,
		!k->new_config, k->former_program);
	r = ferror(file) ? -ENOMEM : 0; /* a memfd can only lack pages */
	if (fclose(file) || lseek(fd, 0, SEEK_SET))
		return -errno;
	return r ? r : take_fd(&fd);
}

static void inherit(const struct kept *kept, void *context)
{
	(void)context;
	fcntl(kept->fd, F_SETFD, 0);
}

/* Runs in the child. SIGTERM waits there until the daemon can handle it. */
static _Noreturn void become_daemon(struct keeper *k, pid_t keeper, int fd, int list_fd)
{
	sigset_t mask = k->mask_before;
	char text[64];

	fcntl(fd, F_SETFD, 0);
	fcntl(list_fd, F_SETFD, 0);
	kept_each(&k->table, inherit, NULL);
	snprintf(text, sizeof(text), "%d %d %d", (int)keeper, fd, list_fd);
	setenv(KEEPER_ENVIRONMENT, text, 1);
	sigaddset(&mask, SIGTERM);
	sigaddset(&mask, SIGINT);
	sigprocmask(SIG_SETMASK, &mask, NULL);
	prctl(PR_SET_NAME, "tensorleased");
	if (k->former_program && k->program >= 0)
		fexecve(k->program, k->options->argv, environ);
	execv(k->exe, k->options->argv);
	if (k->program >= 0) /* the file was removed, or cannot be run */
		fexecve(k->program, k->options->argv, environ);
	execv("/proc/self/exe", k->options->argv);
	fprintf(stderr, "tensorleased: cannot start %s: %s\n", k->exe, strerror(errno));
	_exit(EXIT_FAILURE);
}

static int child_start(struct keeper *k)
{
	cleanup_(fd_closep) int list_fd = list_make(k);
	int64_t start_ms = k->options->start_ms ? k->options->start_ms : START_MS;
	pid_t keeper = getpid(), pid;
	int fds[2];

	if (list_fd < 0)
		return list_fd;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds))
		return -errno;
	pid = fork();
	if (pid == 0)
		become_daemon(k, keeper, fds[1], list_fd);
	fd_close(fds[1]);
	if (pid < 0) {
		fd_close(fds[0]);
		return -EAGAIN;
	}
	if (is_stopping(k))
		kill(pid, SIGTERM);
	k->child = pid;
	k->child_stage = CHILD_STARTING;
	k->kill_ns = is_stopping(k)   ? now_mono_ns() + CLEAN_S * NS_PER_SEC
		     : k->new_program ? now_mono_ns() + start_ms * NS_PER_MS
				      : 0;
	k->fd = fds[0];
	/* this daemon reads the files as they are now, unless it gives way to the former program */
	if (k->new_config && (!k->must_adopt || k->due == KEEPER_RELOAD))
		k->due = 0;
	k->fresh = k->forgotten_owed = false;
	k->forgotten = 0;
	return 0;
}

/* ---- keeping -------------------------------------------------------------------------------- */

static bool answer(struct keeper *k, enum keeper_op op, const char *text)
{
	struct keeper_message m = { .op = op };

	snprintf(m.text, sizeof(m.text), "%s", text);
	return send(k->fd, &m, sizeof(m), MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(m);
}

/* Tells the daemon how much was forgotten. A daemon that has very many things forgotten at once
 * reads nothing meanwhile: its socket may be full. */
static void answer_forgotten(struct keeper *k)
{
	char count[24];

	snprintf(count, sizeof(count), "%llu", (unsigned long long)k->forgotten);
	k->forgotten_owed = !answer(k, KEEPER_FORGOTTEN, count);
}

static void nothing_is_new(struct keeper *k)
{
	k->new_program = k->new_config = k->must_adopt = false;
}

/* To be called when the daemon serves. Its program is known to be good, and is used again if a
 * later one is not. */
static void served(struct keeper *k)
{
	char path[64];
	int fd;

	if (k->child_stage == CHILD_STARTING)
		k->child_stage = CHILD_SERVES;
	k->was_ready = true;
	k->tries = k->failures = 0;
	k->kill_ns = 0;
	nothing_is_new(k);
	snprintf(path, sizeof(path), "/proc/%d/exe", (int)k->child);
	fd = open(path, O_PATH | O_CLOEXEC);
	if (fd < 0)
		return; /* it has died since: the program before it is good as well */
	fd_close(k->program);
	k->program = fd;
}

static void child_renew(struct keeper *k, enum keeper_op how, const char *why)
{
	if (k->child_stage != CHILD_SERVES || is_stopping(k))
		return;
	if (access(k->exe, X_OK)) {
		log_error("the daemon goes on: its program is not there", "path=%s error=%s",
			  log_str(k->exe), log_str(strerror(errno)));
		return;
	}
	snprintf(k->asked, sizeof(k->asked), "%s", why);
	k->child_stage = CHILD_RENEWING;
	k->new_program = k->new_config = true;
	k->must_adopt = how == KEEPER_RELOAD;
	k->renew_ns = now_mono_ns();
	k->kill_ns = k->renew_ns + LEAVE_S * NS_PER_SEC;
	answer(k, how, k->asked);
}

/* A signal while no daemon serves, or when one is about to leave, counts as soon as a daemon
 * serves. A reload may be refused, and so does not replace a restart. */
static void signal_renew(struct keeper *k, enum keeper_op how)
{
	bool now = k->child_stage == CHILD_SERVES;

	if (now)
		k->due = 0;
	else if (k->due != KEEPER_LEAVE)
		k->due = how;
	if (now)
		child_renew(k, how, how == KEEPER_RELOAD ? KEEPER_BY_SIGHUP : KEEPER_BY_SIGUSR2);
}

static void due_renew(struct keeper *k)
{
	if (k->due)
		signal_renew(k, k->due);
}

static void reason_add(struct keeper *k, const char *what, const char *why)
{
	size_t n = strlen(k->reason);

	snprintf(k->reason + n, sizeof(k->reason) - n, "; %s: %s", what, why);
}

/* Tells the next daemon to take nothing over. */
static void afresh(struct keeper *k, const char *why)
{
	k->fresh = true;
	reason_add(k, "started afresh", why);
}

static void handle(struct keeper *k, const struct keeper_message *m, int fd_take)
{
	switch (m->op) {
	case KEEPER_KEEP:
		if (fd_take < 0 || kept_add(&k->table, m->text, take_fd(&fd_take)))
			answer(k, KEEPER_REFUSED, m->text);
		break;
	case KEEPER_FORGET:
		fd_close(kept_take(&k->table, m->text));
		k->forgotten++;
		answer_forgotten(k);
		break;
	case KEEPER_NOTIFY:
		if (!strcmp(m->text, "READY=1"))
			served(k);
		k->options->notified(k->options->context, m->text);
		due_renew(k);
		break;
	case KEEPER_RENEW:
		child_renew(k, strcmp(m->text, KEEPER_BY_SIGHUP) ? KEEPER_LEAVE : KEEPER_RELOAD,
			    m->text);
		break;
	case KEEPER_STAY:
		if (k->child_stage == CHILD_RENEWING)
			k->child_stage = CHILD_SERVES;
		k->kill_ns = 0;
		nothing_is_new(k);
		due_renew(k);
		break;
	case KEEPER_RELOADING:
		k->must_adopt = true;
		break;
	case KEEPER_AFRESH:
		afresh(k, m->text);
		break;
	default:
		break;
	}
	fd_close(fd_take);
}

/* Handles a message of the daemon. False: no message is left, or the daemon has ended. */
static bool receive(struct keeper *k)
{
	struct keeper_message m = { 0 };
	struct iovec iov = { .iov_base = &m, .iov_len = sizeof(m) };
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = &control,
			      .msg_controllen = sizeof(control) };
	ssize_t n;
	int fd = -1;

	do { /* if the daemon closed with messages of ours unread this fails once, before its last
		messages */
		n = recvmsg(k->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == ECONNRESET);
	if (n != sizeof(m))
		return false;
	if (msg.msg_controllen >= CMSG_LEN(sizeof(int)) && control.header.cmsg_type == SCM_RIGHTS)
		memcpy(&fd, CMSG_DATA(&control.header), sizeof(fd));
	m.text[sizeof(m.text) - 1] = '\0';
	handle(k, &m, fd);
	return true;
}

/* ---- the end of a daemon -------------------------------------------------------------------- */

static void end(struct keeper *k, int status)
{
	k->stage = KEEPER_OVER;
	k->status = status;
}

/* Notes a death. True if another daemon may be started. */
static bool death_note(struct keeper *k)
{
	int64_t now = now_mono_ns(), within = KEEPER_DEATHS_S * NS_PER_SEC;
	char why[64];

	k->recent[k->recent_count++ % KEEPER_DEATHS_MAX] = now;
	if (k->immortal || k->recent_count < KEEPER_DEATHS_MAX ||
	    now - k->recent[k->recent_count % KEEPER_DEATHS_MAX] > within)
		return true;
	if (k->fresh_ns && now - k->fresh_ns <= within) {
		log_error("the daemon died too often, and is not started any more");
		return false;
	}
	log_error("the daemon died too often; the next one starts afresh", "deaths=%d seconds=%d",
		  KEEPER_DEATHS_MAX, KEEPER_DEATHS_S);
	snprintf(why, sizeof(why), "%d daemons died within %d s", KEEPER_DEATHS_MAX,
		 KEEPER_DEATHS_S);
	afresh(k, why);
	k->fresh_ns = now;
	k->recent_count = k->tries = 0;
	return true;
}

static void start_later(struct keeper *k)
{
	int64_t pause_ms = k->options->retry_ms ? k->options->retry_ms : RETRY_MS;

	pause_ms <<= k->tries < RETRY_DOUBLINGS ? k->tries : RETRY_DOUBLINGS;
	k->tries++;
	k->start_ns = now_mono_ns() + pause_ms * NS_PER_MS;
}

/* To be called when a daemon could not start. The kept state is lost only if daemons fail for a
 * minute. */
static void failure_note(struct keeper *k)
{
	k->failures++;
	log_warn("the daemon could not start; trying again", "failures=%u", k->failures);
	if (k->failures == KEEPER_FAILURES_MAX)
		afresh(k, "the daemon could not start");
	k->fresh = k->failures >= KEEPER_FAILURES_MAX;
	if (k->failures < 2 * KEEPER_FAILURES_MAX)
		start_later(k);
	else
		end(k, EXIT_FAILURE);
}

/* True if the file is not the program of the last daemon that served any more. */
static bool is_replaced(const struct keeper *k)
{
	struct stat ours, there;

	return k->program >= 0 && !fstat(k->program, &ours) && !stat(k->exe, &there) &&
	       (ours.st_dev != there.st_dev || ours.st_ino != there.st_ino);
}

/* Chooses the program of the next daemon. A program that was installed meanwhile is tried after a
 * death, but nothing may depend on it. When we are to stop it is not tried, even if a restart was
 * asked for: it may not clean up. */
static void program_choose(struct keeper *k)
{
	if ((k->new_program && !is_stopping(k)) || k->former_program || !is_replaced(k))
		return;
	k->former_program = k->fresh;
	k->new_program = k->must_adopt = !k->fresh;
}

/* When we are to stop, the daemon only removes what the last one left, and stops at once. */
static void start(struct keeper *k)
{
	int r;

	if (is_stopping(k)) {
		k->fresh = true;
		k->stage = KEEPER_LAST;
	}
	program_choose(k);
	r = child_start(k);
	if (!r)
		return;
	if (!k->was_ready || is_stopping(k)) {
		fprintf(stderr, "tensorleased: the keeper cannot start the daemon: %s\n",
			strerror(-r));
		end(k, EXIT_FAILURE);
		return;
	}
	log_error("cannot start the daemon", "error=%s", log_str(strerror(-r)));
	start_later(k);
}

static void reason_of(int status, char why[KEEPER_TEXT_SIZE])
{
	if (WIFSIGNALED(status))
		snprintf(why, KEEPER_TEXT_SIZE, "killed by signal %d (%s)", WTERMSIG(status),
			 strsignal(WTERMSIG(status)));
	else
		snprintf(why, KEEPER_TEXT_SIZE, "ended with status %d", WEXITSTATUS(status));
}

/* Counts a daemon that served and ended. A daemon that never served does not count: the pause goes
 * on, and its reason is still the end of the daemon before. */
static void restart_note(struct keeper *k, const char *why)
{
	bool renewed = k->child_stage == CHILD_RENEWING;

	if (!has_served(k))
		return;
	k->restarts++;
	k->ended_ns = renewed ? k->renew_ns : now_mono_ns();
	snprintf(k->reason, sizeof(k->reason), "%s", renewed ? k->asked : why);
}

/* Returns to the former program, since a daemon of a new one ended before it served: the kept state
 * must not be lost with it. */
static void program_return(struct keeper *k, const char *why)
{
	log_error("the new program does not serve; going back to the one before", "path=%s why=%s",
		  log_str(k->exe), log_str(why));
	reason_add(k, "back to the former program, since the new one does not serve", why);
	nothing_is_new(k);
	k->former_program = true;
	start(k);
}

/* True if a daemon ended, but not because of its options or of another daemon that serves. */
static bool has_failed(const struct keeper *k, bool served, int status)
{
	return k->was_ready && !served && !k->fresh && WIFEXITED(status) &&
	       (WEXITSTATUS(status) == EXIT_FAILURE || WEXITSTATUS(status) == EXIT_NO_LIBRARY);
}

static void child_ended(struct keeper *k, int status)
{
	char why[KEEPER_TEXT_SIZE];
	bool served, renewed, left;

	while (receive(k)) { /* its last messages count */
	}
	k->fd = fd_close(k->fd);
	k->child = 0;
	reason_of(status, why);
	restart_note(k, why);
	served = has_served(k);
	renewed = k->child_stage == CHILD_RENEWING;
	k->child_stage = CHILD_NONE;
	if (is_stopping(k) && k->was_ready && !served && status) {
		if (k->stage == KEEPER_LAST)
			end(k, EXIT_FAILURE);
		else
			start(k);
		return;
	}
	if (k->new_program && !served && !k->fresh) {
		program_return(k, why);
		return;
	}
	if (has_failed(k, served, status)) {
		failure_note(k);
		return;
	}
	left = renewed && WIFEXITED(status) && WEXITSTATUS(status) == KEEPER_EXIT_LEFT;
	if (WIFEXITED(status) && !k->fresh && !left) {
		end(k, WEXITSTATUS(status));
		return;
	}
	if (!k->was_ready) {
		if (WIFSIGNALED(status))
			fprintf(stderr,
				"tensorleased: the daemon was ended by signal %d before it was "
				"ready\n",
				WTERMSIG(status));
		end(k, EXIT_FAILURE);
		return;
	}
	if (!renewed) {
		log_warn("the daemon died; starting another one", "why=%s", log_str(why));
		if (!death_note(k)) {
			end(k, EXIT_FAILURE);
			return;
		}
		/* taking over may take too long for so many deaths in a short time */
		if (!served && !k->fresh && !k->immortal) {
			failure_note(k);
			return;
		}
	}
	k->former_program &= !renewed;
	start(k);
}

/* Reaps children that have ended. PID 1 of a container also gets what a daemon had started. */
static void children_reap(struct keeper *k)
{
	int status;
	pid_t pid;

	while (k->stage != KEEPER_OVER && (pid = waitpid(-1, &status, WNOHANG)) > 0) {
		if (pid == k->child)
			child_ended(k, status);
	}
}

/* ---- signals -------------------------------------------------------------------------------- */

/* Ends the daemon. If it does not serve yet it may hang, and the signal is blocked when it begins,
 * so it is killed if it takes too long. If it serves it may have much to remove. If it is to leave,
 * it is killed when it would have been killed anyway. */
static void stop(struct keeper *k, int signal_number)
{
	bool first = !is_stopping(k);

	if (first)
		k->stage = KEEPER_STOPPING;
	if (!k->child) {
		start(k);
		return;
	}
	kill(k->child, signal_number);
	if (first && k->child_stage != CHILD_RENEWING)
		k->kill_ns = has_served(k) ? 0 : now_mono_ns() + LEAVE_S * NS_PER_SEC;
}

/* Reads the daemon's earlier messages first, above all that it is ready. */
static void on_signal(struct keeper *k)
{
	struct signalfd_siginfo info;

	while (k->fd >= 0 && receive(k)) {}
	while (k->stage != KEEPER_OVER && read(k->signal_fd, &info, sizeof(info)) == sizeof(info)) {
		while (k->fd >= 0 && receive(k)) { /* the sender of a signal may know of them */
		}
		if (info.ssi_signo == SIGCHLD) {
			children_reap(k);
		} else if (info.ssi_signo == SIGHUP) {
			signal_renew(k, KEEPER_RELOAD);
		} else if (info.ssi_signo == SIGUSR2) {
			signal_renew(k, KEEPER_LEAVE);
		} else {
			stop(k, (int)info.ssi_signo);
		}
	}
}

static int signals_take(struct keeper *k)
{
	sigset_t mask;

	sigemptyset(&mask);
	sigaddset(&mask, SIGCHLD);
	sigaddset(&mask, SIGTERM);
	sigaddset(&mask, SIGINT);
	sigaddset(&mask, SIGHUP);
	sigaddset(&mask, SIGUSR2);
	sigprocmask(SIG_BLOCK, &mask, &k->mask_before);
	k->signal_fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
	return k->signal_fd < 0 ? -errno : 0;
}

/* ---- the loop ------------------------------------------------------------------------------- */

/* How long to wait for a message or a signal. */
static int wait_ms(const struct keeper *k)
{
	int64_t until = k->child ? k->kill_ns : k->start_ns;
	int64_t left_ms = (until - now_mono_ns()) / NS_PER_MS + 1;

	if (k->child && !until)
		return -1;
	return left_ms > 0 ? (int)left_ms : 0;
}

/* Kills a daemon that is late. It ends later, so this is done once. Its last messages may say that
 * it serves. */
static void child_kill(struct keeper *k)
{
	while (k->fd >= 0 && receive(k)) {}
	if (!k->kill_ns || now_mono_ns() < k->kill_ns)
		return;
	log_error("the daemon is killed: it did not end, or begin to serve, in time", "pid=%d",
		  (int)k->child);
	kill(k->child, SIGKILL);
	k->kill_ns = 0;
}

static void wait_and_act(struct keeper *k)
{
	struct pollfd fds[2] = { { .fd = k->signal_fd, .events = POLLIN },
				 { .fd = k->fd, .events = POLLIN } };

	fds[1].events |= k->forgotten_owed ? POLLOUT : 0;

	poll(fds, 2, wait_ms(k));
	if (fds[1].revents & POLLOUT)
		answer_forgotten(k);
	if (fds[1].revents & ~POLLOUT && !receive(k) && fds[1].revents & POLLHUP)
		k->fd = fd_close(k->fd); /* it is reaped when it ends */
	if (!k->child && now_mono_ns() >= k->start_ns)
		start(k);
	if (k->child && k->kill_ns && now_mono_ns() >= k->kill_ns)
		child_kill(k);
	if (fds[0].revents)
		on_signal(k);
}

static int keeper_init(struct keeper *k, const struct keeper_options *options)
{
	int r;

	*k = (struct keeper){ .options = options, .signal_fd = -1, .fd = -1, .program = -1 };
	if (!getcwd(k->directory, sizeof(k->directory)))
		*k->directory = '\0'; /* the directory is gone; the daemon will say so if it needs
					 it */
	if (options->exe)
		snprintf(k->exe, sizeof(k->exe), "%s", options->exe);
	r = options->exe ? 0 : program_find(k->exe, options->argv[0], k->directory);
	if (r)
		return r;
	fd_raise_limit();
	k->immortal = getenv("TENSORLEASE_KEEPER_IMMORTAL") != NULL;
	prctl(PR_SET_NAME, "tl-keeper");
	if (options->activated_fd >= 0 &&
	    kept_add(&k->table, KEEPER_TAG_PREFIX "activated", options->activated_fd))
		return -ENOMEM;
	return signals_take(k);
}

int keeper_run(const struct keeper_options *options)
{
	struct keeper k;
	int r = keeper_init(&k, options);

	if (r) {
		fprintf(stderr, "tensorleased: cannot start the keeper: %s\n", strerror(-r));
		end(&k, EXIT_FAILURE);
	} else {
		start(&k);
	}
	while (k.stage != KEEPER_OVER)
		wait_and_act(&k);
	kept_deinit(&k.table);
	fd_close(k.signal_fd);
	fd_close(k.fd);
	fd_close(k.program);
	return k.status;
}
