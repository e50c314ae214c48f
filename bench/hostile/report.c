/* SPDX-License-Identifier: Apache-2.0 */
/* The table of results, or the same as JSON; see report.h. */
#include <err.h>
#include <math.h>

#include <cjson/cJSON.h>

#include "bench/hostile/hostile.h"
#include "bench/hostile/report.h"

#define AIM 2.0	     /* the p99 of commits beside an attack, over that beside two that spin */
#define SEEN_AIM 0.5 /* the part of versions that a waiting consumer gets, over the same */

static const char *const measures[MEASURES] = { "commit", "get", "connect" };

struct report {
	const struct setup *setup;
	cJSON *json; /* NULL: a table is printed */
	unsigned rows, kept, empty;
};

struct summary {
	uint32_t n, failed;
	double p50, p99, max; /* in us */
	const char *why;
};

static int compare(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

/* Summarizes the samples of one phase, or of two together. */
static struct summary summarize(const struct board *board, enum measure measure, enum phase one,
				enum phase two)
{
	struct summary s = { 0 };
	float *all = calloc(2 * (size_t)TRACK_MAX, sizeof(*all));
	size_t n = 0;

	if (!all)
		err(1, "no memory for samples");
	for (unsigned k = 0; k < (one == two ? 1U : 2U); k++) {
		const struct track *t = &board->tracks[k ? two : one][measure];
		uint32_t count = atomic_load(&t->count), kept = count;

		if (kept > TRACK_MAX)
			kept = TRACK_MAX;
		memcpy(all + n, t->ns, kept * sizeof(*all));
		n += kept;
		s.n += count;
		s.failed += atomic_load(&t->failed);
		if (atomic_load(&t->failed))
			s.why = t->why;
	}
	if (n) {
		qsort(all, n, sizeof(*all), compare);
		s.p50 = (double)all[n / 2] / 1e3;
		s.p99 = (double)all[(size_t)(0.99 * (double)(n - 1) + 0.5)] / 1e3;
		s.max = (double)all[n - 1] / 1e3;
	}
	free(all);
	return s;
}

/* The evaluation of a row. */
struct verdict {
	struct summary base[MEASURES], busy[MEASURES], attack[MEASURES];
	double ratio; /* to busy; INFINITY: no commit came through */
	double seen;  /* the part of the versions that the consumer got */
	const char *denied;
	bool kept;
};

static double seen(const struct summary s[MEASURES])
{
	return s[MEASURE_COMMIT].n ? (double)s[MEASURE_GET].n / s[MEASURE_COMMIT].n : 0;
}

static bool has_numbers(const struct verdict *v, const struct board *b)
{
	for (unsigned m = 0; m < MEASURES; m++)
		if (!v->base[m].n || !v->busy[m].n || !v->attack[m].n)
			return false;
	return atomic_load(&b->ready);
}

static struct verdict judge(const struct setup *setup)
{
	const struct board *b = setup->board;
	struct verdict v = { .ratio = INFINITY };

	for (unsigned m = 0; m < MEASURES; m++) {
		v.base[m] = summarize(b, (enum measure)m, PHASE_BEFORE, PHASE_AFTER);
		v.busy[m] = summarize(b, (enum measure)m, PHASE_BUSY, PHASE_BUSY);
		v.attack[m] = summarize(b, (enum measure)m, PHASE_ATTACK, PHASE_ATTACK);
		if (v.attack[m].failed && !v.denied)
			v.denied = v.attack[m].why;
		else if (!v.attack[m].n && !v.denied)
			v.denied = "it went on longer than the phase";
	}
	if (v.attack[MEASURE_COMMIT].n && v.busy[MEASURE_COMMIT].p99 > 0)
		v.ratio = v.attack[MEASURE_COMMIT].p99 / v.busy[MEASURE_COMMIT].p99;
	v.seen = seen(v.attack);
	v.kept = !v.denied && v.ratio <= AIM && v.seen >= SEEN_AIM * seen(v.base);
	return v;
}

/* ---- the table ---- */

void report_head(const struct report *r)
{
	if (r->json)
		return;
	printf("%u connections of the attacker; times in us; commits per second; one, two: beside so "
	       "many processes that spin\n\n",
	       r->setup->connections);
	printf("%-12s %7s %7s %7s %7s %7s %7s %7s %7s %6s %5s %8s %8s %8s %8s %7s  %s\n", "attack",
	       "one p50", "p99", "two p50", "p99", "p50", "p99", "max", "/s", "ratio", "seen",
	       "get p99", "new p50", "new p99", "new max", "turn", "verdict");
}

static void print_row(const struct report *r, const struct attack *attack, const struct verdict *v)
{
	const struct board *b = r->setup->board;
	const struct summary *one = &v->base[MEASURE_COMMIT], *two = &v->busy[MEASURE_COMMIT];
	const struct summary *now = &v->attack[MEASURE_COMMIT];
	const struct summary *new = &v->attack[MEASURE_CONNECT];
	double s = r->setup->seconds;

	printf("%-12s %7.0f %7.0f %7.0f %7.0f %7.0f %7.0f %7.0f %7.0f %6.1f %4.0f%% %8.0f %8.0f %8.0f %8.0f %7.0f  %s\n",
	       attack->name, one->p50, one->p99, two->p50, two->p99, now->p50, now->p99, now->max,
	       now->n / s, v->ratio, v->seen * 100, v->attack[MEASURE_GET].p99, new->p50, new->p99,
	       new->max, (double)atomic_load(&b->longest_turn_ns) / 1e3,
	       v->denied ? "DENIED"
	       : v->kept ? "kept"
			 : "BROKEN");
	printf("    %s: %u of %u connections, %u made, %llu answers, %llu errors, %llu ended%s\n",
	       attack->what, atomic_load(&b->connections), atomic_load(&b->wanted),
	       atomic_load(&b->things), (unsigned long long)atomic_load(&b->answers),
	       (unsigned long long)atomic_load(&b->errors),
	       (unsigned long long)atomic_load(&b->ended),
	       atomic_load(&b->ready) ? "" : "; not begun in time");
	if (b->why[0])
		printf("    the attacker was told: %s\n", b->why);
	if (v->denied)
		printf("    victims failed: %u of %u commits, %u of %u gets, %u of %u newcomers: %s\n",
		       now->failed, now->n, v->attack[MEASURE_GET].failed, v->attack[MEASURE_GET].n,
		       new->failed, new->n, v->denied);
	fflush(stdout);
}

/* ---- JSON ---- */

static void add_summary(cJSON *to, const char *key, const struct summary *s, double seconds)
{
	cJSON *o = cJSON_AddObjectToObject(to, key);

	cJSON_AddNumberToObject(o, "count", s->n);
	cJSON_AddNumberToObject(o, "failed", s->failed);
	cJSON_AddNumberToObject(o, "per_second", s->n / seconds);
	cJSON_AddNumberToObject(o, "p50_us", s->p50);
	cJSON_AddNumberToObject(o, "p99_us", s->p99);
	cJSON_AddNumberToObject(o, "max_us", s->max);
}

static void add_row(const struct report *r, const struct attack *attack, const struct verdict *v)
{
	const struct board *b = r->setup->board;
	cJSON *row = cJSON_CreateObject(), *o;
	double s = r->setup->seconds;

	cJSON_AddItemToArray(cJSON_GetObjectItem(r->json, "rows"), row);
	cJSON_AddStringToObject(row, "attack", attack->name);
	cJSON_AddStringToObject(row, "what", attack->what);
	for (unsigned m = 0; m < MEASURES; m++) {
		o = cJSON_AddObjectToObject(row, measures[m]);
		add_summary(o, "one", &v->base[m], 2 * s);
		add_summary(o, "two", &v->busy[m], s);
		add_summary(o, "attack", &v->attack[m], s);
	}
	if (isfinite(v->ratio))
		cJSON_AddNumberToObject(row, "ratio", v->ratio); /* JSON has no infinity */
	cJSON_AddNumberToObject(row, "seen", v->seen);
	cJSON_AddNumberToObject(row, "longest_turn_us",
				(double)atomic_load(&b->longest_turn_ns) / 1e3);
	cJSON_AddBoolToObject(row, "kept", v->kept);
	if (v->denied)
		cJSON_AddStringToObject(row, "denied", v->denied);
	cJSON_AddNumberToObject(row, "connections", atomic_load(&b->connections));
	cJSON_AddNumberToObject(row, "wanted", atomic_load(&b->wanted));
	cJSON_AddNumberToObject(row, "made", atomic_load(&b->things));
	cJSON_AddStringToObject(row, "told", b->why);
}

/* ---- both ---- */

struct report *report_new(const struct setup *setup)
{
	struct report *r = calloc(1, sizeof(*r));

	if (!r)
		err(1, "no memory for the report");
	r->setup = setup;
	if (!setup->json)
		return r;
	r->json = cJSON_CreateObject();
	cJSON_AddStringToObject(r->json, "version", tl_version());
	cJSON_AddNumberToObject(r->json, "connections", setup->connections);
	cJSON_AddBoolToObject(r->json, "different_users", setup->is_root);
	cJSON_AddArrayToObject(r->json, "rows");
	return r;
}

void report_row(struct report *r, const struct attack *attack)
{
	struct verdict v = judge(r->setup);

	r->rows++;
	r->kept += v.kept;
	if (!has_numbers(&v, r->setup->board)) {
		warnx("%s has no number for a phase, or did not begin", attack->name);
		r->empty++;
	}
	if (r->json)
		add_row(r, attack, &v);
	else
		print_row(r, attack, &v);
}

bool report_end(struct report *r)
{
	char *text = r->json ? cJSON_Print(r->json) : NULL;
	bool complete = r->rows > 0 && !r->empty;

	if (text)
		puts(text);
	else
		printf("\n%u of %u rows kept: p99 of commits at most %.1f x that beside two, and nobody denied or "
		       "missed\n",
		       r->kept, r->rows, AIM);
	free(text);
	cJSON_Delete(r->json);
	free(r);
	return complete;
}
