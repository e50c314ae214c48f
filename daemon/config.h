/* SPDX-License-Identifier: Apache-2.0 */
/* The sections of the configuration file: limits of users and groups, and namespaces. */
#pragma once

#include <stdint.h>

#include "daemon/state/namespace.h"

struct config {
	struct share_rule *rules; /* the first is every user's */
	unsigned rule_count;
	/* The first is the default one. Capacities may be percentages, with SHARE_PERCENT set; a
	 * capacity, max_tensors or storage of 0 means the daemon's. */
	struct namespace_config *namespaces;
	unsigned namespace_count;
	struct namespace_config users; /* the template; its mode is 0 if there is none */
	/* Names of users and groups that were looked up, each with its number on the next line.
	 * They are not looked up again, so another daemon can have them. NULL: there are none. */
	char *names;
	char why[128]; /* the last one could not be looked up */
};

/* -ENOMEM. */
int config_init(struct config *config);
void config_deinit(struct config *config);

/* What the keys of a section set: one of them, or neither before the first section. It is valid
 * until the next config_section(). */
struct config_section {
	struct config *config;
	struct share_rule *rule;
	struct namespace_config *name_space;
};

/* Begins [@header], which makes a namespace or a rule if there is none yet. Returns -ESRCH, or -EIO
 * if its name cannot be looked up now: *@expected says what is wrong; -ENOMEM. */
int config_section(struct config *config, const char *header, struct config_section *section,
		   const char **expected);

/* Sets a key of a section. Returns -ENOENT: there is no such key, and *@expected says which there
 * are; -EINVAL: *@expected describes its values; -ESRCH or -EIO, of a name, as above. */
int config_set(const struct config_section *section, const char *key, const char *value,
	       const char **expected);

/* Parses a number that may end in K, M, G or T, or a percentage up to 100, which sets
 * SHARE_PERCENT. -EINVAL. */
int config_parse_size(const char *text, uint64_t *out);
