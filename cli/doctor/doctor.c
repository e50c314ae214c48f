/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/doctor/doctor.h"
#include "cli/format.h"
#include "util/fd.h"

static const char *const result_names[DOCTOR_RESULTS] = { "ok", "warn", "fail", "skipped" };

const char *doctor_read(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);

	fd_close(fd);
	text[n > 0 ? n : 0] = '\0';
	text[strcspn(text, "\n")] = '\0';
	return text;
}

void doctor_section(struct doctor *d, const char *section)
{
	if (d->people)
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

void doctor_say(struct doctor *d, enum doctor_result result, const char *probe, const char *advice,
		const char *format, ...)
{
	char *found, *shown, *told;
	va_list args;
	int n;

	va_start(args, format);
	n = vasprintf(&found, format, args);
	va_end(args);
	cli_need(n < 0 ? NULL : found);
	/* The finding may contain names of devices, or text of a driver. */
	shown = format_printable(found, strlen(found));
	if (result == DOCTOR_OK)
		advice = NULL;
	told = format_printable(advice ? advice : "", advice ? strlen(advice) : 0);
	d->said[result]++;
	if (d->probes)
		say_json(d, result, probe, found, advice);
	else if (d->people)
		printf("  %-7s  %-20s  %s\n%s%s%s", result_names[result], probe, shown,
		       advice ? "           what to do: " : "", told, advice ? "\n" : "");
	else
		printf("%s\t%s\t%s\t%s\t%s\n", result_names[result], d->section, probe, shown,
		       told);
	cli_flush(); /* the next probe may take long */
	free(found);
	free(shown);
	free(told);
}

static void sum_up(struct doctor *d)
{
	cJSON *object;

	if (d->people)
		printf("\n%u ok, %u warn, %u fail, %u skipped\n", d->said[DOCTOR_OK],
		       d->said[DOCTOR_WARN], d->said[DOCTOR_FAIL], d->said[DOCTOR_SKIPPED]);
	if (!d->probes)
		return;
	object = json_object();
	json_text(object, "version", tl_version());
	for (int i = 0; i < DOCTOR_RESULTS; i++)
		json_u64(object, result_names[i], d->said[i]);
	json_add(object, "probes", d->probes);
	json_print(object);
}

static int examine(struct cli *cli)
{
	struct doctor d = { .cli = cli,
			    .people = cli->terminal && !cli->json,
			    .probes = cli->json ? json_array() : NULL };

	doctor_section(&d, "system");
	doctor_kernel(&d);
	doctor_section(&d, "memory");
	doctor_memory(&d);
	doctor_section(&d, "daemon");
	doctor_daemons(&d);
	doctor_section(&d, "gpu");
	doctor_gpus(&d);
	doctor_daemon_end(&d);
	sum_up(&d);
	return d.said[DOCTOR_FAIL] ? CLI_FAILURE : CLI_OK;
}

int command_doctor(struct cli *cli)
{
	if (cli->given & OPTION_CLEAN)
		return doctor_clean(cli);
	if (cli->given & OPTION_YES)
		return cli_fail(cli, CLI_USAGE, "--yes is for doctor --clean");
	return examine(cli);
}
