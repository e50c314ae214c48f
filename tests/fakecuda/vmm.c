/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual memory management: a physical allocation is a memfd, an exported descriptor a duplicate
 * of it, so the kernel keeps the memory for as long as anything refers to it anywhere.
 */
#include "tests/fakecuda/fake.h"

static struct vmm *vmms;
static struct reservation *reservations;

static bool aligned(unsigned long long n)
{
	return n % FAKE_GRANULARITY == 0;
}

static CUresult supported(void)
{
	return fake_flag("FAKECUDA_NO_VMM") ? CUDA_E_NOT_SUPPORTED : CUDA_OK;
}

#define ENTER_VMM()                                                                                \
	ENTER_LOCKED();                                                                            \
	if (supported())                                                                           \
	return fake_leave(supported())

/* Moves @fd above the numbers that tests count: the real driver has no descriptor for each. -1
 * stays. */
static int fd_high_take(int fd)
{
	int high = fcntl(fd, F_DUPFD_CLOEXEC, 2048);

	if (high < 0)
		return fd;
	close(fd);
	return high;
}

/* ---- Address ranges ---- */

CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr hint,
			     unsigned long long flags)
{
	ENTER_VMM();
	struct reservation *r;
	char *base;

	(void)hint;
	if (!pointer || !size || !aligned(size) || flags || alignment & (alignment - 1) ||
	    alignment > FAKE_GRANULARITY)
		return fake_leave(CUDA_E_INVALID_VALUE);
	base = va_take(size);
	if (!base)
		return fake_leave(CUDA_E_OUT_OF_MEMORY);
	r = calloc(1, sizeof(*r));
	*r = (struct reservation){
		.next = reservations, .base = base, .size = size, .buffer_id = fake_id()
	};
	reservations = r;
	fake_live(FAKE_RESERVATION, 1);
	*pointer = (CUdeviceptr)(uintptr_t)base;
	return fake_leave(CUDA_OK);
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size)
{
	ENTER_VMM();

	for (struct reservation **p = &reservations; *p; p = &(*p)->next) {
		struct reservation *r = *p;

		if ((CUdeviceptr)(uintptr_t)r->base != pointer || r->size != size || r->mappings)
			continue;
		*p = r->next;
		va_give(r->base, r->size);
		free(r);
		fake_live(FAKE_RESERVATION, -1);
		return fake_leave(CUDA_OK);
	}
	return fake_leave(CUDA_E_INVALID_VALUE);
}

/* ---- Physical memory ---- */

static bool prop_valid(const struct cuda_allocation_prop *prop)
{
	return prop && prop->type == CUDA_ALLOCATION_PINNED &&
	       prop->location.type == CUDA_LOCATION_DEVICE && prop->location.id >= 0 &&
	       prop->location.id < fake.devices &&
	       (prop->handle_types & ~(CUDA_HANDLE_POSIX_FD | CUDA_HANDLE_FABRIC)) == 0 &&
	       !prop->windows;
}

static struct vmm *vmm_find(cuda_vmm_handle handle)
{
	for (struct vmm *v = vmms; v; v = v->next)
		if (v->id == handle && v->handles)
			return v;
	return NULL;
}

static struct vmm *vmm_add(int fd, size_t size, const struct cuda_allocation_prop *prop)
{
	struct vmm *v = calloc(1, sizeof(*v));

	*v = (struct vmm){
		.next = vmms,
		.id = fake_id(),
		.fd = fd_high_take(fd),
		.size = size,
		.handles = 1,
		.device = prop->location.id,
		.prop = *prop,
	};
	vmms = v;
	fake_live(FAKE_VMM_HANDLE, 1);
	return v;
}

static void vmm_free_if_unused(struct vmm *vmm)
{
	struct vmm **v = &vmms;

	if (vmm->handles || vmm->mappings)
		return;
	while (*v != vmm)
		v = &(*v)->next;
	*v = vmm->next;
	if (!vmm->imported)
		fake_uncharge(vmm->device, vmm->size);
	close(vmm->fd);
	free(vmm);
}

