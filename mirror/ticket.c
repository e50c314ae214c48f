/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <pthread.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "mirror/ticket.h"
#include "util/cleanup.h"
#include "util/clock.h"

#define HOLD_NS (10 * NS_PER_SEC)

/*
 * Where the bytes are:
 *
 *   OFFERED   in a tensor of this host, which is got when somebody asks
 *   COMING -> PAUSED -> RELAYED   in a draft; nowhere, while that is published; as OFFERED
 *             PAUSED -> LOST      the transfer has failed; it may begin again
 */
enum source { OFFERED, COMING, PAUSED, RELAYED, LOST };

struct ticket {
	unsigned char id[TICKET_SIZE]; /* first: the tree's key */
	struct ticket *next, **link;   /* among the kept ones; @link NULL: it is none */
	enum source source;
	bool withdrawn; /* it means something else now */
	tl_client *client;
	struct part *parts; /* one, or those of a set */
	size_t count;
	unsigned fanout;
	struct given *given;		    /* counts what is sent */
	DLManagedTensorVersioned **tensors; /* NULL: they are not held */
	uint64_t pieces;
	uint64_t *hashes; /* of each piece */
	bool *hashed;	  /* which are known; of what comes: which are there */
	int64_t used_ns;
	unsigned uses; /* answers that are being made or sent */
	struct tree tree;
	struct ticket **newest; /* of the set; NULL: it is none */
	char *message;		/* about the set */
	size_t message_size;
};

struct tickets {
	pthread_mutex_t lock;
	pthread_cond_t settled;
	unsigned char secret[32]; /* of which tickets are made, so a version has one */
	void *all;		  /* a tree */
	struct ticket *kept; /* those that hold a tensor, or are withdrawn: tickets_tidy() looks */
};

static int compare_tickets(const void *a, const void *b)
{
	return memcmp(a, b, TICKET_SIZE);
}

struct tickets *tickets_new(void)
{
	struct tickets *s = calloc(1, sizeof(*s));

	if (!s || getrandom(s->secret, sizeof(s->secret), 0) != sizeof(s->secret)) {
		free(s);
		return NULL;
	}
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->settled, NULL);
	return s;
}

const unsigned char *ticket_id(const struct ticket *t)
{
	return t->id;
}

static struct ticket *find(const struct tickets *s, const unsigned char id[TICKET_SIZE])
{
	struct ticket *const *node = tfind(id, &s->all, compare_tickets);

	return node ? *node : NULL;
}

static struct ticket *find_or_add(struct tickets *s, const unsigned char id[TICKET_SIZE])
{
	struct ticket *t = find(s, id);

	if (t)
		return t;
	t = calloc(1, sizeof(*t));
	if (!t)
		return NULL;
	memcpy(t->id, id, TICKET_SIZE);
	t->source = LOST;
	if (tsearch(t, &s->all, compare_tickets))
		return t;
	free(t);
	return NULL;
}

static void keep(struct tickets *s, struct ticket *t)
{
	t->used_ns = now_mono_ns();
	if (t->link)
		return;
	t->next = s->kept;
	t->link = &s->kept;
	s->kept = t;
	if (t->next)
		t->next->link = &t->next;
}

static void free_tensors(DLManagedTensorVersioned **tensors, size_t count)
{
	for (size_t n = 0; tensors && n < count; n++)
		tensors[n]->deleter(tensors[n]);
	free(tensors);
}

static void drop_tensors(struct ticket *t)
{
	free_tensors(take_ptr(t->tensors), t->count);
}

static void free_parts(struct ticket *t)
{
	for (size_t n = 0; n < t->count; n++)
		free(t->parts[n].name);
	free(take_ptr(t->parts));
	free(take_ptr(t->hashes));
	free(take_ptr(t->hashed));
	t->count = 0;
	t->pieces = 0;
}

static void free_ticket(void *node)
{
	struct ticket *t = node;

	drop_tensors(t);
	free_parts(t);
	tree_deinit(&t->tree);
	free(t->message);
	free(t);
}

size_t pieces_of(uint64_t nbytes)
{
	return (size_t)((nbytes + PIECE_SIZE - 1) / PIECE_SIZE);
}

