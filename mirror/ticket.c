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
#include "mirror/tree.h"
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
	bool withdrawn; /* its name means something else */
	tl_client *client;
	char *name;
	uint64_t version, committed_ns; /* of the tensor here */
	unsigned fanout;
	DLManagedTensorVersioned *tensor; /* NULL: not held */
	const char *to;			  /* a draft's memory, while it comes */
	uint64_t nbytes;
	uint64_t *hashes; /* of each piece */
	bool *hashed;	  /* which are known; of what comes: which are there */
	int64_t used_ns;
	unsigned uses; /* answers that are being made or sent */
	struct tree tree;
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

static void drop_tensor(struct ticket *t)
{
	if (t->tensor)
		t->tensor->deleter(t->tensor);
	t->tensor = NULL;
}

static void free_ticket(void *node)
{
	struct ticket *t = node;

	drop_tensor(t);
	tree_deinit(&t->tree);
	free(t->hashes);
	free(t->hashed);
	free(t->name);
	free(t);
}

static size_t pieces_of(uint64_t nbytes)
{
	return (size_t)((nbytes + PIECE_SIZE - 1) / PIECE_SIZE);
}

/* Whether a host that gets it from here will ask for more of it. */
static bool is_awaited(const struct ticket *t)
{
	const int64_t since = now_mono_ns() - HOLD_NS;

	for (unsigned n = 1; n < t->tree.count; n++) {
		const struct node *node = &t->tree.nodes[n];

		if (!node->parent && node->sent < pieces_of(t->nbytes) && node->used_ns > since)
			return true;
	}
	return false;
}

