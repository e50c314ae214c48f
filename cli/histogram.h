/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A histogram of the values of a tensor, or of the magnitudes of complex values. NaN and infinities
 * are counted apart.
 */
#pragma once

#include <stdint.h>

#include "cli/element.h"
#include "cli/out.h"

enum { HISTOGRAM_BINS = 16 };

struct histogram {
	int bins;		 /* 0: there is no finite value */
	double low, high, width; /* bin i starts at low + i * width; the last one includes high */
	bool single;		 /* each bin is one integer */
	uint64_t count[HISTOGRAM_BINS];
	uint64_t values, nans, infinities;
	double mean;
};

struct histogram histogram_of(const struct elements *e);
void histogram_print(const struct histogram *h, unsigned columns);
void histogram_json(cJSON *to, const struct histogram *h);
