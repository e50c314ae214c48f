/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The binary interface of DLPack 1.3, written for tensorlease: how a tensor in memory is described
 * to another library in the same process. Names, values and layout are DLPack's; the words are
 * ours.
 *
 * DLPack's own header may be included as well, before or after this one: whichever comes first
 * declares everything, and the other one nothing. Its version must be 1.0 or later. The first ones
 * lack some of the enumerators and the exchange interface, which tensorlease.h does not need.
 */
#ifndef TENSORLEASE_DLPACK_H
#define TENSORLEASE_DLPACK_H

#include <stddef.h>
#include <stdint.h>

#ifdef DLPACK_DLPACK_H_

#ifndef DLPACK_MAJOR_VERSION
#error "the dlpack.h included before <tensorlease/dlpack.h> is older than DLPack 1.0"
#elif DLPACK_MAJOR_VERSION != 1
#error "the dlpack.h included before <tensorlease/dlpack.h> is not of DLPack 1.x"
#endif

/* Before DLPack 1.2 this was only a tag in C. Repeating the typedef changes nothing. */
typedef struct DLManagedTensorVersioned DLManagedTensorVersioned;

#else /* DLPACK_DLPACK_H_ */

/* This is the guard of DLPack's own header, which then declares nothing if it is included later. */
#define DLPACK_DLPACK_H_

#define DLPACK_MAJOR_VERSION 1
#define DLPACK_MINOR_VERSION 3

