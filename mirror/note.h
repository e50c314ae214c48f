/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What mirrors tell each other about names. A message is a JSON object, a byte 0, and the bytes of
 * its notes. docs/ACROSS-HOSTS.md has the fields.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tensorlease/stream.h>
#include <tensorlease/tensorlease.h>

enum {
	TICKET_SIZE = 16,
	NOTE_INLINE_MAX = 32 << 10, /* bytes of a tensor that a note has in it */
	NOTES_SIZE_MAX = 512 << 10, /* of a message; a server takes 1 MiB */
	NOTES_MAX = 500,	    /* in a message */
	SET_MAX = 65536,	    /* members of a set */
	ITEMS_MAX = 64,		    /* in a message */
	PIECE_SIZE = 2 << 20,	    /* of a tensor, in a request */
};

/* That a name means a version, or nothing after that version. */
struct note {
	const char *name;
	bool gone;
	uint64_t version, committed_ns; /* of the origin; both together tell one tensor */
	DLDataType dtype;
	int32_t ndim;
	int64_t shape[TL_NDIM_MAX];
	uint64_t nbytes, dlpack_flags;
	uint32_t lifetime; /* TL_LIFETIME_EVICTABLE or 0 */
	int64_t ttl_ns;
	const void *metadata, *bytes; /* @bytes: of the tensor; NULL: they are to be fetched */
	size_t metadata_size;
	unsigned char ticket[TICKET_SIZE]; /* to fetch them with */
};

/* A stream that is offered. */
struct stream_note {
	const char *name;
	uint32_t mode, flags, depth, keep, max_tries; /* as in tl_stream_options */
	int64_t ttl_ns;
	unsigned char ticket[TICKET_SIZE];
};

/* An item of a stream. */
struct item_note {
	uint64_t number; /* of what was sent to this host, from 1 on */
	size_t parts;	 /* so many notes of the message are its tensors; "" is no name */
	const void *metadata;
	size_t metadata_size;
	bool is_inline; /* the bytes of all parts are; else they are to be fetched: */
	unsigned char ticket[TICKET_SIZE];
};

/* A message while it is written. */
struct notes {
	struct cJSON *object, *array;
	char *bytes;
	size_t size, count, text; /* @text: how long the JSON is at most */
	struct cJSON *more;	  /* streams or items; NULL: none yet */
};

/* @life: another one tells that messages were lost, or that the origin counts anew. @url: where the
 * bytes are. */
int notes_init(struct notes *notes, uint64_t life, const char *url);
/* Adds one. Returns 0, -ENOMEM or -ERANGE: a size is above 2^53. */
int notes_add(struct notes *notes, const struct note *note);
/* Another note of at most NOTE_INLINE_MAX bytes need not fit. */
bool notes_full(const struct notes *notes);
/* Marks a page of a list: @next is the last name of it, "" if no page follows. */
int notes_page(struct notes *notes, const char *next);
/* The message is about a moment of a set, in ns since 1970. @whole: its notes are those of all
 * members; else they are to be had with the ticket, as all bytes are. Those of the notes are not
 * used. */
int notes_set(struct notes *notes, const unsigned char ticket[TICKET_SIZE], uint64_t moment,
	      bool whole);
/* The message says which streams there are, maybe none. */
int notes_streams(struct notes *notes);
int notes_add_stream(struct notes *notes, const struct stream_note *stream);
/* The message has items, and no other notes than those of their parts. @feed: another one tells
 * that numbers begin anew. @ended: nothing comes after these. */
int notes_feed(struct notes *notes, uint64_t feed, bool ended);
/* Adds an item, after the notes of its parts. After the last one, its metadata are to be added by
 * notes_add_metadata(), those of all items in their order. */
int notes_add_item(struct notes *notes, const struct item_note *item);
int notes_add_metadata(struct notes *notes, const void *metadata, size_t size);
/* Returns the message, which the caller frees, or NULL. */
char *notes_write(struct notes *notes, size_t *size);
void notes_deinit(struct notes *notes);

/* A message that came. Its texts live as long as it, and its data as long as those of the caller.
 */
struct message {
	struct cJSON *object;
	const unsigned char *bytes; /* of the notes */
	size_t size;
	const char *url;
	uint64_t life;
	const char *next; /* of a page; NULL: it is none */
	bool is_set, whole;
	uint64_t moment;
	unsigned char set[TICKET_SIZE];
	bool has_streams, has_items, ended;
	uint64_t feed;
};

/* Reads what another host sent. Returns 0, or -EINVAL if it is no such message or one of its notes
 * is wrong. message_deinit() in either case. */
int message_read(struct message *message, const void *data, size_t size);
size_t message_count(const struct message *message);
/* Shows the notes of a message that was read, in their order. */
void message_notes(const struct message *message,
		   void (*show)(const struct message *message, const struct note *note,
				void *context),
		   void *context);
/* Shows the streams, or the items with the number of the first of their notes. */
void message_streams(const struct message *message,
		     void (*show)(const struct stream_note *stream, void *context), void *context);
void message_items(const struct message *message,
		   void (*show)(const struct item_note *item, size_t first, void *context),
		   void *context);
void message_deinit(struct message *message);

/* Whether its bytes are as many as such a tensor has. The other host may lie. */
bool note_is_sized(const struct note *note);

/* Tickets as texts. ticket_read() returns false if that is none. */
void ticket_write(const unsigned char ticket[TICKET_SIZE], char text[2 * TICKET_SIZE + 1]);
bool ticket_read(const char *text, size_t len, unsigned char ticket[TICKET_SIZE]);