int fake_memfd(const char *name, size_t size)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd >= 0 && (ftruncate(fd, (off_t)size) ||
			fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* In which life that GPU is; @has_memory: and it has memory from now on. */
static unsigned device_life(int physical, bool has_memory)
{
	struct fake_device *device = &fake.registry->devices[physical];
	unsigned life;

	fake_lock(fake.registry);
	device->has_memory |= has_memory;
	life = device->life;
	fake_unlock(fake.registry);
	return life;
}

CUresult cuMemCreate(cuda_vmm_handle *handle, size_t size, const struct cuda_allocation_prop *prop,
		     unsigned long long flags)
{
	ENTER_VMM();
	char name[64];
	int fd;

	if (!handle || !size || !aligned(size) || flags || !prop_valid(prop))
		return fake_leave(CUDA_E_INVALID_VALUE);
	if (fake_charge(prop->location.id, size))
		return fake_leave(CUDA_E_OUT_OF_MEMORY);
	snprintf(name, sizeof(name), "fakecuda-vmm-%d-%u", fake.physical[prop->location.id],
		 device_life(fake.physical[prop->location.id], true));
	fd = fake_memfd(name, size);
	if (fd < 0) {
		fake_uncharge(prop->location.id, size);
		return fake_leave(CUDA_E_OUT_OF_MEMORY);
	}
	*handle = vmm_add(fd, size, prop)->id;
	return fake_leave(CUDA_OK);
}

CUresult cuMemRelease(cuda_vmm_handle handle)
{
	ENTER_VMM();
	struct vmm *v = vmm_find(handle);

	if (!v)
		return fake_leave(CUDA_E_INVALID_VALUE);
	v->handles--;
	fake_live(FAKE_VMM_HANDLE, -1);
	vmm_free_if_unused(v);
	return fake_leave(CUDA_OK);
}

CUresult cuMemRetainAllocationHandle(cuda_vmm_handle *handle, void *address)
{
	ENTER_VMM();
	struct range *range = range_of((CUdeviceptr)(uintptr_t)address);

	if (!handle || !range || range->kind != FAKE_VMM_MAPPING)
		return fake_leave(CUDA_E_INVALID_VALUE);
	range->vmm->handles++;
	fake_live(FAKE_VMM_HANDLE, 1);
	*handle = range->vmm->id;
	return fake_leave(CUDA_OK);
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const struct cuda_allocation_prop *prop,
				       int option)
{
	ENTER_VMM();

	if (!granularity || !prop_valid(prop) || option < CUDA_GRANULARITY_MINIMUM ||
	    option > CUDA_GRANULARITY_RECOMMENDED)
		return fake_leave(CUDA_E_INVALID_VALUE);
	*granularity = FAKE_GRANULARITY;
	return fake_leave(CUDA_OK);
}

CUresult cuMemGetAllocationPropertiesFromHandle(struct cuda_allocation_prop *prop,
						cuda_vmm_handle handle)
{
	ENTER_VMM();
	struct vmm *v = vmm_find(handle);

	if (!v || !prop)
		return fake_leave(CUDA_E_INVALID_VALUE);
	*prop = v->prop;
	return fake_leave(CUDA_OK);
}

/* ---- Sharing ---- */

CUresult cuMemExportToShareableHandle(void *os_handle, cuda_vmm_handle handle, int type,
				      unsigned long long flags)
{
	ENTER_VMM();
	struct vmm *v = vmm_find(handle);
	int fd;

	if (!os_handle || !v || flags || type != CUDA_HANDLE_POSIX_FD ||
	    !(v->prop.handle_types & CUDA_HANDLE_POSIX_FD))
		return fake_leave(CUDA_E_INVALID_VALUE);
	fd = fcntl(v->fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return fake_leave(CUDA_E_OPERATING_SYSTEM);
	*(int *)os_handle = fd;
	return fake_leave(CUDA_OK);
}

/* Finds the device that a descriptor's memory is on. Returns 0, 1 if it is no descriptor or the
 * memory has gone, or 999 if it is of something else. */
static CUresult fd_device(int fd, int *physical)
{
	char path[64], target[128];
	unsigned life;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	n = readlink(path, target, sizeof(target) - 1);
	if (n < 0)
		return CUDA_E_INVALID_VALUE;
	target[n] = '\0';
	if (sscanf(target, "/memfd:fakecuda-vmm-%d-%u", physical, &life) != 2)
		return CUDA_E_UNKNOWN;
	/* The descriptor does not keep the GPU open: its memory goes with the GPU's last user. */
	return life == device_life(*physical, false) ? CUDA_OK : CUDA_E_INVALID_VALUE;
}

CUresult cuMemImportFromShareableHandle(cuda_vmm_handle *handle, void *os_handle, int type)
{
	ENTER_VMM();
	struct cuda_allocation_prop prop = { .type = CUDA_ALLOCATION_PINNED,
					     .handle_types = CUDA_HANDLE_POSIX_FD,
					     .location.type = CUDA_LOCATION_DEVICE };
	int fd = (int)(intptr_t)os_handle, physical = -1;
	struct stat st;
	struct vmm *v;
	CUresult r;

	if (!handle || type != CUDA_HANDLE_POSIX_FD)
		return fake_leave(CUDA_E_INVALID_VALUE);
	r = fd_device(fd, &physical);
	if (r)
		return fake_leave(r);
	prop.location.id = fake_ordinal(physical);
	if (prop.location.id < 0)
		return fake_leave(CUDA_E_INVALID_DEVICE);
	fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0 || fstat(fd, &st))
		return fake_leave(CUDA_E_OPERATING_SYSTEM);
	v = vmm_add(fd, (size_t)st.st_size, &prop);
	v->imported = true;
	*handle = v->id;
	return fake_leave(CUDA_OK);
}

/* ---- Mapping ---- */

static struct reservation *reservation_of(const char *base, size_t size)
{
	for (struct reservation *r = reservations; r; r = r->next)
		if (base >= r->base && base + size <= r->base + r->size)
			return r;
	return NULL;
}

static bool overlaps(const char *base, size_t size)
{
	for (struct range *r = fake.ranges; r; r = r->next)
		if (base < r->base + r->size && r->base < base + size)
			return true;
	return false;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, cuda_vmm_handle handle,
		  unsigned long long flags)
{
	ENTER_VMM();
	char *base = (char *)(uintptr_t)pointer;
	struct reservation *reservation;
	struct vmm *v = vmm_find(handle);
	struct range *range;

	if (!v || !size || flags || !aligned(pointer) || !aligned(size) || offset || size > v->size)
		return fake_leave(CUDA_E_INVALID_VALUE);
	reservation = reservation_of(base, size);
	if (!reservation || overlaps(base, size))
		return fake_leave(CUDA_E_INVALID_VALUE);
	if (mmap(base, size, PROT_NONE, MAP_SHARED | MAP_FIXED, v->fd, (off_t)offset) == MAP_FAILED)
		return fake_leave(CUDA_E_OUT_OF_MEMORY);
	range = range_add(FAKE_VMM_MAPPING, base, size, v->device);
	memset(range->access, CUDA_ACCESS_NONE, sizeof(range->access));
	range->vmm = v;
	range->offset = offset;
	range->reservation = reservation;
	range->buffer_id = reservation->buffer_id;
	v->mappings++;
	reservation->mappings++;
	return fake_leave(CUDA_OK);
}

/* If [base, base + size) is whole mappings without a gap, calls @visit for each. */
static CUresult mappings_visit(CUdeviceptr pointer, size_t size,
			       void (*visit)(struct range *range, const struct cuda_access *access),
			       const struct cuda_access *access)
{
	char *end = (char *)(uintptr_t)pointer + size;

	for (int pass = 0; pass < 2; pass++) {
		for (char *at = (char *)(uintptr_t)pointer; at < end;) {
			struct range *r = range_of((CUdeviceptr)(uintptr_t)at);

			if (!r || r->kind != FAKE_VMM_MAPPING || r->base != at ||
			    r->base + r->size > end)
				return CUDA_E_INVALID_VALUE;
			at += r->size;
			if (pass)
				visit(r, access);
		}
	}
	return size ? CUDA_OK : CUDA_E_INVALID_VALUE;
}

static void unmap(struct range *range, const struct cuda_access *access)
{
	struct vmm *v = range->vmm;

	(void)access;
	va_hide(range->base, range->size);
	range->reservation->mappings--;
	v->mappings--;
	range_remove(range);
	vmm_free_if_unused(v);
}

/* This waits for the device, as the real one may, or need not. */
CUresult cuMemUnmap(CUdeviceptr pointer, size_t size)
{
	ENTER_VMM();
	const struct range *range = range_of(pointer);

	if (range && !fake_flag("FAKECUDA_EARLY_UNMAP"))
		stream_device_wait(range->device, FAKE_CLOSING_BESIDE_WORK);
	return fake_leave(mappings_visit(pointer, size, unmap, NULL));
}

static void protect(struct range *range, const struct cuda_access *access)
{
	int any = 0;

	range->access[access->location.id] = (unsigned char)access->flags;
	for (int i = 0; i < fake.devices; i++)
		any |= range->access[i];
	mprotect(range->base, range->size,
		 (any & CUDA_ACCESS_READ ? PROT_READ : 0) | (any & 2 ? PROT_WRITE : 0));
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t size, const struct cuda_access *access,
			size_t n)
{
	ENTER_VMM();
	CUresult r = CUDA_OK;

	for (size_t i = 0; i < n; i++) {
		const struct cuda_access *a = &access[i];

		if (a->location.type != CUDA_LOCATION_DEVICE || a->location.id < 0 ||
		    a->location.id >= fake.devices ||
		    (a->flags != CUDA_ACCESS_NONE && a->flags != CUDA_ACCESS_READ &&
		     a->flags != CUDA_ACCESS_READ_WRITE))
			return fake_leave(CUDA_E_INVALID_VALUE);
	}
	for (size_t i = 0; i < n && !r; i++)
		r = mappings_visit(pointer, size, protect, &access[i]);
	return fake_leave(n ? r : CUDA_E_INVALID_VALUE);
}

CUresult cuMemGetAccess(unsigned long long *flags, const struct cuda_location *location,
			CUdeviceptr pointer)
{
	ENTER_VMM();
	struct range *range = range_of(pointer);

	if (!flags || !location || location->type != CUDA_LOCATION_DEVICE || location->id < 0 ||
	    location->id >= fake.devices || !range)
		return fake_leave(CUDA_E_INVALID_VALUE);
	*flags = range->access[location->id];
	return fake_leave(CUDA_OK);
}