/* What is not the newest any more, and was sent to all who have asked, is not held for others. */
static void drop_if_sent(struct ticket *t)
{
	if (!t->uses && t->withdrawn && !is_awaited(t))
		drop_tensor(t);
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
		drop_tensor(t);
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
static int make_id(const struct tickets *s, const char *name, uint64_t version,
		   uint64_t committed_ns, unsigned char id[TICKET_SIZE])
{
	unsigned char text[sizeof(version) + sizeof(committed_ns) + TL_NAME_MAX], mac[32];
	const size_t len = strnlen(name, TL_NAME_MAX);

	memcpy(text, &version, sizeof(version));
	memcpy(text + sizeof(version), &committed_ns, sizeof(committed_ns));
	memcpy(text + sizeof(version) + sizeof(committed_ns), name, len);
	if (gnutls_hmac_fast(GNUTLS_MAC_SHA256, s->secret, sizeof(s->secret), text,
			     sizeof(version) + sizeof(committed_ns) + len, mac))
		return -EIO;
	memcpy(id, mac, TICKET_SIZE);
	return 0;
}

/* With the lock. */
static struct ticket *offer(struct tickets *s, tl_client *client, unsigned fanout, const char *name,
			    uint64_t version, uint64_t committed_ns)
{
	unsigned char id[TICKET_SIZE];
	struct ticket *t = make_id(s, name, version, committed_ns, id) ? NULL : find_or_add(s, id);

	if (!t || t->name)
		return t;
	t->name = strdup(name);
	if (!t->name) {
		tdelete(t, &s->all, compare_tickets);
		free_ticket(t);
		return NULL;
	}
	t->source = OFFERED;
	t->client = client;
	t->version = version;
	t->committed_ns = committed_ns;
	t->fanout = fanout;
	return t;
}

struct ticket *ticket_offer(struct tickets *s, tl_client *client, unsigned fanout, const char *name,
			    uint64_t version, uint64_t committed_ns)
{
	struct ticket *t;

	pthread_mutex_lock(&s->lock);
	t = offer(s, client, fanout, name, version, committed_ns);
	if (t)
		t->withdrawn = false;
	pthread_mutex_unlock(&s->lock);
	return t;
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

static int make_hashes(struct ticket *t)
{
	const size_t n = pieces_of(t->nbytes);

	if (t->hashes)
		return 0;
	t->hashes = calloc(n + 1, sizeof(*t->hashes));
	t->hashed = calloc(n + 1, sizeof(*t->hashed));
	if (t->hashes && t->hashed)
		return 0;
	free(take_ptr(t->hashes));
	free(take_ptr(t->hashed));
	return -ENOMEM;
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

char *ticket_newest(struct tickets *s, const unsigned char id[TICKET_SIZE], const char *url,
		    size_t *size)
{
	DLManagedTensorVersioned *tensor = NULL;
	struct ticket *old, *t = NULL;
	struct notes notes = { 0 };
	struct note note;
	char *text = NULL;
	tl_info info;
	bool known;
	int r = -ENOENT;

	pthread_mutex_lock(&s->lock);
	old = find(s, id);
	if (old && old->source == OFFERED)
		old->uses++;
	else
		old = NULL;
	pthread_mutex_unlock(&s->lock);
	if (old)
		r = get_held(old->client, old->name, &tensor, &info);
	if (!r)
		r = notes_init(&notes, 0, url);
	pthread_mutex_lock(&s->lock);
	if (!r) {
		known = !make_id(s, old->name, info.version, info.committed_ns, note.ticket) &&
			find(s, note.ticket);
		t = offer(s, old->client, old->fanout, old->name, info.version, info.committed_ns);
		if (t && !known)
			t->withdrawn = true; /* nobody else has it, or will say so */
	}
	if (t && !t->tensor) {
		t->tensor = take_ptr(tensor);
		t->nbytes = info.nbytes;
	}
	if (t) {
		keep(s, t);
		ticket_describe(&note, &info);
		memcpy(note.ticket, t->id, TICKET_SIZE);
	}
	if (old)
		old->uses--;
	pthread_mutex_unlock(&s->lock);
	if (t && !notes_add(&notes, &note))
		text = notes_write(&notes, size);
	if (tensor)
		tensor->deleter(tensor);
	notes_deinit(&notes);
	return text;
}

/* ---- versions of others ---- */

struct ticket *ticket_relay(struct tickets *s, const unsigned char id[TICKET_SIZE], const void *to,
			    uint64_t nbytes)
{
	struct ticket *t;

	pthread_mutex_lock(&s->lock);
	t = find_or_add(s, id);
	if (t && (t->source == LOST || t->source == RELAYED) && !t->uses) {
		drop_tensor(t);
		free(take_ptr(t->hashes));
		free(take_ptr(t->hashed));
		t->nbytes = nbytes;
		t->to = to;
		t->withdrawn = false;
		t->source = make_hashes(t) ? LOST : COMING;
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
	t->hashes[piece] = hash;
	t->hashed[piece] = true;
	pthread_mutex_unlock(&s->lock);
}

void ticket_pause(struct tickets *s, struct ticket *t)
{
	if (!t)
		return;
	pthread_mutex_lock(&s->lock);
	t->to = NULL;
	t->source = PAUSED;
	pthread_mutex_unlock(&s->lock);
}

void ticket_settle(struct tickets *s, struct ticket *t, tl_client *client, const char *name,
		   uint64_t version)
{
	DLManagedTensorVersioned *tensor = NULL;
	tl_info info = { .version = 0 };
	char *copy = NULL;

	if (!t)
		return;
	if (client && !get_held(client, name, &tensor, &info) && info.version == version)
		copy = strdup(name);
	pthread_mutex_lock(&s->lock);
	if (copy) {
		free(t->name);
		t->name = copy;
		t->client = client;
		t->version = version;
		t->committed_ns = info.committed_ns;
		t->tensor = take_ptr(tensor);
	}
	t->source = copy ? RELAYED : LOST;
	t->withdrawn |= !copy;
	keep(s, t);
	pthread_cond_broadcast(&s->settled);
	pthread_mutex_unlock(&s->lock);
	if (tensor)
		tensor->deleter(tensor);
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
	node = tree_join(&t->tree, asker->host, asker->url, asker->lost, t->fanout);
	if (node < 0)
		return node;
	nodes = t->tree.nodes;
	t->tree.nodes[node].used_ns = now_mono_ns();
	/* what is not held any more, others need not have either */
	if (nodes[node].parent && (t->tensor || !t->withdrawn)) {
		use->elsewhere = strdup(nodes[nodes[node].parent].url);
		return use->elsewhere ? -EXDEV : -ENOMEM;
	}
	use->ticket = t;
	use->node = (unsigned)node;
	t->uses++;
	if (!use->piece) /* it begins */
		t->tree.nodes[node].sent = 0;
	keep(s, t);
	return 0;
}

/* Holds its tensor, if there is one. Returns 0 or a negative errno. With the lock, which it gives
 * up meanwhile. */
static int hold(struct tickets *s, struct ticket *t)
{
	DLManagedTensorVersioned *tensor = NULL;
	tl_info info;
	int r;

	if (t->tensor || t->source == COMING || t->source == PAUSED)
		return make_hashes(t);
	pthread_mutex_unlock(&s->lock);
	r = get_held(t->client, t->name, &tensor, &info);
	pthread_mutex_lock(&s->lock);
	if (!r && (info.version != t->version || info.committed_ns != t->committed_ns)) {
		r = t->tensor ? 0 : -ESTALE;
	} else if (!r && !t->tensor) { /* else another thread was faster */
		t->tensor = take_ptr(tensor);
		t->nbytes = info.nbytes;
	}
	if (!r)
		r = make_hashes(t);
	if (tensor)
		tensor->deleter(tensor);
	return r == -ESTALE && t->source != OFFERED ? -ENOENT : r;
}

static const char *bytes_of(const struct ticket *t)
{
	if (!t->tensor)
		return t->to;
	return (char *)t->tensor->dl_tensor.data + t->tensor->dl_tensor.byte_offset;
}

static int find_piece(struct ticket *t, struct use *use)
{
	const uint64_t at = use->piece * PIECE_SIZE;

	if (use->piece && use->piece >= pieces_of(t->nbytes))
		return -ERANGE;
	use->size = t->nbytes - at < PIECE_SIZE ? (size_t)(t->nbytes - at) : PIECE_SIZE;
	if (!t->tensor && !t->hashed[use->piece])
		return -EAGAIN;
	use->bytes = t->tensor ? bytes_of(t) + at : NULL;
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
		pthread_mutex_unlock(&s->lock); /* its use keeps the tensor */
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
	bytes = t->source == LOST || !t->hashed[use->piece] ? NULL : bytes_of(t);
	if (bytes)
		memcpy(to, bytes + use->piece * PIECE_SIZE + from, size);
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
	drop_if_sent(t);
	pthread_mutex_unlock(&s->lock);
}
