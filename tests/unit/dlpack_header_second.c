/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A header of DLPack's own making comes first, one as old as 1.0: no type codes above 6, no padded
 * flag, no exchange interface, and the versioned tensor is a tag only. Ours must then declare
 * nothing of that again, and the API and the layer below must be usable all the same.
 */
#include <stdint.h>

/* A stand-in for it: the guard, the macros and the names that a program may rely on. */
#ifndef DLPACK_DLPACK_H_
#define DLPACK_DLPACK_H_
#define DLPACK_MAJOR_VERSION 1
#define DLPACK_MINOR_VERSION 0
#define DLPACK_FLAG_BITMASK_READ_ONLY (1UL << 0UL)

typedef struct {
	uint32_t major, minor;
} DLPackVersion;

typedef enum { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLROCMHost = 11 } DLDeviceType;

typedef struct {
	DLDeviceType device_type;
	int32_t device_id;
} DLDevice;

typedef enum {
	kDLInt,
	kDLUInt,
	kDLFloat,
	kDLOpaqueHandle,
	kDLBfloat,
	kDLComplex,
	kDLBool
} DLDataTypeCode;

typedef struct {
	uint8_t code, bits;
	uint16_t lanes;
} DLDataType;

typedef struct {
	void *data;
	DLDevice device;
	int32_t ndim;
	DLDataType dtype;
	int64_t *shape, *strides;
	uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
	DLTensor dl_tensor;
	void *manager_ctx;
	void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;

struct DLManagedTensorVersioned {
	DLPackVersion version;
	void *manager_ctx;
	void (*deleter)(struct DLManagedTensorVersioned *self);
	uint64_t flags;
	DLTensor dl_tensor;
};
#endif

#include <stddef.h>

#include <tensorlease/dlpack.h>
#include <tensorlease/tensorlease.h>

#include "tensor/check.h"
#include "tensor/dtype.h"
#include "tests/harness/suite.h"

PLAIN_TEST(the_first_header_stays_in_charge)
{
	assert_int_equal(DLPACK_MINOR_VERSION, 0);
}

PLAIN_TEST(the_versioned_tensor_is_a_type)
{
	DLManagedTensorVersioned managed = { .flags = DLPACK_FLAG_BITMASK_READ_ONLY };
	struct DLManagedTensorVersioned *same = &managed;

	assert_int_equal(same->flags, 1);
	assert_int_equal(sizeof(managed), 80);
}

PLAIN_TEST(newer_flags_and_codes_can_be_used)
{
	DLDataType float4 = { .code = TL_DTYPE_FLOAT4_E2M1FN, .bits = 4, .lanes = 1 };
	const char *why = NULL;

	assert_int_equal(DLPACK_FLAG_BITMASK_IS_COPIED, 2);
	assert_int_equal(DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED, 4);
	assert_int_equal(tensor_dtype_check(float4, &why), 0);
}

PLAIN_TEST(a_tensor_of_the_first_header_can_be_checked)
{
	int64_t shape[] = { 2, 3 };
	float values[6] = { 0 };
	DLTensor t = { .data = values,
		       .device = { kDLCPU, 0 },
		       .ndim = 2,
		       .dtype = { kDLFloat, 32, 1 },
		       .shape = shape };
	char why[TENSOR_WHY_TEXT];

	assert_int_equal(tensor_check_source(&t, 0, why, sizeof(why)), 0);
}

int main(void)
{
	return suite_run();
}
