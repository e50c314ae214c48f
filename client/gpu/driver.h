/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver, found at run time, and the table of its functions. abi.h declares the part of
 * its ABI that this library uses, so that building needs nothing of the CUDA toolkit, and one
 * binary runs with and without a GPU.
 *
 * Types keep the driver's names and constants do not. So a file can include both this and, with its
 * types renamed, <cuda.h> (tests/unit/cuda_driver.c compares the two where that header is
 * installed).
 *
 * Streams are always named explicitly: CUDA_STREAM_LEGACY, CUDA_STREAM_PER_THREAD or a handle. NULL
 * means the legacy one.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/gpu/abi.h"

/*
 * Members are named after the driver's functions, without cu and the suffix of the ABI's version.
 * The members of an optional group are either all set or all NULL.
 */
struct cuda_driver {
	int version; /* of the driver: 1000 * major + 10 * minor of the CUDA it implements */

	/* Opens what the tests' fake driver has instead of /dev/nvidiaN; a real one has no such
	 * function. */
	int (*open_node)(CUdevice device);

	CUresult (*init)(unsigned flags);
	CUresult (*driver_get_version)(int *version);
	CUresult (*get_error_name)(CUresult result, const char **text);
	CUresult (*get_error_string)(CUresult result, const char **text);

	CUresult (*device_get_count)(int *count);
	CUresult (*device_get)(CUdevice *device, int ordinal);
	CUresult (*device_get_name)(char *name, int size, CUdevice device);
	CUresult (*device_get_uuid)(struct cuda_uuid *uuid, CUdevice device); /* MIG: of the
										 instance */
	CUresult (*device_total_mem)(size_t *bytes, CUdevice device);
	CUresult (*device_get_attribute)(int *value, int attribute, CUdevice device);
	CUresult (*device_can_access_peer)(int *can, CUdevice device, CUdevice peer);

	CUresult (*primary_ctx_retain)(CUcontext *context, CUdevice device);
	CUresult (*primary_ctx_release)(CUdevice device);
	CUresult (*primary_ctx_get_state)(CUdevice device, unsigned *flags, int *active);
	CUresult (*ctx_get_current)(CUcontext *context);
	CUresult (*ctx_set_current)(CUcontext context);
	CUresult (*ctx_push)(CUcontext context);
	CUresult (*ctx_pop)(CUcontext *context);
	CUresult (*ctx_get_device)(CUdevice *device);
	CUresult (*ctx_get_id)(CUcontext context, unsigned long long *id); /* may be NULL */
	CUresult (*ctx_synchronize)(void);

	CUresult (*mem_alloc)(CUdeviceptr *pointer, size_t size);
	CUresult (*mem_free)(CUdeviceptr pointer);
	CUresult (*mem_alloc_managed)(CUdeviceptr *pointer, size_t size, unsigned flags);
	CUresult (*mem_get_info)(size_t *free, size_t *total);
	CUresult (*mem_get_address_range)(CUdeviceptr *base, size_t *size, CUdeviceptr pointer);
	CUresult (*pointer_get_attribute)(void *value, int attribute, CUdeviceptr pointer);
	CUresult (*pointer_get_attributes)(unsigned n, int *attributes, void **values,
					   CUdeviceptr pointer);

	CUresult (*ipc_get_mem_handle)(struct cuda_ipc_handle *handle, CUdeviceptr pointer);
	CUresult (*ipc_open_mem_handle)(CUdeviceptr *pointer, struct cuda_ipc_handle handle,
					unsigned flags);
	CUresult (*ipc_close_mem_handle)(CUdeviceptr pointer);
	CUresult (*ipc_get_event_handle)(struct cuda_ipc_handle *handle, CUevent event);
	CUresult (*ipc_open_event_handle)(CUevent *event, struct cuda_ipc_handle handle);

	CUresult (*event_create)(CUevent *event, unsigned flags);
	CUresult (*event_record)(CUevent event, CUstream stream);
	CUresult (*event_query)(CUevent event); /* CUDA_E_NOT_READY: it has not come */
	CUresult (*event_synchronize)(CUevent event);
	CUresult (*event_destroy)(CUevent event);

	CUresult (*stream_create)(CUstream *stream, unsigned flags);
	CUresult (*stream_create_with_priority)(CUstream *stream, unsigned flags, int priority);
	CUresult (*stream_destroy)(CUstream stream);
	CUresult (*stream_query)(CUstream stream);
	CUresult (*stream_synchronize)(CUstream stream);
	CUresult (*stream_wait_event)(CUstream stream, CUevent event, unsigned flags);
	CUresult (*stream_is_capturing)(CUstream stream, int *status);
	CUresult (*stream_get_ctx)(CUstream stream, CUcontext *context);
	CUresult (*stream_get_flags)(CUstream stream, unsigned *flags);
	CUresult (*thread_exchange_capture_mode)(int *mode);

