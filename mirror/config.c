/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <errno.h>
#include <ini.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mirror/config.h"
#include "util/cleanup.h"
#include "util/log.h"

enum { FANOUT = 2, FANOUT_MAX = 64 };
/* A host that waits longer between pieces has lost what it fetches. */
enum { RATE_MIN = 4, RATE_MAX = 999999 };

struct reading {
	struct config *config;
	const char *path;
	int line;
	char section[64]; /* the section of the previous line */
	char why[256];	  /* the first error; "": none so far */
};

__attribute__((format(printf, 2, 3))) static int wrong(struct reading *r, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(r->why, sizeof(r->why), format, args);
	va_end(args);
	return 0;
}

/* Words become parts of subjects, where dots, spaces and wildcards have a meaning. */
bool config_is_word(const char *text, size_t most)
{
	size_t n = 0;

	for (; text[n]; n++) {
		if (!isalnum((unsigned char)text[n]) && text[n] != '-' && text[n] != '_')
			return false;
	}
	return n >= 1 && n <= most;
}

static int take_text(char **to, const char *value)
{
	free(*to);
	*to = strdup(value);
	return *to != NULL;
}

static int take_flag(struct reading *r, bool *to, const char *name, const char *value)
{
	if (strcmp(value, "yes") != 0 && strcmp(value, "no") != 0)
		return wrong(r, "%s must be yes or no, not '%s'", name, value);
	*to = !strcmp(value, "yes");
	return 1;
}

static int take_prefix(struct reading *r, char **to, const char *value)
{
	if (*value && value[strlen(value) - 1] != '/')
		return wrong(r, "prefix must be empty or end in a slash, not '%s'", value);
	return take_text(to, value);
}

static int take_number(struct reading *r, unsigned *to, int least, int most, const char *name,
		       const char *value)
{
	if (!*value || value[strspn(value, "0123456789")] || strlen(value) > 6 ||
	    atoi(value) < least || atoi(value) > most)
		return wrong(r, "%s must be a number from %d to %d, not '%s'", name, least, most,
			     value);
	*to = (unsigned)atoi(value);
	return 1;
}

/* True if @text is ":" and a port number. */
static bool is_port(const char *text)
{
	return text && text[1] && !text[1 + strspn(text + 1, "0123456789")] && strlen(text) < 7 &&
	       atoi(text + 1) <= UINT16_MAX;
}

/* Takes loopback addresses only: all users of this host may read metrics, and nobody else. */
static int take_metrics(struct reading *r, char **to, const char *value)
{
	const char *port = strrchr(value, ':');
	const size_t len = port ? (size_t)(port - value) : 0;

	if (!((len == 9 && !strncmp(value, "127.0.0.1", len)) ||
	      (len == 5 && !strncmp(value, "[::1]", len))) ||
	    !is_port(port))
		return wrong(r, "metrics must be 127.0.0.1:PORT or [::1]:PORT, not '%s'", value);
	return take_text(to, value);
}

static int take_mirror(struct reading *r, const char *name, const char *value)
{
	struct config *c = r->config;

	if (!strcmp(name, "host")) {
		if (!config_is_word(value, CONFIG_HOST_MAX))
			return wrong(r, "host must have 1 to %d letters, digits, - and _, not '%s'",
				     CONFIG_HOST_MAX, value);
		strcpy(c->host, value);
		return 1;
	}
	if (!strcmp(name, "nats"))
		return take_text(&c->nats, value);
	if (!strcmp(name, "listen"))
		return is_port(strrchr(value, ':'))
			       ? take_text(&c->listen, value)
			       : wrong(r, "listen must be ADDRESS:PORT, not '%s'", value);
	if (!strcmp(name, "url"))
		return take_text(&c->url, value);
	if (!strcmp(name, "socket"))
		return take_text(&c->socket, value);
	if (!strcmp(name, "control"))
		return take_text(&c->control, value);
	if (!strcmp(name, "metrics"))
		return take_metrics(r, &c->metrics, value);
	if (!strcmp(name, "ca"))
		return take_text(&c->ca, value);
	if (!strcmp(name, "certificate"))
		return take_text(&c->certificate, value);
	if (!strcmp(name, "key"))
		return take_text(&c->key, value);
	if (!strcmp(name, "tls"))
		return take_flag(r, &c->tls, name, value);
	return wrong(r,
		     "[mirror] has no '%s': it has host, nats, listen, url, socket, control, "
		     "metrics, tls, ca, certificate and key",
		     name);
}

