/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages between a client and the daemon, one SOCK_SEQPACKET datagram each. PROTOCOL.md
 * describes them; this says how they lie in memory: little structs of explicit width, no padding,
 * reserved members zero, native byte order (both ends are on one machine). wire_check() is the only
 * validator, for both ends, and runs before anything else looks at a message.
 */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_VERSION 2 /* the version this code speaks; WIRE_VERSION_MIN..WIRE_VERSION */
#define WIRE_VERSION_MIN 2

enum {
	WIRE_MAX = 2048,     /* bytes of a message, header included */
	WIRE_TEXT_MAX = 512, /* bytes of an error's text */
	WIRE_LABEL_MAX = 16,
	WIRE_NAME_MAX = 255,
	WIRE_NDIM_MAX = 64,
	WIRE_META_MAX = 1024,
	WIRE_FDS_UNREAD_MAX = 16, /* descriptors sent to a client that it has not received yet */
	WIRE_EXTRA_MAX = WIRE_NDIM_MAX * 8 + WIRE_META_MAX,
};

enum wire_type {
	/* client to daemon */
	WIRE_HELLO = 1,
	WIRE_LEDGER,
	WIRE_CREATE,
	WIRE_COMMIT,
	WIRE_ABORT,
	WIRE_MAP,
	WIRE_DELETE,
	WIRE_RELEASED,
	WIRE_LINK,
	WIRE_CLIENTS,
	WIRE_HOLDINGS,
	WIRE_SETTLE,
	WIRE_MEMBER,
	WIRE_GROUP,
	WIRE_EXPORT,
	WIRE_PART,
	WIRE_UNEXPORT,
	WIRE_IMPORT,
	WIRE_UNMAPPED,
	WIRE_PLACE,
	WIRE_FINISHED,
	WIRE_DEVICES,
	WIRE_REQUEST_END,
	/* daemon to client */
	WIRE_WELCOME = 64,
	WIRE_READY,
	WIRE_DRAFT,
	WIRE_COMMITTED,
	WIRE_SEGMENT,
	WIRE_DONE,
	WIRE_CLIENT,
	WIRE_HOLDING,
	WIRE_ERROR,
	WIRE_EXPORTED,
	WIRE_IMPORTED,
	WIRE_PLACED,
	WIRE_FREED,
	WIRE_UNMAP,
	WIRE_DEVICE,
	WIRE_REPLY_END,
};

/* Error numbers of the wire. They are never reused; errno does not cross the socket. */
enum wire_error {
	WIRE_E_INVALID = 1,	  /* a value is out of bounds */
	WIRE_E_PROTOCOL = 2,	  /* malformed, or out of order; the connection ends */
	WIRE_E_VERSION = 3,	  /* no common version */
	WIRE_E_NOT_FOUND = 4,	  /* no such name, segment, client */
	WIRE_E_NO_SPACE = 5,	  /* capacity or tmpfs is full */
	WIRE_E_QUOTA = 6,	  /* this user's quota */
	WIRE_E_DENIED = 7,	  /* the name is another user's */
	WIRE_E_LIMIT = 8,	  /* too many tensors, drafts, names */
	WIRE_E_GONE = 9,	  /* the draft or tensor referred to is not there */
	WIRE_E_CLIENTS = 10,	  /* too many clients */
	WIRE_E_NO_RESOURCES = 11, /* the daemon lacks memory or descriptors */
};

struct wire_header {
	uint16_t type;
	uint16_t reserved; /* 0 */
	uint32_t length;   /* of the message, this header included */
	uint32_t serial;   /* chosen by the client, the same in the answer */
	uint32_t reserved2;
};
static_assert(sizeof(struct wire_header) == 16, "wire");

/* HELLO, the first message. Answer: WELCOME with one fd (the catalog, read-only), or ERROR. */
struct wire_hello {
	struct wire_header header;
	uint16_t version_min;
	uint16_t version_max;
	uint32_t reserved;
	char label[WIRE_LABEL_MAX]; /* what the client is called, NUL-padded */
};
static_assert(sizeof(struct wire_hello) == 40, "wire");

