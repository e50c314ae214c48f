/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "mirror/ticket_store.h"
#include "util/cleanup.h"
#include "util/clock.h"

/* Finds the ticket and the asker's node. Counts a use if the asker gets it here. With the lock. */
static int join(struct tickets *s, const unsigned char id[TICKET_SIZE], const struct asker *asker,
		struct use *use)
{
	struct ticket *t = tickets_find(s, id);
	const struct node *nodes;
	int node;

	if (!t || t->source == LOST)
		return -ENOENT;
	node = ticket_join(t, asker);
	if (node < 0)
		return node;
	given_asked(t->given, asker->host);
	nodes = t->tree.nodes;
	/* if we no longer hold it, another host need not hold it, either */
	if (nodes[node].parent && (t->tensors || !t->withdrawn)) {
		use->elsewhere = strdup(nodes[nodes[node].parent].url);
		return use->elsewhere ? -EXDEV : -ENOMEM;
	}
	use->ticket = t;
	use->node = (unsigned)node;
	t->uses++;
	ticket_keep(s, t);
	return 0;
}

/* Gets the ticket's tensors, if they are here. Returns 0 or a negative errno. With the lock, which
 * it gives up meanwhile. */
static int hold(struct tickets *s, struct ticket *t)
{
	DLManagedTensorVersioned **tensors;
	struct member *members;

	if (t->tensors || t->source == COMING || t->source == PAUSED)
		return 0;
	if (t->newest)
		return -ESTALE; /* only the newest one is held */
	members = calloc(t->count + 1, sizeof(*members));
	if (!members)
		return -ENOMEM;
	for (size_t n = 0; n < t->count; n++)
		members[n] = (struct member){ .name = t->parts[n].name,
					      .version = t->parts[n].version,
					      .committed_ns = t->parts[n].committed_ns,
					      .nbytes = t->parts[n].nbytes };
	pthread_mutex_unlock(&s->lock);
	tensors = ticket_get_all(t->given, t->client, members, t->count);
	pthread_mutex_lock(&s->lock);
	free(members);
	if (!t->tensors) /* another thread may have been faster */
		t->tensors = take_ptr(tensors);
	tensors_free(tensors, t->count);
	if (t->tensors)
		return 0;
	return t->source == OFFERED ? -ESTALE : -ENOENT;
}

/* Returns the index of the part with that piece. */
static size_t part_of(const struct ticket *t, uint64_t piece)
{
	size_t low = 0, high = t->count;

	while (high - low > 1) {
		const size_t middle = (low + high) / 2;

		if (t->parts[middle].first <= piece)
			low = middle;
		else
			high = middle;
	}
	return low;
}

/* Returns the bytes of a piece, or NULL if they are not here. */
static const char *bytes_of(const struct ticket *t, uint64_t piece)
{
	const size_t n = part_of(t, piece);
	const char *from = t->source == COMING ? t->parts[n].to : NULL;

	if (t->tensors)
		from = (char *)t->tensors[n]->dl_tensor.data + t->tensors[n]->dl_tensor.byte_offset;
	return from ? from + (piece - t->parts[n].first) * PIECE_SIZE : NULL;
}

static int find_piece(struct ticket *t, struct use *use)
{
	const struct part *part;
	uint64_t at;

	if (use->piece >= t->pieces)
		return -ERANGE;
	part = &t->parts[part_of(t, use->piece)];
	at = (use->piece - part->first) * PIECE_SIZE;
	use->size = part->nbytes - at < PIECE_SIZE ? (size_t)(part->nbytes - at) : PIECE_SIZE;
	if (!t->tensors && !t->hashed[use->piece])
		return -EAGAIN;
	use->bytes = t->tensors ? bytes_of(t, use->piece) : NULL;
	return 0;
}

int ticket_use(struct tickets *s, const unsigned char id[TICKET_SIZE], uint64_t piece,
	       const struct asker *asker, struct use *use)
{
	struct ticket *t;
	int r;

	*use = (struct use){ .piece = piece };
	pthread_mutex_lock(&s->lock);
	r = join(s, id, asker, use);
	t = use->ticket;
	if (!r)
		r = hold(s, t);
	if (!r)
		r = find_piece(t, use);
	if (!r && use->bytes && !t->hashed[piece]) {
		pthread_mutex_unlock(&s->lock); /* the use keeps the tensors */
		use->hash = XXH3_64bits(use->bytes, use->size);
		pthread_mutex_lock(&s->lock);
		t->hashes[piece] = use->hash;
		t->hashed[piece] = true;
	} else if (!r) {
		use->hash = t->hashes[piece];
	}
	if (r && t) {
		t->uses--;
		ticket_drop_if_sent(t);
	}
	pthread_mutex_unlock(&s->lock);
	return r;
}

bool use_read(struct tickets *s, const struct use *use, size_t from, void *to, size_t size)
{
	struct ticket *t = use->ticket;
	const char *bytes;

	pthread_mutex_lock(&s->lock);
	while (t->source == PAUSED)
		pthread_cond_wait(&s->settled, &s->lock);
	bytes = t->source == LOST || !t->hashed[use->piece] ? NULL : bytes_of(t, use->piece);
	if (bytes)
		memcpy(to, bytes + from, size);
	pthread_mutex_unlock(&s->lock);
	return bytes;
}

void use_end(struct tickets *s, const struct use *use)
{
	struct ticket *t = use->ticket;

	pthread_mutex_lock(&s->lock);
	t->uses--;
	t->used_ns = now_mono_ns();
	t->tree.nodes[use->node].used_ns = t->used_ns;
	t->tree.nodes[use->node].sent++;
	given_sent(t->given, t->tree.nodes[use->node].host, use->size);
	ticket_drop_if_sent(t);
	pthread_mutex_unlock(&s->lock);
}

/* ---- what there is ---- */

struct showing {
	void (*show)(const struct ticket_view *view, void *context);
	void *context;
};

static void show_ticket(const void *node, VISIT which, void *context)
{
	const struct ticket *t = *(struct ticket *const *)node;
	const struct showing *to = context;
	const struct ticket_view view = {
		t->given,	   &t->tree,	      t->parts, t->count, t->source == OFFERED,
		t->newest != NULL, t->tensors != NULL
	};

	if ((which == postorder || which == leaf) && t->given)
		to->show(&view, to->context);
}

void tickets_show(struct tickets *s, void (*show)(const struct ticket_view *view, void *context),
		  void *context)
{
	pthread_mutex_lock(&s->lock);
	twalk_r(s->all, show_ticket, &(struct showing){ show, context });
	pthread_mutex_unlock(&s->lock);
}

void tickets_given(struct tickets *s, const struct given *given, struct given *copy)
{
	pthread_mutex_lock(&s->lock);
	given_copy(copy, given);
	pthread_mutex_unlock(&s->lock);
}
