/* SPDX-License-Identifier: Apache-2.0 */
/* The command that tells the changes of names: watch. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include <tensorlease/watch.h>

#include "cli/cli.h"
#include "cli/out.h"
#include "util/clock.h"

static const char *const words[] = {
	[TL_WATCH_PUBLISHED] = "published",	    [TL_WATCH_DELETED] = "deleted",
	[TL_WATCH_PRODUCER_GONE] = "producer-gone", [TL_WATCH_LOST] = "lost",
	[TL_WATCH_RESTARTED] = "restarted",
};

static const char *word_of(enum tl_watch_what what)
{
	return what > 0 && what < sizeof(words) / sizeof(words[0]) ? words[what] : "unknown";
}

static void print_json(const tl_watch_event *event)
{
	cJSON *object = json_object();

	json_text(object, "event", word_of(event->what));
	if (event->what != TL_WATCH_RESTARTED) {
		json_text(object, "name", event->name);
		json_u64(object, "version", event->version);
		json_u64(object, "skipped", event->skipped);
	}
	json_print(object);
}

static void print_event(const struct cli *cli, const tl_watch_event *event)
{
	if (cli->json)
		print_json(event);
	else if (!cli->terminal)
		cli_print("%s\t%s\t%" PRIu64 "\t%" PRIu64 "\n", word_of(event->what), event->name,
			  event->version, event->skipped);
	else if (event->what == TL_WATCH_RESTARTED)
		cli_print("%s\n", word_of(event->what));
	else if (event->skipped)
		cli_print("%-13s  %s version %" PRIu64 " (%" PRIu64 " skipped)\n",
			  word_of(event->what), event->name, event->version, event->skipped);
	else
		cli_print("%-13s  %s version %" PRIu64 "\n", word_of(event->what), event->name,
			  event->version);
}

/* A path means the tensor of that name, and those below it: a watch for each. */
struct watches {
	tl_watch *each[2];
	struct pollfd fds[3]; /* of the watches, and standard output, whose reader may go */
	nfds_t count;
};

static int watches_open(struct watches *w, tl_client *client, const char *path)
{
	static const tl_watch_options below = { .size = sizeof(below), .flags = TL_WATCH_PREFIX };
	const size_t len = strlen(path);
	int r = tl_watch_open(client, path, &below, &w->each[w->count]);

	w->count += !r;
	if (!r && len && path[len - 1] != '/') { /* else it is no name */
		r = tl_watch_open(client, path, NULL, &w->each[w->count]);
		w->count += !r;
	}
	for (nfds_t i = 0; !r && i < w->count; i++) {
		w->fds[i].events = POLLIN;
		r = tl_watch_fd(w->each[i], &w->fds[i].fd);
	}
	w->fds[w->count] = (struct pollfd){ .fd = STDOUT_FILENO };
	return r;
}

static void watches_close(struct watches *w)
{
	while (w->count)
		tl_watch_close(w->each[--w->count]);
}

/* Takes a change that has come. 0, -EAGAIN if none has, or another error. */
static int watches_take(const struct watches *w, tl_watch_event *event)
{
	for (nfds_t i = 0; i < w->count; i++) {
		int r = tl_watch_next(w->each[i], NULL, event);

		if (!r && i && event->what == TL_WATCH_RESTARTED) /* the first one told it */
			r = tl_watch_next(w->each[i], NULL, event);
		if (r != -EAGAIN && r != -ENOTCONN) /* without a daemon the next one is awaited */
			return r;
	}
	return -EAGAIN;
}

/* Waits for a change. 0, -ETIMEDOUT, -EPIPE if nobody reads the output, or another error. */
static int watches_next(struct watches *w, int64_t timeout_ns, tl_watch_event *event)
{
	const int64_t deadline = deadline_after(timeout_ns);
	int r;

	while ((r = watches_take(w, event)) == -EAGAIN) {
		const int64_t ms = deadline_left_ns(deadline) / NS_PER_MS;

		if (!deadline_left_ns(deadline))
			return -ETIMEDOUT;
		if (poll(w->fds, w->count + 1, ms < INT_MAX ? (int)ms + 1 : -1) < 0 &&
		    errno != EINTR)
			return -errno;
		if (w->fds[w->count].revents)
			return -EPIPE;
	}
	return r;
}

int command_watch(struct cli *cli)
{
	const int64_t timeout_ns = cli->given & OPTION_TIMEOUT ? cli->timeout_ns : -1;
	const char *path = cli->nargs ? cli->args[0] : "";
	struct watches watches = { 0 };
	tl_watch_event event = { .size = sizeof(event) };
	int r;

	r = cli_connect(cli, timeout_ns != 0);
	if (r)
		return r;
	r = watches_open(&watches, cli->client, path);
	while (!r && !(r = watches_next(&watches, timeout_ns, &event))) {
		print_event(cli, &event);
		if (cli_flush())
			r = -EPIPE; /* main() reports the error */
	}
	if (r == -EPIPE)
		r = CLI_FAILURE;
	else if (r == -ETIMEDOUT && !timeout_ns) /* all that there is has been told */
		r = CLI_OK;
	else if (r == -ETIMEDOUT)
		r = cli_fail(cli, CLI_TIMEOUT, "nothing happened to %s%s%s within %lld ms",
			     *path ? "'" : "any name", path, *path ? "' or names below it" : "",
			     (long long)(timeout_ns / NS_PER_MS));
	else
		r = cli_fail_library(cli, r);
	watches_close(&watches);
	return r;
}
