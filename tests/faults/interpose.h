/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface between the interposer (interpose.c) and the functions it stands in for (calls.c).
 */
#pragma once

#include <stdbool.h>

#include "tests/faults/report.h"

#define EXPORT __attribute__((visibility("default")))
#define ALIAS(name) __attribute__((alias(#name), visibility("default")))

struct function {
	const char *name;
	int hows[REPORT_HOWS];
	void *real;
	_Atomic unsigned index; /* 1 + the index in the report */
};

enum { ALL_HOWS = (1 << REPORT_HOWS) - 1 };

/* Set while the thread is in the interposer, whose own calls are not counted. */
extern _Thread_local bool inside __attribute__((tls_model("initial-exec")));

/* The function of libc. */
void *real_of(struct function *f);

/*
 * Counts the call. Returns what it must fail with, which is in errno too, or 0. It can fail with
 * hows[i] if bit i of @hows is set.
 */
int fails_if(struct function *f, unsigned hows);
int fails(struct function *f);
