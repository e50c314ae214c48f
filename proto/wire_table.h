/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of messages in a form that code can walk: wire.c checks a message by it, print.c prints
 * it. Nothing else includes this.
 */
#pragma once

#include "proto/wire.h"

enum field_kind {
	FIELD_NUMBER,
	FIELD_SIGNED,
	FIELD_HEX,
	FIELD_REF,
	FIELD_INDEX, /* of the catalog, or CATALOG_NONE */
	FIELD_FLAGS, /* @most has the known bits, @bits their names */
	FIELD_ERROR, /* enum wire_error */
	FIELD_ZERO,
	FIELD_LABEL,
	FIELD_UUID,
	FIELD_OPAQUE,
	FIELD_STRUCT, /* @fields are its members */
	FIELD_SIZES,  /* the value counts what follows the fixed part; the same for the next two */
	FIELD_TEXT,
	FIELD_BYTES,
};

/* A member of a fixed part. Members that are numbers have 1, 2, 4 or 8 bytes. */
struct field {
	const char *name; /* NULL: there are no more */
	const char *tail; /* what the value counts is called so */
	enum field_kind kind;
	uint8_t at, size;     /* in bytes */
	uint8_t unit;	      /* bytes of what follows the fixed part, for each one of the value */
	uint64_t least, most; /* bounds of the value */
	const char *bits[4];
	const struct field *(*fields)(void);
};

/* Every fixed part at once, by the names of the structs. */
union wire_any {
	struct wire_header header;
	unsigned char bytes[1];
#define STRUCT(name) struct name name;
#include "proto/wire_messages.h"
};

struct rule {
	const char *name;
	uint8_t fixed; /* bytes of the fixed part; 0: there is no such message */
	bool serial;   /* it must not be 0 */
	const struct field *(*fields)(void);
	bool (*has_fd)(const union wire_any *m);       /* NULL: it never comes with a descriptor */
	const char *(*check)(const union wire_any *m); /* what is wrong, or NULL; may be NULL itself
							*/
};

/* What holds for messages of that type, or NULL. */
const struct rule *wire_rule(unsigned type);

/* The value of a member that is a number of @size bytes. */
uint64_t wire_number(const unsigned char *at, size_t size);
