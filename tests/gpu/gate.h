/* SPDX-License-Identifier: Apache-2.0 */
/* A stream that stands still. */
#pragma once

#include <dlfcn.h>

#include "tests/gpu/common.h"

struct gate {
	_Atomic int open;
	CUstream stream;
};

static inline void wait_at(void *argument)
{
	struct gate *gate = argument;

	while (!atomic_load(&gate->open))
		usleep(100);
}

static inline void launch(CUstream stream, void (*function)(void *), void *argument)
{
	CUresult (*call)(CUstream stream, void (*function)(void *), void *argument);
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	*(void **)&call = dlsym(library, "cuLaunchHostFunc");
	gpu_must(call(stream, function, argument));
	dlclose(library);
}

/* Makes a stream that does nothing until the gate is opened. */
static inline void gate_close(struct gate *gate)
{
	atomic_store(&gate->open, 0);
	gpu_must(cuda->stream_create(&gate->stream, CUDA_STREAM_NON_BLOCKING));
	launch(gate->stream, wait_at, gate);
}

static inline void gate_open(struct gate *gate)
{
	atomic_store(&gate->open, 1);
	gpu_must(cuda->stream_synchronize(gate->stream));
	gpu_must(cuda->stream_destroy(gate->stream));
}