/* Copies them, their names only if @named. Returns 0 or -ENOMEM. */
static int set_parts(struct ticket *t, const struct member *members, size_t count, bool named)
{
	bool good;

	t->parts = calloc(count + 1, sizeof(*t->parts));
	good = t->parts != NULL;
	for (size_t n = 0; good && n < count; n++) {
		t->parts[n] = (struct part){ .name = named ? strdup(members[n].name) : NULL,
					     .version = members[n].version,
					     .committed_ns = members[n].committed_ns,
					     .nbytes = members[n].nbytes,
					     .first = t->pieces,
					     .to = members[n].to };
		t->pieces += pieces_of(members[n].nbytes);
		t->count++;
		good = !named || t->parts[n].name;
	}
	t->hashes = calloc(t->pieces + 1, sizeof(*t->hashes));
	t->hashed = calloc(t->pieces + 1, sizeof(*t->hashed));
	if (good && t->hashes && t->hashed)
		return 0;
	free_parts(t);
	return -ENOMEM;
}

/* Whether a host that gets it from here will ask for more of it. */
static bool is_awaited(const struct ticket *t)
{
	const int64_t since = now_mono_ns() - HOLD_NS;

	for (unsigned n = 1; n < t->tree.count; n++) {
		const struct node *node = &t->tree.nodes[n];

		if (!node->parent && node->sent < node->want && node->used_ns > since)
			return true;
	}
	return false;
}

/* What is not the newest any more, and was sent to all who have asked, is not held for others. */
static void drop_if_sent(struct ticket *t)
{
	if (!t->uses && t->withdrawn && !is_awaited(t))
		drop_tensors(t);
}

void ticket_withdraw(struct tickets *s, struct ticket *t)
{
	if (!t)
		return;
	pthread_mutex_lock(&s->lock);
	t->withdrawn = true;
	keep(s, t);
	drop_if_sent(t);
	pthread_mutex_unlock(&s->lock);
}

void tickets_tidy(struct tickets *s)
{
	const int64_t now = now_mono_ns();
	struct ticket *next;

	pthread_mutex_lock(&s->lock);
	for (struct ticket *t = s->kept; t; t = next) {
		next = t->next;
		if (t->uses || now - t->used_ns < HOLD_NS || t->source == COMING ||
		    t->source == PAUSED)
			continue;
		if (!t->newest || t->withdrawn)
			drop_tensors(t);
		*t->link = t->next;
		if (t->next)
			t->next->link = t->link;
		t->link = NULL;
		if (t->withdrawn) {
			tdelete(t, &s->all, compare_tickets);
			free_ticket(t);
		}
	}
	pthread_mutex_unlock(&s->lock);
}

void tickets_free(struct tickets *s)
{
	if (!s)
		return;
	tdestroy(s->all, free_ticket);
	pthread_mutex_destroy(&s->lock);
	pthread_cond_destroy(&s->settled);
	free(s);
}

/* ---- versions of this host ---- */

/* The same for the same version, so that all who ask for it are in one tree. */
static int make_id(const struct tickets *s, const struct member *members, size_t count,
		   unsigned char id[TICKET_SIZE])
{
	unsigned char mac[32];
	gnutls_hmac_hd_t hmac;

	if (gnutls_hmac_init(&hmac, GNUTLS_MAC_SHA256, s->secret, sizeof(s->secret)))
		return -ENOMEM;
	for (size_t n = 0; n < count; n++) {
		const struct member *m = &members[n];

		gnutls_hmac(hmac, &m->version, sizeof(m->version));
		gnutls_hmac(hmac, &m->committed_ns, sizeof(m->committed_ns));
		gnutls_hmac(hmac, m->name, strlen(m->name) + 1);
	}
	gnutls_hmac_deinit(hmac, mac);
	memcpy(id, mac, TICKET_SIZE);
	return 0;
}

/* With the lock. */
static struct ticket *offer(struct tickets *s, tl_client *client, struct given *given,
			    const struct member *members, size_t count)
{
	unsigned char id[TICKET_SIZE];
	struct ticket *t = make_id(s, members, count, id) ? NULL : find_or_add(s, id);

	if (!t || t->parts)
		return t;
	if (set_parts(t, members, count, true)) {
		tdelete(t, &s->all, compare_tickets);
		free_ticket(t);
		return NULL;
	}
	t->source = OFFERED;
	t->client = client;
	t->fanout = given->rule->fanout;
	t->given = given;
	return t;
}

