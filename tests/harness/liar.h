/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon that lies: a thread that speaks the protocol to the library over a private socket, with
 * a catalog and a segment that the test writes whatever it likes into, while it is used too. Honest
 * until told otherwise.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tensorlease/tensorlease.h>

#include "proto/catalog_layout.h"
#include "proto/conn.h"

/* What it changes while it is looked at are races, meant as such. */
#if defined(__SANITIZE_THREAD__)
#define THREAD_SANITIZER true
#else
#define THREAD_SANITIZER false
#endif

enum {
	LIAR_SLOTS = 64,
	LIAR_NAMES = 64,
	LIAR_CHUNKS = 64,
	LIAR_CLIENTS = 8,
	LIAR_BUCKETS = 16,
	LIAR_PEERS = 8,
	LIAR_SEGMENT_BYTES = 64 << 10, /* of each of its segments */
	LIAR_SEGMENTS = 4,
};

struct liar_catalog {
	struct catalog_header header;
	alignas(64) _Atomic uint64_t clients[LIAR_CLIENTS];
	_Atomic uint32_t buckets[LIAR_BUCKETS];
	alignas(64) struct catalog_name names[LIAR_NAMES];
	struct catalog_row rows[LIAR_SLOTS];
	struct catalog_segment segments[LIAR_SLOTS];
	alignas(64) struct catalog_chunk chunks[LIAR_CHUNKS];
};

struct liar;
/* Answers a request itself, or not: false. On the daemon's thread. */
typedef bool liar_answer(struct liar *liar, int socket, struct conn_message *request);

struct liar {
	char dir[64];
	char socket[100];
	int listener;
	int wake[2]; /* a byte ends the thread */
	pthread_t thread;
	int peers[LIAR_PEERS];
	unsigned npeers;

	struct liar_catalog *catalog;
	int catalog_fd;
	int segment_fds[LIAR_SEGMENTS];
	unsigned char *segments[LIAR_SEGMENTS]; /* mapped */

	/* What it says; for the test to change before it is said. */
	struct wire_welcome welcome; /* but for the header */
	struct wire_draft draft;     /* likewise */
	_Atomic uint64_t segment_size;
	_Atomic int descriptor; /* sent in place of any segment's; -1: the right one */
	liar_answer *answer;
	void *context;
};

void liar_start(struct liar *liar);
void liar_stop(struct liar *liar);
/* Everything as it was at first: the catalog, what is said, but nothing about connections. */
void liar_repent(struct liar *liar);

/* A client of it, which waits for answers as long as the library does by itself, or as is said. */
tl_client *liar_connect(const struct liar *liar);
int liar_try_connect(const struct liar *liar, int64_t timeout_ns, tl_client **client);

/*
 * A tensor of uint8 in slot @slot, under a name of that index: (@ndim) sizes, in segment @segment,
 * generation 1, at
 * @offset. The row as an honest daemon fills it, LIVE in generation 1.
 */
struct catalog_row *liar_publish(struct liar *liar, uint32_t slot, const char *name, unsigned ndim,
				 const int64_t *shape, uint32_t segment, uint64_t offset);
/* Sends an answer to @request. */
void liar_send(int socket, const struct conn_message *request, unsigned type, void *message,
	       size_t length, int fd_peek);
