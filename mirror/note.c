/* SPDX-License-Identifier: Apache-2.0 */
#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mirror/note.h"
#include "tensor/extent.h"

enum { TEXT_OF_NOTE = 400, TEXT_OF_SIZE = 20, TEXT_OF_LETTER = 6 }; /* upper bounds, in bytes */

#define NUMBER_MAX (INT64_C(1) << 53)

/* ---- writing ---- */

/* Writes numbers beyond 2^53 as texts, because many programs read JSON numbers as doubles. */
static bool add_u64(cJSON *to, const char *key, uint64_t value)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRIu64, value);
	return cJSON_AddStringToObject(to, key, text) != NULL;
}

void ticket_write(const unsigned char ticket[TICKET_SIZE], char text[2 * TICKET_SIZE + 1])
{
	for (size_t i = 0; i < TICKET_SIZE; i++)
		snprintf(text + 2 * i, 3, "%02x", ticket[i]);
}

int notes_init(struct notes *notes, uint64_t life, const char *url)
{
	*notes = (struct notes){ .object = cJSON_CreateObject() };
	if (notes->object && add_u64(notes->object, "life", life) &&
	    cJSON_AddStringToObject(notes->object, "url", url))
		notes->array = cJSON_AddArrayToObject(notes->object, "notes");
	return notes->array ? 0 : -ENOMEM;
}

static bool add_bytes(struct notes *notes, const void *bytes, size_t size)
{
	char *grown = realloc(notes->bytes, notes->size + size + 1);

	if (!grown)
		return false;
	notes->bytes = grown;
	if (size)
		memcpy(grown + notes->size, bytes, size);
	notes->size += size;
	return true;
}

static bool add_type(cJSON *to, const struct note *note)
{
	const int type[3] = { note->dtype.code, note->dtype.bits, note->dtype.lanes };
	cJSON *array = cJSON_CreateIntArray(type, 3), *shape = cJSON_AddArrayToObject(to, "shape");
	bool good = array && cJSON_AddItemToObject(to, "type", array) && shape;

	for (int i = 0; good && i < note->ndim; i++) {
		cJSON *size = cJSON_CreateNumber((double)note->shape[i]);

		good = size && cJSON_AddItemToArray(shape, size);
	}
	return good;
}

static bool add_tensor(struct notes *notes, cJSON *to, const struct note *note)
{
	char ticket[2 * TICKET_SIZE + 1];

	ticket_write(note->ticket, ticket);
	if (!add_u64(to, "bytes", note->nbytes) || !add_u64(to, "flags", note->dlpack_flags) ||
	    !add_u64(to, "lifetime", note->lifetime) ||
	    !add_u64(to, "ttl", (uint64_t)note->ttl_ns) || !add_type(to, note) ||
	    !cJSON_AddStringToObject(to, "ticket", ticket) ||
	    !cJSON_AddNumberToObject(to, "metadata", (double)note->metadata_size) ||
	    !add_bytes(notes, note->metadata, note->metadata_size))
		return false;
	return !note->bytes ||
	       (cJSON_AddTrueToObject(to, "inline") && add_bytes(notes, note->bytes, note->nbytes));
}

int notes_add(struct notes *notes, const struct note *note)
{
	cJSON *item = cJSON_CreateObject();
	const size_t size = notes->size;

	for (int i = 0; i < note->ndim; i++) {
		if (note->shape[i] > NUMBER_MAX) {
			cJSON_Delete(item);
			return -ERANGE;
		}
	}
	if (!item || !cJSON_AddStringToObject(item, "name", note->name) ||
	    !add_u64(item, "version", note->version) ||
	    !add_u64(item, "time", note->committed_ns) ||
	    !(note->gone ? cJSON_AddTrueToObject(item, "gone") != NULL
			 : add_tensor(notes, item, note)) ||
	    !cJSON_AddItemToArray(notes->array, item)) {
		cJSON_Delete(item);
		notes->size = size;
		return -ENOMEM;
	}
	notes->count++;
	notes->text += TEXT_OF_NOTE + TEXT_OF_LETTER * strlen(note->name) +
		       TEXT_OF_SIZE * (size_t)note->ndim;
	return 0;
}

