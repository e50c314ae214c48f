/* SPDX-License-Identifier: Apache-2.0 */
/* Staying, so that tensors bound to this command's connection stay. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <time.h>

#include <tensorlease/watch.h>

#include "cli/cli.h"
#include "cli/out.h"

enum { LOOK_S = 1 };

/* Not an exit code. */
enum { STAYS = -1 };

/* What the name meant at the first look. */
struct kept {
	const char *name;
	uint64_t version;    /* 0: nothing */
	uint64_t started_ns; /* of the daemon */
};

/*
 * Whether that a name is gone means that it was deleted. A process with tensors on a GPU connects
 * anew to a daemon that took over, which ends what was bound to the connection before.
 */
static bool was_deleted(struct cli *cli, const struct kept *kept)
{
	tl_status status = { .size = sizeof(status) };

	return cli->device.device_type == kDLCPU || tl_get_status(cli->client, &status) ||
	       status.started_ns == kept->started_ns;
}

/* Returns STAYS if the name still means the same, or an exit code. */
static int look(struct cli *cli, tl_watch *watch, struct kept *kept)
{
	tl_watch_event event = { .size = sizeof(event) };
	int r;

	while (!(r = tl_watch_next(watch, NULL, &event))) {
		if (event.what == TL_WATCH_DELETED && was_deleted(cli, kept))
			return CLI_OK; /* there is no reason to stay */
		if (event.what == TL_WATCH_DELETED || event.what == TL_WATCH_RESTARTED)
			return cli_fail(cli, CLI_FAILURE,
					"'%s' is lost: the daemon was restarted without it",
					kept->name);
		if (kept->version && event.version != kept->version)
			return cli_fail(cli, CLI_FAILURE,
					"'%s' has version %" PRIu64
					" now: another client has published it",
					kept->name, event.version);
		kept->version = event.version;
	}
	if (r != -EAGAIN)
		return cli_fail_library(cli, r);
	return kept->version ? STAYS : CLI_OK;
}

/* Begins to watch the name. */
static int stay_begin(struct cli *cli, struct kept *kept, tl_watch **watch)
{
	tl_status status = { .size = sizeof(status) };
	int r = tl_get_status(cli->client, &status);

	if (!r)
		r = tl_watch_open(cli->client, kept->name, NULL, watch);
	kept->started_ns = status.started_ns;
	return r ? cli_fail_library(cli, r) : look(cli, *watch, kept);
}

void cli_end_signals(sigset_t *set)
{
	static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
	struct sigaction now;

	sigemptyset(set);
	for (unsigned i = 0; i < sizeof(signals) / sizeof(*signals); i++) {
		if (!sigaction(signals[i], NULL, &now) && now.sa_handler != SIG_IGN)
			sigaddset(set, signals[i]);
	}
}

int cli_stay(struct cli *cli, const char *name)
{
	const struct timespec slice = { .tv_sec = LOOK_S };
	struct kept kept = { .name = name };
	tl_watch *watch = NULL;
	sigset_t ends;
	int r;

	cli_end_signals(&ends);
	sigprocmask(SIG_BLOCK, &ends, NULL);
	r = stay_begin(cli, &kept, &watch);
	if (cli_flush())
		r = CLI_FAILURE; /* main() reports the error */
	while (r == STAYS)
		r = sigtimedwait(&ends, NULL, &slice) < 0 ? look(cli, watch, &kept) : CLI_OK;
	tl_watch_close(watch);
	return r;
}
