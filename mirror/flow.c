/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tensorlease/stream.h>

#include "mirror/fetch.h"
#include "mirror/flow.h"
#include "mirror/ticket.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/thread.h"

#define SILENT_NS (7 * NS_PER_SEC)
#define PATIENCE_NS (2 * NS_PER_SEC) /* after this, tell the origin that this host is alive */

enum { URL_MAX = 256, LABEL_MAX = 32 };

struct flow {
	struct flow *next;
	const struct config *config;
	const struct rule *rule;
	char host[CONFIG_HOST_MAX + 1];
	char url[URL_MAX];
	char *name, *local;
	struct stream_note note; /* its name is @name */
	bool told;		 /* the last message had this stream */
	struct came *came;
	atomic_uint waiting; /* items of the last message that are not put here yet */
	struct flow *former; /* with the same name, must end first; or NULL */
	pthread_t thread;
	bool deletes; /* on stopping, delete the stream here, too */
	atomic_bool stop, over;
	/* used by the thread only: */
	struct fetch *fetch;
	tl_client *client;
	tl_stream *stream;
	uint64_t feed, done; /* all items of that feed up to this one are here */
	atomic_bool ended;
	int64_t heard_ns; /* when the origin last answered */
	bool lost;	  /* the origin no longer answers */
	struct log_limit failures;
};

/* ---- the stream here ---- */

static int open_here(struct flow *f)
{
	char label[LABEL_MAX];
	const tl_connect_options connect = { .size = sizeof(connect),
					     .address = f->config->socket,
					     .namespace_name = f->rule->name_space,
					     .label = label };
	const tl_stream_options options = { .size = sizeof(options),
					    .mode = f->note.mode,
					    .flags = f->note.flags | TL_STREAM_PRODUCER |
						     TL_STREAM_SHARED,
					    .depth = f->note.depth,
					    .keep = f->note.keep,
					    .max_tries = f->note.max_tries,
					    .ttl_ns = f->note.ttl_ns };
	const tl_stream_options existing = { .size = sizeof(existing),
					     .mode = f->note.mode,
					     .flags = TL_STREAM_EXISTING | TL_STREAM_PRODUCER };
	tl_stream_info info = { .size = sizeof(info) };
	int r = 0;

	snprintf(label, sizeof(label), "mirror of %s", f->host);
	if (!f->client)
		r = tl_connect(&connect, &f->client);
	if (!r && !f->stream)
		r = tl_stream_open(f->client, f->local, &options, &f->stream);
	if (r == -EINVAL) /* a program has opened it first, with its own options: keep those */
		r = tl_stream_open(f->client, f->local, &existing, &f->stream);
	if (r == -EMEDIUMTYPE && !tl_stream_stat(f->client, f->local, &info) && !info.subscribers) {
		/* the origin has deleted it, and made a stream of the other mode */
		tl_delete(f->client, f->local);
		r = tl_stream_open(f->client, f->local, &options, &f->stream);
	}
	return r;
}

static void close_here(struct flow *f)
{
	tl_stream_close(take_ptr(f->stream));
}

/* True if items are wanted here. Those of a queue are only if it has a subscriber. */
static bool is_wanted(const struct flow *f)
{
	tl_stream_info info = { .size = sizeof(info) };

	return f->note.mode != TL_STREAM_QUEUE ||
	       (!tl_stream_stat(f->client, f->local, &info) && info.subscribers);
}

/* ---- items ---- */

struct items {
	struct note *notes;
	size_t parts;
	struct item_note *items;
	size_t count;
};

static void add_note(const struct message *m, const struct note *note, void *context)
{
	struct items *all = context;

	(void)m;
	all->notes[all->parts++] = *note;
}

static void add_item(const struct item_note *item, size_t first, void *context)
{
	struct items *all = context;

	(void)first;
	if (all->count < ITEMS_MAX)
		all->items[all->count++] = *item;
}

/* What this host tells the origin with a request. */
enum state { READY, FULL, IDLE };

static int ask(struct flow *f, enum state state)
{
	const struct fetch_header headers[] = { { "X-Feed", f->feed },
						{ "X-Done", f->done },
						{ "X-Full", state == FULL },
						{ "X-Idle", state == IDLE },
						{ "X-Ended", f->ended },
						{ "X-Lossy", f->rule->lossy },
						{ NULL, 0 } };

	return fetch_message(f->fetch, f->url, f->note.ticket, "items", headers);
}

/* Tells the origin that this host is alive. */
static void ping(struct flow *f)
{
	ask(f, FULL);
}

static void on_piece(void *context, uint64_t piece, size_t size, uint64_t hash)
{
	(void)context;
	(void)piece;
	(void)size;
	(void)hash;
}

