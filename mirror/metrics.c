/* SPDX-License-Identifier: Apache-2.0 */
/* Each metric is a field of the status. Names of tensors are in none, so the text stays small. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mirror/metrics.h"

#define LATELY_S 60

/* The names of hosts and rules are words (config_is_word()), so they need no escapes. */
static const char *text_of(const cJSON *object, const char *field)
{
	const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(object, field));

	return text ? text : "";
}

static double number_of(const cJSON *object, const char *field)
{
	const cJSON *item = cJSON_GetObjectItem(object, field);

	return cJSON_IsBool(item)     ? cJSON_IsTrue(item)
	       : cJSON_IsNumber(item) ? item->valuedouble
				      : 0;
}

static void family(FILE *out, const char *name, bool counter, const char *help)
{
	fprintf(out, "# TYPE tensorlease_mirror_%s %s\n# HELP tensorlease_mirror_%s %s\n", name,
		counter ? "counter" : "gauge", name, help);
}

/* Writes one sample. Whole numbers are written without a fraction. */
static void line(FILE *out, const char *name, bool counter, const char *labels, double value)
{
	fprintf(out, "tensorlease_mirror_%s%s%s%s%s ", name, counter ? "_total" : "",
		*labels ? "{" : "", labels, *labels ? "}" : "");
	fprintf(out, value == (double)(long long)value ? "%.0f\n" : "%.9f\n", value);
}

struct metric {
	const char *name, *field;
	bool counter;
	const char *help;
	const char *in; /* the object that has the field; NULL: the rule or the host itself */
};

static const struct metric of_exports[] = {
	{ "export_names", "names", false, "Names that are offered to other hosts." },
	{ "export_gpu_names", "names_on_gpus", false,
	  "Names that are not offered, since their tensors are on GPUs." },
	{ "export_streams", "count", false, "Streams that are offered to other hosts.", "streams" },
	{ "stream_subscribers", "subscribers", false,
	  "Hosts that get a stream, counted for each stream.", "streams" },
	{ "sent_items", "items", true, "Items of streams that other hosts have got.", "streams" },
	{ "sent_item_bytes", "bytes", true, "Bytes of these.", "streams" },
	{ "held_items", "held", false, "Items of streams that hosts have not got yet.", "streams" },
	{ "skipped_items", "skipped", true,
	  "Items that hosts have missed for which no producer waits.", "streams" },
};

static const struct metric of_imports[] = {
	{ "requested_names", "names", false, "Names that somebody has asked for.", "requests" },
	{ "requested_names_here", "here", false, "Of these, names that are here.", "requests" },
};

static const struct metric of_rules[] = {
	{ "held_versions", "held", false, "Versions that are held for other hosts." },
	{ "held_bytes", "held_bytes", false, "Bytes of these." },
	{ "sent_bytes", "sent_bytes", true, "Bytes of pieces that were sent to other hosts." },
};

static const struct metric of_hosts[] = {
	{ "host_up", "up", false, "Whether a host is heard of; each says something every 2 s." },
	{ "host_silent_seconds", "heard_seconds_ago", false,
	  "How long ago a host was last heard of." },
	{ "host_names", "names", false, "Names of a host that are here." },
	{ "waiting_names", "waiting", false,
	  "Names of which a version was told that is not here." },
	{ "lag_versions", "lag_versions", false,
	  "How many versions the latest of these is behind." },
	{ "lag_seconds", "lag_seconds", false,
	  "How long the origin has had a version that is not here." },
	{ "transfers", "transfers", false, "Transfers from a host that go on." },
	{ "received_bytes", "received_bytes", true, "Bytes that came." },
	{ "parents_lost", "parents_lost", true, "Hosts that relay and did not answer." },
	{ "comparisons", "comparisons", true, "How often the names of a host were compared." },
	{ "host_streams", "count", false, "Streams of a host that come.", "streams" },
	{ "ended_streams", "ended", false, "Of these, streams whose end has come.", "streams" },
	{ "received_items", "items", true, "Items of streams that came.", "streams" },
	{ "received_item_bytes", "bytes", true, "Bytes of these.", "streams" },
	{ "waiting_items", "waiting", false, "Items of streams that came and wait for room here.",
	  "streams" },
};

static void sample(FILE *out, const struct metric *m, const char *labels, const cJSON *object)
{
	if (m->in)
		object = cJSON_GetObjectItem(object, m->in);
	if (object) /* not all rules have streams */
		line(out, m->name, m->counter, labels, number_of(object, m->field));
}

static void show_kind(FILE *out, const cJSON *status, const char *kind, const struct metric *all,
		      size_t count)
{
	const cJSON *rule;
	char key[16], labels[96];

	snprintf(key, sizeof(key), "%ss", kind);
	for (const struct metric *m = all; m < all + count; m++) {
		family(out, m->name, m->counter, m->help);
		cJSON_ArrayForEach(rule, cJSON_GetObjectItem(status, key))
		{
			snprintf(labels, sizeof(labels), "%s=\"%s\"", kind, text_of(rule, "name"));
			sample(out, m, labels, rule);
		}
	}
}

