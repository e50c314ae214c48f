/* SPDX-License-Identifier: Apache-2.0 */
/* The table of results, or the same as JSON. */
#pragma once

#include <stdbool.h>

struct attack;
struct report;
struct setup;

struct report *report_new(const struct setup *setup);
void report_head(const struct report *report);
void report_row(struct report *report, const struct attack *attack); /* from the board */
bool report_end(struct report *report); /* frees it; false: a row has no number */
