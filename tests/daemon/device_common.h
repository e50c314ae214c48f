/* SPDX-License-Identifier: Apache-2.0 */
/* For the tests of tensors on devices. They need no device: to the daemon, memory there is a handle
 * or a descriptor. */
#pragma once

#include <fcntl.h>
#include <sys/mman.h>

#include "tests/harness/harness.h"

enum { GPU = 1, OTHER_GPU = 2 };

static const unsigned char event[WIRE_HANDLE_BYTES] = "an event";

/* Makes a memfd of @size bytes, of which none is allocated yet. */
static inline int memory_sealed(uint64_t size, int seals)
{
	int fd = memfd_create("device memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	must(fd >= 0);
	must_be(ftruncate(fd, (off_t)size), 0);
	must_be(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static inline int memory_new(uint64_t size)
{
	return memory_sealed(size, F_SEAL_SHRINK | F_SEAL_GROW);
}

static inline struct wire_segment_ref export_ipc(struct raw *rc, uint64_t size)
{
	struct wire_segment_ref seg;

	must_be(rc_export(rc, SEGMENT_CUDA_IPC, GPU, size, size, 1, -1, &seg), 0);
	return seg;
}

static inline struct wire_segment_ref export_vmm(struct raw *rc, uint64_t size)
{
	struct wire_segment_ref seg;
	int fd = memory_new(size);

	must_be(rc_export(rc, SEGMENT_CUDA_VMM, GPU, size, size, 1, fd, &seg), 0);
	close(fd);
	return seg;
}

static inline uint64_t used_on(struct raw *rc, uint16_t gpu)
{
	struct wire_device device;

	for (uint32_t from = 0; rc_device(rc, from, &device); from = device.number + 1)
		if (memcmp(device.device, &gpu, sizeof(gpu)) == 0)
			return device.used;
	return 0;
}

/* Numbers that must be the same afterwards. */
struct device_before {
	struct tl_status status;
	unsigned fds, objects, devices;
};

static inline struct device_before device_look(const struct test_daemon *d)
{
	struct device_before b = { .status = td_status(d) };
	struct raw rc = rc_open(d);
	struct wire_device device;

	for (uint32_t from = 0; rc_device(&rc, from, &device); from = device.number + 1)
		b.devices++;
	rc_goodbye(&rc);
	td_sync(d);
	b.fds = count_fds(d->pid);
	b.objects = td_objects(d);
	return b;
}

static inline void must_be_as_before(const struct test_daemon *d, const struct device_before *b)
{
	struct device_before now = device_look(d);

	must(td_alive(d));
	must_be(now.fds, b->fds);
	must_be(now.objects, b->objects);
	must_be(now.devices, b->devices);
	must_be(now.status.tensors, b->status.tensors);
	must_be(now.status.retired, b->status.retired);
	must_be(now.status.drafts, b->status.drafts);
	must_be(now.status.segments, b->status.segments);
	must_be(now.status.clients, b->status.clients);
	must_be(now.status.bytes_used, b->status.bytes_used);
}
