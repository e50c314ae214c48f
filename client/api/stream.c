/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, subscriptions and items as objects; put.c and take.c of client/stream have the rest. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/checks.h"
#include "client/error.h"
#include "client/stream/producer.h"

/* ---- streams --------------------------------------------------------------------------------- */

static int options_check(tl_stream_options *o, const tl_stream_options *from)
{
	const uint32_t known = TL_STREAM_EXISTING | TL_STREAM_DROP_OLDEST | TL_STREAM_PRODUCER |
			       TL_STREAM_SHARED;
	uint32_t depth;
	bool makes;
	int r = 0;

	*o = (tl_stream_options){ .size = sizeof(*o) };
	if (from)
		r = client_options(o, sizeof(*o), from, offsetof(tl_stream_options, max_bytes),
				   "tl_stream_options");
	if (r)
		return r;
	makes = !(o->flags & TL_STREAM_EXISTING);
	if (o->flags & ~known)
		return tl_fail(-EINVAL, "tl_stream_options.flags is %#x, of which %#x is known",
			       o->flags, known);
	if (o->lifetime & TL_LIFETIME_EVICTABLE)
		return tl_fail(-EINVAL, "tl_stream_options.lifetime: a stream is not evictable");
	r = lifetime_check(o->lifetime, o->ttl_ns, "tl_stream_options");
	if (r)
		return r;
	if (o->mode > TL_STREAM_QUEUE || (makes && !o->mode))
		return tl_fail(-EINVAL, "tl_stream_options.mode is %u; it is %d or %d", o->mode,
			       TL_STREAM_BROADCAST, TL_STREAM_QUEUE);
	depth = makes && !o->depth ? DEPTH_DEFAULT : o->depth;
	if (depth > TL_STREAM_DEPTH_MAX || (depth && o->keep > depth))
		return tl_fail(
			-EINVAL,
			"tl_stream_options: depth is %u and keep is %u; depth is at most %d, "
			"and keep is not above it",
			depth, o->keep, TL_STREAM_DEPTH_MAX);
	if (o->max_tries > STREAM_TRIES_MAX)
		return tl_fail(-EINVAL, "tl_stream_options.max_tries is %u; the limit is %d",
			       o->max_tries, STREAM_TRIES_MAX);
	if (o->mode == TL_STREAM_QUEUE && (o->keep || o->flags & TL_STREAM_DROP_OLDEST))
		return tl_fail(-EINVAL,
			       "a queue keeps nothing for late subscribers, and drops "
			       "nothing: keep and TL_STREAM_DROP_OLDEST are a broadcast's");
	return 0;
}

TL_API int tl_stream_open(tl_client *client, const char *name, const tl_stream_options *options,
			  tl_stream **out)
{
	struct stream_ask ask = { .name = name };
	struct tl_stream *s;
	int r;

	if (!client || !name || !out)
		return tl_fail(-EINVAL, "tl_stream_open: %s is NULL",
			       !client ? "client"
			       : !name ? "name"
				       : "out");
	r = client_check_name(name, strlen(name));
	if (!r)
		r = options_check(&ask.options, options);
	if (r)
		return r;
	s = calloc(1, sizeof(*s));
	if (!s)
		return tl_fail(-ENOMEM, "no memory for the stream '%s'", name);
	r = stream_ask(client, &ask, &s->view);
	if (r) {
		free(s);
		return r;
	}
	s->refs = 1;
	s->max_bytes = ask.options.max_bytes;
	pthread_mutex_init(&s->mutex, NULL);
	notifier_init(&s->notifier, stream_notifier_wait);
	r = ask.options.flags & TL_STREAM_PRODUCER ? stream_producer_join(s) : 0;
	if (r)
		tl_stream_close(s);
	else
		*out = s;
	return r;
}

TL_API int tl_stream_close(tl_stream *s)
{
	if (!s)
		return 0;
	notifier_end(&s->notifier);
	stream_producer_end(s);
	notifier_free(&s->notifier);
	stream_unref(s);
	return 0;
}

/* ---- subscriptions --------------------------------------------------------------------------- */

static int subscribe(struct tl_subscription *sub, uint32_t flags)
{
	struct session *s = sub->view->session;
	struct stream_ask ask = { .name = sub->view->name,
				  .role = STREAM_SUBSCRIBER,
				  .kept = flags & TL_SUBSCRIBE_KEPT };
	int r = stream_line_take(s, &sub->line);
	uint64_t end;

	if (r)
		return r;
	if (flags & TL_SUBSCRIBE_LOSSY)
		ask.role |= STREAM_LOSSY;
	ask.line = sub->line;
	sub->position = &ledger_line(s->ledger, s->catalog.slots, sub->line)->position;
	atomic_store(sub->position, 0); /* J1: holds up all producers */
	r = stream_ask(s->client, &ask, &sub->view);
	if (r) {
		stream_line_failed(sub->view, sub->line, r);
		return r;
	}
	sub->member = ask.member;
	sub->member_word = stream_member_read(sub->view, sub->member);
	sub->lossy = stream_member_role(sub->member_word) & STREAM_LOSSY;
	sub->next = ask.number > sub->view->words ? ask.number : sub->view->words;
	sub->since = sub->next + (ask.kept ? sub->view->keep : 0);
	end = sub->view->mode == STREAM_BROADCAST ? stream_closed_at(sub->view, sub->next) : 0;
	if (end) /* it learns of the end */
		sub->next = end;
	atomic_store(sub->position, sub->next); /* J3 */
	stream_tell_room(sub->view);
	return 0;
}

