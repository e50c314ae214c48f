/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "mirror/config.h"
#include "mirror/feed.h"
#include "tensor/extent.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/thread.h"

#define HOLD_NS (10 * NS_PER_SEC)
#define WAIT_NS (3 * NS_PER_SEC / 2)
#define LOOK_NS (NS_PER_SEC / 2)

enum {
	WINDOW = 32,
	LARGE_WINDOW = 4
}; /* the most items held for a host; of these, the most that are not inline */

/* A stream that is offered. */
struct offered {
	struct offered *next;
	unsigned char id[TICKET_SIZE];
	tl_client *client;
	struct given *given;
	char *name;
	bool again; /* offered again since feeds_begin_offer() */
};

/* A connection that reads a rule's streams for one host, whose name is in its label. */
struct reader {
	struct reader *next;
	const struct rule *rule;
	char host[CONFIG_HOST_MAX + 1];
	tl_client *client;
	unsigned feeds;
};

/* An item that was taken here. */
struct held {
	tl_item *item;
	DLManagedTensorVersioned **tensors; /* if it is sent inline */
	struct ticket *ticket;		    /* if it is not */
	uint64_t bytes;
};

/* A subscription to a stream for one host. */
struct feed {
	struct feed *next;
	struct feeds *feeds;
	struct given *given;
	unsigned char stream[TICKET_SIZE];
	char host[CONFIG_HOST_MAX + 1];
	uint64_t id;
	struct reader *reader;
	tl_subscription *subscription;
	bool queue; /* its stream is a queue, so items must be acknowledged */
	pthread_t thread;
	bool stop, over; /* the thread must end; the stream is gone */
	bool ended;	 /* the stream has ended, after the items that are held */
	struct held held[WINDOW];
	uint64_t first; /* number of the first item that is held */
	unsigned count, large;
	int64_t used_ns;
	void *waiting; /* the suspended request; NULL: there is none */
	int64_t waits_ns;
};

struct feeds {
	struct tickets *tickets;
	const struct config *config;
	const char *url;
	const struct waits *waits;
	pthread_mutex_t lock;
	pthread_cond_t room;
	bool stop;
	struct offered *offered;
	struct reader *readers;
	struct feed *feeds;
};

struct feeds *feeds_new(struct tickets *tickets, const struct config *config, const char *url,
			const struct waits *waits)
{
	struct feeds *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->tickets = tickets;
	s->config = config;
	s->url = url;
	s->waits = waits;
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->room, NULL);
	return s;
}

/* ---- what is offered ---- */

static struct offered *find_offered(const struct feeds *s, const unsigned char id[TICKET_SIZE])
{
	struct offered *o = s->offered;

	while (o && memcmp(o->id, id, TICKET_SIZE) != 0)
		o = o->next;
	return o;
}

static void free_offered(struct offered *o)
{
	free(o->name);
	free(o);
}

int feeds_offer(struct feeds *s, tl_client *client, struct given *given, const tl_stream_info *info,
		struct stream_note *note)
{
	struct offered *o;
	const struct member stream = { .name = info->name, .committed_ns = info->created_ns };
	int r = ticket_id_of(s->tickets, &stream, 1, note->ticket);

	if (r)
		return r;
	note->name = info->name;
	note->mode = info->mode;
	note->flags = info->flags & TL_STREAM_DROP_OLDEST;
	note->depth = info->depth;
	note->keep = info->keep;
	note->max_tries = info->max_tries;
	note->ttl_ns = info->ttl_ns;
	pthread_mutex_lock(&s->lock);
	o = find_offered(s, note->ticket);
	if (!o && (o = calloc(1, sizeof(*o)))) {
		memcpy(o->id, note->ticket, TICKET_SIZE);
		o->client = client;
		o->given = given;
		o->name = strdup(info->name);
		o->next = s->offered;
		s->offered = o;
	}
	if (o)
		o->again = true;
	pthread_mutex_unlock(&s->lock);
	return o && o->name ? 0 : -ENOMEM;
}

void feeds_begin_offer(struct feeds *s, const tl_client *client)
{
	pthread_mutex_lock(&s->lock);
	for (struct offered *o = s->offered; o; o = o->next)
		o->again &= o->client != client;
	pthread_mutex_unlock(&s->lock);
}

void feeds_end_offer(struct feeds *s, const tl_client *client)
{
	struct offered **link, *o;

	pthread_mutex_lock(&s->lock);
	for (link = &s->offered; (o = *link);) {
		if (o->client != client || o->again) {
			link = &o->next;
			continue;
		}
		*link = o->next;
		free_offered(o);
	}
	pthread_mutex_unlock(&s->lock);
}

