/* SPDX-License-Identifier: Apache-2.0 */
/* What a rule has given to other hosts: for who has the lock of the tickets. */
#pragma once

#include <stdint.h>

#include <tensorlease/tensorlease.h>

#include "mirror/config.h"

/* Whether a rule gives tensors of a device to others. */
bool rule_gives(const struct rule *rule, DLDevice device);
/* How they are had: on the CPU, and when they are written. */
tl_get_options rule_get_options(const struct rule *rule);

/* A host that has asked for bytes. */
struct importer {
	char host[CONFIG_HOST_MAX + 1];
	int64_t asked_ns; /* last */
	uint64_t bytes;	  /* that were sent to it */
};

/* Items of its streams. For who has the lock of the feeds. */
struct given_items {
	uint64_t items, bytes; /* that hosts have got */
	uint64_t skipped;      /* that hosts have missed for which nobody waits */
};

struct given {
	const struct rule *rule;
	struct given_items items;
	uint64_t bytes; /* to all of them */
	struct importer *importers;
	size_t count;
};

/* A host asks. */
void given_asked(struct given *given, const char *host);
void given_sent(struct given *given, const char *host, size_t bytes);
/* All but the items. Without memory the copy has no importers. given_deinit() is to follow. */
void given_copy(struct given *to, const struct given *from);
void given_deinit(struct given *given);