static int fetch_item(struct flow *f, tl_item_draft *draft, const struct item_note *item,
		      const struct note *notes)
{
	struct member *members = calloc(item->parts + 1, sizeof(*members));
	const struct source source = { f->url, item->ticket, members, item->parts, NULL };
	int r;

	if (!members)
		return -ENOMEM;
	for (size_t n = 0; n < item->parts; n++) {
		const DLTensor *t = tl_item_draft_tensor(draft, n);

		members[n] = (struct member){ .nbytes = notes[n].nbytes,
					      .to = (char *)t->data + t->byte_offset };
	}
	r = fetch_bytes(f->fetch, &source, on_piece, NULL);
	free(members);
	return r;
}

static int fill(struct flow *f, tl_item_draft *draft, const struct item_note *item,
		const struct note *notes)
{
	if (!item->is_inline)
		return fetch_item(f, draft, item, notes);
	for (size_t n = 0; n < item->parts; n++) {
		const DLTensor *t = tl_item_draft_tensor(draft, n);

		if (notes[n].nbytes)
			memcpy((char *)t->data + t->byte_offset, notes[n].bytes, notes[n].nbytes);
	}
	return 0;
}

/* Makes room for an item here. If that takes long, tells the origin that this host is alive. */
static int draft_item(struct flow *f, const struct item_note *item, const struct note *notes,
		      tl_item_draft **draft)
{
	const tl_stream_put_options options = { .size = sizeof(options),
						.timeout_ns = PATIENCE_NS,
						.metadata_size = item->metadata_size };
	tl_part *parts = calloc(item->parts, sizeof(*parts));
	DLTensor *tensors = calloc(item->parts, sizeof(*tensors));
	int r = parts && tensors ? 0 : -ENOMEM;

	for (size_t n = 0; !r && n < item->parts; n++) {
		if (!note_is_sized(&notes[n]) || (item->is_inline && !notes[n].bytes))
			r = -EPROTO;
		tensors[n] = (DLTensor){ .device = { kDLCPU, 0 },
					 .ndim = notes[n].ndim,
					 .dtype = notes[n].dtype,
					 .shape = (int64_t *)notes[n].shape };
		parts[n] = (tl_part){ .name = *notes[n].name ? notes[n].name : NULL,
				      .tensor = &tensors[n] };
	}
	while (!r && (r = tl_stream_draft(f->stream, parts, item->parts, &options, draft)) &&
	       r == -ETIMEDOUT && !atomic_load(&f->stop)) {
		ping(f);
		r = 0;
	}
	free(parts);
	free(tensors);
	return r;
}

static int commit(struct flow *f, tl_item_draft *draft, const struct item_note *item)
{
	const tl_stream_put_options options = { .size = sizeof(options),
						.timeout_ns = PATIENCE_NS,
						.metadata = item->metadata,
						.metadata_size = item->metadata_size };
	int r;

	while ((r = tl_item_draft_commit(draft, &options, NULL)) && !atomic_load(&f->stop)) {
		if (r == -EPIPE)
			tl_stream_reopen(f->stream);
		else if (r == -ETIMEDOUT)
			ping(f);
		else if (r != -EINTR)
			break;
	}
	return r;
}

/* Puts an item here. Returns 0 or a negative errno; then the origin sends the item again. */
static int put(struct flow *f, const struct item_note *item, const struct note *notes)
{
	tl_item_draft *draft = NULL;
	int r = draft_item(f, item, notes, &draft);

	if (!r)
		r = fill(f, draft, item, notes);
	if (!r)
		r = commit(f, draft, item);
	if (r) {
		tl_item_draft_abort(draft);
		return r;
	}
	atomic_fetch_add(&f->came->items, 1);
	for (size_t n = 0; n < item->parts; n++)
		atomic_fetch_add(&f->came->bytes, notes[n].nbytes);
	return 0;
}

static int put_all(struct flow *f, const struct message *m)
{
	const size_t count = message_count(m);
	struct items all = { calloc(count + 1, sizeof(struct note)), 0,
			     calloc(ITEMS_MAX, sizeof(struct item_note)), 0 };
	size_t first = 0;
	int r = all.notes && all.items ? 0 : -ENOMEM;

	if (!r) {
		message_notes(m, add_note, &all);
		message_items(m, add_item, &all);
	}
	for (size_t n = 0; !r && n < all.count; n++) {
		atomic_store(&f->waiting, (unsigned)(all.count - n));
		if (all.items[n].number > f->done)
			r = put(f, &all.items[n], all.notes + first);
		if (!r)
			f->done = all.items[n].number;
		first += all.items[n].parts;
	}
	atomic_store(&f->waiting, 0);
	free(all.notes);
	free(all.items);
	return r;
}