bool notes_full(const struct notes *notes)
{
	return notes->count >= NOTES_MAX ||
	       notes->size + notes->text + NOTE_INLINE_MAX >= NOTES_SIZE_MAX;
}

int notes_page(struct notes *notes, const char *next)
{
	return cJSON_AddStringToObject(notes->object, "next", next) ? 0 : -ENOMEM;
}

int notes_set(struct notes *notes, const unsigned char ticket[TICKET_SIZE], uint64_t moment,
	      bool whole)
{
	char text[2 * TICKET_SIZE + 1];

	ticket_write(ticket, text);
	return cJSON_AddStringToObject(notes->object, "set", text) &&
			       add_u64(notes->object, "moment", moment) && !notes_page(notes, "") &&
			       cJSON_AddBoolToObject(notes->object, "whole", whole)
		       ? 0
		       : -ENOMEM;
}

static bool more_of(struct notes *notes, const char *what)
{
	if (!notes->more)
		notes->more = cJSON_AddArrayToObject(notes->object, what);
	return notes->more;
}

/* Adds @item to the streams or items, unless it is not @good. */
static int add_more(struct notes *notes, cJSON *item, bool good)
{
	if (good && cJSON_AddItemToArray(notes->more, item))
		return 0;
	cJSON_Delete(item);
	return -ENOMEM;
}

int notes_streams(struct notes *notes)
{
	return more_of(notes, "streams") ? 0 : -ENOMEM;
}

int notes_add_stream(struct notes *notes, const struct stream_note *stream)
{
	char ticket[2 * TICKET_SIZE + 1];
	cJSON *item = more_of(notes, "streams") ? cJSON_CreateObject() : NULL;

	ticket_write(stream->ticket, ticket);
	return add_more(notes, item,
			item && cJSON_AddStringToObject(item, "name", stream->name) &&
				cJSON_AddNumberToObject(item, "mode", stream->mode) &&
				cJSON_AddNumberToObject(item, "flags", stream->flags) &&
				cJSON_AddNumberToObject(item, "depth", stream->depth) &&
				cJSON_AddNumberToObject(item, "keep", stream->keep) &&
				cJSON_AddNumberToObject(item, "tries", stream->max_tries) &&
				add_u64(item, "ttl", (uint64_t)stream->ttl_ns) &&
				cJSON_AddStringToObject(item, "ticket", ticket));
}

int notes_feed(struct notes *notes, uint64_t feed, bool ended)
{
	return add_u64(notes->object, "feed", feed) &&
			       cJSON_AddBoolToObject(notes->object, "ended", ended) &&
			       more_of(notes, "items")
		       ? 0
		       : -ENOMEM;
}

int notes_add_item(struct notes *notes, const struct item_note *i)
{
	char ticket[2 * TICKET_SIZE + 1];
	cJSON *item = cJSON_CreateObject();

	ticket_write(i->ticket, ticket);
	return add_more(
		notes, item,
		item && add_u64(item, "number", i->number) &&
			cJSON_AddNumberToObject(item, "parts", (double)i->parts) &&
			cJSON_AddNumberToObject(item, "metadata", (double)i->metadata_size) &&
			(i->is_inline ? cJSON_AddTrueToObject(item, "inline")
				      : cJSON_AddStringToObject(item, "ticket", ticket)));
}

int notes_add_metadata(struct notes *notes, const void *metadata, size_t size)
{
	return add_bytes(notes, metadata, size) ? 0 : -ENOMEM;
}

