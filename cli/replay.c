/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay: publishes what record has written, at the same distances in time. The bytes are read
 * straight into shared memory before it is time, so that only the commit is left then.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include <tensorlease/stream.h>

#include "cli/cli.h"
#include "cli/out.h"
#include "files/recording.h"
#include "util/clock.h"

/* Not an exit code: a signal asks this command to end. */
enum { STOPPED = -1 };

#define LOOK_NS (NS_PER_SEC / 5) /* how often to look for signals while waiting */

struct replay {
	struct cli *cli;
	struct recording file;
	char why[FILE_ERROR_TEXT];
	sigset_t ends;
	struct {
		char *name;
		tl_stream *stream;
	} * streams;
	size_t stream_count;
	uint64_t from_ns; /* of the recording, published at @began_ns */
	int64_t began_ns; /* CLOCK_MONOTONIC */
	int64_t due_ns;	  /* of the last record */
	int64_t late_ns;  /* at most */
	uint64_t records;
};

static bool wait_for_signal(const struct replay *rp, int64_t ns)
{
	const struct timespec time = { .tv_sec = ns / NS_PER_SEC, .tv_nsec = ns % NS_PER_SEC };

	return sigtimedwait(&rp->ends, NULL, &time) >= 0;
}

/*
 * When the record is due; 0: at once. The first one is. What is older than the recording, or than
 * the record before it, is due with that.
 */
static int64_t due_ns(struct replay *rp, const struct record *record)
{
	double after;

	if (rp->cli->rate == 0)
		return 0;
	if (!rp->due_ns) {
		rp->due_ns = rp->began_ns = now_mono_ns();
		rp->from_ns = rp->file.began_ns > record->time_ns ? rp->file.began_ns
								  : record->time_ns;
	}
	if (record->time_ns > rp->from_ns) {
		after = (double)(record->time_ns - rp->from_ns) / rp->cli->rate;
		after = after < 9e17 ? after : 9e17; /* 28 years */
		if (rp->began_ns + (int64_t)after > rp->due_ns)
			rp->due_ns = rp->began_ns + (int64_t)after;
	}
	return rp->due_ns;
}

/* 0, or STOPPED. */
static int wait_until(const struct replay *rp, int64_t due)
{
	for (;;) {
		int64_t left = due - now_mono_ns();

		if (wait_for_signal(rp, left > 0 ? left < NS_PER_SEC ? left : NS_PER_SEC : 0))
			return STOPPED;
		if (due <= now_mono_ns())
			return 0;
	}
}

static void note_late(struct replay *rp, int64_t due)
{
	const int64_t late = due ? now_mono_ns() - due : 0;

	rp->late_ns = late > rp->late_ns ? late : rp->late_ns;
	rp->records++;
}

static int replay_tensor(struct replay *rp, const struct record *record)
{
	const struct record_part *part = record->parts;
	const int64_t due = due_ns(rp, record), began = now_mono_ns();
	const tl_spec spec = TL_INIT(tl_spec, .shape = part->tensor.shape,
				     .ndim = part->tensor.ndim, .dtype = part->tensor.dtype,
				     .dlpack_flags = part->dlpack_flags);
	tl_draft *draft;
	int r = tl_create(rp->cli->client, record->name, &spec, &draft);

	if (r)
		return cli_fail_space(rp->cli, r, began);
	r = recording_read(&rp->file, part, tl_draft_tensor(draft)->data);
	if (r)
		r = cli_fail(rp->cli, CLI_FAILURE, "%s", rp->why);
	else if (record->metadata_size)
		r = tl_draft_set_metadata(draft, record->metadata, record->metadata_size);
	if (r < 0)
		r = cli_fail_library(rp->cli, r);
	if (!r)
		r = wait_until(rp, due);
	if (r) {
		tl_abort(draft);
		return r;
	}
	r = tl_commit(draft, NULL);
	if (r)
		return cli_fail_library(rp->cli, r);
	note_late(rp, due);
	return 0;
}

static int stream_of(struct replay *rp, const char *name, tl_stream **out)
{
	const tl_stream_options options = TL_INIT(tl_stream_options, .mode = TL_STREAM_BROADCAST);
	int r;

	for (size_t i = 0; i < rp->stream_count; i++) {
		if (!strcmp(rp->streams[i].name, name)) {
			*out = rp->streams[i].stream;
			return 0;
		}
	}
	r = tl_stream_open(rp->cli->client, name, &options, out);
	if (r)
		return r;
	rp->streams = cli_grow(rp->streams, rp->stream_count, sizeof(*rp->streams));
	rp->streams[rp->stream_count].name = cli_text("%s", name);
	rp->streams[rp->stream_count++].stream = *out;
	return 0;
}

