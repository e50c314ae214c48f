/* SPDX-License-Identifier: Apache-2.0 */
/* Types and constants of the CUDA driver's ABI, which are the same on every 64-bit Linux. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice; /* an ordinal among the visible ones, by the driver's numbering */
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef unsigned long long cuda_vmm_handle; /* CUmemGenericAllocationHandle */

#define CUDA_STREAM_LEGACY ((CUstream)0x1)
#define CUDA_STREAM_PER_THREAD ((CUstream)0x2)

/* CUresult; the driver's CUDA_ERROR_x is CUDA_E_x here */
enum cuda_result {
	CUDA_OK = 0,
	CUDA_E_INVALID_VALUE = 1,
	CUDA_E_OUT_OF_MEMORY = 2,
	CUDA_E_NOT_INITIALIZED = 3,
	CUDA_E_DEINITIALIZED = 4,
	CUDA_E_STUB_LIBRARY = 34,
	CUDA_E_CALL_REQUIRES_NEWER_DRIVER = 36,
	CUDA_E_DEVICE_UNAVAILABLE = 46,
	CUDA_E_NO_DEVICE = 100,
	CUDA_E_INVALID_DEVICE = 101,
	CUDA_E_INVALID_CONTEXT = 201,
	CUDA_E_MAP_FAILED = 205,
	CUDA_E_ALREADY_MAPPED = 208,
	CUDA_E_NOT_MAPPED = 211,
	CUDA_E_ECC_UNCORRECTABLE = 214,
	CUDA_E_PEER_ACCESS_UNSUPPORTED = 217,
	CUDA_E_OPERATING_SYSTEM = 304,
	CUDA_E_INVALID_HANDLE = 400,
	CUDA_E_ILLEGAL_STATE = 401,
	CUDA_E_NOT_FOUND = 500,
	CUDA_E_NOT_READY = 600,
	CUDA_E_ILLEGAL_ADDRESS = 700,
	CUDA_E_CONTEXT_IS_DESTROYED = 709,
	CUDA_E_LAUNCH_FAILED = 719,
	CUDA_E_NOT_PERMITTED = 800,
	CUDA_E_NOT_SUPPORTED = 801,
	CUDA_E_SYSTEM_NOT_READY = 802,
	CUDA_E_SYSTEM_DRIVER_MISMATCH = 803,
	CUDA_E_COMPAT_NOT_SUPPORTED_ON_DEVICE = 804,
	CUDA_E_MPS_CONNECTION_FAILED = 805,
	CUDA_E_MPS_CLIENT_TERMINATED = 810,
	CUDA_E_STREAM_CAPTURE_UNSUPPORTED = 900,
	CUDA_E_STREAM_CAPTURE_IMPLICIT = 906,
	CUDA_E_CAPTURED_EVENT = 907,
	CUDA_E_STREAM_CAPTURE_WRONG_THREAD = 908,
	CUDA_E_TIMEOUT = 909,
	CUDA_E_UNKNOWN = 999,
};

/* CUdevice_attribute */
enum cuda_device_attribute {
	CUDA_DEVICE_INTEGRATED = 18,
	CUDA_DEVICE_COMPUTE_MODE = 20,
	CUDA_DEVICE_PCI_BUS_ID = 33,
	CUDA_DEVICE_PCI_DEVICE_ID = 34,
	CUDA_DEVICE_UNIFIED_ADDRESSING = 41,
	CUDA_DEVICE_PCI_DOMAIN_ID = 50,
	CUDA_DEVICE_COMPUTE_CAPABILITY_MAJOR = 75,
	CUDA_DEVICE_COMPUTE_CAPABILITY_MINOR = 76,
	CUDA_DEVICE_MANAGED_MEMORY = 83,
	CUDA_DEVICE_VMM = 102,		     /* virtual memory management */
	CUDA_DEVICE_POSIX_DESCRIPTORS = 103, /* such memory can be exported as a descriptor */
	CUDA_DEVICE_VMM_RDMA = 110,	     /* such memory can be read by network cards */
	CUDA_DEVICE_MEMORY_POOLS = 115,	     /* stream-ordered allocation */
	CUDA_DEVICE_POOL_HANDLE_TYPES = 119, /* bits of enum cuda_handle_type */
	CUDA_DEVICE_IPC_EVENTS = 125,	     /* CUDA_E_INVALID_VALUE before CUDA 12 */
	CUDA_DEVICE_FABRIC_HANDLES = 128,
};

/* CUpointer_attribute, with the type of each value. The driver may write a truth value as one byte
 * or as four: read it into an unsigned that was 0 before. */
