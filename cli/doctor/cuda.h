/* SPDX-License-Identifier: Apache-2.0 */
/* The few calls of the CUDA driver that another program would make: it has memory, fills it and
 * reads it. They are found at run time, in the doctor's children only. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

typedef unsigned long long cuda_pointer;
typedef void *cuda_stream;

enum {
	CUDA_NOT_READY = 600,
	CUDA_COMPUTE_MODE = 20,
	CUDA_PCI_BUS = 33,
	CUDA_PCI_SLOT = 34,
	CUDA_PCI_DOMAIN = 50,
};

struct doctor_cuda {
	int (*init)(unsigned flags);
	int (*error_name)(int result, const char **name);
	int (*count)(int *count);
	int (*attribute)(int *value, int which, int device);
	int (*can_access_peer)(int *can, int device, int peer);
	int (*retain)(void **context, int device);
	int (*set_current)(void *context);
	int (*alloc)(cuda_pointer *pointer, size_t size);
	int (*free)(cuda_pointer pointer);
	int (*stream_create)(cuda_stream *stream, unsigned flags);
	int (*stream_query)(cuda_stream stream);
	int (*stream_synchronize)(cuda_stream stream);
	int (*write)(cuda_pointer to, const void *from, size_t size);
	int (*read)(void *to, cuda_pointer from, size_t size, cuda_stream stream);
	int (*fill)(cuda_pointer to, unsigned char byte, size_t size, cuda_stream stream);
};

/*
 * Loads the driver and, unless @device is negative, makes its primary context current. Returns
 * false with static text in *why.
 */
bool doctor_cuda_open(struct doctor_cuda *c, int device, const char **why);
/* Returns whether persistence mode is on for the GPU with that UUID ("GPU-..."). -1: NVML does not
 * say. */
int doctor_cuda_persistence(const char *uuid);
/* Writes the path of the GPU's file, /dev/nvidiaN, which keeps it open. "": it is not known, or
 * this user cannot open it. */
void doctor_cuda_node(const struct doctor_cuda *c, int device, char path[32]);
/* Returns the path of libcuda.so.1, or "" if it cannot be loaded. The text is static. */
const char *doctor_cuda_path(void);
/* Writes a text such as "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)" to @text and returns it. */
const char *doctor_cuda_error(const struct doctor_cuda *c, const char *call, int result, char *text,
			      size_t size);