/* ---- readers ---- */

static struct reader *reader_find(const struct feeds *s, const struct rule *rule, const char *host)
{
	struct reader *r = s->readers;

	while (r && (r->rule != rule || strcmp(r->host, host) != 0))
		r = r->next;
	return r;
}

static tl_client *reader_connect(const struct feeds *s, const struct rule *rule, const char *host)
{
	char label[32];
	const tl_connect_options options = { .size = sizeof(options),
					     .address = s->config->socket,
					     .namespace_name = rule->name_space,
					     .label = label };
	tl_client *client = NULL;

	snprintf(label, sizeof(label), "mirror to %s", host);
	return tl_connect(&options, &client) ? NULL : client;
}

/* Finds a reader and counts a use of it. With the lock. */
static struct reader *reader_use_known(struct feeds *s, const struct rule *rule, const char *host)
{
	struct reader *r = reader_find(s, rule, host);

	if (r)
		r->feeds++;
	return r;
}

/* Finds or makes a reader. Returns NULL after an error. Without the lock. */
static struct reader *reader_use(struct feeds *s, const struct rule *rule, const char *host)
{
	struct reader *r, *made = NULL;

	pthread_mutex_lock(&s->lock);
	r = reader_use_known(s, rule, host);
	pthread_mutex_unlock(&s->lock);
	if (r || !(made = calloc(1, sizeof(*made))))
		return r;
	*made = (struct reader){ .rule = rule, .feeds = 1 };
	strcpy(made->host, host);
	made->client = reader_connect(s, rule, host);
	pthread_mutex_lock(&s->lock);
	r = reader_use_known(s, rule, host); /* another thread may have been faster */
	if (!r && made->client) {
		r = take_ptr(made);
		r->next = s->readers;
		s->readers = r;
	}
	pthread_mutex_unlock(&s->lock);
	if (made && made->client)
		tl_close(made->client);
	free(made);
	return r;
}

/* Ends a use of a reader. @r may be NULL. Without the lock. */
static void reader_drop(struct feeds *s, struct reader *r)
{
	struct reader **link = &s->readers;

	if (!r)
		return;
	pthread_mutex_lock(&s->lock);
	if (--r->feeds) {
		pthread_mutex_unlock(&s->lock);
		return;
	}
	while (*link != r)
		link = &(*link)->next;
	*link = r->next;
	pthread_mutex_unlock(&s->lock);
	tl_close(r->client);
	free(r);
}

/* ---- a feed ---- */

/* Resumes the suspended request, if there is one. With the lock. */
static void wake(struct feed *f)
{
	if (f->waiting)
		f->feeds->waits->wake(take_ptr(f->waiting));
}

static void release(struct feed *f, struct held *h)
{
	tensors_free(h->tensors, tl_item_count(h->item));
	ticket_end(f->feeds->tickets, h->ticket);
	f->large -= h->ticket != NULL;
	tl_item_release(h->item);
	*h = (struct held){ 0 };
}

static struct held *held_at(struct feed *f, uint64_t number)
{
	return &f->held[number % WINDOW];
}

/* Releases the items up to number @done, which the host has. With the lock. */
static void acknowledge(struct feed *f, uint64_t done)
{
	for (; f->count && f->first <= done; f->first++, f->count--) {
		f->given->items.items++;
		f->given->items.bytes += held_at(f, f->first)->bytes;
		release(f, held_at(f, f->first));
	}
	pthread_cond_broadcast(&f->feeds->room);
}

/* Returns the size in bytes of a tensor from the library. */
static uint64_t size_of(const DLTensor *t)
{
	uint64_t size = 0;

	tensor_nbytes(t->dtype, t->ndim, t->shape, false, &size);
	return size;
}

/* Prepares an item for sending. Returns 0 or a negative errno: -ENOTSUP if it is on a GPU, or has
 * padded elements of less than a byte. */