#define DLPACK_DLL
#ifdef __cplusplus
#define DLPACK_EXTERN_C extern "C"
extern "C" {
#else
#define DLPACK_EXTERN_C
#endif

/*
 * Which DLPack the maker of a tensor was built with. Another major version means another layout:
 * call the deleter and look at nothing else. Minor versions only add values to the enums and flags.
 */
typedef struct {
	uint32_t major;
	uint32_t minor;
} DLPackVersion;

/* The kind of device whose memory it is. It has the size of an int32_t. */
#ifdef __cplusplus
typedef enum : int32_t {
#else
typedef enum {
#endif
	kDLCPU = 1,
	kDLCUDA = 2,
	kDLCUDAHost = 3, /* host memory pinned by CUDA: the CPU can read it */
	kDLOpenCL = 4,
	kDLVulkan = 7,
	kDLMetal = 8,
	kDLVPI = 9,
	kDLROCM = 10,
	kDLROCMHost = 11, /* host memory pinned by ROCm: the CPU can read it */
	kDLExtDev = 12,	  /* for experiments */
	kDLCUDAManaged = 13,
	kDLOneAPI = 14,
	kDLWebGPU = 15,
	kDLHexagon = 16,
	kDLMAIA = 17,
	kDLTrn = 18,
} DLDeviceType;

typedef struct {
	DLDeviceType device_type;
	int32_t device_id; /* which one of its kind, from 0; 0 for CPU, pinned and managed memory */
} DLDevice;

/* DLDataType.code says what the bits of a value mean. Values are little-endian, floats are IEEE
 * 754. */
typedef enum {
	kDLInt = 0U, /* two's complement */
	kDLUInt = 1U,
	kDLFloat = 2U,
	kDLOpaqueHandle = 3U, /* a pointer, or something only its makers understand */
	kDLBfloat = 4U,	      /* the upper 16 bits of a float32 */
	kDLComplex = 5U,      /* real part, imaginary part; bits counts both */
	kDLBool = 6U,	      /* a byte of 0 or 1; bits is 8 */
	/* The name says how many bits the types below have: 8, 6 or 4. */
	kDLFloat8_e3m4 = 7U,
	kDLFloat8_e4m3 = 8U,
	kDLFloat8_e4m3b11fnuz = 9U,
	kDLFloat8_e4m3fn = 10U,
	kDLFloat8_e4m3fnuz = 11U,
	kDLFloat8_e5m2 = 12U,
	kDLFloat8_e5m2fnuz = 13U,
	kDLFloat8_e8m0fnu = 14U,
	kDLFloat6_e2m3fn = 15U,
	kDLFloat6_e3m2fn = 16U,
	kDLFloat4_e2m1fn = 17U,
} DLDataTypeCode;

/*
 * The type of an element: `lanes` values of `bits` bits. Values of less than a byte are packed,
 * element i starting at bit i * bits * lanes counted from the least significant bit of the first
 * byte, unless DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED is set.
 */
typedef struct {
	uint8_t code; /* DLDataTypeCode */
	uint8_t bits; /* of one lane; complex64 has 64 */
	uint16_t lanes;
} DLDataType;

/* A description of a tensor, which owns nothing. */
typedef struct {
	void *data; /* where the memory starts, on its device; NULL if the tensor has no elements */
	DLDevice device;
	int32_t ndim; /* 0: one element, a scalar */
	DLDataType dtype;
	int64_t *shape;	  /* @ndim sizes; may be NULL if @ndim is 0 */
	int64_t *strides; /* @ndim steps, in elements, of any sign; before 1.2 NULL meant C order */
	uint64_t byte_offset; /* from @data to element 0 */
} DLTensor;

/* The older owning form, which carries neither version nor flags. */
typedef struct DLManagedTensor {
	DLTensor dl_tensor;
	void *manager_ctx; /* the maker's own */
	/* Frees everything, @self included. It is called once, on any thread. NULL does nothing. */
	void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;

/* The bits of DLManagedTensorVersioned.flags. */
#define DLPACK_FLAG_BITMASK_READ_ONLY (1UL << 0UL) /* its memory must not be written to */
#define DLPACK_FLAG_BITMASK_IS_COPIED                                                              \
	(1UL << 1UL) /* nobody else has this memory: it is a fresh copy */
#define DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED                                                 \
	(1UL << 2UL) /* a value of less than a byte takes a byte, in its low bits */

/* A tensor and how to give it back. */
typedef struct DLManagedTensorVersioned {
	DLPackVersion version; /* first, and the same in every major version */
	void *manager_ctx;     /* the maker's own */
	/* Frees everything, @self included. It is called once, on any thread. NULL does nothing. */
	void (*deleter)(struct DLManagedTensorVersioned *self);
	uint64_t flags; /* DLPACK_FLAG_BITMASK_*; a bit that is not known says nothing */
	DLTensor dl_tensor;
} DLManagedTensorVersioned;

/*
 * A Python library's fast way in and out, found as a capsule in a tensor type's attribute
 * __dlpack_c_exchange_api__; lives as long as the process. The calls need the GIL, do not wait for
 * the device, and return 0, or -1 with a Python error set, where nothing else is said.
 */
typedef struct DLPackExchangeAPIHeader {
	DLPackVersion version;
	struct DLPackExchangeAPIHeader *prev_api; /* the same library's older table, or NULL */
} DLPackExchangeAPIHeader;

/*
 * Makes a tensor with the device, dtype and shape of @prototype. Needs no GIL. On failure calls
 * SetError(error_ctx, kind, message), where kind is the name of a Python exception.
 */
typedef int (*DLPackManagedTensorAllocator)(DLTensor *prototype, DLManagedTensorVersioned **out,
					    void *error_ctx,
					    void (*SetError)(void *error_ctx, const char *kind,
							     const char *message));
/* Takes a new hold on the tensor behind a Python object. */
typedef int (*DLPackManagedTensorFromPyObjectNoSync)(void *py_object,
						     DLManagedTensorVersioned **out);
/* Makes a new Python object, which takes @tensor over. */
typedef int (*DLPackManagedTensorToPyObjectNoSync)(DLManagedTensorVersioned *tensor,
						   void **out_py_object);
/* Describes the tensor behind a Python object. This is valid as long as the object is. */
typedef int (*DLPackDLTensorFromPyObjectNoSync)(void *py_object, DLTensor *out);
/* Tells on which stream of that device the library is working. */
typedef int (*DLPackCurrentWorkStream)(DLDeviceType device_type, int32_t device_id,
				       void **out_current_stream);

typedef struct DLPackExchangeAPI {
	DLPackExchangeAPIHeader header; /* first, so that prev_api can be followed */
	DLPackManagedTensorAllocator managed_tensor_allocator;
	DLPackManagedTensorFromPyObjectNoSync managed_tensor_from_py_object_no_sync;
	DLPackManagedTensorToPyObjectNoSync managed_tensor_to_py_object_no_sync;
	DLPackDLTensorFromPyObjectNoSync dltensor_from_py_object_no_sync; /* may be NULL */
	DLPackCurrentWorkStream current_work_stream;
} DLPackExchangeAPI;

#ifdef __cplusplus
}
#endif

#endif /* DLPACK_DLPACK_H_ */

/* A header of DLPack 1.0 has tensors of such types, but not all of the flags. */
#ifndef DLPACK_FLAG_BITMASK_READ_ONLY
#define DLPACK_FLAG_BITMASK_READ_ONLY (1UL << 0UL)
#endif
#ifndef DLPACK_FLAG_BITMASK_IS_COPIED
#define DLPACK_FLAG_BITMASK_IS_COPIED (1UL << 1UL)
#endif
#ifndef DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED
#define DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED (1UL << 2UL)
#endif

/* Other binaries rely on this layout, whoever declared it. Sizes are those with 8-byte pointers. */
#ifdef __cplusplus
#define TL_ABI_(what) static_assert(sizeof(void *) != 8 || (what), "not the layout of DLPack 1")
#else
#define TL_ABI_(what) _Static_assert(sizeof(void *) != 8 || (what), "not the layout of DLPack 1")
#endif

TL_ABI_(sizeof(DLPackVersion) == 8);
TL_ABI_(sizeof(DLDeviceType) == 4);
TL_ABI_(sizeof(DLDevice) == 8 && offsetof(DLDevice, device_id) == 4);
TL_ABI_(sizeof(DLDataType) == 4 && offsetof(DLDataType, bits) == 1 &&
	offsetof(DLDataType, lanes) == 2);
TL_ABI_(sizeof(DLTensor) == 48);
TL_ABI_(offsetof(DLTensor, data) == 0 && offsetof(DLTensor, device) == 8);
TL_ABI_(offsetof(DLTensor, ndim) == 16 && offsetof(DLTensor, dtype) == 20);
TL_ABI_(offsetof(DLTensor, shape) == 24 && offsetof(DLTensor, strides) == 32);
TL_ABI_(offsetof(DLTensor, byte_offset) == 40);
TL_ABI_(sizeof(DLManagedTensor) == 64 && offsetof(DLManagedTensor, dl_tensor) == 0);
TL_ABI_(offsetof(DLManagedTensor, manager_ctx) == 48 && offsetof(DLManagedTensor, deleter) == 56);
TL_ABI_(sizeof(DLManagedTensorVersioned) == 80 && offsetof(DLManagedTensorVersioned, version) == 0);
TL_ABI_(offsetof(DLManagedTensorVersioned, manager_ctx) == 8);
TL_ABI_(offsetof(DLManagedTensorVersioned, deleter) == 16);
TL_ABI_(offsetof(DLManagedTensorVersioned, flags) == 24);
TL_ABI_(offsetof(DLManagedTensorVersioned, dl_tensor) == 32);
#if DLPACK_MINOR_VERSION >= 3
TL_ABI_(sizeof(DLPackExchangeAPIHeader) == 16 && offsetof(DLPackExchangeAPIHeader, prev_api) == 8);
TL_ABI_(sizeof(DLPackExchangeAPI) == 56 && offsetof(DLPackExchangeAPI, header) == 0);
TL_ABI_(offsetof(DLPackExchangeAPI, managed_tensor_allocator) == 16);
TL_ABI_(offsetof(DLPackExchangeAPI, managed_tensor_from_py_object_no_sync) == 24);
TL_ABI_(offsetof(DLPackExchangeAPI, managed_tensor_to_py_object_no_sync) == 32);
TL_ABI_(offsetof(DLPackExchangeAPI, dltensor_from_py_object_no_sync) == 40);
TL_ABI_(offsetof(DLPackExchangeAPI, current_work_stream) == 48);
#endif

#undef TL_ABI_

#endif /* TENSORLEASE_DLPACK_H */