char *notes_write(struct notes *notes, size_t *size)
{
	char *text = cJSON_PrintUnformatted(notes->object), *grown;
	const size_t len = text ? strlen(text) + 1 : 0;

	grown = text ? realloc(text, len + notes->size + 1) : NULL;
	if (!grown) {
		free(text);
		return NULL;
	}
	if (notes->size)
		memcpy(grown + len, notes->bytes, notes->size);
	*size = len + notes->size;
	return grown;
}

void notes_deinit(struct notes *notes)
{
	cJSON_Delete(notes->object);
	free(notes->bytes);
	*notes = (struct notes){ 0 };
}

/* ---- reading ---- */

struct bytes {
	const unsigned char *at;
	size_t left;
};

static bool read_u64(const cJSON *from, const char *key, uint64_t *to)
{
	const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(from, key));
	char *end;

	if (!text || *text < '0' || *text > '9')
		return false;
	errno = 0;
	*to = strtoull(text, &end, 10);
	return !*end && !errno;
}

/* An integer from 0 to @most, which is at most 2^53. */
static bool read_int(const cJSON *item, uint64_t most, uint64_t *to)
{
	double value = cJSON_IsNumber(item) ? item->valuedouble : -1;

	if (!(value >= 0) || value > (double)most || value != (double)(uint64_t)value)
		return false;
	*to = (uint64_t)value;
	return true;
}

static bool read_type(const cJSON *from, struct note *note)
{
	const cJSON *type = cJSON_GetObjectItemCaseSensitive(from, "type");
	const cJSON *shape = cJSON_GetObjectItemCaseSensitive(from, "shape"), *size;
	uint64_t code, bits, lanes, extent;

	if (!cJSON_IsArray(type) || cJSON_GetArraySize(type) != 3 || !cJSON_IsArray(shape) ||
	    cJSON_GetArraySize(shape) > TL_NDIM_MAX ||
	    !read_int(cJSON_GetArrayItem(type, 0), UINT8_MAX, &code) ||
	    !read_int(cJSON_GetArrayItem(type, 1), UINT8_MAX, &bits) ||
	    !read_int(cJSON_GetArrayItem(type, 2), UINT16_MAX, &lanes))
		return false;
	note->dtype = (DLDataType){ (uint8_t)code, (uint8_t)bits, (uint16_t)lanes };
	cJSON_ArrayForEach(size, shape)
	{
		if (!read_int(size, (uint64_t)NUMBER_MAX, &extent))
			return false;
		note->shape[note->ndim++] = (int64_t)extent;
	}
	return true;
}

static int hex(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool ticket_read(const char *text, size_t len, unsigned char ticket[TICKET_SIZE])
{
	if (len != 2 * TICKET_SIZE)
		return false;
	for (size_t i = 0; i < TICKET_SIZE; i++) {
		int high = hex(text[2 * i]), low = hex(text[2 * i + 1]);

		if (high < 0 || low < 0)
			return false;
		ticket[i] = (unsigned char)(high << 4 | low);
	}
	return true;
}

static const void *take_bytes(struct bytes *bytes, size_t size)
{
	const void *at = bytes->at;

	bytes->at += size;
	bytes->left -= size;
	return at;
}

static bool read_tensor(const cJSON *from, struct note *note, struct bytes *bytes)
{
	const char *ticket = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(from, "ticket"));
	uint64_t lifetime, ttl, metadata;

	if (!read_u64(from, "bytes", &note->nbytes) ||
	    !read_u64(from, "flags", &note->dlpack_flags) ||
	    !read_u64(from, "lifetime", &lifetime) || lifetime & ~(uint64_t)TL_LIFETIME_EVICTABLE ||
	    !read_u64(from, "ttl", &ttl) || ttl > TL_TTL_MAX || !read_type(from, note) || !ticket ||
	    !ticket_read(ticket, strlen(ticket), note->ticket) ||
	    !read_int(cJSON_GetObjectItemCaseSensitive(from, "metadata"), TL_METADATA_MAX,
		      &metadata) ||
	    metadata > bytes->left)
		return false;
	note->lifetime = (uint32_t)lifetime;
	note->ttl_ns = (int64_t)ttl;
	note->metadata_size = metadata;
	note->metadata = take_bytes(bytes, metadata);
	if (!cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(from, "inline")))
		return true;
	if (note->nbytes > NOTE_INLINE_MAX || note->nbytes > bytes->left)
		return false;
	note->bytes = take_bytes(bytes, note->nbytes);
	return true;
}

