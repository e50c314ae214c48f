/* SPDX-License-Identifier: Apache-2.0 */
/* "Did you mean": the known word that is nearest to one that was typed. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/out.h"

enum { DISTANCE_MAX = 2, NAMES_MAX = 4096 };

static size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* Counts the letters to insert, delete, replace, or swap with the next one. Both texts have at most
 * TL_NAME_MAX bytes. */
static size_t distance(const char *a, size_t a_len, const char *b, size_t b_len)
{
	size_t rows[3][TL_NAME_MAX + 1];

	for (size_t j = 0; j <= b_len; j++)
		rows[0][j] = j;
	for (size_t i = 1; i <= a_len; i++) {
		const size_t *before = rows[(i + 1) % 3], *above = rows[(i - 1) % 3];
		size_t *row = rows[i % 3];

		row[0] = i;
		for (size_t j = 1; j <= b_len; j++) {
			row[j] = least(least(above[j], row[j - 1]) + 1,
				       above[j - 1] + (a[i - 1] != b[j - 1]));
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				row[j] = least(row[j], before[j - 2] + 1);
		}
	}
	return rows[a_len % 3][b_len];
}

struct nearest nearest_to(const char *typed, size_t len)
{
	size_t most = len / 3; /* of a short word most others are near */

	most = most < 1 ? 1 : least(most, DISTANCE_MAX);
	return (struct nearest){ .typed = typed, .len = len, .distance = most + 1 };
}

void nearest_offer(struct nearest *n, const char *word, size_t len)
{
	size_t far;

	if (n->len > TL_NAME_MAX || len > TL_NAME_MAX || len >= n->len + n->distance ||
	    n->len >= len + n->distance)
		return;
	far = distance(n->typed, n->len, word, len);
	if (far >= n->distance)
		return;
	n->distance = far;
	memcpy(n->word, word, len);
	n->word[len] = '\0';
}

/* ---- names ---- */

struct looking {
	struct nearest nearest;
	size_t parts; /* 0: names are compared whole; else so many of their components */
	size_t seen;
};

static size_t components(const char *path, size_t len)
{
	size_t n = 1;

	for (size_t i = 0; i < len; i++)
		n += path[i] == '/';
	return n;
}

static int look_at(const tl_info *info, void *context)
{
	struct looking *l = context;
	const char *end = info->name;

	for (size_t n = 1; l->parts && *end && (*end != '/' || n++ < l->parts);)
		end++;
	nearest_offer(&l->nearest, info->name,
		      l->parts ? (size_t)(end - info->name) : strlen(info->name));
	return ++l->seen == NAMES_MAX;
}

int cli_fail_absent(struct cli *cli, int error, const char *why, bool prefix)
{
	const char *name = cli->args[0];
	size_t len = strlen(name);
	struct looking l;
	char *text;
	int r;

	if (error != -ENOENT)
		return *why ? cli_fail(cli, cli_code(error), "%s", why)
			    : cli_fail_library(cli, error);
	text = cli_text("%s", *why ? why : cli_reason(error));
	if (prefix && len && name[len - 1] == '/')
		len--;
	l = (struct looking){ .nearest = nearest_to(name, len),
			      .parts = prefix ? components(name, len) : 0 };
	tl_list(cli->client, "", look_at, &l); /* what fails here has no better text */
	if (l.nearest.distance && *l.nearest.word)
		r = cli_fail(cli, cli_code(error), "%s; did you mean '%s'?", text, l.nearest.word);
	else
		r = cli_fail(cli, cli_code(error), "%s", text);
	free(text);
	return r;
}
