/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mirror/transfer.h"
#include "util/clock.h"

#define SPACE_NS NS_PER_SEC	 /* how long a transfer waits for memory */
#define SKEW_NS (2 * NS_PER_SEC) /* between the clocks of two hosts */

struct target *target_new(const char *url, const struct note *note)
{
	const size_t inlined = note->bytes ? note->nbytes : 0;
	struct target *t = calloc(1, sizeof(*t) + note->metadata_size + inlined);

	if (!t)
		return NULL;
	t->note = *note;
	t->note.name = NULL;
	if (note->metadata_size)
		memcpy(t->bytes, note->metadata, note->metadata_size);
	t->note.metadata = t->bytes;
	if (note->bytes && inlined)
		memcpy(t->bytes + note->metadata_size, note->bytes, inlined);
	if (note->bytes)
		t->note.bytes = t->bytes + note->metadata_size;
	snprintf(t->url, sizeof(t->url), "%s", url);
	return t;
}

struct target *target_of_set(const struct message *m, const void *data, size_t size)
{
	struct target *t = calloc(1, sizeof(*t) + size);

	if (!t)
		return NULL;
	memcpy(t->bytes, data, size);
	t->note.version = t->note.committed_ns = m->moment;
	t->note.nbytes = size;
	snprintf(t->url, sizeof(t->url), "%s", m->url);
	return t;
}

/* Compares all but the bytes, and checks that it was published here after it was at the origin. */
bool transfer_is_here(const tl_info *info, const char *label, const struct note *note)
{
	return !strcmp(info->publisher.label, label) && info->version == note->version &&
	       info->committed_ns + SKEW_NS >= note->committed_ns && info->ndim == note->ndim &&
	       !memcmp(info->shape, note->shape, sizeof(*note->shape) * (size_t)note->ndim) &&
	       !memcmp(&info->dtype, &note->dtype, sizeof(note->dtype)) &&
	       info->metadata_size == note->metadata_size &&
	       !memcmp(info->metadata, note->metadata, note->metadata_size);
}

struct bringing {
	struct arrived *arrived;
	struct tickets *tickets;
	struct ticket *relay; /* NULL: not given to others */
};

static void on_piece(void *context, uint64_t piece, size_t size, uint64_t hash)
{
	const struct bringing *b = context;

	atomic_fetch_add(&b->arrived->bytes, size);
	ticket_came(b->tickets, b->relay, piece, hash);
}

int transfer_bytes(const struct job *job, const char *url, const unsigned char ticket[TICKET_SIZE],
		   const struct member *members, size_t count, struct ticket **relay)
{
	const struct source source = { url, ticket, members, count, &job->arrived->lost };
	struct bringing b = { job->arrived, job->tickets, NULL };
	bool wanted = false;

	for (size_t n = 0; n < count; n++)
		wanted |= members[n].to && members[n].nbytes;
	if (!wanted)
		return 0;
	if (job->tickets && job->reader)
		b.relay = ticket_relay(job->tickets, ticket, job->given, members, count);
	*relay = b.relay;
	return fetch_bytes(job->fetch, &source, on_piece, &b);
}

/* Fills and commits the draft, or aborts it. */
static int fill(const struct job *job, const struct target *t, tl_draft *draft,
		struct ticket **relay)
{
	const struct note *note = &t->note;
	const DLTensor *tensor = tl_draft_tensor(draft);
	char *to = (char *)tensor->data + tensor->byte_offset;
	struct member member = { .name = job->local, .nbytes = note->nbytes, .to = to };
	int r = 0;

	if (note->bytes && note->nbytes) {
		memcpy(to, note->bytes, note->nbytes);
		atomic_fetch_add(&job->arrived->bytes, note->nbytes);
	}
	if (!note->bytes)
		r = transfer_bytes(job, t->url, note->ticket, &member, 1, relay);
	if (!r)
		r = tl_draft_set_metadata(draft, note->metadata, note->metadata_size);
	ticket_pause(job->tickets, *relay);
	if (!r)
		r = tl_commit(draft, &member.version);
	else
		tl_abort(draft);
	ticket_settle(job->tickets, *relay, r ? NULL : job->reader, &member);
	return r;
}

/* Withdraws the ticket of the name's former version. @next: the ticket of the new one. */
static void replace_ticket(const struct job *job, struct ticket *next)
{
	if (*job->ticket && *job->ticket != next)
		ticket_withdraw(job->tickets, *job->ticket);
	*job->ticket = next;
}

/* Publishes the target as @version or, if that is 0, as the version after the last one. */
static int publish(const struct job *job, const struct target *t, uint64_t version)
{
	const struct note *note = &t->note;
	const tl_spec spec = { .size = sizeof(spec),
			       .shape = note->shape,
			       .ndim = note->ndim,
			       .dtype = note->dtype,
			       .dlpack_flags = note->dlpack_flags,
			       .timeout_ns = SPACE_NS,
			       .ttl_ns = note->ttl_ns,
			       .lifetime = note->lifetime,
			       .ring = TL_RING_NONE,
			       .version = version };
	struct ticket *relay = NULL;
	tl_draft *draft;
	int r = tl_create(job->client, job->local, &spec, &draft);

	if (r)
		return r;
	r = fill(job, t, draft, &relay);
	if (!r)
		replace_ticket(job, relay);
	else if (relay && *job->ticket == relay)
		*job->ticket = NULL; /* ticket_settle() has withdrawn it */
	return r;
}

static int transfer_once(const struct job *job, const struct target *t)
{
	const struct note *note = &t->note;
	tl_info info = { .size = sizeof(info) };
	uint64_t version = note->version;
	int r;

	if (note->gone) {
		r = tl_delete(job->client, job->local);
		replace_ticket(job, NULL);
		return r == -ENOENT ? 0 : r;
	}
	if (!note_is_sized(note))
		return -EPROTO;
	r = tl_stat(job->client, job->local, &info);
	if (!r && !job->known && transfer_is_here(&info, job->label, note))
		return 0;
	/* The origin has lost its names and counts anew: continue with our own versions. */
	if (!r && info.version >= version)
		version = 0;
	r = publish(job, t, version);
	if (r == -ESTALE && version) /* the daemon was replaced meanwhile */
		r = publish(job, t, version);
	if (r == -ESTALE && version) /* the name was deleted, and had a higher one */
		r = publish(job, t, 0);
	return r;
}

struct newer {
	struct target *target;
};

static void show_newer(const struct message *m, const struct note *note, void *context)
{
	struct newer *newer = context;

	if (!newer->target && !note->gone)
		newer->target = target_new(m->url, note);
}

/* Returns the version that the origin has named in place of one that it no longer has, or NULL. */
static struct target *newer_target(const struct job *job)
{
	struct newer newer = { NULL };
	struct message m;
	size_t size;
	const char *data = fetch_newer(job->fetch, &size);

	if (!message_read(&m, data, size) && fetch_is_url(job->config, m.url))
		message_notes(&m, show_newer, &newer);
	message_deinit(&m);
	return newer.target;
}

const char *transfer_why(const struct job *job, int r)
{
	if (r == -EPROTO)
		return "its size is not that of its type and shape";
	return r == -EHOSTUNREACH || r == -EBADMSG ? fetch_why(job->fetch) : tl_last_error();
}

int transfer(const struct job *job, struct target **t)
{
	struct target *newer;
	int r;

	for (;;) {
		r = transfer_once(job, *t);
		newer = r == -ENODATA ? newer_target(job) : NULL;
		if (!newer)
			return r;
		free(*t);
		*t = newer;
	}
}