static int end_here(struct flow *f)
{
	const tl_stream_put_options options = { .size = sizeof(options),
						.timeout_ns = PATIENCE_NS };
	int r;

	while ((r = tl_stream_end(f->stream, &options)) == -ETIMEDOUT && !atomic_load(&f->stop))
		ping(f);
	f->ended = !r || r == -EPIPE;
	return f->ended ? 0 : r;
}

/* Handles a message. Copies its data first, because further requests overwrite them. */
static int take_message(struct flow *f)
{
	size_t size;
	const char *data = fetch_newer(f->fetch, &size);
	char *copy = malloc(size + 1);
	struct message m = { 0 };
	int r = -ENOMEM;

	if (copy) {
		memcpy(copy, data, size);
		r = message_read(&m, copy, size);
	}
	if (!r && !m.has_items)
		r = -EPROTO;
	if (!r && m.feed != f->feed) {
		f->feed = m.feed;
		f->done = 0;
	}
	if (!r && message_count(&m)) {
		f->ended = false;
		r = put_all(f, &m);
	}
	if (!r && m.ended && !f->ended)
		r = end_here(f);
	message_deinit(&m);
	free(copy);
	return r;
}

/* ---- the thread ---- */

static int step(struct flow *f)
{
	bool wanted = false;
	int r = f->lost ? 0 : open_here(f);

	if (r)
		return r;
	wanted = !f->lost && is_wanted(f);
	r = ask(f, wanted ? READY : IDLE);
	if (r == -EAGAIN || !r) {
		f->heard_ns = now_mono_ns();
		f->lost = false;
	}
	if (r == -EAGAIN && !wanted)
		nanosleep(&(struct timespec){ .tv_nsec = NS_PER_SEC / 2 }, NULL);
	if (r == -EAGAIN)
		return 0;
	return r ? r : take_message(f);
}

static void flow_free(struct flow *f)
{
	fetch_close(f->fetch);
	free(f->name);
	free(f->local);
	free(f);
}

static void flow_stop(struct flow *f, bool deletes)
{
	f->deletes = deletes;
	atomic_store(&f->stop, true);
}

/* Waits for the end of a flow that was told to stop. */
static void flow_join(struct flow *f)
{
	pthread_join(f->thread, NULL);
	flow_free(f);
}

static void end(struct flow *f)
{
	if (f->deletes && f->client)
		tl_delete(f->client, f->local);
	close_here(f);
	if (f->client)
		tl_close(f->client);
	atomic_store(&f->over, true);
}

static void *run(void *context)
{
	struct flow *f = context;
	int r;

	if (f->former)
		flow_join(take_ptr(f->former));
	f->heard_ns = now_mono_ns();
	while (!atomic_load(&f->stop)) {
		r = step(f);
		if (r == -ESTALE || r == -ECHILD || r == -ENOTCONN)
			close_here(f);	  /* the stream here is gone: step() makes it anew */
		if (r == -ECONNABORTED) { /* tensorlease kick */
			close_here(f);
			tl_close(take_ptr(f->client));
		}
		if (!f->lost && now_mono_ns() - f->heard_ns > SILENT_NS) {
			f->lost = true;
			close_here(f); /* lets subscribers here see that the producer has ended */
		}
		if (!r || atomic_load(&f->stop))
			continue;
		log_warn_limited(&f->failures, "items do not come", "stream=%s of=%s why=%s",
				 log_str(f->name), f->host,
				 log_str(r == -ENODATA || r == -EHOSTUNREACH || r == -EBADMSG
						 ? fetch_why(f->fetch)
						 : tl_last_error()));
		nanosleep(&(struct timespec){ .tv_nsec = NS_PER_SEC / 2 }, NULL);
	}
	end(f);
	return NULL;
}

/* A host's message that lists its streams. */
struct update {
	struct flows *flows;
	const struct config *config;
	const struct rule *rule;
	const char *host, *url;
	struct came *came;
};

/* Starts a flow after the end of @former, which may be NULL. NULL: failed, with a message. */
static struct flow *flow_open(const struct update *u, const struct stream_note *stream,
			      struct flow *former)
{
	struct flow *f = calloc(1, sizeof(*f));

