/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's side of the keeper; see keeper_link.h. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#ifdef HAVE_SYSTEMD
#include <systemd/sd-daemon.h>
#endif

#include "daemon/keeper/keeper_link.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/log.h"

enum {
	SEND_MS = 1000, /* a keeper that reads nothing for so long is stuck */
	KEEP_MS = 100,	/* if we die before a descriptor is kept, everything is lost */
	SEND_TRIES = 3,
};

struct keeper_link_unsent {
	struct keeper_link_unsent *next;
	enum keeper_op op;
	int fd; /* -1: none */
	char tag[KEEPER_TAG_SIZE];
};

/* ---- the beginning -------------------------------------------------------------------------- */

/* The rest of a line after its first word, if that is @word; else NULL. */
static const char *after(const char *line, const char *word)
{
	size_t len = strlen(word);

	return strncmp(line, word, len) || line[len] != ' ' ? NULL : line + len + 1;
}

static int line_read(struct keeper_link *k, const char *line)
{
	char tag[KEEPER_TAG_SIZE];
	const char *text;
	int fd;

	if (sscanf(line, "kept %d %63s", &fd, tag) == 2) {
		fcntl(fd, F_SETFD, FD_CLOEXEC);
		return kept_add(&k->list, tag, fd);
	}
	if ((text = after(line, "detached")))
		k->detached = atoi(text);
	else if ((text = after(line, "fresh")))
		k->fresh = atoi(text);
	else if ((text = after(line, "must-adopt")))
		k->must_adopt = atoi(text);
	else if ((text = after(line, "same-config")))
		k->same_config = atoi(text);
	else if ((text = after(line, "former-program")))
		k->former_program = atoi(text);
	else if ((text = after(line, "restarts")))
		k->restarts = strtoull(text, NULL, 10);
	else if ((text = after(line, "ended")))
		k->ended_ns = strtoll(text, NULL, 10);
	else if ((text = after(line, "reason")))
		snprintf(k->reason, sizeof(k->reason), "%.*s", KEEPER_TEXT_SIZE - 1, text);
	else if ((text = after(line, "program")))
		snprintf(k->program, sizeof(k->program), "%.*s", PATH_MAX - 1, text);
	else if ((text = after(line, "directory")))
		k->in_directory = !chdir(text); /* where relative paths in our arguments begin */
	return 0;
}

static int list_read(struct keeper_link *k, int list_fd)
{
	char line[PATH_MAX + 16];
	FILE *file = fdopen(list_fd, "r");
	int r = 0;

	if (!file) {
		close(list_fd);
		return -ENOMEM;
	}
	while (!r && fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = '\0';
		r = line_read(k, line);
	}
	fclose(file);
	return r;
}

/* Reads the variable of our own parent. One that a keeper further up set for our parent does not
 * count. */
static int parent_find(struct keeper_link *k)
{
	const char *text = getenv(KEEPER_ENVIRONMENT);
	int pid, fd, list_fd, r;

	if (!text || sscanf(text, "%d %d %d", &pid, &fd, &list_fd) != 3 || pid != (int)getppid())
		return 0;
	k->here = true;
	k->in_directory = false;
	k->fd = fd;
	fcntl(fd, F_SETFD, FD_CLOEXEC);
	r = list_read(k, list_fd);
	k->activated_fd = keeper_link_take(k, KEEPER_TAG_PREFIX "activated");
	return r;
}

/* Finds the socket of the unit, which systemd passes. */
static int activated_find(struct keeper_link *k)
{
#ifdef HAVE_SYSTEMD
	int n = sd_listen_fds(1);

	if (n > 1) {
		fprintf(stderr,
			"tensorleased: the service manager passes %d sockets, and a daemon serves "
			"one; an empty ListenSequentialPacket= in the unit forgets earlier ones\n",
			n);
		return -EINVAL;
	}
	if (n == 1)
		k->activated_fd = SD_LISTEN_FDS_START;
#else
	(void)k;
#endif
	return 0;
}