/* Waits for memory for the item. 0, STOPPED or an exit code. */
static int draft_item(struct replay *rp, tl_stream *stream, const struct record *record,
		      const tl_stream_put_options *options, tl_item_draft **draft)
{
	tl_part *parts = cli_need(calloc(record->count, sizeof(*parts)));
	int r;

	for (size_t i = 0; i < record->count; i++)
		parts[i] = (tl_part){ .name = record->parts[i].name,
				      .tensor = &record->parts[i].tensor,
				      .dlpack_flags = record->parts[i].dlpack_flags };
	do
		r = tl_stream_draft(stream, parts, record->count, options, draft);
	while (r == -ETIMEDOUT && !wait_for_signal(rp, 0));
	free(parts);
	return r == -ETIMEDOUT ? STOPPED : r ? cli_fail_library(rp->cli, r) : 0;
}

static int replay_item(struct replay *rp, const struct record *record)
{
	const tl_stream_put_options options = TL_INIT(tl_stream_put_options, .timeout_ns = LOOK_NS,
						      .metadata = record->metadata,
						      .metadata_size = record->metadata_size);
	const int64_t due = due_ns(rp, record);
	tl_item_draft *draft;
	tl_stream *stream;
	int r = stream_of(rp, record->name, &stream);

	if (r)
		return cli_fail_library(rp->cli, r);
	r = draft_item(rp, stream, record, &options, &draft);
	if (r)
		return r;
	for (size_t i = 0; i < record->count && !r; i++)
		r = recording_read(&rp->file, &record->parts[i],
				   tl_item_draft_tensor(draft, i)->data);
	r = r ? cli_fail(rp->cli, CLI_FAILURE, "%s", rp->why) : wait_until(rp, due);
	if (r) {
		tl_item_draft_abort(draft);
		return r;
	}
	do
		r = tl_item_draft_commit(draft, &options, NULL);
	while (r == -ETIMEDOUT && !wait_for_signal(rp, 0));
	if (!r) {
		note_late(rp, due);
		return 0;
	}
	tl_item_draft_abort(draft);
	return r == -ETIMEDOUT ? STOPPED : cli_fail_library(rp->cli, r);
}

/* Returns an exit code. */
static int replay_all(struct replay *rp)
{
	struct record record;
	int r;

	while ((r = recording_next(&rp->file, &record)) > 0) {
		r = record.kind == RECORD_ITEM ? replay_item(rp, &record)
					       : replay_tensor(rp, &record);
		if (r)
			return r == STOPPED ? CLI_OK : r;
	}
	if (r < 0)
		return cli_fail(rp->cli, CLI_FAILURE, "%s; records that were published: %" PRIu64,
				rp->why, rp->records);
	if (rp->file.cut)
		cli_warn("%s: its last record, at byte %" PRIu64 ", is cut off, and left out",
			 rp->cli->args[0], rp->file.at);
	return CLI_OK;
}

static void print_replayed(const struct replay *rp)
{
	char *span = format_span((uint64_t)rp->late_ns);
	cJSON *object;

	if (rp->cli->json) {
		object = json_object();
		json_text(object, "file", rp->cli->args[0]);
		json_u64(object, "records", rp->records);
		json_i64(object, "late_ns", rp->late_ns);
		json_bool(object, "cut", rp->file.cut);
		json_print(object);
	} else if (!rp->cli->terminal) {
		cli_print("%" PRIu64 "\t%" PRId64 "\n", rp->records, rp->late_ns);
	} else {
		cli_print("%" PRIu64 " records published, at most %s late\n", rp->records, span);
	}
	free(span);
}

int command_replay(struct cli *cli)
{
	struct replay rp = { .cli = cli };
	const struct report to = { .path = cli->args[0], .text = rp.why, .size = sizeof(rp.why) };
	int r;

	if (!(cli->given & OPTION_RATE))
		cli->rate = 1;
	if (recording_open(&rp.file, cli->args[0], &to)) {
		recording_close(&rp.file);
		return cli_fail(cli, CLI_FAILURE, "%s", rp.why);
	}
	r = cli_connect(cli, true);
	if (!r) {
		cli_end_signals(&rp.ends);
		sigprocmask(SIG_BLOCK, &rp.ends, NULL);
		r = replay_all(&rp);
		if (!r)
			print_replayed(&rp);
	}
	while (rp.stream_count) {
		rp.stream_count--;
		tl_stream_close(rp.streams[rp.stream_count].stream);
		free(rp.streams[rp.stream_count].name);
	}
	free(rp.streams);
	recording_close(&rp.file);
	return r;
}
