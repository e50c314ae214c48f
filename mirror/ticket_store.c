/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <pthread.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "mirror/ticket_store.h"
#include "util/cleanup.h"
#include "util/clock.h"

#define HOLD_NS (10 * NS_PER_SEC)

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

struct ticket *tickets_find(const struct tickets *s, const unsigned char id[TICKET_SIZE])
{
	struct ticket *const *node = tfind(id, &s->all, compare_tickets);

	return node ? *node : NULL;
}

static struct ticket *find_or_add(struct tickets *s, const unsigned char id[TICKET_SIZE])
{
	struct ticket *t = tickets_find(s, id);

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

void ticket_keep(struct tickets *s, struct ticket *t)
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

void tensors_free(DLManagedTensorVersioned **tensors, size_t count)
{
	for (size_t n = 0; tensors && n < count; n++)
		tensors[n]->deleter(tensors[n]);
	free(tensors);
}

static void drop_tensors(struct ticket *t)
{
	tensors_free(take_ptr(t->tensors), t->count);
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

/* Copies the members; their names only if @named. Returns 0 or -ENOMEM. */
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

/* True if a host that gets the version from here will ask for more pieces. */
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

void ticket_drop_if_sent(struct ticket *t)
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
	ticket_keep(s, t);
	ticket_drop_if_sent(t);
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

int ticket_id_of(const struct tickets *s, const struct member *members, size_t count,
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

/* Finds or makes the ticket of these versions. With the lock. */
static struct ticket *offer(struct tickets *s, tl_client *client, struct given *given,
			    const struct member *members, size_t count)
{
	unsigned char id[TICKET_SIZE];
	struct ticket *t = ticket_id_of(s, members, count, id) ? NULL : find_or_add(s, id);

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
		     const struct member *members, size_t count, DLManagedTensorVersioned **tensors,
		     char *message, size_t message_size)
{
	struct ticket *t, *old;

	pthread_mutex_lock(&s->lock);
	t = offer(s, NULL, given, members, count);
	if (t) {
		old = *newest;
		*newest = t;
		t->newest = newest;
		t->withdrawn = false;
		if (!t->tensors)
			t->tensors = take_ptr(tensors);
		free(t->message);
		t->message = take_ptr(message);
		t->message_size = message_size;
		if (old) {
			old->withdrawn = true;
			ticket_keep(s, old);
			ticket_drop_if_sent(old);
		}
	}
	pthread_mutex_unlock(&s->lock);
	tensors_free(tensors, count);
	free(message);
	return t ? 0 : -ENOMEM;
}

struct ticket *ticket_offer_item(struct tickets *s, struct given *given,
				 const struct member *members, size_t count,
				 DLManagedTensorVersioned **tensors)
{
	unsigned char id[TICKET_SIZE];
	struct ticket *t = NULL;

	if (getrandom(id, sizeof(id), 0) == sizeof(id)) {
		pthread_mutex_lock(&s->lock);
		t = find_or_add(s, id);
		if (t && set_parts(t, members, count, false)) {
			tdelete(t, &s->all, compare_tickets);
			free_ticket(take_ptr(t));
		}
		if (t) {
			t->source = OFFERED;
			t->tensors = take_ptr(tensors);
			t->given = given;
			t->self = t;
			t->newest = &t->self; /* has no newer one, so it is held */
		}
		pthread_mutex_unlock(&s->lock);
	}
	tensors_free(tensors, count);
	return t;
}

void ticket_end(struct tickets *s, struct ticket *t)
{
	if (!t)
		return;
	pthread_mutex_lock(&s->lock);
	t->withdrawn = true;
	for (unsigned n = 0; n < t->tree.count; n++)
		t->tree.nodes[n].want = 0;
	ticket_keep(s, t);
	ticket_drop_if_sent(t);
	pthread_mutex_unlock(&s->lock);
}

static int get_held(const struct ticket *t, DLManagedTensorVersioned **tensor, tl_info *info)
{
	const tl_get_options options = rule_get_options(t->given->rule);
	int r = tl_get(t->client, t->parts->name, &options, tensor);

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

/* Holds a tensor for a host that asks. Returns its ticket or NULL. With the lock. */
static struct ticket *offer_newest(struct tickets *s, const struct ticket *old, const tl_info *info,
				   DLManagedTensorVersioned **tensor)
{
	const struct member member = { .name = old->parts->name,
				       .version = info->version,
				       .committed_ns = info->committed_ns,
				       .nbytes = info->nbytes };
	unsigned char id[TICKET_SIZE];
	const bool known = !ticket_id_of(s, &member, 1, id) && tickets_find(s, id);
	struct ticket *t = offer(s, old->client, old->given, &member, 1);

	if (!t)
		return NULL;
	if (!known)
		t->withdrawn = true; /* it has no owner that would withdraw it later */
	if (!t->tensors && (t->tensors = calloc(1, sizeof(struct DLManagedTensorVersioned *))))
		*t->tensors = take_ptr(*tensor);
	return t;
}

/* Makes a message about the newest version of a ticket's name. Without the lock. */
static char *newest_tensor(struct tickets *s, const struct ticket *old, const char *url,
			   size_t *size)
{
	DLManagedTensorVersioned *tensor;
	struct notes notes = { 0 };
	struct ticket *t;
	struct note note;
	char *text = NULL;
	tl_info info;

	if (get_held(old, &tensor, &info))
		return NULL;
	ticket_describe(&note, &info);
	pthread_mutex_lock(&s->lock);
	t = offer_newest(s, old, &info, &tensor);
	if (t) {
		ticket_keep(s, t);
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

int ticket_join(struct ticket *t, const struct asker *asker)
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
	old = tickets_find(s, id);
	t = old && old->newest ? *old->newest : NULL;
	if (t && ticket_join(t, asker) >= 0)
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
	t = tickets_find(s, id);
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
		ticket_keep(s, t);
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

/* True if the tensor is that member. Notes when it was published, if that was not known. */
static bool is_member(const DLManagedTensorVersioned *tensor, struct member *m)
{
	tl_info info = { .size = sizeof(info) };

	if (tl_tensor_info(tensor, &info) || info.version != m->version ||
	    info.nbytes != m->nbytes || tensor->dl_tensor.device.device_type != kDLCPU ||
	    (m->committed_ns && info.committed_ns != m->committed_ns))
		return false;
	m->committed_ns = info.committed_ns;
	return true;
}

DLManagedTensorVersioned **ticket_get_all(const struct given *given, tl_client *client,
					  struct member *members, size_t count)
{
	const tl_get_options options = rule_get_options(given->rule);
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
	tensors_free(tensors, count);
	return NULL;
}

void ticket_settle(struct tickets *s, struct ticket *t, tl_client *client, struct member *members)
{
	DLManagedTensorVersioned **tensors = NULL;
	bool named = true;

	if (!t)
		return;
	if (client && t->source == PAUSED)
		tensors = ticket_get_all(t->given, client, members, t->count);
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
	ticket_keep(s, t);
	pthread_cond_broadcast(&s->settled);
	pthread_mutex_unlock(&s->lock);
}
