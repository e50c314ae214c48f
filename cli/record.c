/* SPDX-License-Identifier: Apache-2.0 */
/*
 * record: writes what is published to a file, until a signal or a time without anything ends it. Of
 * names it gets the newest version only, and counts the others. Of broadcast streams it gets each
 * item, and producers wait for it.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <tensorlease/stream.h>

#include "cli/cli.h"
#include "cli/out.h"
#include "files/recording.h"
#include "util/clock.h"
#include "util/fd.h"

#define LIST_NS NS_PER_SEC /* how often to look for new streams */

/* A name, or a stream. */
struct source {
	char *name;
	uint64_t recorded, skipped;
	uint64_t last; /* version that was seen */
	bool counts;   /* the versions from @last on tell how many were skipped */
	bool warned;
	tl_subscription *from; /* NULL: a name, or it cannot be subscribed to */
	uint64_t created_ns;   /* of the stream */
	bool ended;	       /* nothing comes from it before somebody reopens it */
	int fd;
};

struct recorded {
	struct cli *cli;
	tl_watch **watches;
	size_t watch_count;
	struct source *sources; /* by name */
	size_t count;
	struct recorder file;
	char why[FILE_ERROR_TEXT];
	int signals;
	bool came; /* anything, in this round */
};

/* Finds the source of that name, or makes it. */
static struct source *source_of(struct recorded *rec, const char *name)
{
	size_t low = 0, high = rec->count;