	CUresult (*memcpy_htod)(CUdeviceptr to, const void *from, size_t size);
	CUresult (*memcpy_dtoh)(void *to, CUdeviceptr from, size_t size);
	CUresult (*memcpy_dtod_async)(CUdeviceptr to, CUdeviceptr from, size_t size,
				      CUstream stream);
	CUresult (*memcpy_htod_async)(CUdeviceptr to, const void *from, size_t size,
				      CUstream stream);
	CUresult (*memcpy_dtoh_async)(void *to, CUdeviceptr from, size_t size, CUstream stream);
	CUresult (*memcpy_peer_async)(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
				      CUcontext from_context, size_t size, CUstream stream);
	CUresult (*memset_d8)(CUdeviceptr to, unsigned char byte, size_t size);
	CUresult (*memset_d8_async)(CUdeviceptr to, unsigned char byte, size_t size,
				    CUstream stream);

	/* Virtual memory management. Optional: without it such memory cannot be opened. */
	CUresult (*mem_address_reserve)(CUdeviceptr *pointer, size_t size, size_t alignment,
					CUdeviceptr hint, unsigned long long flags);
	CUresult (*mem_address_free)(CUdeviceptr pointer, size_t size);
	CUresult (*mem_create)(cuda_vmm_handle *handle, size_t size,
			       const struct cuda_allocation_prop *prop, unsigned long long flags);
	CUresult (*mem_release)(cuda_vmm_handle handle);
	CUresult (*mem_map)(CUdeviceptr pointer, size_t size, size_t offset, cuda_vmm_handle handle,
			    unsigned long long flags);
	CUresult (*mem_unmap)(CUdeviceptr pointer, size_t size);
	CUresult (*mem_set_access)(CUdeviceptr pointer, size_t size,
				   const struct cuda_access *access, size_t n);
	CUresult (*mem_get_access)(unsigned long long *flags, const struct cuda_location *location,
				   CUdeviceptr pointer);
	CUresult (*mem_get_allocation_granularity)(size_t *granularity,
						   const struct cuda_allocation_prop *prop,
						   int option);
	CUresult (*mem_get_allocation_properties)(struct cuda_allocation_prop *prop,
						  cuda_vmm_handle handle);
	CUresult (*mem_export)(void *os_handle, cuda_vmm_handle handle, int type,
			       unsigned long long flags); /* a descriptor: os_handle is an int * */
	/* To import a descriptor, os_handle is (void *)(intptr_t)fd; fd stays the caller's. */
	CUresult (*mem_import)(cuda_vmm_handle *handle, void *os_handle, int type);
	CUresult (*mem_retain_handle)(cuda_vmm_handle *handle, void *address);

	/* Stream-ordered pools. Optional: without them no such memory can be made or opened. */
	CUresult (*mem_alloc_async)(CUdeviceptr *pointer, size_t size, CUstream stream);
	CUresult (*mem_free_async)(CUdeviceptr pointer, CUstream stream);
	CUresult (*mem_alloc_from_pool_async)(CUdeviceptr *pointer, size_t size, CUmemoryPool pool,
					      CUstream stream);
	CUresult (*pool_create)(CUmemoryPool *pool, const struct cuda_pool_props *props);
	CUresult (*pool_destroy)(CUmemoryPool pool);
	CUresult (*pool_export)(void *os_handle, CUmemoryPool pool, int type,
				unsigned long long flags);
	CUresult (*pool_import)(CUmemoryPool *pool, void *os_handle, int type,
				unsigned long long flags);
	CUresult (*pool_export_pointer)(struct cuda_pool_pointer *data, CUdeviceptr pointer);
	CUresult (*pool_import_pointer)(CUdeviceptr *pointer, CUmemoryPool pool,
					struct cuda_pool_pointer *data);
	CUresult (*pool_set_access)(CUmemoryPool pool, const struct cuda_access *access, size_t n);
};

/*
 * Returns the driver, which the first call loads and initialises, or NULL and in *why a text that
 * says what is missing and what to do about it. The answer of the first call holds for the life of
 * the process, and *why stays valid. Any thread may call this.
 *
 * After fork() in a process that had initialised CUDA the child gets NULL, since CUDA does not work
 * there. A child whose parent never asked for the driver may have it.
 */
const struct cuda_driver *cuda_driver_get(const char **why);

/* A text like "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory". It works without a driver. */
struct cuda_words {
	char text[200];
};
struct cuda_words cuda_words(CUresult result);
/* The text alone, which is valid until the end of the statement. */
#define cuda_error_text(result) (cuda_words(result).text)

/* Returns the negative errno that fits @result best; 0 for CUDA_OK. */
int cuda_errno(CUresult result);
