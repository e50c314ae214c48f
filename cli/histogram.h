/* SPDX-License-Identifier: Apache-2.0 */
/* How the values of a tensor are spread; of complex ones their magnitudes. NaN and infinities are
 * counted apart. */
#pragma once

#include <stdint.h>

#include "cli/element.h"
#include "cli/out.h"

enum { HISTOGRAM_BINS = 16 };

struct histogram {
	int bins;		 /* 0: there is no value */
	double low, high, width; /* bin i is low + i * width and up; the last one has @high as well
				  */
	bool single;		 /* each bin is one whole number */
	uint64_t count[HISTOGRAM_BINS];
	uint64_t values, nans, infinities;
	double mean;
};

struct histogram histogram_of(const struct elements *e);
void histogram_print(const struct histogram *h, unsigned columns);
void histogram_json(cJSON *to, const struct histogram *h);
