/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon that lies: a thread that speaks the protocol to the library over a private socket. The
 * test may write anything into its catalog and segments, even while the library uses them. The
 * daemon is honest until the test makes it lie.
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
#include "tests/harness/limit.h"

enum {
	LIAR_SLOTS = 64,
	LIAR_NAMES = 64,
	LIAR_CHUNKS = 64,
	LIAR_CLIENTS = 8,
	LIAR_BUCKETS = 16,
	LIAR_PEERS = 8,
	LIAR_SEGMENT_BYTES = 64 << 10, /* the size of each segment */
	LIAR_SEGMENTS = 4,
};

struct liar_catalog {
	struct catalog_header header;
	struct catalog_wake wakes[CATALOG_WAKE_WORDS];
	struct catalog_watch watches[CATALOG_WATCHES];
	alignas(64) _Atomic uint64_t clients[LIAR_CLIENTS];
	struct catalog_identity identities[LIAR_CLIENTS];
	_Atomic uint32_t buckets[LIAR_BUCKETS];
	_Atomic uint64_t named[1];
	alignas(64) struct catalog_name names[LIAR_NAMES];
	struct catalog_row rows[LIAR_SLOTS];
	struct catalog_segment segments[LIAR_SLOTS];
	alignas(64) struct catalog_chunk chunks[LIAR_CHUNKS];
	struct catalog_member members[LIAR_SLOTS];
	struct catalog_stream streams[CATALOG_STREAMS];
};

struct liar;
/* Returns true if it has answered the request itself. Runs on the daemon's thread. */
typedef bool liar_answer(struct liar *liar, int socket, struct conn_message *request);

struct liar {
	char dir[64];
	char socket[100];
	int listener;
	int wake[2]; /* a byte written here ends the thread */
	pthread_t thread;
	pthread_mutex_t lock; /* the thread has it while it answers */
	int peers[LIAR_PEERS];
	unsigned npeers;

	struct liar_catalog *catalog;
	int catalog_fd;
	int segment_fds[LIAR_SEGMENTS];
	unsigned char *segments[LIAR_SEGMENTS]; /* where they are mapped */

	/* Its answers. The test may change them before they are sent. */
	struct wire_welcome welcome; /* without the header */
	struct wire_draft draft;     /* without the header */
	_Atomic uint64_t segment_size;
	_Atomic int descriptor; /* sent in place of any segment's descriptor, unless it is -1 */
	liar_answer *answer;
	void *context;
};

void liar_start(struct liar *liar);
void liar_stop(struct liar *liar);
/* Makes the catalog and what is said as they were at first. Connections stay as they are. Waits for
 * an answer that is under way. */
void liar_repent(struct liar *liar);
/* Changes what it says, also if a request may be under way; waits for its answer. */
void liar_set_answer(struct liar *liar, liar_answer *answer);

/* A client of it, which has time, or one with @timeout_ns. */
tl_client *liar_connect(const struct liar *liar);
int liar_try_connect(const struct liar *liar, int64_t timeout_ns, tl_client **client);

/*
 * Fills the row of @slot as an honest daemon would, LIVE in generation 1, and the name of that
 * index: a tensor of uint8 with @ndim sizes, at @offset in generation 1 of segment @segment.
 */
struct catalog_row *liar_publish(struct liar *liar, uint32_t slot, const char *name, unsigned ndim,
				 const int64_t *shape, uint32_t segment, uint64_t offset);
/* Sends an answer to @request. */
void liar_send(int socket, const struct conn_message *request, unsigned type, void *message,
	       size_t length, int fd_peek);