	if (!f)
		return NULL;
	f->config = u->config;
	f->rule = u->rule;
	f->came = u->came;
	strcpy(f->host, u->host);
	snprintf(f->url, sizeof(f->url), "%s", u->url);
	f->note = *stream;
	f->name = strdup(stream->name);
	if (asprintf(&f->local, "%s%s", u->rule->prefix, stream->name) < 0)
		f->local = NULL;
	f->note.name = f->name;
	f->former = former;
	f->fetch = fetch_open(u->config, NULL, &f->stop, u->flows->pace);
	if (f->name && f->local && f->fetch && !thread_start(&f->thread, 0, run, f)) {
		log_info("a stream comes", "name=%s of=%s", log_str(f->name), f->host);
		return f;
	}
	log_error("a stream cannot be brought", "name=%s of=%s", log_str(stream->name), u->host);
	flow_free(f);
	return NULL;
}

/* ---- flows of an import ---- */

/* True if ticket and URL are unchanged. If not, another mirror serves the stream. */
static bool is_same(const struct flow *f, const struct stream_note *stream, const char *url)
{
	return !memcmp(f->note.ticket, stream->ticket, TICKET_SIZE) && !strcmp(f->url, url);
}

/* False: the origin has deleted the stream, and made another one. */
static bool has_form(const struct flow *f, const struct stream_note *stream)
{
	return f->note.mode == stream->mode && f->note.flags == stream->flags &&
	       f->note.depth == stream->depth && f->note.keep == stream->keep &&
	       f->note.max_tries == stream->max_tries && f->note.ttl_ns == stream->ttl_ns;
}

/* Returns the link to the flow of that name, or the end of the list. */
static struct flow **find(struct flow **list, const char *name, unsigned *count)
{
	for (*count = 0; *list && strcmp((*list)->name, name) != 0; (*count)++)
		list = &(*list)->next;
	return list;
}

static void push(struct flow **list, struct flow *f)
{
	f->next = *list;
	*list = f;
}

static struct flow *pop(struct flow **link)
{
	struct flow *f = *link;

	if (f)
		*link = f->next;
	return f;
}

/* Tells a flow to stop. Does not wait for its thread, which may be waiting for an answer. */
static void flow_end(struct flows *flows, struct flow **link, bool deletes)
{
	struct flow *f = pop(link);

	flow_stop(f, deletes);
	push(&flows->ending, f);
}

static struct flow *add_flow(const struct update *u, const struct stream_note *stream)
{
	unsigned count;
	struct flow *former = pop(find(&u->flows->ending, stream->name, &count));
	struct flow *f = flow_open(u, stream, former);

	if (f)
		push(&u->flows->first, f);
	else if (former)
		push(&u->flows->ending, former);
	return f;
}

static void show_stream(const struct stream_note *stream, void *context)
{
	const struct update *u = context;
	unsigned count;
	struct flow **link = find(&u->flows->first, stream->name, &count), *f = *link;

	if (!f && count == TL_STREAMS_MAX)
		return; /* a namespace cannot have more */
	if (f && strcmp(f->host, u->host) != 0) {
		log_warn_limited(&u->flows->conflicts, "two hosts have one stream",
				 "name=%s of=%s refused=%s", log_str(f->name), f->host, u->host);
		return;
	}
	if (f && !is_same(f, stream, u->url)) {
		flow_end(u->flows, link, !has_form(f, stream));
		f = NULL;
	}
	if (!f)
		f = add_flow(u, stream);
	if (f)
		f->told = true;
}

void flows_update(struct flows *flows, const struct config *config, const struct rule *rule,
		  const char *host, struct came *came, const struct message *m)
{
	struct update u = { flows, config, rule, host, m->url, came };
	struct flow **link, *f;

	for (f = flows->first; f; f = f->next)
		f->told = strcmp(f->host, host) != 0;
	message_streams(m, show_stream, &u);
	for (link = &flows->first; (f = *link);) {
		if (f->told)
			link = &f->next;
		else
			flow_end(flows, link, true);
	}
	for (link = &flows->ending; (f = *link);) {
		if (atomic_load(&f->over))
			flow_join(pop(link));
		else
			link = &f->next;
	}
}

void flows_look(const struct flows *flows, const char *host, struct flows_look *look)
{
	*look = (struct flows_look){ 0 };
	for (const struct flow *f = flows->first; f; f = f->next) {
		if (strcmp(f->host, host) != 0)
			continue;
		look->streams++;
		look->ended += atomic_load(&f->ended);
		look->waiting += atomic_load(&f->waiting);
	}
}

static bool is_among(const struct flow *first, const char *host)
{
	for (const struct flow *f = first; f; f = f->next) {
		if (!strcmp(f->host, host) || is_among(f->former, host))
			return true;
	}
	return false;
}

bool flows_have(const struct flows *flows, const char *host)
{
	return is_among(flows->first, host) || is_among(flows->ending, host);
}

void flows_close(struct flows *flows)
{
	while (flows->first)
		flow_end(flows, &flows->first, false);
	while (flows->ending)
		flow_join(pop(&flows->ending));
}