static int take_rule(struct reading *r, struct rule *rule, const char *name, const char *value)
{
	if (!strcmp(name, "namespace"))
		return take_text(&rule->name_space, strcmp(value, "default") ? value : "");
	if (!strcmp(name, "prefix"))
		return take_prefix(r, &rule->prefix, value);
	if (!rule->is_export && !strcmp(name, "from")) {
		if (!config_is_word(value, CONFIG_HOST_MAX))
			return wrong(r, "from must be the name of a host, not '%s'", value);
		return take_text(&rule->from, value);
	}
	if (!rule->is_export && !strcmp(name, "requests")) {
		if (!*value || value[strlen(value) - 1] != '/')
			return wrong(r, "requests must end in a slash, not '%s'", value);
		return take_text(&rule->requests, value);
	}
	if (!rule->is_export && !strcmp(name, "gone")) {
		if (strcmp(value, "keep") != 0 && strcmp(value, "delete") != 0)
			return wrong(r, "gone must be keep or delete, not '%s'", value);
		rule->deletes = !strcmp(value, "delete");
		return 1;
	}
	if (rule->is_export && !strcmp(name, "streams"))
		return take_flag(r, &rule->streams, name, value);
	if (!rule->is_export && !strcmp(name, "streams")) {
		rule->lossy = !strcmp(value, "lossy");
		if (!rule->lossy)
			return take_flag(r, &rule->streams, name, value);
		rule->streams = true;
		return 1;
	}
	if (rule->is_export && !strcmp(name, "set"))
		return take_flag(r, &rule->is_set, name, value);
	if (rule->is_export && !strcmp(name, "gpus")) {
		if (strcmp(value, "skip") != 0 && strcmp(value, "copy") != 0)
			return wrong(r, "gpus must be skip or copy, not '%s'", value);
		rule->copies = !strcmp(value, "copy");
		return 1;
	}
	if (rule->is_export && !strcmp(name, "fanout"))
		return take_number(r, &rule->fanout, 0, FANOUT_MAX, name, value);
	if (!rule->is_export && !strcmp(name, "rate"))
		return take_number(r, &rule->rate, RATE_MIN, RATE_MAX, name, value);
	return wrong(
		r,
		rule->is_export
			? "[export %s] has no '%s': it has namespace, prefix, streams, set, "
			  "gpus and fanout"
			: "[import %s] has no '%s': it has namespace, prefix, streams, requests, from, "
			  "rate and gone",
		rule->name, name);
}

static struct rule *find_rule(struct reading *r, bool is_export, const char *name)
{
	struct config *c = r->config;
	struct rule *rules;

	for (size_t i = 0; i < c->count; i++) {
		if (c->rules[i].is_export == is_export && !strcmp(c->rules[i].name, name))
			return &c->rules[i];
	}
	if (!config_is_word(name, CONFIG_WORD_MAX)) {
		wrong(r, "the name of a rule has 1 to %d letters, digits, - and _, not '%s'",
		      CONFIG_WORD_MAX, name);
		return NULL;
	}
	rules = realloc(c->rules, (c->count + 1) * sizeof(*rules));
	if (!rules)
		return NULL;
	c->rules = rules;
	rules[c->count] = (struct rule){ .is_export = is_export,
					 .name_space = strdup(is_export ? "" : "mirror"),
					 .prefix = strdup(""),
					 .streams = !is_export,
					 .fanout = FANOUT };
	strcpy(rules[c->count].name, name);
	return &rules[c->count++];
}

/* Returns the rule of a section, or NULL after an error. */
static struct rule *rule_of(struct reading *r, const char *section)
{
	const bool is_export = !strncmp(section, "export ", 7);

	if (is_export || !strncmp(section, "import ", 7))
		return find_rule(r, is_export, section + 7);
	wrong(r, "there is no section [%s]: there are [mirror], [export NAME] and [import NAME]",
	      section);
	return NULL;
}

/* inih calls this for each line NAME = VALUE. Returns 0 for an error. */
static int on_line(void *context, const char *section, const char *name, const char *value)
{
	struct reading *r = context;
	const bool begins = strncmp(section, r->section, sizeof(r->section) - 1) != 0;
	const size_t count = r->config->count;
	struct rule *rule;

	if (*r->why)
		return 0;
	snprintf(r->section, sizeof(r->section), "%s", section);
	if (!strcmp(section, "mirror"))
		return take_mirror(r, name, value);
	rule = rule_of(r, section);
	if (rule && begins && count == r->config->count)
		return wrong(r, "there are two sections [%s]", section);
	return rule ? take_rule(r, rule, name, value) : 0;
}

