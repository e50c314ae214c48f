/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages between a client and the daemon, one SOCK_SEQPACKET datagram each.
 * docs/protocol/messages.md describes them. wire_messages.h is the table of all of them, from which
 * this header makes the enum of types and the structs: fixed width, no padding, reserved members
 * zero, native byte order (both ends are on one machine). wire_check() is the only validator, for
 * both ends, and runs before any other use of a message.
 */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/limits.h"

/* The range of versions that this code speaks. */
#define WIRE_VERSION_MIN 3
#define WIRE_VERSION 3

enum {
	WIRE_MAX = 2048,	  /* bytes of a message, header included */
	WIRE_TEXT_MAX = 512,	  /* bytes of an error's text */
	WIRE_LABEL_MAX = 32,	  /* bytes of a client's label */
	WIRE_FDS_UNREAD_MAX = 16, /* descriptors sent to a client that it has not received yet */
	WIRE_GROUP_MAX = 65536,	  /* tensors of one group; unpublished members of one client */

	/* Bytes of shape and metadata that a tensor can have beside its row. */
	WIRE_EXTRA_MAX = TENSOR_NDIM_MAX * 8 + TENSOR_META_MAX,

	WIRE_HANDLE_BYTES = 64,	     /* of a CUDA IPC handle, for memory or for an event */
	WIRE_DEVICE_ID = 16,	     /* of a device's UUID */
	WIRE_SHARES = 14,	     /* kinds of shares */
	WIRE_CLAIMS_MAX = 64,	     /* names that one message claims */
	WIRE_MEMBERS_MAX = 32,	     /* members of a group that one message makes */
	WIRE_PARTS_MAX = 16384,	     /* allocations that one segment on a device spans */
	WIRE_DEVICES_MAX = 64,	     /* devices of one daemon */
	WIRE_CLIENTS_MAX = 65536,    /* of one daemon */
	WIRE_USERS_MAX = 65536,	     /* users in a list */
	WIRE_METRICS_MAX = 16 << 20, /* bytes of a text of metrics */
	WIRE_HELD_MAX = 28,	     /* leases that one message tells; USER is as large */
};

/* Bytes of a segment on a device. The sum over as many as there can be still fits into 64 bits. */
#define WIRE_DEVICE_BYTES_MAX ((uint64_t)1 << 46)

enum {
	WIRE_USERS_EXACT = 1,
	WIRE_CLAIM_WAIT = 1,   /* answer when the claim is the client's, or needless */
	WIRE_WATCH_PREFIX = 1, /* all names that start with this text */
	WIRE_WATCH_HINT = 2,   /* the client can do without; half of all watches are for others */
	WIRE_CREATE_PREFETCH = 1,  /* may never be used; the daemon may take the draft back */
	WIRE_CREATE_OWN_PAGES = 2, /* in a new segment that is never reused */

	WIRE_COMMIT_PREFETCH = 2, /* does a CREATE of the same size, with PREFETCH, as well */
	WIRE_COMMIT_KEEP = 4,	  /* if it fails, the draft is not aborted */

	WIRE_DRAFT_FD = 1, /* a read-write descriptor of the segment comes with it */

	WIRE_LIFETIME_OWNER_BOUND = 1, /* ends with the connection that published it */
	WIRE_LIFETIME_EVICTABLE = 2,   /* may be given up, while nobody holds it, to free space */

	WIRE_OPEN_MAKE = 1,
	WIRE_OPEN_KEPT = 2,

	WIRE_RETIRE_FOR_GOOD = 1, /* the stream has the rows no more */

	WIRE_PLACE_EVENT = 1, /* the tensor is unfinished: an event's handle follows the metadata */
	WIRE_PLACE_UNREPORTED = 1, /* no FINISHED will come for it */
};

struct wire_header {
	uint16_t type;
	uint16_t reserved;
	uint32_t length; /* of the message, this header included */
	uint32_t serial; /* chosen by the client; the answer has the same */
	uint32_t life;	 /* in a request: of the last ADOPTED, or 0; in ADOPTED: the daemon's */
};
static_assert(sizeof(struct wire_header) == 16, "wire");

