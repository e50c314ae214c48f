/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report that the interposer (interpose.c), the cases and the runner share is a file that the
 * first two map. tests/faults/run has the same layout in Python.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

enum {
	REPORT_FUNCTIONS = 128,
	REPORT_MODULES = 64,
	REPORT_SITES = 4096,
	REPORT_FRAMES = 14,
	REPORT_HOWS = 8,
};

struct report_function {
	char name[24];
	uint32_t calls;
	/* errnos that it may fail with, or REPORT_CTRUNC; 0 at the end */
	int32_t hows[REPORT_HOWS];
	uint32_t reserved;
};

/* recvmsg() succeeds, but the descriptors are lost. */
#define REPORT_CTRUNC 1000

struct report_frame {
	uint32_t module;
	uint32_t offset;
};

/* A place in the program where a function is called, with the way that led there. */
struct report_site {
	uint64_t hash;
	uint32_t function;
	uint32_t hits;
	uint32_t first; /* the number of its first call among the function's calls */
	uint32_t hows;	/* bit i is set if it can fail there with hows[i] */
	int32_t live;	/* blocks of memory allocated there and not freed */
	uint32_t depth;
	struct report_frame frames[REPORT_FRAMES];
};

struct report {
	_Atomic uint32_t armed; /* calls are counted, and one may fail */
	_Atomic uint32_t fired; /* 1 + index of the site that failed */
	uint32_t fired_call;	/* its number among the function's calls */
	int32_t fired_how;
	uint32_t nfunctions;
	uint32_t nmodules;
	uint32_t nsites;
	uint32_t overflow; /* one of the tables was too small */
	/* Robust: a process may end while a thread of it is counting a call. */
	pthread_mutex_t lock;
	struct report_function functions[REPORT_FUNCTIONS];
	char modules[REPORT_MODULES][128];
	struct report_site sites[REPORT_SITES];
};
