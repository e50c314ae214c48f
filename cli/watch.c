/* SPDX-License-Identifier: Apache-2.0 */
/* The command that tells the changes of names: watch. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tensorlease/watch.h>

#include "cli/cli.h"
#include "cli/out.h"
#include "cli/overview.h"
#include "cli/screen.h"
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

/* Who published the name last, also if that has gone; not known if the name has. */
static tl_identity publisher_of(const struct cli *cli, const char *name)
{
	tl_info info = { .size = sizeof(info) };

	return *name && !tl_stat(cli->client, name, &info) ? info.publisher : (tl_identity){ 0 };
}

static void print_json(const struct cli *cli, const tl_watch_event *event)
{
	const tl_identity publisher = publisher_of(cli, event->name);
	cJSON *object = json_object();

	json_text(object, "event", word_of(event->what));
	if (event->what != TL_WATCH_RESTARTED) {
		json_text(object, "name", event->name);
		json_u64(object, "version", event->version);
		json_u64(object, "skipped", event->skipped);
		overview_identity_json(object, "publisher", &publisher);
	}
	json_print(object);
}

static void print_event(const struct cli *cli, const tl_watch_event *event)
{
	if (cli->json)
		print_json(cli, event);
	else
		cli_print("%s\t%s\t%" PRIu64 "\t%" PRIu64 "\n", word_of(event->what), event->name,
			  event->version, event->skipped);
}

/* A path means the tensor of that name, and those below it: a watch for each. */
struct watches {
	tl_watch *each[2];
	struct pollfd fds[3]; /* of the watches, and standard output, whose reader may go */
	size_t count;
};

int cli_watch_path(tl_client *client, const char *path, tl_watch **watches, size_t *count)
{
	static const tl_watch_options below = { .size = sizeof(below), .flags = TL_WATCH_PREFIX };
	const size_t len = strlen(path);
	int r = tl_watch_open(client, path, &below, &watches[*count]);

	*count += !r;
	if (!r && len && path[len - 1] != '/') { /* else it is no name */
		r = tl_watch_open(client, path, NULL, &watches[*count]);
		*count += !r;
	}
	return r;
}

