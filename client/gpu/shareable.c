/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>

#include "client/gpu/shareable.h"
#include "client/error.h"

/* Maps @handle at an address of its own, for reading and writing. */
static CUresult map_handle(const struct cuda_scope *scope, const struct cuda_device *device,
			   cuda_vmm_handle handle, uint64_t size, CUdeviceptr *base)
{
	const struct cuda_driver *d = scope->driver;
	struct cuda_access access = { .location = { CUDA_LOCATION_DEVICE, device->ordinal },
				      .flags = CUDA_ACCESS_READ_WRITE };
	CUresult e;

	e = d->mem_address_reserve(base, size, 0, 0, 0);
	if (e)
		return e;
	e = d->mem_map(*base, size, 0, handle, 0);
	if (e) {
		d->mem_address_free(*base, size);
		*base = 0;
		return e;
	}
	return d->mem_set_access(*base, size, &access, 1);
}

int cuda_shareable_new(const struct cuda_scope *scope, const struct cuda_device *device,
		       uint64_t size, CUdeviceptr *base, int *fd)
{
	const struct cuda_driver *d = scope->driver;
	struct cuda_allocation_prop prop = cuda_buffer_prop(d, device);
	cuda_vmm_handle handle;
	CUresult e;

	*base = 0;
	e = d->mem_create(&handle, size, &prop, 0);
	if (e)
		return cuda_fail(e, "allocating %" PRIu64 " bytes on GPU %d", size,
				 device->ordinal);
	e = map_handle(scope, device, handle, size, base);
	if (!e && fd)
		e = d->mem_export(fd, handle, CUDA_HANDLE_POSIX_FD, 0);
	d->mem_release(handle); /* the mapping keeps the memory */
	return e ? cuda_fail(e, "making %" PRIu64 " bytes on GPU %d shareable", size,
			     device->ordinal)
		 : 0;
}

void cuda_shareable_unmap(const struct cuda_scope *scope, CUdeviceptr base, uint64_t size)
{
	scope->driver->mem_unmap(base, size);
	scope->driver->mem_address_free(base, size);
}

void cuda_shareable_end(struct cuda_device *device, unsigned life, const struct cuda_event *after,
			CUdeviceptr base, uint64_t size)
{
	struct cuda_scope scope;

	if (cuda_enter(device, &scope))
		return;
	if (after && life == atomic_load(&device->life))
		scope.driver->event_synchronize(after->event);
	cuda_shareable_unmap(&scope, base, size); /* it outlives a reset: no context owns it */
	cuda_leave(&scope);
}

int cuda_shareable(const struct cuda_device *device)
{
	if (device->granularity)
		return 0;
	return tl_fail(-ENOTSUP,
		       "GPU %d or its driver cannot make memory that is shared by descriptors "
		       "(CUDA's virtual memory management); `tensorlease doctor` says more",
		       device->ordinal);
}

uint64_t cuda_shareable_size(const struct cuda_device *device, uint64_t size)
{
	uint64_t granules = size ? (size - 1) / device->granularity + 1 : 1;

	return granules * device->granularity;
}