int keeper_link_init(struct keeper_link *k)
{
	int r;

	*k = (struct keeper_link){ .fd = -1, .activated_fd = -1, .in_directory = true };
	r = parent_find(k);
	unsetenv(KEEPER_ENVIRONMENT);
	if (!r && !k->here)
		r = activated_find(k);
	return r;
}

static void unsent_pop(struct keeper_link *k)
{
	struct keeper_link_unsent *first = k->unsent;

	k->unsent = first->next;
	fd_close(first->fd);
	free(first);
}

static void unsent_free(struct keeper_link *k)
{
	while (k->unsent)
		unsent_pop(k);
}

void keeper_link_deinit(struct keeper_link *k)
{
	unsent_free(k);
	kept_deinit(&k->list);
	k->fd = fd_close(k->fd);
	k->here = false;
}

int keeper_link_take(struct keeper_link *k, const char *tag)
{
	return kept_take(&k->list, tag);
}

/* ---- messages to the keeper ----------------------------------------------------------------- */

static int message_send(struct keeper_link *k, enum keeper_op op, const char *text, int fd_peek,
			int wait_ms)
{
	struct keeper_message m = { .op = op };
	struct iovec iov = { .iov_base = &m, .iov_len = sizeof(m) };
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct pollfd poll_fd = { .fd = k->fd, .events = POLLOUT };
	unsigned tries = 0;

	snprintf(m.text, sizeof(m.text), "%s", text);
	if (fd_peek >= 0) {
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control);
		control.header = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof(int)),
						   .cmsg_level = SOL_SOCKET,
						   .cmsg_type = SCM_RIGHTS };
		memcpy(CMSG_DATA(&control.header), &fd_peek, sizeof(fd_peek));
	}
	for (;;) {
		if (sendmsg(k->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
			return 0;
		if (errno == EINTR)
			continue;
		/* the kernel may lack memory for a moment, and not all messages can be sent again
		 * later */
		if ((errno == ENOBUFS || errno == ENOMEM) && tries++ < SEND_TRIES) {
			poll(NULL, 0, 1);
			continue;
		}
		if (errno != EAGAIN)
			return -errno;
		if (poll(&poll_fd, 1, wait_ms) == 0)
			return -ETIMEDOUT;
	}
}

/* Sends what is to be sent. ETOOMANYREFS: our user has too many descriptors in messages, to
 * whomever. No wait helps then, and the descriptor is not kept. */
static int unsent_send(struct keeper_link *k, int wait_ms)
{
	const struct keeper_link_unsent *first;
	int r = 0;

	while (!r && (first = k->unsent)) {
		r = message_send(k, first->op, first->tag, first->fd, wait_ms);
		if (r == -ETOOMANYREFS) {
			log_warn("a descriptor is not kept: the death of the daemon would not be "
				 "survived",
				 "tag=%s error=%s", first->tag, log_str(strerror(-r)));
			r = 0;
		}
		if (!r)
			unsent_pop(k);
	}
	k->stuck &= r != 0;
	return r;
}

static int parent_send(struct keeper_link *k, enum keeper_op op, const char *text, int fd_peek)
{
	int r = unsent_send(k, SEND_MS);

	return r ? r : message_send(k, op, text, fd_peek, SEND_MS);
}

/* Has a message sent later, after those that are to be sent already. -EMFILE, -ENOMEM. */
static int unsent_add(struct keeper_link *k, enum keeper_op op, const char *tag, int fd_peek)
{
	struct keeper_link_unsent *unsent = malloc(sizeof(*unsent));
	bool first = !k->unsent;

	if (!unsent)
		return -ENOMEM;
	*unsent = (struct keeper_link_unsent){ .op = op, .fd = -1 };
	if (fd_peek >= 0)
		unsent->fd = fcntl(fd_peek, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	if (fd_peek >= 0 && unsent->fd < 0) {
		free(unsent);
		return -EMFILE;
	}
	snprintf(unsent->tag, sizeof(unsent->tag), "%s", tag);
	*(first ? &k->unsent : &k->unsent_last->next) = unsent;
	k->unsent_last = unsent;
	if (first && k->delayed)
		k->delayed(k);
	return 0;
}

static int parent_tell(struct keeper_link *k, enum keeper_op op, const char *tag, int fd_peek)
{
	int wait_ms = op == KEEPER_KEEP && !k->stuck ? KEEP_MS : 0;
	int r = unsent_send(k, wait_ms);

	if (!r)
		r = message_send(k, op, tag, fd_peek, wait_ms);
	if (!r || r == -ETOOMANYREFS)
		return r;
	k->stuck |= wait_ms > 0;
	return unsent_add(k, op, tag, fd_peek) ? parent_send(k, op, tag, fd_peek) : 0;
}

int keeper_link_keep(struct keeper_link *k, const char *tag, int fd_peek)
{
	return k->fd >= 0 ? parent_tell(k, KEEPER_KEEP, tag, fd_peek) : 0;
}

int keeper_link_forget(struct keeper_link *k, const char *tag)
{
	int r = k->fd >= 0 ? parent_tell(k, KEEPER_FORGET, tag, -1) : 0;

	k->forgets += k->fd >= 0 && !r;
	return r;
}

void keeper_link_flush(struct keeper_link *k)
{
	unsent_send(k, SEND_MS);
}

uint64_t keeper_link_forgotten(const struct keeper_link *k)
{
	return !k || k->fd < 0 ? UINT64_MAX : k->forgotten_up_to;
}

void keeper_link_afresh(struct keeper_link *k, const char *why)
{
	if (k->fd >= 0)
		parent_send(k, KEEPER_AFRESH, why, -1);
}

/* Begins to leave. The keeper may not have carried out an earlier request, so its answer says which
 * one this is. */
static void leave(struct keeper_link *k, bool reloading)
{
	k->state = reloading ? LINK_RELOADS : LINK_LEAVES;
}

static bool is_reload(const char *why)
{
	return !strcmp(why, KEEPER_BY_SIGHUP);
}

bool keeper_link_has_program(const struct keeper_link *k)
{
	return !k->program[0] || !access(k->program, X_OK);
}

void keeper_link_renew(struct keeper_link *k, const char *why)
{
	if (k->fd >= 0)
		parent_send(k, KEEPER_RENEW, why, -1);
}

void keeper_link_stay(struct keeper_link *k)
{
	if (keeper_link_is_leaving(k))
		k->state = LINK_SERVES;
	if (k->fd >= 0)
		parent_send(k, KEEPER_STAY, "", -1);
}

void keeper_link_reload(struct keeper_link *k)
{
	if (k->fd >= 0)
		parent_send(k, KEEPER_RELOADING, "", -1);
}

void keeper_link_served(struct keeper_link *k)
{
	if (k->state == LINK_STARTS)
		k->state = LINK_SERVES;
	if (k->ended_ns)
		k->restart_ns = now_mono_ns() - k->ended_ns;
}

void keeper_link_notify(struct keeper_link *k, const char *text)
{
	if (k->fd >= 0)
		parent_send(k, KEEPER_NOTIFY, text, -1);
#ifdef HAVE_SYSTEMD
	else
		sd_notify(0, text);
#endif
}

/* ---- answers -------------------------------------------------------------------------------- */

bool keeper_link_read(struct keeper_link *k)
{
	struct keeper_message m;
	ssize_t n;

	unsent_send(k, 0);
	while ((n = recv(k->fd, &m, sizeof(m), MSG_DONTWAIT)) == sizeof(m)) {
		m.text[sizeof(m.text) - 1] = '\0';
		if (m.op == KEEPER_FORGOTTEN) {
			k->forgotten_up_to = strtoull(m.text, NULL, 10);
			if (k->forgotten)
				k->forgotten(k, k->forgotten_up_to);
		}
		if (m.op == KEEPER_LEAVE || m.op == KEEPER_RELOAD)
			leave(k, m.op == KEEPER_RELOAD || is_reload(m.text));
		if (m.op == KEEPER_REFUSED)
			log_warn("the keeper has no space for a descriptor", "tag=%s",
				 log_str(m.text));
	}
	if (n != 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	log_warn("the keeper has ended; the next death of the daemon is not survived");
	unsent_free(k);
	k->fd = fd_close(k->fd);
	k->here = false;
	return false;
}