static int hold(struct feed *f, tl_item *item, struct held *h)
{
	const size_t count = tl_item_count(item);
	struct member *members = calloc(count, sizeof(*members));
	size_t n = 0;
	int r = members ? 0 : -ENOMEM;

	h->item = item;
	h->tensors = calloc(count, sizeof(struct DLManagedTensorVersioned *));
	if (!h->tensors)
		r = -ENOMEM;
	for (; !r && n < count; n++) {
		r = tl_item_to_dlpack(item, n, &h->tensors[n]);
		if (r)
			break;
		members[n].nbytes = size_of(&h->tensors[n]->dl_tensor);
		h->bytes += members[n].nbytes;
		if (h->tensors[n]->dl_tensor.device.device_type != kDLCPU ||
		    (h->tensors[n]->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED))
			r = -ENOTSUP;
	}
	/* too large to be sent inline: needs a ticket */
	if (!r && (h->bytes > NOTE_INLINE_MAX || count > NOTES_MAX)) {
		h->ticket = ticket_offer_item(f->feeds->tickets, f->given, members, count,
					      take_ptr(h->tensors));
		r = h->ticket ? 0 : -ENOMEM;
	}
	if (r)
		tensors_free(take_ptr(h->tensors), n);
	free(members);
	return r;
}

/* Takes an item, waiting for it, and holds it. */
static int take(struct feed *f)
{
	const tl_wait_options wait = { .size = sizeof(wait), .timeout_ns = LOOK_NS };
	tl_item_info info = { .size = sizeof(info) };
	struct held h = { 0 };
	tl_item *item;
	int r = tl_stream_take(f->subscription, &wait, &item);

	if (r)
		return r;
	r = hold(f, item, &h);
	if (r) {
		log_warn("an item is not sent", "stream-of=%s why=%s", f->host,
			 r == -ENOTSUP ? "it is on a GPU, or padded" : "there is no memory");
		tl_item_release(item);
		return 0;
	}
	pthread_mutex_lock(&f->feeds->lock);
	*held_at(f, f->first + f->count) = h;
	f->count++;
	f->large += h.ticket != NULL;
	f->given->items.skipped += tl_item_get_info(h.item, &info) ? 0 : info.skipped;
	f->ended = false;
	wake(f);
	pthread_mutex_unlock(&f->feeds->lock);
	return 0;
}

