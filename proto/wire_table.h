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
	/* The value of these counts the data after the fixed part, in the order of the members. */
	FIELD_SIZES,
	FIELD_TEXT,
	FIELD_BYTES,
};

/* A member of a fixed part. Members that are numbers have 1, 2, 4 or 8 bytes. */
struct field {
	const char *name; /* NULL: there are no more */
	const char *tail; /* the name of the counted data */
	enum field_kind kind;
	uint16_t at, size;    /* in bytes */
	uint8_t unit;	      /* bytes that follow the fixed part for each 1 of the value */
	uint64_t least, most; /* bounds of the value */
	const char *bits[4];
	const struct field *(*fields)(void); /* of FIELD_STRUCT, else NULL */
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
	uint16_t fixed; /* bytes of the fixed part */
	bool serial;	/* the serial must not be 0 */
	bool messages;	/* whole ones follow the fixed part */
	const struct field *(*fields)(void);
	/* True if a descriptor comes with @m. NULL: never. */
	bool (*has_fd)(const union wire_any *m);
	/* Checks the members of @m against each other. Returns the error, or NULL. NULL: no
	 * checks. */
	const char *(*check)(const union wire_any *m);
};

/* Returns the rules for messages of that type, or NULL if there is no such type. */
const struct rule *wire_rule(unsigned type);

/* The value of a member that is a number of @size bytes. */
uint64_t wire_number(const unsigned char *at, size_t size);
