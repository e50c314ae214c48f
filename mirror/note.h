/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages of mirrors about names. A message is a JSON object, a byte 0, and the bytes of its
 * notes. docs/ACROSS-HOSTS.md has the fields.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tensorlease/stream.h>
#include <tensorlease/tensorlease.h>

enum {
	TICKET_SIZE = 16,
	NOTE_INLINE_MAX = 32 << 10, /* the largest tensor whose bytes a note contains */
	NOTES_SIZE_MAX = 512 << 10, /* of a message; a server takes 1 MiB */
	NOTES_MAX = 500,	    /* in a message */
	SET_MAX = 65536,	    /* members of a set */
	ITEMS_MAX = 64,		    /* in a message */
	PIECE_SIZE = 2 << 20,	    /* of a tensor, in a request */
};

/* Says that a name has a version, or that it has nothing since that version. */
struct note {
	const char *name;
	bool gone;
	uint64_t version, committed_ns; /* of the origin; both together identify a tensor */
	DLDataType dtype;
	int32_t ndim;
	int64_t shape[TL_NDIM_MAX];
	uint64_t nbytes, dlpack_flags;
	uint32_t lifetime; /* TL_LIFETIME_EVICTABLE or 0 */
	int64_t ttl_ns;
	const void *metadata, *bytes; /* `bytes`: the tensor's; NULL: fetch them */
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
	uint64_t number; /* counts the items sent to this host, from 1 on */
	size_t parts;	 /* how many notes are its tensors; the name "" means none */
	const void *metadata;
	size_t metadata_size;
	bool is_inline; /* all parts have their bytes; otherwise fetch them: */
	unsigned char ticket[TICKET_SIZE];
};

/* A message that is being written. */
struct notes {
	struct cJSON *object, *array;
	char *bytes;
	size_t size, count, text; /* `text`: an upper bound of the JSON's length */
	struct cJSON *more;	  /* streams or items; NULL: none yet */
};

/* @life: a change means that messages were lost, or that the origin counts anew. @url: where to
 * fetch the bytes. */
int notes_init(struct notes *notes, uint64_t life, const char *url);
/* Adds one. Returns 0, -ENOMEM or -ERANGE: a size is above 2^53. */
int notes_add(struct notes *notes, const struct note *note);
/* True if another note of NOTE_INLINE_MAX bytes might not fit. */
bool notes_full(const struct notes *notes);
/* Marks the message as a page of a list. @next is its last name, or "" if no page follows. */
int notes_page(struct notes *notes, const char *next);
/* Makes the message one about a moment of a set, in ns since 1970. @whole: it has notes of all
 * members; otherwise they are fetched with @ticket, as are all bytes. Tickets of notes are
 * unused. */
int notes_set(struct notes *notes, const unsigned char ticket[TICKET_SIZE], uint64_t moment,
	      bool whole);
/* Makes the message one that lists the streams, maybe none. */
int notes_streams(struct notes *notes);
int notes_add_stream(struct notes *notes, const struct stream_note *stream);
/* Makes the message one of items; it has no notes but those of their parts. @feed: a change means
 * that numbers begin anew. @ended: no items follow these. */
int notes_feed(struct notes *notes, uint64_t feed, bool ended);
/* Adds an item, after the notes of its parts. After the last item, call notes_add_metadata() for
 * each item, in their order. */
int notes_add_item(struct notes *notes, const struct item_note *item);
int notes_add_metadata(struct notes *notes, const void *metadata, size_t size);
/* Returns the message, which the caller frees, or NULL. */
char *notes_write(struct notes *notes, size_t *size);
void notes_deinit(struct notes *notes);

/* A message that has come. Its texts live as long as it; its bytes belong to the caller. */
struct message {
	struct cJSON *object;
	const unsigned char *bytes; /* the bytes of the notes */
	size_t size;
	const char *url;
	uint64_t life;
	const char *next; /* for a page, as in notes_page(); NULL: not a page */
	bool is_set, whole;
	uint64_t moment;
	unsigned char set[TICKET_SIZE];
	bool has_streams, has_items, ended;
	uint64_t feed;
};

/* Reads a message of another host. Returns 0, or -EINVAL if it or one of its notes is malformed.
 * Call message_deinit() in either case. */
int message_read(struct message *message, const void *data, size_t size);
size_t message_count(const struct message *message);
/* Calls @show for each note of a message, in their order. */
void message_notes(const struct message *message,
		   void (*show)(const struct message *message, const struct note *note,
				void *context),
		   void *context);
/* Call @show for each stream, or for each item with the index of its first note. */
void message_streams(const struct message *message,
		     void (*show)(const struct stream_note *stream, void *context), void *context);
void message_items(const struct message *message,
		   void (*show)(const struct item_note *item, size_t first, void *context),
		   void *context);
void message_deinit(struct message *message);

/* True if the note's size fits its type and shape. The other host may lie. */
bool note_is_sized(const struct note *note);

/* Convert tickets to texts and back. ticket_read() returns false if @text is no ticket. */
void ticket_write(const unsigned char ticket[TICKET_SIZE], char text[2 * TICKET_SIZE + 1]);
bool ticket_read(const char *text, size_t len, unsigned char ticket[TICKET_SIZE]);