struct wire_welcome {
	struct wire_header header;
	uint16_t version;
	uint16_t reserved;
	uint32_t client_index;	    /* its word in the catalog's clients[] */
	uint32_t client_generation; /* that word is live_word(this) while the daemon reads the
				       ledger */
	uint32_t max_tensors;	    /* slots a ledger must have */
	uint64_t catalog_size;
	uint64_t catalog_layout;
	uint64_t instance;
};
static_assert(sizeof(struct wire_welcome) == 56, "wire");

/* LEDGER with one fd, the second message. Answer: READY, or ERROR. */
struct wire_ledger {
	struct wire_header header;
	uint64_t size; /* ledger_size(max_tensors) */
	uint64_t layout;
};
static_assert(sizeof(struct wire_ledger) == 32, "wire");

enum {
	WIRE_CREATE_PREFETCH = 1, /* the client may never use it; the daemon may take it back unused
				   */
};

/* CREATE, then name_len bytes of name (may be 0). Answer: DRAFT, with one fd if its flag says so,
 * or ERROR. */
struct wire_create {
	struct wire_header header;
	uint64_t nbytes;
	int64_t timeout_ns; /* how long to wait for space; < 0: for ever */
	uint32_t flags;
	uint32_t extra; /* bytes of shape and metadata that the row has no room for, at most
			   WIRE_EXTRA_MAX */
	uint16_t name_len;
	uint16_t reserved;
	uint32_t reserved2;
};
static_assert(sizeof(struct wire_create) == 48, "wire");

enum { WIRE_DRAFT_FD = 1 }; /* a read-write descriptor of the segment comes with it */

struct wire_draft {
	struct wire_header header;
	uint64_t ref;
	uint64_t offset;
	uint64_t segment_size;
	uint32_t segment; /* CATALOG_NONE: the tensor has no bytes */
	uint32_t segment_generation;
	uint32_t flags;
	uint32_t reserved;
};
static_assert(sizeof(struct wire_draft) == 56, "wire");

enum {
	WIRE_COMMIT_ANSWER = 1,
	WIRE_COMMIT_PREFETCH = 2, /* and then CREATE as much again, PREFETCH, with the serial
				     prefetch_serial */
};

/*
 * COMMIT, then ndim sizes of 8 bytes, name_len bytes of name, meta_len bytes of metadata. Answer:
 * COMMITTED if WIRE_COMMIT_ANSWER asks for it; ERROR in any case of failure, and the draft is
 * aborted then.
 */
struct wire_commit {
	struct wire_header header;
	uint64_t ref;
	uint32_t flags;
	uint8_t dtype_code;
	uint8_t dtype_bits;
	uint16_t dtype_lanes;
	uint8_t ndim;
	uint8_t tensor_flags; /* DLPack's IS_SUBBYTE_TYPE_PADDED or 0 */
	uint16_t name_len;
	uint16_t meta_len;
	uint16_t reserved;
	uint32_t prefetch_serial; /* 0 without PREFETCH */
	uint32_t reserved2;
};
static_assert(sizeof(struct wire_commit) == 48, "wire");

struct wire_committed {
	struct wire_header header;
	uint64_t version;
};
static_assert(sizeof(struct wire_committed) == 24, "wire");

/*
 * ABORT and RELEASED: no answer; a ref that means nothing any more is ignored. MAP, of a tensor on
 * which the client's ledger shows a lease: SEGMENT, or ERROR.
 */
struct wire_ref {
	struct wire_header header;
	uint64_t ref;
};
static_assert(sizeof(struct wire_ref) == 24, "wire");

/*
 * Of memory on a device: EXPORTED; UNEXPORT, whose answer is DONE or ERROR; UNMAP (serial 0) and
 * UNMAPPED, which have no answer.
 */
struct wire_segment_ref {
	struct wire_header header;
	uint32_t segment;
	uint32_t segment_generation;
};
static_assert(sizeof(struct wire_segment_ref) == 24, "wire");

/* Answers MAP, with one fd, read-only. */
struct wire_segment {
	struct wire_header header;
	uint64_t size;
};
static_assert(sizeof(struct wire_segment) == 24, "wire");

/* DELETE, then name_len bytes of name. Answer: DONE or ERROR. */
struct wire_delete {
	struct wire_header header;
	uint16_t name_len;
	uint16_t reserved;
	uint32_t reserved2;
};
static_assert(sizeof(struct wire_delete) == 24, "wire");

