/* SPDX-License-Identifier: Apache-2.0 */
/* Staying, so that tensors bound to this command's connection stay. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <time.h>

#include "cli/cli.h"
#include "cli/out.h"

enum { LOOK_S = 1 };

/* Not an exit code. */
enum { STAYS = -1 };

/*
 * Whether that a name is gone means that it was deleted. A process with tensors on a GPU connects
 * anew to a daemon that took over, which ends what was bound to the connection before.
 */
static bool was_deleted(struct cli *cli, const struct stay *stay)
{
	tl_status status = { .size = sizeof(status) };

	return cli->device.device_type == kDLCPU || tl_get_status(cli->client, &status) ||
	       status.started_ns == stay->started_ns;
}

/*
 * Looks whether the name means what this command published; notes its daemon then. That is another
 * one than at the beginning if it was replaced before it published. No version comes twice,
 * whichever daemon gave it out. Returns 0 or why it is not so: -ENOENT, the name is gone.
 */
static int find_ours(struct cli *cli, struct stay *stay)
{
	tl_status status = { .size = sizeof(status) };
	tl_info info = { .size = sizeof(info) };
	int r = tl_get_status(cli->client, &status);

	if (!r)
		r = tl_stat(cli->client, stay->name, &info);
	if (!r && info.version != stay->version)
		r = -ESTALE;
	if (!r)
		stay->started_ns = status.started_ns;
	return r;
}

/* Returns STAYS if the name still means the same, or an exit code. */
static int look(struct cli *cli, struct stay *stay)
{
	tl_watch_event event = { .size = sizeof(event) };
	int r;

	while (!(r = tl_watch_next(stay->watch, NULL, &event))) {
		if (event.what == TL_WATCH_DELETED && was_deleted(cli, stay))
			return CLI_OK; /* there is no reason to stay */
		if (event.what == TL_WATCH_RESTARTED && !find_ours(cli, stay))
			continue;
		if (event.what == TL_WATCH_DELETED || event.what == TL_WATCH_RESTARTED)
			return cli_fail(cli, CLI_FAILURE,
					"'%s' is lost: the daemon was restarted without it",
					stay->name);
		if (event.version > stay->version)
			return cli_fail(cli, CLI_FAILURE,
					"'%s' has version %" PRIu64
					" now: another client has published it",
					stay->name, event.version);
	}
	return r == -EAGAIN ? STAYS : cli_fail_library(cli, r);
}

/* The watch does not see a name that came and went before it looked. So that is asked afterwards.
 */
static int look_first(struct cli *cli, struct stay *stay)
{
	int r;

	find_ours(cli, stay);
	r = look(cli, stay);
	return r == STAYS && find_ours(cli, stay) == -ENOENT ? CLI_OK : r;
}

int cli_stay_begin(struct cli *cli, struct stay *stay, const char *name)
{
	tl_watch_event event = { .size = sizeof(event) };
	tl_status status = { .size = sizeof(status) };
	int r = tl_get_status(cli->client, &status);

	*stay = (struct stay){ .name = name, .started_ns = status.started_ns };
	if (!r)
		r = tl_watch_open(cli->client, name, NULL, &stay->watch);
	while (!r)
		r = tl_watch_next(stay->watch, NULL, &event); /* what is there already */
	return r == -EAGAIN ? CLI_OK : cli_fail_library(cli, r);
}

void cli_stay_end(struct stay *stay)
{
	tl_watch_close(stay->watch);
	stay->watch = NULL;
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

int cli_stay(struct cli *cli, struct stay *stay)
{
	const struct timespec slice = { .tv_sec = LOOK_S };
	sigset_t ends;
	int r;

	cli_end_signals(&ends);
	sigprocmask(SIG_BLOCK, &ends, NULL);
	r = look_first(cli, stay);
	if (cli_flush())
		r = CLI_FAILURE; /* main() reports the error */
	while (r == STAYS)
		r = sigtimedwait(&ends, NULL, &slice) < 0 ? look(cli, stay) : CLI_OK;
	return r;
}