struct ticket *ticket_offer(struct tickets *s, tl_client *client, struct given *given,
			    const struct member *member)
{
	struct ticket *t;

	pthread_mutex_lock(&s->lock);
	t = offer(s, client, given, member, 1);
	if (t)
		t->withdrawn = false;
	pthread_mutex_unlock(&s->lock);
	return t;
}

int ticket_offer_set(struct tickets *s, struct ticket **newest, struct given *given,
		     const struct member *members, size_t count, DLManagedTensorVersioned **tensors)
{
	struct ticket *t, *old;

	pthread_mutex_lock(&s->lock);
	t = offer(s, NULL, given, members, count);
	old = *newest;
	if (t)
		*newest = t;
	if (t) {
		t->newest = newest;
		t->withdrawn = false;
		if (!t->tensors)
			t->tensors = take_ptr(tensors);
	}
	if (t && old && old != t) {
		old->withdrawn = true;
		keep(s, old);
		drop_if_sent(old);
	}
	pthread_mutex_unlock(&s->lock);
	free_tensors(tensors, count);
	return t ? t != old : -ENOMEM;
}

void ticket_describe_set(struct tickets *s, struct ticket *t, char *message, size_t size)
{
	pthread_mutex_lock(&s->lock);
	free(t->message);
	t->message = message;
	t->message_size = size;
	pthread_mutex_unlock(&s->lock);
}

static int get_held(tl_client *client, const char *name, DLManagedTensorVersioned **tensor,
		    tl_info *info)
{
	const tl_get_options options = { .size = sizeof(options), .stream = TL_STREAM_NONE };
	int r = tl_get(client, name, &options, tensor);

	*info = (tl_info){ .size = sizeof(*info) };
	if (r)
		return r;
	r = tl_tensor_info(*tensor, info);
	if (!r && (*tensor)->dl_tensor.device.device_type != kDLCPU)
		r = -ENOENT;
	if (r)
		(*tensor)->deleter(*tensor);
	return r;
}

void ticket_describe(struct note *note, const tl_info *info)
{
	*note = (struct note){
		.name = info->name,
		.version = info->version,
		.committed_ns = info->committed_ns,
		.dtype = info->dtype,
		.ndim = info->ndim,
		.nbytes = info->nbytes,
		.dlpack_flags = info->dlpack_flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED,
		.lifetime = info->lifetime & TL_LIFETIME_EVICTABLE,
		.ttl_ns = info->ttl_ns,
		.metadata = info->metadata,
		.metadata_size = info->metadata_size,
	};
	memcpy(note->shape, info->shape, sizeof(*note->shape) * (size_t)info->ndim);
}

/* Holds a tensor for who asks. Returns its ticket or NULL. With the lock. */
static struct ticket *offer_newest(struct tickets *s, const struct ticket *old, const tl_info *info,
				   DLManagedTensorVersioned **tensor)
{
	const struct member member = { .name = old->parts->name,
				       .version = info->version,
				       .committed_ns = info->committed_ns,
				       .nbytes = info->nbytes };
	unsigned char id[TICKET_SIZE];
	const bool known = !make_id(s, &member, 1, id) && find(s, id);
	struct ticket *t = offer(s, old->client, old->given, &member, 1);

	if (!t)
		return NULL;
	if (!known)
		t->withdrawn = true; /* nobody else has it, or will say so */
	if (!t->tensors && (t->tensors = calloc(1, sizeof(struct DLManagedTensorVersioned *))))
		*t->tensors = take_ptr(*tensor);
	return t;
}

/* Without the lock. */
static char *newest_tensor(struct tickets *s, const struct ticket *old, const char *url,
			   size_t *size)
{
	DLManagedTensorVersioned *tensor;
	struct notes notes = { 0 };
	struct ticket *t;
	struct note note;
	char *text = NULL;
	tl_info info;

	if (get_held(old->client, old->parts->name, &tensor, &info))
		return NULL;
	ticket_describe(&note, &info);
	pthread_mutex_lock(&s->lock);
	t = offer_newest(s, old, &info, &tensor);
	if (t) {
		keep(s, t);
		memcpy(note.ticket, t->id, TICKET_SIZE);
	}
	pthread_mutex_unlock(&s->lock);
	if (t && !notes_init(&notes, 0, url) && !notes_add(&notes, &note))
		text = notes_write(&notes, size);
	if (tensor)
		tensor->deleter(tensor);
	notes_deinit(&notes);
	return text;
}