/*
 * LINK, then name_len bytes of name, meta_len bytes of metadata: publishes the bytes of a tensor
 * that the client holds a lease on under another name. Answer: COMMITTED or ERROR.
 */
struct wire_link {
	struct wire_header header;
	uint64_t ref;
	uint16_t name_len;
	uint16_t meta_len;
	uint32_t reserved;
};
static_assert(sizeof(struct wire_link) == 32, "wire");

/*
 * MEMBER, then as COMMIT: a tensor of the group whose memory is the draft @ref, at @offset of that.
 * No answer; ERROR if it cannot be, and then the group cannot be published either.
 */
struct wire_member {
	struct wire_header header;
	uint64_t ref;
	uint64_t offset; /* a multiple of 256 */
	uint8_t dtype_code;
	uint8_t dtype_bits;
	uint16_t dtype_lanes;
	uint8_t ndim;
	uint8_t tensor_flags; /* as in COMMIT */
	uint16_t name_len;
	uint16_t meta_len;
	uint16_t reserved;
	uint32_t reserved2;
};
static_assert(sizeof(struct wire_member) == 48, "wire");

/* GROUP: publishes the @count members of the draft @ref in one step. Answer: DONE or ERROR. The
 * draft ends. */
struct wire_group {
	struct wire_header header;
	uint64_t ref;
	uint32_t count;
	uint32_t reserved;
};
static_assert(sizeof(struct wire_group) == 32, "wire");

/* CLIENTS: the first client with an id above @after. Answer: CLIENT, or DONE if there is none. */
struct wire_clients {
	struct wire_header header;
	uint64_t after;
};
static_assert(sizeof(struct wire_clients) == 24, "wire");

struct wire_client {
	struct wire_header header;
	uint64_t id;
	uint32_t pid;
	uint32_t uid;
	uint32_t gid;
	uint32_t drafts;
	uint64_t leases;
	uint64_t tensors_held;
	uint64_t bytes_held;
	char label[WIRE_LABEL_MAX];
};
static_assert(sizeof(struct wire_client) == 80, "wire");

/* HOLDINGS: the first slot >= @slot that the client holds. Answer: HOLDING, or DONE; ERROR: no such
 * client. */
struct wire_holdings {
	struct wire_header header;
	uint64_t id;
	uint32_t slot;
	uint32_t reserved;
};
static_assert(sizeof(struct wire_holdings) == 32, "wire");

/* HOLDING, then name_len bytes of name. */
struct wire_holding {
	struct wire_header header;
	uint64_t version;
	uint64_t nbytes;
	uint32_t slot;
	uint32_t leases;
	uint16_t name_len;
	uint8_t retired; /* 0 or 1 */
	uint8_t reserved[5];
};
static_assert(sizeof(struct wire_holding) == 48, "wire");

/*
 * SETTLE: DONE once no work is left that an earlier message began. READY, DONE.
 */
struct wire_plain {
	struct wire_header header;
};

#include "proto/wire_device.h"

/* ERROR, then text_len bytes of text for people. */
struct wire_error_reply {
	struct wire_header header;
	uint32_t code; /* enum wire_error */
	uint16_t text_len;
	uint16_t reserved;
};
static_assert(sizeof(struct wire_error_reply) == 24, "wire");

enum wire_side { WIRE_TO_DAEMON, WIRE_TO_CLIENT };

/*
 * Is this a whole, well-formed message for @side, with the descriptors that belong to it? Nothing
 * in it needs checking again but what only the receiver knows. 0, or -EBADMSG with *why set to a
 * static text.
 */
int wire_check(const void *message, size_t length, unsigned nfds, enum wire_side side,
	       const char **why);

const char *wire_type_name(unsigned type);
const char *wire_error_name(unsigned code);

/* One line about a message that passed wire_check(), for TENSORLEASE_DEBUG=wire. */
void wire_print(const void *message, bool with_fd, char *line, size_t size);

/* The bytes after the fixed part, in the order in which they are described above. */
static inline const unsigned char *wire_tail(const void *message, size_t fixed)
{
	return (const unsigned char *)message + fixed;
}
