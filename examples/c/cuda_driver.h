/* SPDX-License-Identifier: Apache-2.0 */
/* The few declarations that cuda.c needs of CUDA's own <cuda.h>, so that it can be built without
 * CUDA. */
#ifndef CUDA_DRIVER_H
#define CUDA_DRIVER_H

#include <stddef.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;

#define CU_STREAM_NON_BLOCKING 1
#define cuMemcpyDtoHAsync cuMemcpyDtoHAsync_v2

CUresult cuInit(unsigned flags);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char byte, size_t size, CUstream stream);
CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t size, CUstream stream);

#endif /* CUDA_DRIVER_H */
