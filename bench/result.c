/* SPDX-License-Identifier: Apache-2.0 */
/* Samples, the table, and its JSON. */
#include <err.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "bench/bench.h"
#include "util/shm_space.h"

/* ---- Samples ---- */

static void samples_add(struct bench_samples *s, double value)
{
	if (s->n == s->capacity) {
		s->capacity = s->capacity ? 2 * s->capacity : 256;
		s->values = realloc(s->values, s->capacity * sizeof(*s->values));
		if (!s->values)
			err(1, "no memory for samples");
	}
	s->values[s->n++] = value;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Returns the value that is not exceeded by @part of the samples; 0 if there are none. */
static double quantile(const double *values, size_t n, double part)
{
	double *sorted, q;

	if (!n)
		return 0;
	sorted = malloc(n * sizeof(*sorted));
	if (!sorted)
		err(1, "no memory for samples");
	memcpy(sorted, values, n * sizeof(*sorted));
	qsort(sorted, n, sizeof(*sorted), compare);
	q = n % 2 == 0 && part == 0.5 ? (sorted[n / 2 - 1] + sorted[n / 2]) / 2
				      : sorted[(size_t)(part * (double)(n - 1) + 0.5)];
	free(sorted);
	return q;
}

static double median(const struct bench_samples *s)
{
	return quantile(s->values, s->n, 0.5);
}

static double ratio_of(double ours, double floor)
{
	return ours / floor;
}

static double more_of(double ours, double floor)
{
	return ours - floor;
}

/* Returns the median of the compared pairs, which does not move when both are slow for a while. */
static double compared(const struct bench_result *r, double (*of)(double ours, double floor))
{
	size_t n = r->ours.n < r->floor.n ? r->ours.n : r->floor.n;
	double *values = calloc(n ? n : 1, sizeof(*values)), q;

	if (!values)
		err(1, "no memory for samples");
	for (size_t i = 0; i < n; i++)
		values[i] = of(r->ours.values[i], r->floor.values[i]);
	q = quantile(values, n, 0.5);
	free(values);
	return q;
}

static double ratio(const struct bench_result *r)
{
	return compared(r, ratio_of);
}

/* Tolerates half of the last digit that the table shows. */
static bool is_met(const struct bench_result *r)
{
	if (!r->ours.n)
		return false;
	switch (r->aim) {
	case BENCH_AIM_RATIO:
		return ratio(r) < r->limit + 0.005;
	case BENCH_AIM_MORE:
		return compared(r, more_of) < r->limit + 0.05;
	default:
		return median(&r->ours) <= r->limit;
	}
}

/* ---- Rows ---- */

bool bench_selected(struct bench *b, const char *id)
{
	return !b->has_only || !regexec(&b->only, id, 0, NULL, 0);
}

struct bench_result *bench_result_new(struct bench *b, const char *id, const char *unit,
				      const char *what, ...)
{
	struct bench_result *r;
	va_list args;

	if (!bench_selected(b, id))
		return NULL;
	r = calloc(1, sizeof(*r));
	if (!r || b->nresults == sizeof(b->results) / sizeof(b->results[0]))
		errx(1, "no space for another row");
	snprintf(r->id, sizeof(r->id), "%s", id);
	va_start(args, what);
	vsnprintf(r->what, sizeof(r->what), what, args);
	va_end(args);
	r->unit = unit;
	b->results[b->nresults++] = r;
	return r;
}

void bench_pair(struct bench_result *r, double floor, double ours)
{
	samples_add(&r->floor, floor);
	samples_add(&r->ours, ours);
}

void bench_value(struct bench_result *r, double ours)
{
	samples_add(&r->ours, ours);
}

void bench_free_results(struct bench *b)
{
	while (b->nresults) {
		struct bench_result *r = b->results[--b->nresults];

		free(r->floor.values);
		free(r->ours.values);
		free(r);
	}
}

/* ---- The table ---- */

static double in_unit(const char *unit, double value)
{
	if (!strcmp(unit, "us"))
		return value / 1e3;
	if (!strcmp(unit, "ms"))
		return value / 1e6;
	return value;
}

static const char *cell(char text[24], const struct bench_result *r, const struct bench_samples *s,
			double part)
{
	double v = in_unit(r->unit, quantile(s->values, s->n, part));

	if (!s->n)
		return "-";
	if (part != 0.5 && s->n < 10)
		return ""; /* too few for a 99th percentile */
	snprintf(text, 24, "%.*f", v == floor(v) || v >= 1000 ? 0 : v >= 100 ? 1 : 2, v);
	return text;
}

void bench_result_done(struct bench *b, struct bench_result *r)
{
	char f50[24], f99[24], o50[24], o99[24], ratio_text[24] = "-";

	if (b->json)
		return;
	if (r->floor.n)
		snprintf(ratio_text, sizeof(ratio_text), "%.2f x", ratio(r));
	printf("%-45s %-5s %9s %9s %9s %9s %8s  %-9s %s\n", r->what, r->unit,
	       cell(f50, r, &r->floor, 0.5), cell(f99, r, &r->floor, 0.99),
	       cell(o50, r, &r->ours, 0.5), cell(o99, r, &r->ours, 0.99), ratio_text,
	       r->target ? r->target : "-",
	       r->aim == BENCH_AIM_NONE ? ""
	       : is_met(r)		? "yes"
					: "NO");
	if (r->note[0])
		printf("    %s\n", r->note);
	fflush(stdout);
}

struct machine {
	char cpu[128], kernel[160], date[32];
	long cores;
	double memory_gib, shm_gib; /* 0: /dev/shm has no limit */
};

static void machine_cpu(char *text, size_t size)
{
	FILE *f = fopen("/proc/cpuinfo", "re");
	char line[256];

	snprintf(text, size, "unknown CPU");
	while (f && fgets(line, sizeof(line), f)) {
		char *colon = strchr(line, ':');

		if (!colon || strncmp(line, "model name", 10))
			continue;
		colon[strcspn(colon, "\n")] = '\0';
		snprintf(text, size, "%s", colon + 2);
		break;
	}
	if (f)
		fclose(f);
}

static void machine_read(struct machine *m)
{
	struct utsname u;
	struct shm_space shm;
	time_t now = time(NULL);
	struct tm tm;

	machine_cpu(m->cpu, sizeof(m->cpu));
	uname(&u);
	snprintf(m->kernel, sizeof(m->kernel), "%s %s", u.sysname, u.release);
	m->cores = sysconf(_SC_NPROCESSORS_ONLN);
	m->memory_gib = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / (1 << 30);
	m->shm_gib = shm_space_find(&shm) || !shm.limited ? 0 : (double)shm.size / (1 << 30);
	strftime(m->date, sizeof(m->date), "%Y-%m-%d %H:%M:%S UTC", gmtime_r(&now, &tm));
}

void bench_print_head(const struct bench *b)
{
	struct machine m;

	if (b->json)
		return;
	machine_read(&m);
	printf("tensorlease %s, %s%s\n", tl_version(), m.date, b->quick ? ", quick" : "");
	printf("%s, %ld cores, %s, %.1f GiB of memory, /dev/shm ", m.cpu, m.cores, m.kernel,
	       m.memory_gib);
	if (m.shm_gib > 0)
		printf("%.1f GiB\n\n", m.shm_gib);
	else
		printf("without a limit\n\n");
	printf("%-45s %-5s %9s %9s %9s %9s %8s  %-9s %s\n", "what", "unit", "floor", "p99", "ours",
	       "p99", "ratio", "target", "met");
}

/* ---- JSON ---- */

static void json_samples(cJSON *row, const char *key, const struct bench_result *r,
			 const struct bench_samples *s)
{
	cJSON *o;

	if (!s->n)
		return;
	o = cJSON_AddObjectToObject(row, key);
	if (s == &r->floor)
		cJSON_AddStringToObject(o, "what", r->floor_what);
	cJSON_AddNumberToObject(o, "samples", (double)s->n);
	cJSON_AddNumberToObject(o, "min", in_unit(r->unit, quantile(s->values, s->n, 0)));
	cJSON_AddNumberToObject(o, "median", in_unit(r->unit, median(s)));
	cJSON_AddNumberToObject(o, "p99", in_unit(r->unit, quantile(s->values, s->n, 0.99)));
	cJSON_AddNumberToObject(o, "max", in_unit(r->unit, quantile(s->values, s->n, 1)));
}

static void json_row(cJSON *rows, const struct bench_result *r)
{
	cJSON *row = cJSON_CreateObject();

	cJSON_AddItemToArray(rows, row);
	cJSON_AddStringToObject(row, "id", r->id);
	cJSON_AddStringToObject(row, "what", r->what);
	cJSON_AddStringToObject(row, "unit", r->unit);
	json_samples(row, "floor", r, &r->floor);
	json_samples(row, "ours", r, &r->ours);
	if (r->floor.n)
		cJSON_AddNumberToObject(row, "ratio", ratio(r));
	if (r->aim != BENCH_AIM_NONE) {
		cJSON_AddStringToObject(row, "target", r->target);
		cJSON_AddBoolToObject(row, "met", is_met(r));
	}
	if (r->note[0])
		cJSON_AddStringToObject(row, "note", r->note);
}

void bench_print_json(const struct bench *b)
{
	cJSON *root = cJSON_CreateObject(), *machine, *rows;
	struct machine m;
	char *text;

	machine_read(&m);
	cJSON_AddStringToObject(root, "version", tl_version());
	cJSON_AddStringToObject(root, "date", m.date);
	cJSON_AddBoolToObject(root, "quick", b->quick);
	machine = cJSON_AddObjectToObject(root, "machine");
	cJSON_AddStringToObject(machine, "cpu", m.cpu);
	cJSON_AddNumberToObject(machine, "cores", (double)m.cores);
	cJSON_AddStringToObject(machine, "kernel", m.kernel);
	cJSON_AddNumberToObject(machine, "memory_gib", m.memory_gib);
	if (m.shm_gib > 0)
		cJSON_AddNumberToObject(machine, "shm_gib", m.shm_gib);
	else
		cJSON_AddNullToObject(machine, "shm_gib");
	rows = cJSON_AddArrayToObject(root, "rows");
	for (size_t i = 0; i < b->nresults; i++)
		json_row(rows, b->results[i]);
	text = cJSON_Print(root);
	if (!text)
		errx(1, "no memory for the JSON");
	puts(text);
	free(text);
	cJSON_Delete(root);
}