static bool read_note(const cJSON *item, struct note *note, struct bytes *bytes, bool unnamed)
{
	*note = (struct note){
		.name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "name")),
		.gone = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(item, "gone")),
	};
	if (!note->name || (!*note->name && !unnamed) || strlen(note->name) > TL_NAME_MAX ||
	    !read_u64(item, "version", &note->version) || !note->version ||
	    !read_u64(item, "time", &note->committed_ns))
		return false;
	return note->gone || read_tensor(item, note, bytes);
}

static bool read_head(struct message *m)
{
	const cJSON *set = cJSON_GetObjectItemCaseSensitive(m->object, "set");
	const char *ticket = cJSON_GetStringValue(set);

	m->is_set = set;
	m->whole = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(m->object, "whole"));
	m->has_streams = cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(m->object, "streams"));
	m->has_items = cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(m->object, "items"));
	m->ended = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(m->object, "ended"));
	if (m->has_items && !read_u64(m->object, "feed", &m->feed))
		return false;
	if (set && (!ticket || !ticket_read(ticket, strlen(ticket), m->set) ||
		    !read_u64(m->object, "moment", &m->moment)))
		return false;
	m->url = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(m->object, "url"));
	m->next = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(m->object, "next"));
	return m->url && read_u64(m->object, "life", &m->life);
}

static bool read_u32(const cJSON *from, const char *key, uint32_t *to)
{
	uint64_t value;

	if (!read_int(cJSON_GetObjectItemCaseSensitive(from, key), UINT32_MAX, &value))
		return false;
	*to = (uint32_t)value;
	return true;
}

static bool read_ticket(const cJSON *from, unsigned char ticket[TICKET_SIZE])
{
	const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(from, "ticket"));

	return text && ticket_read(text, strlen(text), ticket);
}

static bool read_stream(const cJSON *from, struct stream_note *to)
{
	uint64_t ttl;

	to->name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(from, "name"));
	if (!to->name || !*to->name || strlen(to->name) > TL_NAME_MAX ||
	    !read_u32(from, "mode", &to->mode) || !read_u32(from, "flags", &to->flags) ||
	    !read_u32(from, "depth", &to->depth) || !read_u32(from, "keep", &to->keep) ||
	    !read_u32(from, "tries", &to->max_tries) || !read_u64(from, "ttl", &ttl) ||
	    ttl > TL_TTL_MAX || !read_ticket(from, to->ticket))
		return false;
	to->ttl_ns = (int64_t)ttl;
	return (to->mode == TL_STREAM_BROADCAST || to->mode == TL_STREAM_QUEUE) &&
	       !(to->flags & ~(uint32_t)TL_STREAM_DROP_OLDEST);
}

static bool read_item(const cJSON *from, struct item_note *to, struct bytes *bytes)
{
	uint64_t parts, metadata;

	*to = (struct item_note){ .is_inline = cJSON_IsTrue(
					  cJSON_GetObjectItemCaseSensitive(from, "inline")) };
	if (!read_u64(from, "number", &to->number) || !to->number ||
	    !read_int(cJSON_GetObjectItemCaseSensitive(from, "parts"), TL_STREAM_PARTS_MAX,
		      &parts) ||
	    !parts ||
	    !read_int(cJSON_GetObjectItemCaseSensitive(from, "metadata"), TL_STREAM_METADATA_MAX,
		      &metadata) ||
	    metadata > bytes->left || (!to->is_inline && !read_ticket(from, to->ticket)))
		return false;
	to->parts = parts;
	to->metadata_size = metadata;
	to->metadata = take_bytes(bytes, metadata);
	return true;
}

