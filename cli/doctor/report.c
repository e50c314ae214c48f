/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli/doctor/report.h"
#include "cli/format.h"

static const char *const result_names[DOCTOR_RESULTS] = { "ok", "warn", "fail", "skipped" };

const char *doctor_read(const char *path, const char *key, char *text, size_t size)
{
	FILE *f = fopen(path, "re");
	char line[512];

	*text = '\0';
	while (f && !*text && fgets(line, sizeof(line), f))
		if (!strncmp(line, key, strlen(key)))
			snprintf(text, size, "%.*s", (int)strcspn(line + strlen(key), "\n"),
				 line + strlen(key));
	if (f)
		fclose(f);
	return text;
}

void doctor_section(struct doctor *d, const char *section)
{
	if (d->cli->terminal && !d->probes)
		printf("%s%s\n", d->section ? "\n" : "", section);
	d->section = section;
}

static void say_json(struct doctor *d, enum doctor_result result, const char *probe,
		     const char *found, const char *advice)
{
	cJSON *object = json_object();

	json_text(object, "section", d->section);
	json_text(object, "probe", probe);
	json_text(object, "result", result_names[result]);
	json_text(object, "found", found);
	if (advice)
		json_text(object, "advice", advice);
	json_add(d->probes, NULL, object);
}

static void say_text(struct doctor *d, enum doctor_result result, const char *probe,
		     const char *found, const char *advice)
{
	/* They may contain names of devices, or text of a driver. */
	char *shown = format_printable(found, strlen(found));
	char *told = advice ? format_printable(advice, strlen(advice)) : NULL;

	if (d->cli->terminal)
		printf("  %-7s  %-20s  %s\n%s%s%s", result_names[result], probe, shown,
		       told ? "           what to do: " : "", told ? told : "", told ? "\n" : "");
	else
		printf("%s\t%s\t%s\t%s\t%s\n", result_names[result], d->section, probe, shown,
		       told ? told : "");
	cli_flush(); /* the next probe may take long */
	free(shown);
	free(told);
}

void doctor_say(struct doctor *d, enum doctor_result result, const char *probe, const char *advice,
		const char *format, ...)
{
	va_list args;
	char *found;
	int n;

	va_start(args, format);
	n = vasprintf(&found, format, args);
	va_end(args);
	cli_need(n < 0 ? NULL : found);
	d->said[result]++;
	(d->probes ? say_json : say_text)(d, result, probe, found,
					  result == DOCTOR_OK ? NULL : advice);
	free(found);
}

int doctor_sum_up(struct doctor *d)
{
	cJSON *object;

	if (d->probes) {
		object = json_object();
		json_text(object, "version", tl_version());
		for (int i = 0; i < DOCTOR_RESULTS; i++)
			json_u64(object, result_names[i], d->said[i]);
		json_add(object, "probes", d->probes);
		json_print(object);
	} else if (d->cli->terminal) {
		printf("\n%u ok, %u warn, %u fail, %u skipped\n", d->said[DOCTOR_OK],
		       d->said[DOCTOR_WARN], d->said[DOCTOR_FAIL], d->said[DOCTOR_SKIPPED]);
	}
	return d->said[DOCTOR_FAIL] ? CLI_FAILURE : CLI_OK;
}
