/* SPDX-License-Identifier: Apache-2.0 */
/* doctor: shared memory that belongs to no process any more, and --clean, which removes it. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/doctor/doctor.h"
#include "cli/format.h"
#include "util/leftovers.h"

/* Returns "5 objects of 2 catalogs, 64.0 MiB". */
static char *describe(const struct leftovers *l)
{
	char *size = format_size(l->bytes, true), *text;

	text = cli_text("%u object%s with %u catalog%s of killed daemons, %s", l->objects,
			l->objects == 1 ? "" : "s", l->catalogs, l->catalogs == 1 ? "" : "s", size);
	free(size);
	return text;
}

/* Returns "2 files that daemons have set aside as damaged, 64.0 MiB". */
static char *describe_aside(const struct leftovers *l)
{
	char *size = format_size(l->bytes, true), *text;

	text = cli_text("%u file%s that daemons have set aside as damaged, %s", l->objects,
			l->objects == 1 ? "" : "s", size);
	free(size);
	return text;
}

/* Also of living daemons: the kernel does not even tell these from the dead. */
static char *describe_unexamined(const struct leftovers *l)
{
	return cli_text("%u object%s of other users could not be examined", l->unexamined,
			l->unexamined == 1 ? "" : "s");
}

static const char lease_advice
	[] = "run it with CAP_LEASE (docker run --cap-add LEASE), or as the user they belong to";

/* Root may remove anybody's objects. */
static uid_t whose(void)
{
	return geteuid() ? geteuid() : LEFTOVERS_OF_ALL;
}

void doctor_orphans(struct doctor *d)
{
	struct leftovers l = leftovers_find(whose(), false);
	struct leftovers aside = leftovers_aside(whose(), false);
	char *text = describe(&l);

	if (l.objects)
		doctor_say(d, DOCTOR_WARN, "left behind",
			   "no process uses them; tensorlease doctor --clean removes them", "%s",
			   text);
	free(text);
	text = describe_aside(&aside);
	if (aside.objects)
		doctor_say(d, DOCTOR_WARN, "set aside",
			   "examine them, if you want to; tensorlease doctor --clean removes them",
			   "%s", text);
	free(text);
	text = describe_unexamined(&l);
	if (l.unexamined)
		doctor_say(d, DOCTOR_WARN, "left behind", lease_advice, "%s", text);
	free(text);
}

static bool says_yes(void)
{
	char line[16] = "";

	return fgets(line, sizeof(line), stdin) && (*line == 'y' || *line == 'Y');
}

/* Returns an exit code; CLI_OK: they may be removed. */
static int clean_ask(struct cli *cli, const struct leftovers *l, const struct leftovers *aside)
{
	char *text, *more;

	if ((!l->objects && !aside->objects) || cli->given & OPTION_YES)
		return CLI_OK;
	text = describe(l);
	more = describe_aside(aside);
	printf("%s%s%s; remove them? [y/N] ", l->objects ? text : "",
	       l->objects && aside->objects ? ", and " : "", aside->objects ? more : "");
	free(text);
	free(more);
	cli_flush();
	return says_yes() ? CLI_OK
			  : cli_fail(cli, CLI_FAILURE,
				     "nothing was removed, since the answer was not y (--yes does "
				     "not ask)");
}

int doctor_clean(struct cli *cli)
{
	struct leftovers l = leftovers_find(whose(), false);
	struct leftovers aside = leftovers_aside(whose(), false);
	cJSON *object;
	char *text;
	int r;

	if (cli->json && !(cli->given & OPTION_YES))
		return cli_fail(cli, CLI_USAGE, "with --json, --clean needs --yes: it cannot ask");
	r = clean_ask(cli, &l, &aside);
	if (r)
		return r;
	l = leftovers_find(whose(), true);
	aside = leftovers_aside(whose(), true);
	if (cli->json) {
		object = json_object();
		json_u64(object, "catalogs", l.catalogs);
		json_u64(object, "objects", l.objects);
		json_u64(object, "bytes", l.bytes + aside.bytes);
		json_u64(object, "set_aside", aside.objects);
		json_u64(object, "unexamined", l.unexamined);
		json_print(object);
		return CLI_OK;
	}
	text = describe(&l);
	if (l.objects)
		printf("removed %s\n", text);
	else if (!l.unexamined && !aside.objects)
		printf("nothing to remove: killed daemons have left nothing\n");
	free(text);
	text = describe_aside(&aside);
	if (aside.objects)
		printf("removed %s\n", text);
	free(text);
	text = describe_unexamined(&l);
	if (l.unexamined)
		printf("%s; %s\n", text, lease_advice);
	free(text);
	return CLI_OK;
}