	while (low < high) {
		size_t middle = (low + high) / 2;
		int order = strcmp(rec->sources[middle].name, name);

		if (!order)
			return &rec->sources[middle];
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	rec->sources = cli_grow(rec->sources, rec->count, sizeof(*rec->sources));
	memmove(&rec->sources[low + 1], &rec->sources[low],
		(rec->count++ - low) * sizeof(*rec->sources));
	rec->sources[low] = (struct source){ .name = cli_text("%s", name), .fd = -1 };
	return &rec->sources[low];
}

/* Something of a source is not recorded. It says so once. */
static void leave_out(struct source *source, const char *why)
{
	source->skipped++;
	if (!source->warned)
		cli_warn("'%s' is not recorded as a whole: %s", source->name, why);
	source->warned = true;
}

static int write_record(struct recorded *rec, struct source *source, const struct record *record)
{
	int r = recorder_write(&rec->file, record);

	if (r == -ENOTSUP) {
		leave_out(source, rec->why);
		*rec->why = '\0';
		return 0;
	}
	source->recorded += !r;
	return r;
}

/* ---- Names ---- */

static int record_tensor(struct recorded *rec, struct source *source, const tl_watch_event *event,
			 const DLManagedTensorVersioned *tensor, const tl_info *info)
{
	struct record_part part = { .tensor = tensor->dl_tensor, .dlpack_flags = tensor->flags };
	const struct record record = {
		.kind = RECORD_TENSOR,
		.name = source->name,
		.time_ns = info->committed_ns,
		.number = info->version,
		/* it may be newer than what the event is about */
		.skipped = source->counts ? info->version - source->last - 1
					  : info->version - event->version,
		.metadata = info->metadata,
		.metadata_size = info->metadata_size,
		.parts = &part,
		.count = 1,
	};

	source->skipped += record.skipped;
	source->last = info->version;
	source->counts = true;
	return write_record(rec, source, &record);
}

/* A version could not be got; @why is NULL if it was deleted since. */
static void pass_over(struct source *source, uint64_t version, const char *why)
{
	source->skipped += source->counts ? version - source->last - 1 : 0;
	source->last = version;
	source->counts = true;
	if (why)
		leave_out(source, why);
	else
		source->skipped++;
}

static int record_version(struct recorded *rec, const tl_watch_event *event)
{
	const tl_get_options options = TL_INIT(tl_get_options, .flags = TL_GET_DEVICE,
					       .device = { kDLCPU, 0 });
	struct source *source = source_of(rec, event->name);
	tl_info info = { .size = sizeof(info) };
	DLManagedTensorVersioned *tensor;
	int r;

	if (event->version <= source->last)
		return 0;
	r = tl_get(rec->cli->client, event->name, &options, &tensor);
	if (r) {
		pass_over(source, event->version, r == -ENOENT ? NULL : cli_reason(r));
		return 0;
	}
	if (tl_tensor_info(tensor, &info))
		pass_over(source, event->version, "its daemon has ended");
	else if (info.version > source->last)
		r = record_tensor(rec, source, event, tensor, &info);
	tensor->deleter(tensor);
	return r;
}

static int take_change(struct recorded *rec, tl_watch *watch)
{
	tl_watch_event event = { .size = sizeof(event) };
	int r = tl_watch_next(watch, NULL, &event);

	if (r == -EAGAIN || r == -ENOTCONN) /* the next daemon is awaited */
		return 0;
	if (r) {
		cli_fail_library(rec->cli, r);
		return r;
	}
	rec->came = true;
	if (event.what == TL_WATCH_PUBLISHED)
		return record_version(rec, &event);
	if (event.what == TL_WATCH_DELETED || event.what == TL_WATCH_LOST)
		source_of(rec, event.name)->counts = false;
	for (size_t i = 0; event.what == TL_WATCH_RESTARTED && i < rec->count; i++)
		rec->sources[i].counts = false;
	return 0;
}

static int watch_path(struct recorded *rec, const char *path)
{
	rec->watches = cli_need(
		realloc(rec->watches, (rec->watch_count + 2) * sizeof(*rec->watches)));
	return cli_watch_path(rec->cli->client, path, rec->watches, &rec->watch_count);
}

/* ---- Streams ---- */

static int record_parts(struct recorded *rec, struct source *source, tl_item *item,
			const tl_item_info *info)
{
	struct record_part *parts = cli_need(calloc(info->count, sizeof(*parts)));
	const struct record record = {
		.kind = RECORD_ITEM,
		.name = source->name,
		.time_ns = info->put_ns,
		.number = info->number,
		.skipped = info->skipped,
		.metadata = info->metadata,
		.metadata_size = info->metadata_size,
		.parts = parts,
		.count = info->count,
	};
	DLManagedTensorVersioned *tensor;
	const char *why = NULL;
	int r = 0;

	for (size_t i = 0; i < info->count && !r && !why; i++) {
		parts[i].tensor = *tl_item_tensor(item, i, &parts[i].name);
		r = tl_item_to_dlpack(item, i, &tensor);
		if (r) {
			why = cli_reason(r);
			break;
		}
		parts[i].dlpack_flags = tensor->flags;
		tensor->deleter(tensor);
		if (parts[i].tensor.device.device_type != kDLCPU)
			why = "its items have tensors on a GPU";
	}
	source->skipped += info->skipped;
	r = 0;
	if (why)
		leave_out(source, why);
	else
		r = write_record(rec, source, &record);
	free(parts);
	return r;
}

static int take_item(struct recorded *rec, struct source *source)
{
	tl_item_info info = { .size = sizeof(info) };
	tl_item *item;
	int r = tl_stream_take(source->from, NULL, &item);

	if (r == -EAGAIN)
		return 0;
	if (r == -EPIPE) {
		source->ended = true;
		return 0;
	}
	if (r == -EPROTO || r == -ENODATA) { /* it is passed over */
		rec->came = true;
		leave_out(source, cli_reason(r));
		return 0;
	}
	if (r) { /* the next look at the streams subscribes again */
		cli_warn("'%s': %s", source->name, cli_reason(r));
		tl_subscription_close(source->from);
		source->from = NULL;
		return 0;
	}
	rec->came = true;
	r = tl_item_get_info(item, &info);
	if (!r)
		r = record_parts(rec, source, item, &info);
	tl_item_release(item);
	return r;
}

static void subscribe(struct recorded *rec, const tl_stream_info *info)
{
	const tl_subscribe_options kept = TL_INIT(tl_subscribe_options, .flags = TL_SUBSCRIBE_KEPT);
	const tl_stream_options existing = TL_INIT(tl_stream_options, .flags = TL_STREAM_EXISTING);
	struct source *source = source_of(rec, info->name);
	tl_stream *stream;
	int r;

	if (source->from && source->created_ns == info->created_ns) {
		source->ended = source->ended && info->ended;
		return;
	}
	if (info->mode == TL_STREAM_QUEUE) {
		if (!source->warned)
			cli_warn("'%s' is a queue, of which each item goes to one subscriber: it "
				 "is not recorded",
				 info->name);
		source->warned = true;
		return;
	}
	tl_subscription_close(source->from);
	source->from = NULL;
	source->ended = false;
	source->created_ns = info->created_ns;
	r = tl_stream_open(rec->cli->client, info->name, &existing, &stream);
	if (!r) {
		r = tl_stream_subscribe(stream, &kept, &source->from);
		tl_stream_close(stream);
	}
	if (!r)
		r = tl_subscription_fd(source->from, &source->fd);
	if (r && r != -ENOENT && !source->warned) {
		cli_warn("'%s' is not recorded: %s", info->name, cli_reason(r));
		source->warned = true;
	}
}

struct found {
	tl_stream_info *rows;
	size_t count;
};

static int visit_stream(const tl_stream_info *info, void *context)
{
	struct found *found = context;

	found->rows = cli_grow(found->rows, found->count, sizeof(*found->rows));
	found->rows[found->count++] = *info;
	return 0;
}

/* Looks for streams at and below the path that are not subscribed to. */
static void find_streams(struct recorded *rec, const char *path)
{
	tl_stream_info info = { .size = sizeof(info) };
	const size_t len = strlen(path);
	struct found found = { 0 };

	if (len && path[len - 1] != '/' && !tl_stream_stat(rec->cli->client, path, &info))
		visit_stream(&info, &found);
	/* without a daemon there are none, and names are recorded in any case */
	(void)tl_list_streams(rec->cli->client, path, visit_stream, &found);
	for (size_t i = 0; i < found.count; i++)
		subscribe(rec, &found.rows[i]);
	free(found.rows);
}

/* ---- The command ---- */

static int for_each_path(struct recorded *rec, bool watch)
{
	const int n = rec->cli->nargs;
	int r = 0;

	for (int i = 0; i < (n ? n : 1) && !r; i++) {
		const char *path = n ? rec->cli->args[i] : "";

		if (watch)
			r = watch_path(rec, path);
		else
			find_streams(rec, path);
	}
	return r;
}

/* Waits for something to take or a signal, for so long at most. 1: a signal has come. */
static int wait_for_more(const struct recorded *rec, int64_t timeout_ns)
{
	struct pollfd *fds = cli_need(calloc(1 + rec->watch_count + rec->count, sizeof(*fds)));
	const struct timespec limit = { .tv_sec = timeout_ns / NS_PER_SEC,
					.tv_nsec = timeout_ns % NS_PER_SEC };
	nfds_t n = 0;
	int r = 0;

	fds[n++] = (struct pollfd){ .fd = rec->signals, .events = POLLIN };
	for (size_t i = 0; i < rec->watch_count && !r; i++) {
		fds[n].events = POLLIN;
		r = tl_watch_fd(rec->watches[i], &fds[n++].fd);
	}
	for (size_t i = 0; i < rec->count; i++) {
		if (rec->sources[i].from && !rec->sources[i].ended)
			fds[n++] = (struct pollfd){ .fd = rec->sources[i].fd, .events = POLLIN };
	}
	if (r)
		cli_fail_library(rec->cli, r);
	else
		r = ppoll(fds, n, &limit, NULL) > 0 && fds[0].revents;
	free(fds);
	return r;
}

static int take_round(struct recorded *rec)
{
	int r = 0;

	rec->came = false;
	for (size_t i = 0; i < rec->watch_count && !r; i++)
		r = take_change(rec, rec->watches[i]);
	for (size_t i = 0; i < rec->count && !r; i++) {
		if (rec->sources[i].from && !rec->sources[i].ended)
			r = take_item(rec, &rec->sources[i]);
	}
	return r;
}

/* After a signal: takes what was there before it, but not for long. */
static int take_rest(struct recorded *rec)
{
	const int64_t deadline = deadline_after(LIST_NS);
	int r;

	do
		r = take_round(rec);
	while (!r && rec->came && !deadline_passed(deadline));
	return r;
}

/* Returns 0 when a signal or the time has ended it, or an error, which is told. */
static int record_all(struct recorded *rec)
{
	const int64_t timeout_ns = rec->cli->given & OPTION_TIMEOUT ? rec->cli->timeout_ns : -1;
	int64_t deadline = deadline_after(timeout_ns), list_ns = 0, left;
	int r;

	for (;;) {
		if (now_mono_ns() >= list_ns) {
			for_each_path(rec, false);
			list_ns = now_mono_ns() + LIST_NS;
		}
		r = take_round(rec);
		if (r)
			return r;
		if (rec->came)
			deadline = deadline_after(timeout_ns);
		else if (deadline_passed(deadline))
			return 0;
		left = deadline_left_ns(deadline);
		r = wait_for_more(rec, rec->came ? 0 : left < LIST_NS ? left : LIST_NS);
		if (r)
			return r < 0 ? r : take_rest(rec);
	}
}

static void print_json(const struct recorded *rec, const char *path)
{
	cJSON *object = json_object(), *names = json_array();

	for (size_t i = 0; i < rec->count; i++) {
		cJSON *row = json_object();

		json_text(row, "name", rec->sources[i].name);
		json_u64(row, "recorded", rec->sources[i].recorded);
		json_u64(row, "skipped", rec->sources[i].skipped);
		json_add(names, NULL, row);
	}
	json_text(object, "file", path);
	json_u64(object, "records", rec->file.records);
	json_u64(object, "bytes", rec->file.size);
	json_add(object, "names", names);
	json_print(object);
}

static void print_recorded(const struct recorded *rec, const char *path)
{
	if (rec->cli->json) {
		print_json(rec, path);
		return;
	}
	for (size_t i = 0; i < rec->count; i++)
		cli_print(rec->cli->terminal ? "%s: %" PRIu64 " recorded, %" PRIu64 " skipped\n"
					     : "%s\t%" PRIu64 "\t%" PRIu64 "\n",
			  rec->sources[i].name, rec->sources[i].recorded, rec->sources[i].skipped);
}

static void recorded_deinit(struct recorded *rec)
{
	for (size_t i = 0; i < rec->count; i++) {
		tl_subscription_close(rec->sources[i].from);
		free(rec->sources[i].name);
	}
	free(rec->sources);
	while (rec->watch_count)
		tl_watch_close(rec->watches[--rec->watch_count]);
	free(rec->watches);
	fd_close(rec->signals);
	recorder_deinit(&rec->file);
}

int command_record(struct cli *cli)
{
	struct recorded rec = { .cli = cli, .signals = -1, .file.fd = -1 };
	const char *path = cli->output;
	const struct report to = { .path = path, .text = rec.why, .size = sizeof(rec.why) };
	sigset_t ends;
	int r;

	if (!path || !strcmp(path, "-"))
		return cli_fail(cli, CLI_USAGE, "record needs a file: --output FILE");
	r = cli_connect(cli, true);
	if (r)
		return r;
	cli_end_signals(&ends);
	sigprocmask(SIG_BLOCK, &ends, NULL);
	rec.signals = signalfd(-1, &ends, SFD_CLOEXEC);
	r = rec.signals < 0 ? -errno : for_each_path(&rec, true);
	if (r) {
		recorded_deinit(&rec);
		return cli_fail_library(cli, r);
	}
	r = recorder_init(&rec.file, path, (uint64_t)now_real_ns(), &to);
	if (!r)
		r = record_all(&rec);
	if (!r)
		r = recorder_sync(&rec.file);
	if (r && *rec.why)
		cli_fail(cli, CLI_FAILURE, "%s; records that are kept: %" PRIu64, rec.why,
			 rec.file.records);
	if (rec.file.fd >= 0 && !(r && cli->json))
		print_recorded(&rec, path);
	recorded_deinit(&rec);
	return r ? CLI_FAILURE : CLI_OK;
}