TL_API int tl_stream_subscribe(tl_stream *s, const tl_subscribe_options *options,
			       tl_subscription **out)
{
	const uint32_t known = TL_SUBSCRIBE_LOSSY | TL_SUBSCRIBE_KEPT;
	tl_subscribe_options o = { .size = sizeof(o) };
	struct tl_subscription *sub;
	int r = 0;

	if (!s || !out)
		return tl_fail(-EINVAL, "tl_stream_subscribe: %s is NULL", s ? "out" : "stream");
	if (options)
		r = client_options(&o, sizeof(o), options, sizeof(o), "tl_subscribe_options");
	if (!r && (o.flags & ~known || o.reserved))
		r = tl_fail(
			-EINVAL,
			"tl_subscribe_options: flags is %#x, of which %#x is known; reserved is "
			"%u, not 0",
			o.flags, known, o.reserved);
	if (!r && o.flags && s->view->mode == STREAM_QUEUE)
		r = tl_fail(-EINVAL, "'%s' is a queue: TL_SUBSCRIBE_* are for a broadcast",
			    s->view->name);
	if (!r)
		r = stream_usable(s->view);
	if (r)
		return r;
	sub = calloc(1, sizeof(*sub));
	if (!sub)
		return tl_fail(-ENOMEM, "no memory for a subscription to '%s'", s->view->name);
	sub->view = stream_view_ref(s->view);
	sub->stream = o.stream;
	r = subscribe(sub, o.flags);
	if (r) {
		stream_view_unref(sub->view);
		free(sub);
		return r;
	}
	pthread_mutex_init(&sub->mutex, NULL);
	notifier_init(&sub->notifier, subscription_notifier_wait);
	sub->looked = sub->view->words;
	*out = sub;
	return 0;
}

TL_API int tl_subscription_close(tl_subscription *sub)
{
	if (!sub)
		return 0;
	notifier_end(&sub->notifier);
	notifier_free(&sub->notifier);
	stream_leave(sub->view, sub->member);
	stream_line_give(sub->view, sub->line);
	stream_view_unref(sub->view);
	pthread_mutex_destroy(&sub->mutex);
	free(sub);
	return 0;
}

/* ---- items ----------------------------------------------------------------------------------- */

TL_API int tl_item_get_info(const tl_item *item, tl_item_info *info)
{
	tl_item_info found;
	int r;

	if (!item || !info)
		return tl_fail(-EINVAL, "tl_item_get_info: %s is NULL", item ? "info" : "item");
	r = client_result_check(info, sizeof(*info), "tl_item_info");
	if (r)
		return r;
	found = (tl_item_info){ .number = item->number,
				.put_ns = item->time_ns,
				.skipped = item->skipped,
				.tries = stream_take_tries(item->take),
				.producer = item->producer,
				.uid = item->uid,
				.count = item->count,
				.metadata = item->metadata_size ? item->metadata : NULL,
				.metadata_size = item->metadata_size };
	client_result(info, &found, sizeof(found));
	return 0;
}

TL_API size_t tl_item_count(const tl_item *item)
{
	return item ? item->count : 0;
}

TL_API const DLTensor *tl_item_tensor(const tl_item *item, size_t i, const char **name)
{
	if (!item || i >= item->count)
		return NULL;
	if (name)
		*name = item->parts[i].name;
	return &item->parts[i].tensor;
}

static int item_settle(tl_item *item)
{
	struct stream_view *view = item->view;
	uint64_t take = item->take;
	bool done;

	if (view->mode != STREAM_QUEUE || atomic_exchange(&item->settled, true) ||
	    !stream_is_ours(view)) /* a forked child's are its parent's to acknowledge */
		return 0;
	done = atomic_compare_exchange_strong(
		&view->page->take[item->entry], &take,
		stream_take(item->number, stream_take_tries(take), STREAM_DONE)); /* A1 */
	stream_tell_room(view);
	return done ? 0
		    : tl_fail(-ESTALE,
			      "item %llu of the stream '%s' was given to another subscriber, since "
			      "this one was taken for dead",
			      (unsigned long long)item->number, view->name);
}

TL_API int tl_item_done(tl_item *item)
{
	if (!item)
		return tl_fail(-EINVAL, "tl_item_done: item is NULL");
	return item_settle(item);
}

TL_API int tl_item_release(tl_item *item)
{
	int r;

	if (!item)
		return 0;
	r = item_settle(item);
	item_unref(item);
	return r;
}

TL_API int tl_item_to_dlpack(tl_item *item, size_t i, DLManagedTensorVersioned **out)
{
	if (!item || !out)
		return tl_fail(-EINVAL, "tl_item_to_dlpack: %s is NULL", item ? "out" : "item");
	if (i >= item->count)
		return tl_fail(-EINVAL, "the item has %zu tensors, and none at %zu", item->count,
			       i);
	return item_tensor_new(item, i, out);
}