static char *copy_message(const struct ticket *t, size_t *size)
{
	char *text = t->message ? malloc(t->message_size + 1) : NULL;

	if (text)
		memcpy(text, t->message, t->message_size);
	*size = t->message_size;
	return text;
}

/* It is held for who asks, until that has got what it wants. With the lock. */
static int join_tree(struct ticket *t, const struct asker *asker)
{
	const int n = tree_join(&t->tree, asker->host, asker->url, asker->lost, t->fanout);

	if (n < 0)
		return n;
	t->tree.nodes[n].used_ns = now_mono_ns();
	if (asker->want) {
		t->tree.nodes[n].want = asker->want;
		t->tree.nodes[n].sent = 0;
	}
	return n;
}

char *ticket_newest(struct tickets *s, const unsigned char id[TICKET_SIZE],
		    const struct asker *asker, const char *url, size_t *size)
{
	struct ticket *old, *t;
	char *text = NULL;

	pthread_mutex_lock(&s->lock);
	old = find(s, id);
	t = old && old->newest ? *old->newest : NULL;
	if (t && join_tree(t, asker) >= 0)
		text = copy_message(t, size);
	if (!old || old->newest || old->source != OFFERED) {
		pthread_mutex_unlock(&s->lock);
		return text;
	}
	old->uses++;
	pthread_mutex_unlock(&s->lock);
	text = newest_tensor(s, old, url, size);
	pthread_mutex_lock(&s->lock);
	old->uses--;
	pthread_mutex_unlock(&s->lock);
	return text;
}

char *ticket_message(struct tickets *s, const unsigned char id[TICKET_SIZE], size_t *size)
{
	const struct ticket *t;
	char *text;

	pthread_mutex_lock(&s->lock);
	t = find(s, id);
	text = t ? copy_message(t, size) : NULL;
	pthread_mutex_unlock(&s->lock);
	return text;
}

/* ---- versions of others ---- */

struct ticket *ticket_relay(struct tickets *s, const unsigned char id[TICKET_SIZE],
			    struct given *given, const struct member *members, size_t count)
{
	struct ticket *t;

	pthread_mutex_lock(&s->lock);
	t = find_or_add(s, id);
	if (t && (t->source == LOST || t->source == RELAYED) && !t->uses) {
		drop_tensors(t);
		free_parts(t);
		t->withdrawn = false;
		t->source = set_parts(t, members, count, false) ? LOST : COMING;
		t->given = given;
		keep(s, t);
	} else {
		t = NULL;
	}
	pthread_mutex_unlock(&s->lock);
	return t;
}

void ticket_came(struct tickets *s, struct ticket *t, uint64_t piece, uint64_t hash)
{
	if (!t)
		return;
	pthread_mutex_lock(&s->lock);
	if (t->source == COMING) {
		t->hashes[piece] = hash;
		t->hashed[piece] = true;
	}
	pthread_mutex_unlock(&s->lock);
}

void ticket_pause(struct tickets *s, struct ticket *t)
{
	if (!t)
		return;
	pthread_mutex_lock(&s->lock);
	if (t->source == COMING)
		t->source = PAUSED;
	pthread_mutex_unlock(&s->lock);
}

/* Whether that is the tensor. Notes when it was published, if that was not known. */
static bool is_member(const DLManagedTensorVersioned *tensor, struct member *m)
{
	tl_info info = { .size = sizeof(info) };

	if (tl_tensor_info(tensor, &info) || info.version != m->version ||
	    info.nbytes != m->nbytes || info.device.device_type != kDLCPU ||
	    (m->committed_ns && info.committed_ns != m->committed_ns))
		return false;
	m->committed_ns = info.committed_ns;
	return true;
}

