/* SPDX-License-Identifier: Apache-2.0 */
/* The sections of the configuration file; see config.h. */
#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/config.h"
#include "daemon/store/memfd.h"
#include "daemon/store/shm.h"
#include "tensor/name.h"
#include "util/cleanup.h"

/* The value of a macro as text. */
#define DIGITS(number) DIGITS_(number)
#define DIGITS_(number) #number

int config_parse_size(const char *text, uint64_t *out)
{
	static const char units[] = "KMGT";
	const char *unit;
	unsigned shift = 0;
	uint64_t value;
	char *end;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || *text < '0' || *text > '9')
		return -EINVAL;
	if (!strcmp(end, "%")) {
		*out = SHARE_PERCENT | value;
		return value <= 100 ? 0 : -EINVAL;
	}
	if (*end) {
		unit = strchr(units, *end);
		if (!unit || (end[1] && strcmp(end + 1, "iB") != 0))
			return -EINVAL;
		shift = 10 * (unsigned)(unit - units + 1);
	}
	if (value > (uint64_t)INT64_MAX >> shift)
		return -EINVAL;
	*out = value << shift;
	return 0;
}

/* ---- rules ---------------------------------------------------------------------------------- */

/* Finds the rule of that user or group, or adds one. */
static struct share_rule *rule_of(struct config *config, int whose, uint32_t id)
{
	struct share_rule *rules = config->rules, *rule;

	for (unsigned i = 0; i < config->rule_count; i++) {
		if ((int)rules[i].whose == whose && rules[i].id == id)
			return &rules[i];
	}
	rules = realloc(rules, (config->rule_count + 1) * sizeof(*rules));
	if (!rules)
		return NULL;
	config->rules = rules;
	rule = &rules[config->rule_count++];
	*rule = (struct share_rule){ .whose = (unsigned)whose, .id = id };
	for (unsigned kind = 0; kind < SHARE_KINDS; kind++)
		rule->max[kind] = SHARE_UNSET;
	return rule;
}

/* ---- namespaces ----------------------------------------------------------------------------- */

/* The template, or the namespace of that name; NULL: there is none yet. */
static struct namespace_config *find(struct config *config, const char *name)
{
	if (!strcmp(name, NAMESPACE_OF_USER "*")) {
		if (!config->users.mode)
			config->users.mode = 0700;
		return &config->users;
	}
	for (unsigned i = 0; i < config->namespace_count; i++) {
		if (!strcmp(config->namespaces[i].name, name))
			return &config->namespaces[i];
	}
	return NULL;
}

static struct namespace_config *add(struct config *config, const char *name)
{
	struct namespace_config *all = config->namespaces, *ns;

	all = realloc(all, (config->namespace_count + 1) * sizeof(*all));
	if (!all)
		return NULL;
	config->namespaces = all;
	ns = &all[config->namespace_count++];
	*ns = (struct namespace_config){ .uid = geteuid(), .gid = getegid(), .mode = 0770 };
	snprintf(ns->name, sizeof(ns->name), "%s", name);
	return ns;
}

int config_init(struct config *config)
{
	struct namespace_config *ns;

	*config = (struct config){ 0 };
	ns = add(config, NAMESPACE_DEFAULT);
	if (!ns)
		return -ENOMEM;
	ns->mode = 0777; /* any user that may open the socket */
	return rule_of(config, RULE_ANY, 0) ? 0 : -ENOMEM;
}

void config_deinit(struct config *config)
{
	free(config->rules);
	free(config->namespaces);
	free(config->names);
	*config = (struct config){ 0 };
}

static int number_of(const char *text, uint32_t *out)
{
	char *end;
	unsigned long long value;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || *end || *text < '0' || *text > '9' || value > UINT32_MAX)
		return -EINVAL;
	*out = (uint32_t)value;
	return 0;
}

