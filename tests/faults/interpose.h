/* SPDX-License-Identifier: Apache-2.0 */
/* Between the interposer (interpose.c) and the functions that it stands in for (calls.c). */
#pragma once

#include <stdbool.h>

#include "tests/faults/report.h"

#define EXPORT __attribute__((visibility("default")))
#define ALIAS(name) __attribute__((alias(#name), visibility("default")))

struct function {
	const char *name;
	int hows[REPORT_HOWS];
	void *real;
	_Atomic unsigned index; /* 1 + in the report */
};

enum { ALL_HOWS = (1 << REPORT_HOWS) - 1 };

/* The thread is in the interposer: what it calls is not counted. */
extern _Thread_local bool inside __attribute__((tls_model("initial-exec")));

/* libc's own. */
void *real_of(struct function *f);

/* Counts the call. What it must fail with, in errno too, or 0. It can fail with hows[i] if bit i of
 * @hows is set. */
int fails_if(struct function *f, unsigned hows);
int fails(struct function *f);