enum wire_type {
#define MESSAGE(id, number, ...) WIRE_##id = (number),
#define END_OF(side) WIRE_##side##_END,
#include "proto/wire_messages.h"
};

/* The fixed part of each message: struct wire_hello, and so on. */
/* clang-format off */
#define STRUCT(name) struct name {
#define HEADER struct wire_header header;
#define FIELD(type, name, ...) type name;
#define ARRAY(type, name, count, ...) type name[count];
#define END(name, size) }; static_assert(sizeof(struct name) == (size), "wire");
/* clang-format on */
#include "proto/wire_messages.h"

/* Error numbers of the wire. They are never reused; no errno crosses the socket. */
#define WIRE_ERRORS(ERROR)                                                                         \
	ERROR(INVALID, 1)	/* a value is out of its bounds */                                 \
	ERROR(PROTOCOL, 2)	/* malformed, or out of order; the connection ends */              \
	ERROR(VERSION, 3)	/* no common version; the connection ends */                       \
	ERROR(NOT_FOUND, 4)	/* no such name, segment or client */                              \
	ERROR(NO_SPACE, 5)	/* the capacity or the tmpfs is full, or files are limited */      \
	ERROR(QUOTA, 6)		/* the user's quota is full */                                     \
	ERROR(DENIED, 7)	/* the name is another user's */                                   \
	ERROR(LIMIT, 8)		/* too many tensors, drafts, or names in a bucket */               \
	ERROR(STALE, 9)		/* the draft or tensor is not there any more */                    \
	ERROR(CLIENTS, 10)	/* too many clients; the connection ends */                        \
	ERROR(NO_RESOURCES, 11) /* the daemon lacks memory or descriptors */                       \
	ERROR(KICKED, 12)	/* somebody who may do so has ended the connection */              \
	ERROR(KIND, 13)		/* a tensor where a stream is wanted, or the reverse */            \
	ERROR(OLD, 14)		/* the stated version is not above the name's last */

enum wire_error {
#define ERROR(id, number) WIRE_E_##id = (number),
	WIRE_ERRORS(ERROR)
#undef ERROR
		WIRE_E_END, /* one more than the last */
};

/* What a program may have to know beyond the code. They are never reused; 0: nothing. */
enum wire_cause {
	WIRE_CAUSE_NAMESPACE = 1, /* there is none of that name that the user may read */
	WIRE_CAUSE_NOBODY = 2,	  /* the daemon does not know the user: its uid is 65534 there */
	WIRE_CAUSE_TENSORS = 3,	  /* the maximum is one of tensors or drafts, not of bytes */
	WIRE_CAUSE_TOO_LARGE = 4, /* it would not fit if nothing else were there */
};
/* An error code and its cause in one number, for the functions that make an ERROR. */
#define WIRE_BECAUSE(code, cause) ((unsigned)(code) | (unsigned)(cause) << 16)

/* Messages inside a message, and so the data after each of them, are at multiples of 8 bytes. */
static inline size_t wire_padded(size_t length)
{
	return (length + 7) / 8 * 8;
}

enum wire_side { WIRE_TO_DAEMON, WIRE_TO_CLIENT };

enum { WIRE_WHY_TEXT = 128 }; /* bytes that suffice for any text of wire_check() */

/*
 * Checks that this is a whole, well-formed message for @side, with its descriptors. After that only
 * references to the receiver's state need a check. Returns 0, or -EBADMSG; then @why, unless NULL,
 * names the wrong member, its value and its bounds.
 */
int wire_check(const void *message, size_t length, unsigned nfds, enum wire_side side,
	       char why[WIRE_WHY_TEXT]);

/* "COMMIT", or "unknown". */
const char *wire_type_name(unsigned type);
/* "DENIED", or "unknown". */
const char *wire_error_name(unsigned code);

/* One line about a message that passed wire_check(), for TENSORLEASE_DEBUG=wire. */
void wire_print(const void *message, bool with_fd, char *line, size_t size);

/* The bytes after the fixed part: the data that its members count, in their order. */
static inline const unsigned char *wire_tail(const void *message, size_t fixed)
{
	return (const unsigned char *)message + fixed;
}