/* True if @name, of a @kind of names, is a number, or was looked up before. */
static bool is_known(const struct config *config, const char *kind, const char *name, uint32_t *id)
{
	cleanup_(freep) char *key = NULL;
	const char *at;

	if (!number_of(name, id))
		return true;
	if (!config->names || asprintf(&key, "\n%s %s\n", kind, name) < 0)
		return false;
	at = strstr(config->names, key);
	return at && sscanf(at + strlen(key), "%" SCNu32, id) == 1;
}

/* Without memory it is not noted: the next daemon looks it up. */
static void name_note(struct config *config, const char *kind, const char *name, uint32_t id)
{
	char *names;

	if (asprintf(&names, "%s%s %s\n%" PRIu32 "\n", config->names ? config->names : "\n", kind,
		     name, id) < 0)
		return;
	free(config->names);
	config->names = names;
}

/* Says why there is no entry of that name, with the errno of getpwnam() or getgrnam(). Returns
 * -ESRCH if there is none, or -EIO if that is not known. */
static int lookup_failed(struct config *config, const char *kind, const char *name,
			 const char **expected)
{
	static const int none[] = { 0, ENOENT, ESRCH, EBADF, EPERM };

	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
		if (errno != none[i])
			continue;
		*expected = strcmp(kind, "user") ? "there is no such group"
						 : "there is no such user";
		return -ESRCH;
	}
	snprintf(config->why, sizeof(config->why), "cannot look up %s %s: %s", kind, name,
		 strerror(errno));
	*expected = config->why;
	return -EIO;
}

static int uid_of(struct config *config, const char *user, uint32_t *uid, const char **expected)
{
	const struct passwd *entry;

	if (is_known(config, "user", user, uid))
		return 0;
	errno = 0;
	entry = getpwnam(user);
	if (!entry)
		return lookup_failed(config, "user", user, expected);
	*uid = entry->pw_uid;
	name_note(config, "user", user, *uid);
	return 0;
}

static int gid_of(struct config *config, const char *group, uint32_t *gid, const char **expected)
{
	const struct group *entry;

	if (is_known(config, "group", group, gid))
		return 0;
	errno = 0;
	entry = getgrnam(group);
	if (!entry)
		return lookup_failed(config, "group", group, expected);
	*gid = entry->gr_gid;
	name_note(config, "group", group, *gid);
	return 0;
}

/* The text after the first word, or NULL if that is not @word. */
static const char *after_word(const char *text, const char *word)
{
	size_t len = strlen(word);

	if (strncmp(text, word, len) != 0 || text[len] != ' ')
		return NULL;
	text += len;
	return text + strspn(text, " \t");
}

static int rule_find(struct config *config, const char *header, struct share_rule **rule,
		     const char **expected)
{
	const char *user = after_word(header, "user"), *group = after_word(header, "group");
	uint32_t id = 0;
	int r = 0;

	if (!user && !group) {
		*expected = "a section is [user NAME], [user UID], [user *], [group NAME], "
			    "[group GID] or [namespace NAME]";
		return -ESRCH;
	}
	if (user && strcmp(user, "*") != 0)
		r = uid_of(config, user, &id, expected);
	else if (group)
		r = gid_of(config, group, &id, expected);
	if (r)
		return r;
	*rule = rule_of(config,
			group			 ? RULE_GROUP
			: strcmp(user, "*") != 0 ? RULE_USER
						 : RULE_ANY,
			id);
	return *rule ? 0 : -ENOMEM;
}

int config_section(struct config *config, const char *header, struct config_section *section,
		   const char **expected)
{
	const char *name = after_word(header, "namespace");

	*section = (struct config_section){ .config = config };
	if (!name)
		return rule_find(config, header, &section->rule, expected);
	if (strcmp(name, NAMESPACE_OF_USER "*") != 0 &&
	    tensor_namespace_check(name, strlen(name), expected))
		return -ESRCH;
	section->name_space = find(config, name);
	if (section->name_space)
		return 0;
	*expected = "there are at most " DIGITS(NAMESPACES_MAX) " namespaces";
	if (config->namespace_count == NAMESPACES_MAX)
		return -ESRCH;
	section->name_space = add(config, name);
	return section->name_space ? 0 : -ENOMEM;
}

