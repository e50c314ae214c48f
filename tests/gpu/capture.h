/* SPDX-License-Identifier: Apache-2.0 */
/* Captures of streams, with functions that the library does not use. For a child. */
#pragma once

#include <dlfcn.h>

#include "tests/gpu/common.h"

static inline void *capture_function(const char *name)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW), *function;

	must(library);
	function = dlsym(library, name);
	must(function);
	dlclose(library); /* the library has it open too */
	return function;
}

static inline void capture_begin(CUstream stream, int mode)
{
	CUresult (*begin)(CUstream stream, int mode);

	*(void **)&begin = capture_function("cuStreamBeginCapture_v2");
	gpu_must(begin(stream, mode));
}

/* Returns how many nodes the graph has that was captured. It fails if the capture was spoilt. */
static inline size_t capture_end(CUstream stream)
{
	CUresult (*end)(CUstream stream, void **graph);
	CUresult (*get_nodes)(void *graph, void **nodes, size_t *n);
	CUresult (*destroy)(void *graph);
	void *graph;
	size_t n = 0;

	*(void **)&end = capture_function("cuStreamEndCapture");
	*(void **)&get_nodes = capture_function("cuGraphGetNodes");
	*(void **)&destroy = capture_function("cuGraphDestroy");
	gpu_must(end(stream, &graph));
	gpu_must(get_nodes(graph, NULL, &n));
	gpu_must(destroy(graph));
	return n;
}