size_t message_count(const struct message *m)
{
	return (size_t)cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(m->object, "notes"));
}

static bool each_stream(const struct message *m,
			void (*show)(const struct stream_note *stream, void *context),
			void *context)
{
	const cJSON *item;
	struct stream_note stream;

	cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(m->object, "streams"))
	{
		if (!read_stream(item, &stream))
			return false;
		if (show)
			show(&stream, context);
	}
	return true;
}

/* Reads the items, whose metadata follow the bytes of the notes. Returns false if one is wrong, or
 * if the items have more or fewer parts than there are notes. */
static bool each_item(const struct message *m, struct bytes *bytes,
		      void (*show)(const struct item_note *item, size_t first, void *context),
		      void *context)
{
	const cJSON *item;
	struct item_note note;
	size_t first = 0;

	cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(m->object, "items"))
	{
		if (!read_item(item, &note, bytes))
			return false;
		if (show)
			show(&note, first, context);
		first += note.parts;
	}
	return first == message_count(m);
}

typedef void show_note(const struct message *message, const struct note *note, void *context);

/* Reads the notes. Returns false if one is wrong. Afterwards @bytes has the bytes that follow. */
static bool each_note(const struct message *m, struct bytes *bytes, show_note *show, void *context)
{
	const cJSON *item;
	struct note note;

	cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(m->object, "notes"))
	{
		if (!read_note(item, &note, bytes, m->has_items))
			return false;
		if (show)
			show(m, &note, context);
	}
	return true;
}

/* True if the whole message is well-formed, and no bytes are left over. */
static bool is_right(const struct message *m)
{
	struct bytes bytes = { m->bytes, m->size };

	return each_note(m, &bytes, NULL, NULL) &&
	       (!m->has_items || each_item(m, &bytes, NULL, NULL)) && each_stream(m, NULL, NULL) &&
	       !bytes.left;
}

int message_read(struct message *m, const void *data, size_t size)
{
	const char *end = size ? memchr(data, 0, size) : NULL;
	const cJSON *array;

	*m = (struct message){ 0 };
	if (!end)
		return -EINVAL;
	m->object = cJSON_ParseWithLength(data, (size_t)(end - (const char *)data));
	m->bytes = (const unsigned char *)end + 1;
	m->size = size - (size_t)(end + 1 - (const char *)data);
	array = cJSON_GetObjectItemCaseSensitive(m->object, "notes");
	if (!read_head(m) || !cJSON_IsArray(array) ||
	    cJSON_GetArraySize(array) > (m->is_set || m->has_items ? SET_MAX : NOTES_MAX))
		return -EINVAL;
	return is_right(m) ? 0 : -EINVAL;
}

void message_notes(const struct message *m, show_note *show, void *context)
{
	struct bytes bytes = { m->bytes, m->size };

	each_note(m, &bytes, show, context);
}

void message_streams(const struct message *m,
		     void (*show)(const struct stream_note *stream, void *context), void *context)
{
	each_stream(m, show, context);
}

void message_items(const struct message *m,
		   void (*show)(const struct item_note *item, size_t first, void *context),
		   void *context)
{
	struct bytes bytes = { m->bytes, m->size };

	each_note(m, &bytes, NULL, NULL);
	each_item(m, &bytes, show, context);
}

void message_deinit(struct message *m)
{
	cJSON_Delete(m->object);
	*m = (struct message){ 0 };
}

bool note_is_sized(const struct note *note)
{
	const bool padded = note->dlpack_flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
	uint64_t size;

	return !tensor_nbytes(note->dtype, note->ndim, note->shape, padded, &size) &&
	       size == note->nbytes;
}