/* Takes sections without lines, which inih does not report. Returns 0 for an error. */
static int take_bare_sections(struct reading *r)
{
	FILE *file = fopen(r->path, "re");
	cleanup_(freep) char *line = NULL;
	size_t room = 0;
	char *end;
	int ok = file != NULL;

	while (ok && getline(&line, &room, file) > 0) {
		end = *line == '[' ? strchr(line, ']') : NULL;
		if (end)
			*end = '\0';
		if (end && strcmp(line + 1, "mirror") != 0)
			ok = rule_of(r, line + 1) != NULL;
	}
	if (file)
		fclose(file);
	return ok;
}

/* Returns whether the file can be read. If not, logs that. */
static bool is_readable(const char *path)
{
	if (!access(path, R_OK))
		return true;
	log_error("a file cannot be read by this user", "path=%s why=%s", log_str(path),
		  log_str(strerror(errno)));
	return false;
}

/* Imports that overlap in a namespace would take each other's names for their own. */
static bool overlap(const struct rule *a, const struct rule *b)
{
	size_t one = strlen(a->prefix), other = strlen(b->prefix);

	return !strcmp(a->name_space, b->name_space) &&
	       !strncmp(a->prefix, b->prefix, one < other ? one : other);
}

/* Checks the rules against each other. Returns 0 for an error. */
static int check_rules(struct reading *r)
{
	const struct config *c = r->config;

	for (size_t i = 0; i < c->count; i++) {
		const struct rule *a = &c->rules[i];

		for (size_t j = 0; !a->is_export && j < c->count; j++) {
			const struct rule *b = &c->rules[j];

			if (b->is_export && !strcmp(a->name_space, b->name_space))
				return wrong(
					r,
					"what [import %s] brings into a namespace cannot be exported "
					"from it by [export %s]: give the import another namespace",
					a->name, b->name);
			if (i < j && !b->is_export && overlap(a, b))
				return wrong(
					r,
					"[import %s] and [import %s] have one place for their names: "
					"give them namespaces, or prefixes of which none begins the "
					"other",
					a->name, b->name);
		}
	}
	return 1;
}

/* Checks the configuration as a whole. Returns 0 for an error. */
static int check_whole(struct reading *r)
{
	const struct config *c = r->config;
	bool exports = false;

	for (size_t i = 0; i < c->count; i++)
		exports |= c->rules[i].is_export;
	if (!c->count)
		return wrong(r, "it has no rule: write a section [export NAME] or [import NAME]");
	if (!c->nats)
		return wrong(r, "it has no server: write nats = nats://HOST:4222 into [mirror]");
	if (exports && !c->listen)
		return wrong(r, "it exports, and does not say where: write listen = ADDRESS:PORT "
				"into [mirror]");
	if (c->tls && !(c->ca && c->certificate && c->key))
		return wrong(r, "tls needs the files ca, certificate and key in [mirror]; on a "
				"network that only trusted hosts reach, write tls = no");
	if (!config_is_word(c->host, CONFIG_HOST_MAX))
		return wrong(r,
			     "this host's name is not of 1 to %d letters, digits, - and _: "
			     "write host = NAME into [mirror]",
			     CONFIG_HOST_MAX);
	return check_rules(r);
}

int config_read(struct config *config, const char *path)
{
	struct reading r = { .config = config, .path = path };

	*config = (struct config){ .tls = true };
	if (gethostname(config->host, CONFIG_HOST_MAX))
		config->host[0] = '\0';
	config->host[CONFIG_HOST_MAX] = '\0';
	config->host[strcspn(config->host, ".")] = '\0';
	r.line = ini_parse(path, on_line, &r);
	if (r.line < 0) {
		log_error("the configuration cannot be read", "path=%s why=%s", log_str(path),
			  log_str(strerror(errno)));
		return -errno;
	}
	if (r.line) {
		log_error("the configuration is wrong", "path=%s line=%d why=%s", log_str(path),
			  r.line, log_str(*r.why ? r.why : "it is no line NAME = VALUE"));
		return -EINVAL;
	}
	if (!take_bare_sections(&r) || !check_whole(&r)) {
		log_error("the configuration is wrong", "path=%s why=%s", log_str(path),
			  log_str(r.why));
		return -EINVAL;
	}
	if (!config->tls)
		return 0;
	return is_readable(config->ca) && is_readable(config->certificate) &&
			       is_readable(config->key)
		       ? 0
		       : -EACCES;
}

void config_deinit(struct config *config)
{
	for (size_t i = 0; i < config->count; i++) {
		free(config->rules[i].name_space);
		free(config->rules[i].prefix);
		free(config->rules[i].from);
		free(config->rules[i].requests);
	}
	free(config->rules);
	free(config->nats);
	free(config->listen);
	free(config->url);
	free(config->socket);
	free(config->control);
	free(config->metrics);
	free(config->ca);
	free(config->certificate);
	free(config->key);
	*config = (struct config){ 0 };
}
