/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "mirror/given.h"
#include "util/clock.h"

bool rule_gives(const struct rule *rule, DLDevice device)
{
	return device.device_type == kDLCPU || rule->copies;
}

tl_get_options rule_get_options(const struct rule *rule)
{
	return (tl_get_options){ .size = sizeof(tl_get_options),
				 .flags = rule->copies ? TL_GET_DEVICE : 0,
				 .stream = rule->copies ? TL_STREAM_LEGACY : TL_STREAM_NONE,
				 .device = { .device_type = kDLCPU } };
}

enum { IMPORTERS_MAX = 4096 };

static struct importer *find(struct given *g, const char *host)
{
	for (size_t n = 0; n < g->count; n++) {
		if (!strcmp(g->importers[n].host, host))
			return &g->importers[n];
	}
	return NULL;
}

/* Without certificates a host can claim any name, hence the checks. */
static struct importer *add(struct given *g, const char *host)
{
	struct importer *grown;

	if (g->count == IMPORTERS_MAX || !config_is_word(host, CONFIG_HOST_MAX))
		return NULL;
	grown = reallocarray(g->importers, g->count + 1, sizeof(*grown));
	if (!grown)
		return NULL;
	g->importers = grown;
	grown += g->count++;
	*grown = (struct importer){ 0 };
	strcpy(grown->host, host);
	return grown;
}

void given_asked(struct given *g, const char *host)
{
	struct importer *i = find(g, host);

	if (!i)
		i = add(g, host);
	if (i)
		i->asked_ns = now_mono_ns();
}

void given_sent(struct given *g, const char *host, size_t bytes)
{
	struct importer *i = find(g, host);

	g->bytes += bytes;
	if (i)
		i->bytes += bytes;
}

void given_copy(struct given *to, const struct given *from)
{
	*to = (struct given){ .rule = from->rule, .bytes = from->bytes };
	to->importers = calloc(from->count + 1, sizeof(*to->importers));
	to->count = to->importers ? from->count : 0;
	if (to->count)
		memcpy(to->importers, from->importers, to->count * sizeof(*to->importers));
}

void given_deinit(struct given *g)
{
	free(g->importers);
	*g = (struct given){ 0 };
}