static int watches_open(struct watches *w, tl_client *client, const char *path)
{
	int r = cli_watch_path(client, path, w->each, &w->count);

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

/* ---- On a terminal: a line for each name, changed in place ---- */

#define DRAW_NS (NS_PER_SEC / 4)
#define RATE_NS NS_PER_SEC

struct line {
	char *name; /* "": the daemon was restarted */
	enum tl_watch_what what;
	uint64_t version, skipped, changes;
	int64_t changed_ns; /* CLOCK_MONOTONIC, as below */
	int64_t since_ns;   /* the rate counts versions from then on, and from @since */
	uint64_t since;
	double rate;
};

struct lines {
	struct line *each;
	size_t count;
	struct screen screen;
};

static void lines_take(struct lines *lines, const tl_watch_event *event)
{
	const char *name = event->what == TL_WATCH_RESTARTED ? "" : event->name;
	const int64_t now = now_mono_ns();
	struct line *line = NULL;

	for (size_t i = 0; !line && i < lines->count; i++)
		line = strcmp(lines->each[i].name, name) ? NULL : &lines->each[i];
	if (!line) {
		lines->each = cli_grow(lines->each, lines->count, sizeof(*lines->each));
		line = &lines->each[lines->count++];
		*line = (struct line){ .name = cli_text("%s", name),
				       .since = event->version,
				       .since_ns = now };
	}
	line->what = event->what;
	line->version = event->version;
	line->changes += 1 + event->skipped;
	line->changed_ns = now;
}

static void line_rate(struct line *line, int64_t now)
{
	if (now - line->since_ns < RATE_NS)
		return;
	line->rate = line->version > line->since ? (double)(line->version - line->since) * 1e9 /
							   (double)(now - line->since_ns)
						 : 0;
	line->since = line->version;
	line->since_ns = now;
}

static int compare_lines(const void *a, const void *b)
{
	const int64_t left = ((const struct line *)a)->changed_ns,
		      right = ((const struct line *)b)->changed_ns;

	return (left < right) - (left > right);
}

/* If there are more names than lines, those are shown that changed last. */
static int lines_draw(const struct cli *cli, struct lines *lines)
{
	static const char *const headers[] = { "EVENT", "NAME", "VERSION",
					       "RATE",	"LAST", "PUBLISHER" };
	const size_t most = lines->screen.rows > 3 ? (size_t)lines->screen.rows - 3 : 1;
	struct table table = { .columns = 6, .right = 0x1c };
	tl_identity who;

	if (lines->count > most)
		qsort(lines->each, lines->count, sizeof(*lines->each), compare_lines);
	for (size_t i = 0; i < lines->count; i++) {
		struct line *line = &lines->each[i];

		line_rate(line, now_mono_ns());
		if (i >= most)
			continue;
		who = publisher_of(cli, line->name);
		table_row(
			&table,
			(char *[]){ cli_text("%s", word_of(line->what)), cli_text("%s", line->name),
				    cli_text("%" PRIu64, line->version), overview_rate(line->rate),
				    format_span((uint64_t)(now_mono_ns() - line->changed_ns)),
				    overview_publisher(&who) });
	}
	screen_begin(&lines->screen);
	table_print(&table, headers, true);
	if (lines->count > most)
		printf("and %zu other names\n", lines->count - most);
	table_deinit(&table);
	return screen_show(&lines->screen);
}

/* Returns as watches_next() does, or 0 if a signal asks this command to end. */
static int watch_screen(const struct cli *cli, struct watches *watches, int64_t timeout_ns)
{
	tl_watch_event event = { .size = sizeof(event) };
	struct lines lines = { 0 };
	int64_t last = now_mono_ns(), draw = last;
	int r = 0;

	screen_enter(&lines.screen, false);
	while (!r && screen_key(&lines.screen, 0) != KEY_STOP) {
		int64_t left = draw - now_mono_ns();

		r = watches_next(watches, left > 0 ? left : 0, &event);
		if (!r) {
			lines_take(&lines, &event);
			last = now_mono_ns();
		} else if (r == -ETIMEDOUT &&
			   (timeout_ns < 0 || now_mono_ns() - last < timeout_ns)) {
			r = 0;
		}
		if (now_mono_ns() >= draw || r) {
			int drawn = lines_draw(cli, &lines);

			r = drawn ? -EPIPE : r;
			draw = now_mono_ns() + DRAW_NS;
		}
	}
	screen_leave(&lines.screen);
	for (size_t i = 0; i < lines.count; i++)
		free(lines.each[i].name);
	free(lines.each);
	return r;
}

/* Elsewhere: a line for each event. Returns as watches_next() does. */
static int watch_print(const struct cli *cli, struct watches *watches, int64_t timeout_ns)
{
	tl_watch_event event = { .size = sizeof(event) };
	int r;

	while (!(r = watches_next(watches, timeout_ns, &event))) {
		print_event(cli, &event);
		if (cli_flush())
			return -EPIPE; /* main() reports the error */
	}
	return r;
}

int command_watch(struct cli *cli)
{
	const int64_t timeout_ns = cli->given & OPTION_TIMEOUT ? cli->timeout_ns : -1;
	const char *path = cli->nargs ? cli->args[0] : "";
	struct watches watches = { 0 };
	int r;

	r = cli_connect(cli, timeout_ns != 0);
	if (r)
		return r;
	r = watches_open(&watches, cli->client, path);
	if (!r)
		r = cli->terminal && !cli->json ? watch_screen(cli, &watches, timeout_ns)
						: watch_print(cli, &watches, timeout_ns);
	if (r == -EPIPE)
		r = CLI_FAILURE;
	else if (!r || (r == -ETIMEDOUT && !timeout_ns)) /* all that there is has been told */
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