/* Returns a lease on each, or NULL if one of them is not what it was. */
static DLManagedTensorVersioned **get_all(tl_client *client, struct member *members, size_t count)
{
	const tl_get_options options = { .size = sizeof(options), .stream = TL_STREAM_NONE };
	DLManagedTensorVersioned **tensors = calloc(count + 1, sizeof(*tensors));
	const char **names = calloc(count + 1, sizeof(*names));
	bool same = true;

	for (size_t n = 0; names && n < count; n++)
		names[n] = members[n].name;
	if (!tensors || !names || (count && tl_get_many(client, names, count, &options, tensors))) {
		free(tensors);
		free(names);
		return NULL;
	}
	free(names);
	for (size_t n = 0; n < count; n++)
		same &= is_member(tensors[n], &members[n]);
	if (same)
		return tensors;
	free_tensors(tensors, count);
	return NULL;
}

void ticket_settle(struct tickets *s, struct ticket *t, tl_client *client, struct member *members)
{
	DLManagedTensorVersioned **tensors = NULL;
	bool named = true;

	if (!t)
		return;
	if (client && t->source == PAUSED)
		tensors = get_all(client, members, t->count);
	pthread_mutex_lock(&s->lock);
	for (size_t n = 0; n < t->count; n++) {
		t->parts[n].to = NULL;
		t->parts[n].name = tensors ? strdup(members[n].name) : NULL;
		t->parts[n].version = members[n].version;
		t->parts[n].committed_ns = members[n].committed_ns;
		named &= t->parts[n].name != NULL;
	}
	t->client = client;
	t->source = tensors && named ? RELAYED : LOST;
	t->withdrawn |= t->source == LOST;
	t->tensors = tensors;
	keep(s, t);
	pthread_cond_broadcast(&s->settled);
	pthread_mutex_unlock(&s->lock);
}

/* ---- requests ---- */

/* Finds the ticket and who asks, and counts its use if it may have it here. With the lock. */
static int join(struct tickets *s, const unsigned char id[TICKET_SIZE], const struct asker *asker,
		struct use *use)
{
	struct ticket *t = find(s, id);
	const struct node *nodes;
	int node;

	if (!t || t->source == LOST)
		return -ENOENT;
	node = join_tree(t, asker);
	if (node < 0)
		return node;
	given_asked(t->given, asker->host);
	nodes = t->tree.nodes;
	/* what is not held any more, others need not have either */
	if (nodes[node].parent && (t->tensors || !t->withdrawn)) {
		use->elsewhere = strdup(nodes[nodes[node].parent].url);
		return use->elsewhere ? -EXDEV : -ENOMEM;
	}
	use->ticket = t;
	use->node = (unsigned)node;
	t->uses++;
	keep(s, t);
	return 0;
}

/* Holds its tensors, if they are here. Returns 0 or a negative errno. With the lock, which it gives
 * up meanwhile. */
static int hold(struct tickets *s, struct ticket *t)
{
	DLManagedTensorVersioned **tensors;
	struct member *members;

	if (t->tensors || t->source == COMING || t->source == PAUSED)
		return 0;
	if (t->newest)
		return -ESTALE; /* the newest one is held */
	members = calloc(t->count + 1, sizeof(*members));
	if (!members)
		return -ENOMEM;
	for (size_t n = 0; n < t->count; n++)
		members[n] = (struct member){ .name = t->parts[n].name,
					      .version = t->parts[n].version,
					      .committed_ns = t->parts[n].committed_ns,
					      .nbytes = t->parts[n].nbytes };
	pthread_mutex_unlock(&s->lock);
	tensors = get_all(t->client, members, t->count);
	pthread_mutex_lock(&s->lock);
	free(members);
	if (!t->tensors) /* else another thread was faster */
		t->tensors = take_ptr(tensors);
	free_tensors(tensors, t->count);
	if (t->tensors)
		return 0;
	return t->source == OFFERED ? -ESTALE : -ENOENT;
}

/* The part that has a piece. */
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

/* Where the bytes of a piece are, or NULL if they are not here. */
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
	if (!r && !t->hashed[piece]) {
		pthread_mutex_unlock(&s->lock); /* its use keeps the tensors */
		use->hash = XXH3_64bits(use->bytes, use->size);
		pthread_mutex_lock(&s->lock);
		t->hashes[piece] = use->hash;
		t->hashed[piece] = true;
	} else if (!r) {
		use->hash = t->hashes[piece];
	}
	if (r && t) {
		t->uses--;
		drop_if_sent(t);
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
	drop_if_sent(t);
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
