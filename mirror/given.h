/* SPDX-License-Identifier: Apache-2.0 */
/* Counts of what a rule has given to other hosts. All under the lock of the tickets. */
#pragma once

#include <stdint.h>

#include <tensorlease/tensorlease.h>

#include "mirror/config.h"

/* True if the rule gives tensors on that device to other hosts. */
bool rule_gives(const struct rule *rule, DLDevice device);
/* The options to get such tensors: on the CPU, after they are written. */
tl_get_options rule_get_options(const struct rule *rule);

/* A host that has asked for bytes. */
struct importer {
	char host[CONFIG_HOST_MAX + 1];
	int64_t asked_ns; /* when it last asked */
	uint64_t bytes;	  /* sent to it */
};

/* Counts of items of a rule's streams. Under the lock of the feeds. */
struct given_items {
	uint64_t items, bytes; /* acknowledged by hosts */
	uint64_t skipped;      /* missed by lossy hosts */
};

struct given {
	const struct rule *rule;
	struct given_items items;
	uint64_t bytes; /* sent to all hosts */
	struct importer *importers;
	size_t count;
};

/* Notes that a host asks. */
void given_asked(struct given *given, const char *host);
void given_sent(struct given *given, const char *host, size_t bytes);
/* Copies all but the items. Without memory the copy has no importers. Call given_deinit() on it. */
void given_copy(struct given *to, const struct given *from);
void given_deinit(struct given *given);
