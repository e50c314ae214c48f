/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "cli/format.h"
#include "cli/histogram.h"

#define EXACT_MAX 9007199254740992.0 /* 2^53 */

/* The first pass finds the range, and counts NaN and infinities. */
static void measure(struct histogram *h, const struct elements *e)
{
	double values[VALUE_BLOCK];
	long double sum = 0;
	uint64_t finite = 0;
	size_t n;

	h->low = INFINITY;
	h->high = -INFINITY;
	for (uint64_t at = 0; (n = elements_doubles(e, at, values)) > 0; at += n) {
		for (size_t i = 0; i < n; i++) {
			h->values++;
			if (isnan(values[i])) {
				h->nans++;
			} else if (isinf(values[i])) {
				h->infinities++;
			} else {
				h->low = fmin(h->low, values[i]);
				h->high = fmax(h->high, values[i]);
				sum += values[i];
				finite++;
			}
		}
	}
	if (finite)
		h->mean = (double)(sum / finite);
}

static void choose_bins(struct histogram *h, const struct elements *e)
{
	bool whole = e->kind == VALUE_INT || e->kind == VALUE_UINT || e->kind == VALUE_BOOL;

	/* of larger integers several are one double */
	whole = whole && fmax(fabs(h->low), fabs(h->high)) <= EXACT_MAX;
	h->bins = HISTOGRAM_BINS;
	/* The difference of both may overflow. */
	h->width = h->high / HISTOGRAM_BINS - h->low / HISTOGRAM_BINS;
	if (whole && h->high - h->low < HISTOGRAM_BINS) {
		h->bins = (int)(h->high - h->low) + 1;
		h->width = 1;
		h->single = true;
	} else if (!(h->width > 0)) {
		h->bins = 1;
		h->width = 0;
	}
}

static int bin_of(const struct histogram *h, double value)
{
	double at = h->width > 0 ? value / h->width - h->low / h->width : 0;

	return at < 0 ? 0 : at >= h->bins ? h->bins - 1 : (int)at;
}

struct histogram histogram_of(const struct elements *e)
{
	struct histogram h = { 0 };
	double values[VALUE_BLOCK];
	size_t n;

	measure(&h, e);
	if (h.values == h.nans + h.infinities)
		return h;
	choose_bins(&h, e);
	for (uint64_t at = 0; (n = elements_doubles(e, at, values)) > 0; at += n) {
		for (size_t i = 0; i < n; i++) {
			if (isfinite(values[i]))
				h.count[bin_of(&h, values[i])]++;
		}
	}
	return h;
}

static double edge(const struct histogram *h, int bin)
{
	const int half = bin / 2; /* bin * width may overflow */

	if (bin == h->bins && !h->single)
		return h->high;
	return h->low + half * h->width + (bin - half) * h->width;
}

static void bin_text(const struct histogram *h, int bin, char *text, size_t size)
{
	if (h->single)
		snprintf(text, size, "%.0f", edge(h, bin));
	else
		snprintf(text, size, "%.4g .. %.4g", edge(h, bin), edge(h, bin + 1));
}

void histogram_print(const struct histogram *h, unsigned columns)
{
	enum { LABEL = 26, COUNT = 14, BAR_MIN = 10 };
	unsigned bar = columns > LABEL + COUNT + BAR_MIN ? columns - LABEL - COUNT : BAR_MIN;
	uint64_t most = 1;
	char label[64];

	for (int i = 0; i < h->bins; i++)
		most = h->count[i] > most ? h->count[i] : most;
	for (int i = 0; i < h->bins; i++) {
		unsigned n = (unsigned)((double)h->count[i] / (double)most * bar + 0.5);

		bin_text(h, i, label, sizeof(label));
		printf("%25s %12" PRIu64 " ", label, h->count[i]);
		if (h->count[i] && !n)
			n = 1;
		while (n--)
			putchar('#');
		putchar('\n');
	}
}

void histogram_json(cJSON *to, const struct histogram *h)
{
	cJSON *bins = json_array();

	for (int i = 0; i < h->bins; i++) {
		cJSON *bin = json_object();

		json_double(bin, "from", edge(h, i));
		json_double(bin, "to", h->single ? edge(h, i) : edge(h, i + 1));
		json_u64(bin, "count", h->count[i]);
		json_add(bins, NULL, bin);
	}
	json_add(to, "histogram", bins);
}
