/* SPDX-License-Identifier: Apache-2.0 */
/* Memory on devices in a daemon's state without a daemon. */
#pragma once

#include "daemon/state/export.h"
#include "daemon/state/publish.h"
#include "tests/unit/state_fixture.h"

enum { GPU = 1 };

static const unsigned char fx_event[WIRE_HANDLE_BYTES] = "an event";

static inline int fx_memory(uint64_t size)
{
	int fd = memfd_create("device memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
	return fd;
}

static inline int fx_export(struct tester *t, enum segment_kind kind, uint64_t size, uint32_t parts,
			    struct segment **segp)
{
	struct wire_export m = { .size = size,
				 .part_size = size / parts,
				 .kind = kind,
				 .parts = parts,
				 .device = { GPU } };
	int fd = kind == SEGMENT_CUDA_IPC ? -1 : fx_memory(size / parts), r;
	const char *why;

	r = export_new(&st, &t->c, &m, &fd, segp, &why);
	fd_close(fd);
	return r;
}

static inline int fx_place_as(struct tester *t, const struct segment *seg, const char *name,
			      bool unfinished, uint8_t lifetime, uint64_t *ref)
{
	struct wire_place m = { .segment = seg->index,
				.segment_generation = seg->generation,
				.cookie = 5 };
	int64_t nbytes = 10;
	struct tensor_description d = fx_bytes(name, &nbytes);
	struct device_placed placed;
	unsigned char meta[500] = { 0 };
	const char *why;
	int r;

	d.meta = meta;
	d.meta_len = sizeof(meta);
	d.event = unfinished ? fx_event : NULL;
	d.lifetime.flags = lifetime;
	r = device_place(&st, &t->c, &m, &d, &placed, &why);
	if (!r && ref)
		*ref = placed.ref;
	return r;
}

static inline int fx_place(struct tester *t, const struct segment *seg, const char *name,
			   bool unfinished, uint64_t *ref)
{
	return fx_place_as(t, seg, name, unfinished, 0, ref);
}

static inline int fx_keep(struct tester *t, uint8_t device, int fd)
{
	struct wire_keep m = { .device = { device } };
	const char *why;
	int r = export_keep(&st, &t->c, &m, &fd, &why);

	fd_close(fd);
	return r;
}