enum cuda_pointer_attribute {
	CUDA_POINTER_CONTEXT = 1,		/* CUcontext */
	CUDA_POINTER_MEMORY_TYPE = 2,		/* unsigned: enum cuda_memory_type */
	CUDA_POINTER_DEVICE_POINTER = 3,	/* CUdeviceptr */
	CUDA_POINTER_HOST_POINTER = 4,		/* void * */
	CUDA_POINTER_SYNC_MEMOPS = 6,		/* truth */
	CUDA_POINTER_BUFFER_ID = 7,		/* unsigned long long, never reused in a process */
	CUDA_POINTER_IS_MANAGED = 8,		/* truth */
	CUDA_POINTER_DEVICE_ORDINAL = 9,	/* int */
	CUDA_POINTER_LEGACY_IPC_CAPABLE = 10,	/* truth */
	CUDA_POINTER_RANGE_START = 11,		/* CUdeviceptr */
	CUDA_POINTER_RANGE_SIZE = 12,		/* size_t */
	CUDA_POINTER_MAPPED = 13,		/* truth */
	CUDA_POINTER_ALLOWED_HANDLE_TYPES = 14, /* unsigned long long: enum cuda_handle_type */
	CUDA_POINTER_ACCESS_FLAGS = 16,		/* unsigned long long: enum cuda_access_flags */
	CUDA_POINTER_POOL = 17,			/* CUmemoryPool */
	CUDA_POINTER_MAPPING_SIZE = 18,		/* size_t; of VMM: what one cuMemMap mapped */
	CUDA_POINTER_MAPPING_BASE = 19,		/* CUdeviceptr */
	CUDA_POINTER_BLOCK_ID = 20,		/* unsigned long long: the physical allocation */
};

enum cuda_memory_type {
	CUDA_MEMORY_HOST = 1,
	CUDA_MEMORY_DEVICE = 2,
	CUDA_MEMORY_ARRAY = 3,
	CUDA_MEMORY_UNIFIED = 4,
};

/* CUmemAllocationHandleType, a set of bits */
enum cuda_handle_type {
	CUDA_HANDLE_NONE = 0,
	CUDA_HANDLE_POSIX_FD = 1,
	CUDA_HANDLE_FABRIC = 8,
};

enum cuda_location_type {
	CUDA_LOCATION_DEVICE = 1, /* id is an ordinal */
	CUDA_LOCATION_HOST = 2,
	CUDA_LOCATION_HOST_NUMA = 3,
};

enum cuda_access_flags {
	CUDA_ACCESS_NONE = 0,
	CUDA_ACCESS_READ = 1,
	CUDA_ACCESS_READ_WRITE = 3,
};

enum cuda_flags {
	CUDA_IPC_LAZY_ENABLE_PEER_ACCESS = 1, /* cuIpcOpenMemHandle: must be given */

	CUDA_EVENT_BLOCKING_SYNC = 1,
	CUDA_EVENT_DISABLE_TIMING = 2, /* INTERPROCESS needs it */
	CUDA_EVENT_INTERPROCESS = 4,

	CUDA_STREAM_NON_BLOCKING = 1, /* does not synchronise with the legacy stream */

	CUDA_MEM_ATTACH_GLOBAL = 1, /* cuMemAllocManaged */
	CUDA_ALLOCATION_PINNED = 1, /* CUmemAllocationType */
	CUDA_GRANULARITY_MINIMUM = 0,
	CUDA_GRANULARITY_RECOMMENDED = 1,

	CUDA_CAPTURE_NONE = 0, /* CUstreamCaptureStatus */
	CUDA_CAPTURE_ACTIVE = 1,
	CUDA_CAPTURE_INVALIDATED = 2,
	CUDA_CAPTURE_MODE_GLOBAL = 0, /* CUstreamCaptureMode */
	CUDA_CAPTURE_MODE_THREAD_LOCAL = 1,
	CUDA_CAPTURE_MODE_RELAXED = 2,
};

struct cuda_uuid {
	unsigned char bytes[16];
};

/* CUipcMemHandle and CUipcEventHandle, which the runtime calls cudaIpc*Handle_t */
struct cuda_ipc_handle {
	unsigned char bytes[64];
};

/* CUmemLocation */
struct cuda_location {
	int type; /* enum cuda_location_type */
	int id;
};

/* CUmemAccessDesc */
struct cuda_access {
	struct cuda_location location;
	int flags; /* enum cuda_access_flags */
};

/* CUmemAllocationProp; the rest is 0 */
struct cuda_allocation_prop {
	int type;	  /* CUDA_ALLOCATION_PINNED */
	int handle_types; /* enum cuda_handle_type */
	struct cuda_location location;
	void *windows;
	unsigned char compression;
	unsigned char gpudirect_rdma;
	unsigned short usage;
	unsigned char reserved[4];
};

/* CUmemPoolProps; the rest is 0 */
struct cuda_pool_props {
	int type;
	int handle_types;
	struct cuda_location location;
	void *windows;
	size_t max_size;
	unsigned short usage;
	unsigned char reserved[54];
};

/* CUmemPoolPtrExportData */
struct cuda_pool_pointer {
	unsigned char bytes[64];
};
