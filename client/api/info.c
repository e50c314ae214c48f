/* SPDX-License-Identifier: Apache-2.0 */
/* Information about GPUs: those of this process, and those on which the daemon counts bytes. */
#include <errno.h>
#include <string.h>

#include <tensorlease/cuda.h>

#include "client/checks.h"
#include "client/gpu/device.h"
#include "client/error.h"
#include "client/connection/call.h"
#include "client/connection/request.h"

static int attribute(const struct cuda_driver *d, const struct cuda_device *device, int which)
{
	int value = 0;

	return d->device_get_attribute(&value, which, device->device) ? 0 : value;
}

/* Where CUDA has IPC at all. The driver's word on a piece of memory counts when that is published:
 * asking about none here makes no context and allocates nothing. */
static bool legacy_capable(const struct cuda_driver *d, const struct cuda_device *device)
{
	return attribute(d, device, CUDA_DEVICE_UNIFIED_ADDRESSING) &&
	       !attribute(d, device, CUDA_DEVICE_INTEGRATED);
}

TL_API int tl_get_cuda_info(int device, tl_cuda_info *info)
{
	tl_cuda_info now = { 0 };
	const struct cuda_driver *d;
	struct cuda_device *dev;
	size_t total = 0;
	int r;

	if (!info)
		return tl_fail(-EINVAL, "tl_get_cuda_info: info is NULL");
	r = client_result_check(info, sizeof(now), "tl_cuda_info");
	if (!r)
		r = cuda_device_at(device, &dev);
	if (r)
		return r;
	d = cuda_driver();
	if (!d)
		return -ENODEV;
	d->device_get_count(&now.count);
	now.driver_version = d->version;
	memcpy(now.uuid, dev->uuid.bytes, sizeof(now.uuid));
	d->device_get_name(now.name, sizeof(now.name), dev->device);
	if (!d->device_total_mem(&total, dev->device))
		now.total_bytes = total;
	now.compute_major = attribute(d, dev, CUDA_DEVICE_COMPUTE_CAPABILITY_MAJOR);
	now.compute_minor = attribute(d, dev, CUDA_DEVICE_COMPUTE_CAPABILITY_MINOR);
	now.integrated = attribute(d, dev, CUDA_DEVICE_INTEGRATED);
	now.memory_pools = attribute(d, dev, CUDA_DEVICE_POOL_HANDLE_TYPES) & CUDA_HANDLE_POSIX_FD;
	now.vmm = dev->granularity != 0;
	now.legacy_ipc = legacy_capable(d, dev);
	client_result(info, &now, sizeof(now));
	return 0;
}

TL_API int tl_list_devices(tl_client *client,
			   int (*visit)(const tl_device_usage *usage, void *context), void *context)
{
	struct wire_devices m = { .header = { .type = WIRE_DEVICES, .length = sizeof(m) } };
	struct client_list list;

	if (!client || !visit)
		return tl_fail(-EINVAL, "tl_list_devices: %s is NULL", client ? "visit" : "client");
	list = client_list(client, LIST_DEVICES);
	for (;;) {
		struct conn_message answer;
		tl_device_usage usage;
		struct wire_device d;
		int r;

		r = client_request_next(client, &list, &m, "listing GPUs", &answer);
		if (r || answer.header.type == WIRE_DONE)
			return r;
		r = answer_expect(&answer, WIRE_DEVICE, "listing GPUs");
		if (r)
			return r;
		memcpy(&d, answer.bytes, sizeof(d));
		if (d.number < m.from || d.number == UINT32_MAX)
			return tl_fail(-EPROTO, "the daemon told of GPU %u where %u was asked for",
				       d.number, m.from);
		usage = (tl_device_usage){
			.size = sizeof(usage),
			.bytes_used = d.used,
			.capacity = d.capacity,
			.user_capacity = d.user_capacity,
			.segments = d.segments,
		};
		memcpy(usage.uuid, d.device, sizeof(usage.uuid));
		m.from = d.number + 1;
		r = visit(&usage, context);
		if (r)
			return r;
	}
}
