/* SPDX-License-Identifier: Apache-2.0 */
/* The command that tells the changes of names: watch. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <tensorlease/watch.h>

#include "cli/cli.h"
#include "cli/out.h"

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

static _Atomic uint32_t reader_gone;

/* A thread: ends the wait when nobody reads standard output any more. */
static void *await_reader_gone(void *unused)
{
	struct pollfd output = { .fd = STDOUT_FILENO };

	while (poll(&output, 1, -1) < 0 && errno == EINTR)
		;
	atomic_store(&reader_gone, 1);
	syscall(SYS_futex, &reader_gone, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
	return unused;
}

int command_watch(struct cli *cli)
{
	const tl_wait_options wait = TL_INIT(
		tl_wait_options, .timeout_ns = cli->given & OPTION_TIMEOUT ? cli->timeout_ns : -1,
		.interrupt = (const uint32_t *)&reader_gone);
	pthread_t thread;
	tl_watch_event event = { .size = sizeof(event) };
	tl_watch *watch;
	int r;

	r = cli_connect(cli, wait.timeout_ns != 0);
	if (r)
		return r;
	r = tl_watch_open(cli->client, cli->nargs ? cli->args[0] : "",
			  &TL_INIT(tl_watch_options, .flags = TL_WATCH_PREFIX), &watch);
	if (r)
		return cli_fail_library(cli, r);
	if (!pthread_create(&thread, NULL, await_reader_gone, NULL)) /* else a print notices it */
		pthread_detach(thread);
	while (!(r = tl_watch_next(watch, &wait, &event))) {
		print_event(cli, &event);
		if (cli_flush())
			break; /* main() reports the error */
	}
	if (r == -EAGAIN) { /* with --timeout 0: all changes have been told */
		tl_watch_close(watch);
		return CLI_OK;
	}
	r = r && r != -ECANCELED ? cli_fail_library(cli, r) : CLI_FAILURE;
	tl_watch_close(watch);
	return r;
}