static double importers_of(const cJSON *rule)
{
	const cJSON *one;
	double n = 0;

	cJSON_ArrayForEach(one, cJSON_GetObjectItem(rule, "importers"))
		n += number_of(one, "asked_seconds_ago") < LATELY_S;
	return n;
}

static void show_rules(FILE *out, const cJSON *status)
{
	static const char *const kinds[] = { "export", "import" };
	const cJSON *rule;
	char key[16], labels[96];

	for (size_t n = 0; n <= sizeof(of_rules) / sizeof(*of_rules); n++) {
		static const struct metric importers = {
			"importers", NULL, false,
			"Hosts that have asked for bytes in the last minute."
		};
		const struct metric *m = n < sizeof(of_rules) / sizeof(*of_rules) ? &of_rules[n]
										  : &importers;

		family(out, m->name, m->counter, m->help);
		for (unsigned k = 0; k < 2; k++) {
			snprintf(key, sizeof(key), "%ss", kinds[k]);
			cJSON_ArrayForEach(rule, cJSON_GetObjectItem(status, key))
			{
				snprintf(labels, sizeof(labels), "%s=\"%s\"", kinds[k],
					 text_of(rule, "name"));
				line(out, m->name, m->counter, labels,
				     m->field ? number_of(rule, m->field) : importers_of(rule));
			}
		}
	}
}

static void labels_of(char labels[128], const cJSON *rule, const cJSON *host)
{
	snprintf(labels, 128, "import=\"%s\",host=\"%s\"", text_of(rule, "name"),
		 text_of(host, "host"));
}

static void show_hosts(FILE *out, const cJSON *status)
{
	const cJSON *rule, *host;
	char labels[128];

	for (size_t n = 0; n < sizeof(of_hosts) / sizeof(*of_hosts); n++) {
		const struct metric *m = &of_hosts[n];

		family(out, m->name, m->counter, m->help);
		cJSON_ArrayForEach(rule, cJSON_GetObjectItem(status, "imports"))
		{
			cJSON_ArrayForEach(host, cJSON_GetObjectItem(rule, "hosts"))
			{
				labels_of(labels, rule, host);
				sample(out, m, labels, host);
			}
		}
	}
}

static void show_failures(FILE *out, const cJSON *status)
{
	const cJSON *rule, *host, *reason;
	char labels[128], all[192];

	family(out, "failures", true, "Transfers that failed, and names that another host has.");
	cJSON_ArrayForEach(rule, cJSON_GetObjectItem(status, "imports"))
	{
		cJSON_ArrayForEach(host, cJSON_GetObjectItem(rule, "hosts"))
		{
			labels_of(labels, rule, host);
			cJSON_ArrayForEach(reason, cJSON_GetObjectItem(host, "failures"))
			{
				snprintf(all, sizeof(all), "%s,reason=\"%s\"", labels,
					 reason->string);
				line(out, "failures", true, all, reason->valuedouble);
			}
		}
	}
}

static void show_mirror(FILE *out, const cJSON *status)
{
	const cJSON *nats = cJSON_GetObjectItem(status, "nats"), *reason;
	char labels[64];

	fputs("# TYPE tensorlease_mirror_build info\n"
	      "# HELP tensorlease_mirror_build The version of the mirror.\n",
	      out);
	fprintf(out, "tensorlease_mirror_build_info{version=\"%s\"} 1\n",
		text_of(status, "version"));
	family(out, "start_time_seconds", false, "When the mirror began, since 1970.");
	line(out, "start_time_seconds", false, "", number_of(status, "started"));
	family(out, "nats_up", false, "Whether there is a connection to NATS.");
	line(out, "nats_up", false, "", number_of(nats, "up"));
	family(out, "nats_reconnects", true, "Connections to NATS after the first one.");
	line(out, "nats_reconnects", true, "", number_of(nats, "reconnects"));
	family(out, "refused", true, "Requests of other hosts that got no bytes.");
	cJSON_ArrayForEach(reason, cJSON_GetObjectItem(status, "refused"))
	{
		snprintf(labels, sizeof(labels), "reason=\"%s\"", reason->string);
		line(out, "refused", true, labels, reason->valuedouble);
	}
}

char *metrics_write(const cJSON *status, size_t *size)
{
	char *text = NULL;
	FILE *out = open_memstream(&text, size);

	if (!out)
		return NULL;
	show_mirror(out, status);
	show_kind(out, status, "export", of_exports, sizeof(of_exports) / sizeof(*of_exports));
	show_kind(out, status, "import", of_imports, sizeof(of_imports) / sizeof(*of_imports));
	show_rules(out, status);
	show_hosts(out, status);
	show_failures(out, status);
	fputs("# EOF\n", out);
	if (fclose(out)) {
		free(text);
		return NULL;
	}
	return text;
}