/* A mode is octal. A class that may publish must be able to get, since publishing looks names
 * up. */
static int mode_of(const char *text, unsigned *mode)
{
	unsigned long value;
	char *end;

	errno = 0;
	value = strtoul(text, &end, 8);
	if (errno || *end || *text < '0' || *text > '7' || value == 0 || value > 0777)
		return -EINVAL;
	*mode = (unsigned)value;
	return value & 0222 & ~(value >> 1) ? -EINVAL : 0;
}

/* 0 would mean that none is set. */
static int capacity_of(const char *value, uint64_t *capacity)
{
	int r = config_parse_size(value, capacity);
	uint64_t least = *capacity & SHARE_PERCENT ? SHARE_PERCENT | 1 : 4096;

	return r ? r : *capacity < least ? -EINVAL : 0;
}

static int namespace_set(const struct config_section *section, const char *key, const char *value,
			 const char **expected)
{
	struct namespace_config *ns = section->name_space;
	bool is_template = !*ns->name;
	uint32_t number = 0;
	int r = 0;

	if (is_template && (!strcmp(key, "owner") || !strcmp(key, "group"))) {
		*expected =
			"a namespace user-UID is its user's, with the group of the process that "
			"first asks for it; it may be mode, capacity, max-tensors, storage or "
			"mirror";
		return -ENOENT;
	}
	if (!strcmp(key, "owner"))
		return uid_of(section->config, value, &ns->uid, expected);
	if (!strcmp(key, "group"))
		return gid_of(section->config, value, &ns->gid, expected);
	if (!strcmp(key, "mode")) {
		*expected =
			"a mode as a directory's, 0750 say: r may get, and w, which needs r, may "
			"publish";
		return mode_of(value, &ns->mode);
	}
	if (!strcmp(key, "capacity")) {
		*expected = "a number of bytes, 4096 or more (8G, say), or 1% to 100% of the "
			    "daemon's";
		return capacity_of(value, &ns->limits.capacity);
	}
	if (!strcmp(key, "max-tensors")) {
		*expected = "a number from 1 to 16777215";
		r = number_of(value, &number);
		ns->limits.max_tensors = number;
		return r || !number || number >= CATALOG_MAX_TENSORS ? -EINVAL : 0;
	}
	if (!strcmp(key, "storage")) {
		*expected = "shm or memfd";
		ns->limits.storage = !strcmp(value, storage_shm.name)	  ? &storage_shm
				     : !strcmp(value, storage_memfd.name) ? &storage_memfd
									  : NULL;
		return ns->limits.storage ? 0 : -EINVAL;
	}
	if (!strcmp(key, "mirror")) {
		*expected = "yes or no";
		ns->mirror = !strcmp(value, "yes");
		return ns->mirror || !strcmp(value, "no") ? 0 : -EINVAL;
	}
	*expected = "it may be owner, group, mode, capacity, max-tensors, storage or mirror";
	return -ENOENT;
}

int config_set(const struct config_section *section, const char *key, const char *value,
	       const char **expected)
{
	unsigned kind = 0;

	if (section->name_space)
		return namespace_set(section, key, value, expected);
	while (kind < SHARE_KINDS && strcmp(share_name(kind), key) != 0)
		kind++;
	if (kind == SHARE_KINDS) {
		*expected =
			"it may be bytes, gpu-bytes, tensors, names, segments, drafts, chunks, "
			"connections, partial, descriptors, waits, mappings, in-flight or watches";
		return -ENOENT;
	}
	*expected = "a number, which may end in K, M, G or T, or up to 100% of what there is";
	return config_parse_size(value, &section->rule->max[kind]);
}
