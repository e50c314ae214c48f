/* SPDX-License-Identifier: Apache-2.0 */
/* Our dlpack.h comes first; one of DLPack's own making, included later, must find nothing to do. */
#include <tensorlease/dlpack.h>

#ifndef DLPACK_DLPACK_H_
#error "our header leaves the guard of DLPack's own undefined"
#define DLPACK_DLPACK_H_
typedef struct {
	int other;
} DLTensor;
#endif

/* Includes it again: nothing is declared twice. */
#include <tensorlease/tensorlease.h>

#include "tensor/dtype.h"
#include "tests/harness/suite.h"

PLAIN_TEST(the_version_is_the_one_it_declares)
{
	assert_int_equal(DLPACK_MAJOR_VERSION, 1);
	assert_int_equal(DLPACK_MINOR_VERSION, 3);
}

/* Checked at compile time too; here for a reader who wants to see the numbers. */
PLAIN_TEST(the_layout_is_the_one_other_binaries_have)
{
	assert_int_equal(sizeof(DLTensor), 48);
	assert_int_equal(sizeof(DLManagedTensor), 64);
	assert_int_equal(sizeof(DLManagedTensorVersioned), 80);
	assert_int_equal(sizeof(DLPackExchangeAPI), 56);
	assert_int_equal(offsetof(DLTensor, dtype), 20);
	assert_int_equal(offsetof(DLTensor, byte_offset), 40);
	assert_int_equal(offsetof(DLManagedTensorVersioned, dl_tensor), 32);
}

PLAIN_TEST(every_device_has_its_number)
{
	static const struct {
		DLDeviceType type;
		int number;
	} devices[] = { { kDLCPU, 1 },	   { kDLCUDA, 2 },	   { kDLCUDAHost, 3 },
			{ kDLOpenCL, 4 },  { kDLVulkan, 7 },	   { kDLMetal, 8 },
			{ kDLVPI, 9 },	   { kDLROCM, 10 },	   { kDLROCMHost, 11 },
			{ kDLExtDev, 12 }, { kDLCUDAManaged, 13 }, { kDLOneAPI, 14 },
			{ kDLWebGPU, 15 }, { kDLHexagon, 16 },	   { kDLMAIA, 17 },
			{ kDLTrn, 18 } };

	for (size_t i = 0; i < sizeof(devices) / sizeof(*devices); i++)
		assert_int_equal((int)devices[i].type, devices[i].number);
}

PLAIN_TEST(every_type_code_has_its_number_under_both_names)
{
	static const int ours[] = { kDLInt,
				    kDLUInt,
				    kDLFloat,
				    kDLOpaqueHandle,
				    kDLBfloat,
				    kDLComplex,
				    kDLBool,
				    kDLFloat8_e3m4,
				    kDLFloat8_e4m3,
				    kDLFloat8_e4m3b11fnuz,
				    kDLFloat8_e4m3fn,
				    kDLFloat8_e4m3fnuz,
				    kDLFloat8_e5m2,
				    kDLFloat8_e5m2fnuz,
				    kDLFloat8_e8m0fnu,
				    kDLFloat6_e2m3fn,
				    kDLFloat6_e3m2fn,
				    kDLFloat4_e2m1fn };
	static const int layer[] = { TL_DTYPE_INT,
				     TL_DTYPE_UINT,
				     TL_DTYPE_FLOAT,
				     TL_DTYPE_OPAQUE,
				     TL_DTYPE_BFLOAT,
				     TL_DTYPE_COMPLEX,
				     TL_DTYPE_BOOL,
				     TL_DTYPE_FLOAT8_E3M4,
				     TL_DTYPE_FLOAT8_E4M3,
				     TL_DTYPE_FLOAT8_E4M3B11FNUZ,
				     TL_DTYPE_FLOAT8_E4M3FN,
				     TL_DTYPE_FLOAT8_E4M3FNUZ,
				     TL_DTYPE_FLOAT8_E5M2,
				     TL_DTYPE_FLOAT8_E5M2FNUZ,
				     TL_DTYPE_FLOAT8_E8M0FNU,
				     TL_DTYPE_FLOAT6_E2M3FN,
				     TL_DTYPE_FLOAT6_E3M2FN,
				     TL_DTYPE_FLOAT4_E2M1FN };

	for (int i = 0; i < TL_DTYPE_CODES; i++) {
		assert_int_equal(ours[i], i);
		assert_int_equal(layer[i], i);
	}
}

PLAIN_TEST(the_flags_have_their_bits)
{
	assert_int_equal(DLPACK_FLAG_BITMASK_READ_ONLY, 1);
	assert_int_equal(DLPACK_FLAG_BITMASK_IS_COPIED, 2);
	assert_int_equal(DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED, 4);
}

int main(void)
{
	return suite_run();
}