static void *run(void *context)
{
	struct feed *f = context;
	struct feeds *s = f->feeds;
	int r = 0;

	while (r != -ESTALE && r != -ECHILD && r != -ECONNABORTED) {
		pthread_mutex_lock(&s->lock);
		while (!f->stop && (f->count == WINDOW || f->large == LARGE_WINDOW))
			pthread_cond_wait(&s->room, &s->lock);
		if (f->waiting && now_mono_ns() - f->waits_ns >= WAIT_NS)
			wake(f);
		r = f->stop ? -ECANCELED : 0;
		pthread_mutex_unlock(&s->lock);
		if (r)
			break;
		r = take(f);
		if (r == -EPIPE) {
			pthread_mutex_lock(&s->lock);
			if (!f->ended) {
				f->ended = true;
				wake(f);
			}
			pthread_mutex_unlock(&s->lock);
		}
		if (r && r != -EAGAIN && r != -ETIMEDOUT)
			nanosleep(&(struct timespec){ .tv_nsec = LOOK_NS }, NULL);
	}
	pthread_mutex_lock(&s->lock);
	f->over = true;
	wake(f);
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

/* Ends a feed that is in no list. Without the lock. */
static void feed_free(struct feed *f)
{
	pthread_mutex_lock(&f->feeds->lock);
	f->stop = true;
	wake(f);
	pthread_cond_broadcast(&f->feeds->room);
	pthread_mutex_unlock(&f->feeds->lock);
	if (f->id)
		pthread_join(f->thread, NULL);
	/* items that the host has not acknowledged go to others */
	tl_subscription_close(f->subscription);
	for (; f->count; f->first++, f->count--)
		release(f, held_at(f, f->first));
	reader_drop(f->feeds, f->reader);
	free(f);
}

/* Subscribes for a host. Returns the feed, or NULL after an error. Without the lock. */
static struct feed *feed_new(struct feeds *s, const struct offered *o,
			     const struct feed_asker *asker)
{
	const tl_stream_options options = { .size = sizeof(options), .flags = TL_STREAM_EXISTING };
	struct feed *f = calloc(1, sizeof(*f));
	tl_subscribe_options how = { .size = sizeof(how) };
	tl_stream_info info = { .size = sizeof(info) };
	tl_stream *stream = NULL;
	int r = -ENOMEM;

	if (f)
		f->reader = reader_use(s, o->given->rule, asker->host);
	if (f && f->reader)
		r = tl_stream_open(f->reader->client, o->name, &options, &stream);

	if (!r)
		r = tl_stream_stat(f->reader->client, o->name, &info);
	if (!r) {
		f->feeds = s;
		f->given = o->given;
		f->first = 1;
		f->used_ns = now_mono_ns();
		memcpy(f->stream, o->id, TICKET_SIZE);
		strcpy(f->host, asker->host);
		f->queue = info.mode == TL_STREAM_QUEUE;
		if (!f->queue)
			how.flags = TL_SUBSCRIBE_KEPT | (asker->lossy ? TL_SUBSCRIBE_LOSSY : 0);
		r = tl_stream_subscribe(stream, &how, &f->subscription);
	}
	tl_stream_close(stream);
	if (!r && getrandom(&f->id, sizeof(f->id), 0) != sizeof(f->id))
		r = -EIO;
	if (!r) {
		f->id |= 1;
		r = thread_start(&f->thread, 0, run, f);
	}
	if (!r)
		return f;
	log_warn("a stream cannot be sent", "name=%s to=%s why=%s", log_str(o->name), asker->host,
		 log_str(tl_last_error()));
	if (f) {
		tl_subscription_close(f->subscription);
		reader_drop(s, f->reader);
		free(f);
	}
	return NULL;
}

void feeds_tidy(struct feeds *s)
{
	const int64_t now = now_mono_ns();
	struct feed **link, *f, *dead = NULL;

	pthread_mutex_lock(&s->lock);
	for (link = &s->feeds; (f = *link);) {
		if (now - f->used_ns < HOLD_NS && !f->over) {
			link = &f->next;
			continue;
		}
		*link = f->next;
		f->next = dead;
		dead = f;
	}
	pthread_mutex_unlock(&s->lock);
	for (f = dead; f; f = dead) {
		dead = f->next;
		feed_free(f);
	}
}

void feeds_stop(struct feeds *s)
{
	struct feed *f;

	pthread_mutex_lock(&s->lock);
	s->stop = true;
	f = take_ptr(s->feeds);
	pthread_mutex_unlock(&s->lock);
	while (f) {
		struct feed *next = f->next;

		feed_free(f);
		f = next;
	}
}

void feeds_free(struct feeds *s)
{
	struct offered *next;

	if (!s)
		return;
	feeds_stop(s);
	for (struct offered *o = s->offered; o; o = next) {
		next = o->next;
		free_offered(o);
	}
	pthread_mutex_destroy(&s->lock);
	pthread_cond_destroy(&s->room);
	free(s);
}

void feeds_look(struct feeds *s, const struct given *given, struct feeds_look *look)
{
	*look = (struct feeds_look){ 0 };
	pthread_mutex_lock(&s->lock);
	look->given = given->items;
	for (const struct offered *o = s->offered; o; o = o->next)
		look->streams += o->given == given;
	for (const struct feed *f = s->feeds; f; f = f->next) {
		look->subscribers += f->given == given;
		look->held += f->given == given ? f->count : 0;
	}
	pthread_mutex_unlock(&s->lock);
}

/* ---- answers ---- */

static bool add_part(struct notes *notes, const struct held *h, size_t n)
{
	const char *name;
	const DLTensor *t = tl_item_tensor(h->item, n, &name);
	struct note note = { .name = name ? name : "",
			     .version = 1,
			     .dtype = t->dtype,
			     .ndim = t->ndim,
			     .nbytes = size_of(t),
			     .bytes = h->tensors ? (char *)t->data + t->byte_offset : NULL };

	if (t->ndim)
		memcpy(note.shape, t->shape, sizeof(*note.shape) * (size_t)t->ndim);
	return !notes_add(notes, &note);
}

static bool add_item(struct notes *notes, const struct held *h, uint64_t number)
{
	struct item_note item = { .number = number, .parts = tl_item_count(h->item) };
	tl_item_info info = { .size = sizeof(info) };

	if (tl_item_get_info(h->item, &info))
		return false;
	item.metadata_size = info.metadata_size;
	item.is_inline = !h->ticket;
	if (h->ticket)
		memcpy(item.ticket, ticket_id(h->ticket), TICKET_SIZE);
	for (size_t n = 0; n < item.parts; n++) {
		if (!add_part(notes, h, n))
			return false;
	}
	return !notes_add_item(notes, &item);
}

/* Writes a message with as many items as fit. With the lock. */
static char *write_items(struct feed *f, size_t *size)
{
	struct notes notes;
	uint64_t number = f->first;
	size_t metadata = 0;
	bool good = !notes_init(&notes, 0, f->feeds->url);
	char *text = NULL;

	good = good && !notes_feed(&notes, f->id, false);
	for (; good && number < f->first + f->count && number < f->first + ITEMS_MAX; number++) {
		tl_item_info info = { .size = sizeof(info) };

		tl_item_get_info(held_at(f, number)->item, &info);
		metadata += info.metadata_size;
		if (number > f->first &&
		    (notes_full(&notes) || notes.size + metadata > NOTES_SIZE_MAX))
			break;
		good = add_item(&notes, held_at(f, number), number);
	}
	for (uint64_t n = f->first; good && n < number; n++) {
		tl_item_info info = { .size = sizeof(info) };

		good = !tl_item_get_info(held_at(f, n)->item, &info) &&
		       !notes_add_metadata(&notes, info.metadata, info.metadata_size);
	}
	if (good)
		text = notes_write(&notes, size);
	notes_deinit(&notes);
	return text;
}

static char *write_end(struct feed *f, size_t *size)
{
	struct notes notes;
	char *text = NULL;

	if (!notes_init(&notes, 0, f->feeds->url) && !notes_feed(&notes, f->id, true))
		text = notes_write(&notes, size);
	notes_deinit(&notes);
	return text;
}

static struct feed *find_feed(const struct feeds *s, const unsigned char stream[TICKET_SIZE],
			      const char *host)
{
	struct feed *f = s->feeds;

	while (f && (memcmp(f->stream, stream, TICKET_SIZE) != 0 || strcmp(f->host, host) != 0))
		f = f->next;
	return f;
}

/* Finds or makes a host's feed of a stream. With the lock, which it gives up meanwhile. */
static struct feed *find_or_make(struct feeds *s, const unsigned char stream[TICKET_SIZE],
				 const struct feed_asker *asker)
{
	struct feed *f = find_feed(s, stream, asker->host), *made;
	const struct offered *o = find_offered(s, stream);
	struct offered copy;

	if (f || !o || s->stop)
		return f;
	copy = *o;
	copy.name = strdup(o->name);
	pthread_mutex_unlock(&s->lock);
	made = copy.name ? feed_new(s, &copy, asker) : NULL;
	free(copy.name);
	pthread_mutex_lock(&s->lock);
	f = find_feed(s, stream, asker->host);
	if (made && (f || s->stop)) { /* another request was faster */
		pthread_mutex_unlock(&s->lock);
		feed_free(made);
		pthread_mutex_lock(&s->lock);
		return find_feed(s, stream, asker->host);
	}
	if (made) {
		made->next = s->feeds;
		s->feeds = made;
		f = made;
	}
	return f;
}

/* Ends a queue's feed, as its host takes no items. With the lock, which it gives up meanwhile. */
static void end_of(struct feeds *s, const unsigned char stream[TICKET_SIZE],
		   const struct feed_asker *asker)
{
	struct feed **link = &s->feeds, *f = find_feed(s, stream, asker->host);

	if (!f || !f->queue)
		return;
	while (*link != f)
		link = &(*link)->next;
	*link = f->next;
	if (asker->feed == f->id)
		acknowledge(f, asker->done);
	pthread_mutex_unlock(&s->lock);
	feed_free(f);
	pthread_mutex_lock(&s->lock);
}

char *feed_ask(struct feeds *s, const unsigned char stream[TICKET_SIZE],
	       const struct feed_asker *asker, void *waiting, size_t *size, int *r)
{
	char *text = NULL;
	struct feed *f;

	pthread_mutex_lock(&s->lock);
	if (asker->idle) {
		*r = find_offered(s, stream) ? -EAGAIN : -ENOENT;
		end_of(s, stream, asker);
		pthread_mutex_unlock(&s->lock);
		return NULL;
	}
	f = find_or_make(s, stream, asker);
	*r = !f || f->over ? -ENOENT : -EAGAIN;
	if (f) {
		f->used_ns = now_mono_ns();
		if (asker->feed == f->id)
			acknowledge(f, asker->done);
	}
	if (*r == -EAGAIN && !asker->full && f->count)
		text = write_items(f, size);
	else if (*r == -EAGAIN && !asker->full && f->ended && !f->count && !asker->ended)
		text = write_end(f, size);
	else if (*r == -EAGAIN && waiting && !asker->full) {
		wake(f); /* the earlier request is obsolete */
		s->waits->suspend(waiting);
		f->waiting = waiting;
		f->waits_ns = f->used_ns;
		*r = -EINPROGRESS;
	}
	pthread_mutex_unlock(&s->lock);
	return text;
}
