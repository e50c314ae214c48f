/* SPDX-License-Identifier: Apache-2.0 */
/* A list of messages, for tests of code that reads them. */
#pragma once

#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

#include "proto/catalog_layout.h"
#include "proto/ledger_layout.h"
#include "proto/wire.h"

enum { SAMPLES_MAX = 128 };

struct sample {
	union {
		struct wire_header header;
		struct wire_create create;
		struct wire_commit commit;
		alignas(8) unsigned char bytes[WIRE_MAX];
	};
	size_t length;
	unsigned nfds;
	enum wire_side side;
};

struct samples {
	size_t n;
	struct sample list[SAMPLES_MAX];
};

/* Adds a message: its fixed part, and then @tail bytes that look like text. */
static inline struct sample *samples_add(struct samples *all, enum wire_type type,
					 const void *fixed, size_t size, size_t tail)
{
	struct sample *s = &all->list[all->n++];

	if (all->n > SAMPLES_MAX)
		abort();
	memset(s, 0, sizeof(*s));
	memcpy(s->bytes, fixed, size);
	memset(s->bytes + size, 'n', tail);
	s->length = size + tail;
	s->side = type < WIRE_REQUEST_END ? WIRE_TO_DAEMON : WIRE_TO_CLIENT;
	s->header = (struct wire_header){ .type = (uint16_t)type,
					  .length = (uint32_t)s->length,
					  .serial = (uint32_t)all->n };
	return s;
}

/* SAMPLE(all, type, tail, struct wire_x, members...) */
#define SAMPLE(all, type, tail, kind, ...)                                                         \
	samples_add(all, type, &(kind){ __VA_ARGS__ }, sizeof(kind), tail)
