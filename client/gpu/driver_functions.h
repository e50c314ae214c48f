/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's functions that driver.h has members for: (group, member, name, suffix of the
 * exported symbol, the CUDA version that brought this form of it). Groups: NEEDED; ALONE may be
 * NULL by itself; VMM and POOLS are there as a whole or not at all.
 */
#pragma once

#define CUDA_FUNCTIONS(F)                                                                          \
	F(NEEDED, init, cuInit, , 2000)                                                            \
	F(NEEDED, driver_get_version, cuDriverGetVersion, , 2020)                                  \
	F(NEEDED, get_error_name, cuGetErrorName, , 6000)                                          \
	F(NEEDED, get_error_string, cuGetErrorString, , 6000)                                      \
	F(NEEDED, device_get_count, cuDeviceGetCount, , 2000)                                      \
	F(NEEDED, device_get, cuDeviceGet, , 2000)                                                 \
	F(NEEDED, device_get_name, cuDeviceGetName, , 2000)                                        \
	F(NEEDED, device_get_uuid, cuDeviceGetUuid, _v2, 11040)                                    \
	F(NEEDED, device_total_mem, cuDeviceTotalMem, _v2, 3020)                                   \
	F(NEEDED, device_get_attribute, cuDeviceGetAttribute, , 2000)                              \
	F(NEEDED, device_can_access_peer, cuDeviceCanAccessPeer, , 4000)                           \
	F(NEEDED, primary_ctx_retain, cuDevicePrimaryCtxRetain, , 7000)                            \
	F(NEEDED, primary_ctx_release, cuDevicePrimaryCtxRelease, _v2, 11000)                      \
	F(NEEDED, primary_ctx_get_state, cuDevicePrimaryCtxGetState, , 7000)                       \
	F(NEEDED, ctx_get_current, cuCtxGetCurrent, , 4000)                                        \
	F(NEEDED, ctx_set_current, cuCtxSetCurrent, , 4000)                                        \
	F(NEEDED, ctx_push, cuCtxPushCurrent, _v2, 4000)                                           \
	F(NEEDED, ctx_pop, cuCtxPopCurrent, _v2, 4000)                                             \
	F(NEEDED, ctx_get_device, cuCtxGetDevice, , 2000)                                          \
	F(ALONE, ctx_get_id, cuCtxGetId, , 12000)                                                  \
	F(NEEDED, ctx_synchronize, cuCtxSynchronize, , 2000)                                       \
	F(NEEDED, mem_alloc, cuMemAlloc, _v2, 3020)                                                \
	F(NEEDED, mem_free, cuMemFree, _v2, 3020)                                                  \
	F(NEEDED, mem_alloc_managed, cuMemAllocManaged, , 6000)                                    \
	F(NEEDED, mem_get_info, cuMemGetInfo, _v2, 3020)                                           \
	F(NEEDED, mem_get_address_range, cuMemGetAddressRange, _v2, 3020)                          \
	F(NEEDED, pointer_get_attribute, cuPointerGetAttribute, , 4000)                            \
	F(NEEDED, pointer_get_attributes, cuPointerGetAttributes, , 7000)                          \
	F(NEEDED, ipc_get_mem_handle, cuIpcGetMemHandle, , 4010)                                   \
	F(NEEDED, ipc_open_mem_handle, cuIpcOpenMemHandle, _v2, 11000)                             \
	F(NEEDED, ipc_close_mem_handle, cuIpcCloseMemHandle, , 4010)                               \
	F(NEEDED, ipc_get_event_handle, cuIpcGetEventHandle, , 4010)                               \
	F(NEEDED, ipc_open_event_handle, cuIpcOpenEventHandle, , 4010)                             \
	F(NEEDED, event_create, cuEventCreate, , 2000)                                             \
	F(NEEDED, event_record, cuEventRecord, , 2000)                                             \
	F(NEEDED, event_query, cuEventQuery, , 2000)                                               \
	F(NEEDED, event_synchronize, cuEventSynchronize, , 2000)                                   \
	F(NEEDED, event_destroy, cuEventDestroy, _v2, 4000)                                        \
	F(NEEDED, stream_create, cuStreamCreate, , 2000)                                           \
	F(ALONE, stream_create_with_priority, cuStreamCreateWithPriority, , 5050)                  \
	F(NEEDED, stream_destroy, cuStreamDestroy, _v2, 4000)                                      \
	F(NEEDED, stream_query, cuStreamQuery, , 2000)                                             \
	F(NEEDED, stream_synchronize, cuStreamSynchronize, , 2000)                                 \
	F(NEEDED, stream_wait_event, cuStreamWaitEvent, , 3020)                                    \
	F(NEEDED, stream_is_capturing, cuStreamIsCapturing, , 10000)                               \
	F(NEEDED, stream_get_ctx, cuStreamGetCtx, , 9020)                                          \
	F(NEEDED, stream_get_flags, cuStreamGetFlags, , 5050)                                      \
	F(NEEDED, thread_exchange_capture_mode, cuThreadExchangeStreamCaptureMode, , 10010)        \
	F(NEEDED, memcpy_htod, cuMemcpyHtoD, _v2, 3020)                                            \
	F(NEEDED, memcpy_dtoh, cuMemcpyDtoH, _v2, 3020)                                            \
	F(NEEDED, memcpy_dtod_async, cuMemcpyDtoDAsync, _v2, 3020)                                 \
	F(NEEDED, memcpy_htod_async, cuMemcpyHtoDAsync, _v2, 3020)                                 \
	F(NEEDED, memcpy_dtoh_async, cuMemcpyDtoHAsync, _v2, 3020)                                 \
	F(NEEDED, memcpy_peer_async, cuMemcpyPeerAsync, , 4000)                                    \
	F(NEEDED, memset_d8, cuMemsetD8, _v2, 3020)                                                \
	F(NEEDED, memset_d8_async, cuMemsetD8Async, , 3020)                                        \
	F(VMM, mem_address_reserve, cuMemAddressReserve, , 10020)                                  \
	F(VMM, mem_address_free, cuMemAddressFree, , 10020)                                        \
	F(VMM, mem_create, cuMemCreate, , 10020)                                                   \
	F(VMM, mem_release, cuMemRelease, , 10020)                                                 \
	F(VMM, mem_map, cuMemMap, , 10020)                                                         \
	F(VMM, mem_unmap, cuMemUnmap, , 10020)                                                     \
	F(VMM, mem_set_access, cuMemSetAccess, , 10020)                                            \
	F(VMM, mem_get_access, cuMemGetAccess, , 10020)                                            \
	F(VMM, mem_get_allocation_granularity, cuMemGetAllocationGranularity, , 10020)             \
	F(VMM, mem_get_allocation_properties, cuMemGetAllocationPropertiesFromHandle, , 10020)     \
	F(VMM, mem_export, cuMemExportToShareableHandle, , 10020)                                  \
	F(VMM, mem_import, cuMemImportFromShareableHandle, , 10020)                                \
	F(VMM, mem_retain_handle, cuMemRetainAllocationHandle, , 11000)                            \
	F(POOLS, mem_alloc_async, cuMemAllocAsync, , 11020)                                        \
	F(POOLS, mem_free_async, cuMemFreeAsync, , 11020)                                          \
	F(POOLS, mem_alloc_from_pool_async, cuMemAllocFromPoolAsync, , 11020)                      \
	F(POOLS, pool_create, cuMemPoolCreate, , 11020)                                            \
	F(POOLS, pool_destroy, cuMemPoolDestroy, , 11020)                                          \
	F(POOLS, pool_export, cuMemPoolExportToShareableHandle, , 11020)                           \
	F(POOLS, pool_import, cuMemPoolImportFromShareableHandle, , 11020)                         \
	F(POOLS, pool_export_pointer, cuMemPoolExportPointer, , 11020)                             \
	F(POOLS, pool_import_pointer, cuMemPoolImportPointer, , 11020)                             \
	F(POOLS, pool_set_access, cuMemPoolSetAccess, , 11020)
