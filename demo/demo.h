/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agreement between the camera, the viewers and the show.
 *
 * Frame n is published as cam0/frame/(n % DEMO_RING), so that each of these names gets a new
 * version every DEMO_RING frames. Viewer k publishes demo/viewer/k, a tiny tensor with its
 * progress. The camera stays less than DEMO_RING frames ahead of every living viewer, so that no
 * viewer misses a frame. The processes communicate by tensorlease only.
 */
#pragma once

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <tensorlease/admin.h>
#include <tensorlease/tensorlease.h>

enum {
	DEMO_WIDTH = 1280,
	DEMO_HEIGHT = 720,
	DEMO_CHANNELS = 3,
	DEMO_BYTES = DEMO_WIDTH * DEMO_HEIGHT * DEMO_CHANNELS,
	DEMO_RING = 8,	 /* frames that may be in use at once */
	DEMO_WINDOW = 3, /* frames that a viewer holds at once */
	DEMO_VIEWERS = 3,
};

#define DEMO_SECOND 1000000000LL

/* The metadata of a frame. */
struct demo_stamp {
	uint64_t id;
	uint64_t hash; /* a hash of all bytes */
	int64_t at_ns; /* time of the commit, CLOCK_MONOTONIC */
};

/* demo/viewer/k is an int64 tensor; its metadata is the viewer's pid, an int64. */
enum { PROGRESS_VERIFIED, PROGRESS_WRONG, PROGRESS_IN_PLACE, PROGRESS_COUNT };

/*
 * demo/report/k is a float64 tensor that a viewer publishes at its end. Times are in nanoseconds.
 */
enum {
	REPORT_FIRST_COUNT,
	REPORT_FIRST_MEDIAN,
	REPORT_FIRST_P99,
	REPORT_LATER_COUNT,
	REPORT_LATER_MEDIAN,
	REPORT_LATER_P99,
	REPORT_WARM_COUNT,
	REPORT_WARM_MEDIAN,
	REPORT_WARM_P99,
	REPORT_AWAKE_COUNT,
	REPORT_AWAKE_MEDIAN,
	REPORT_AWAKE_P99,
	REPORT_MAPPINGS,
	REPORT_ANONYMOUS, /* growth of private memory from the first to the last frame, in bytes */
	REPORT_COUNT
};

/* demo/report/camera is an int64 tensor. */
enum { CAMERA_PUBLISHED, CAMERA_IN_PLACE, CAMERA_VIEWERS_ENDED, CAMERA_NS, CAMERA_COUNT };

/* Prints the failed step and the library's error text, and ends the process. */
__attribute__((format(printf, 1, 2))) _Noreturn static inline void demo_die(const char *format, ...)
{
	va_list args;

	fprintf(stderr, "%s: ", program_invocation_short_name);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, ": %s\n", tl_last_error());
	exit(1);
}

static inline int64_t demo_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * DEMO_SECOND + t.tv_nsec;
}

/* Hashes all bytes to 64 bits, in four lanes of eight. DEMO_BYTES is a multiple of 32. */
static inline uint64_t demo_hash(const void *data, size_t size)
{
	static const uint64_t k = 0x9e3779b97f4a7c15ULL;
	const unsigned char *bytes = data;
	uint64_t lane[4] = { 1, 2, 3, 4 }, v[4], hash = size;

	for (size_t i = 0; i + sizeof(v) <= size; i += sizeof(v)) {
		memcpy(v, bytes + i, sizeof(v));
		for (int l = 0; l < 4; l++) {
			lane[l] = (lane[l] ^ v[l]) * k;
			lane[l] ^= lane[l] >> 32;
		}
	}
	for (int l = 0; l < 4; l++)
		hash = (hash ^ lane[l]) * k ^ hash >> 29;
	return hash;
}

/* The mapping of an address, from its line in /proc/self/maps. */
struct demo_mapping {
	bool shared; /* whether it is a shared mapping of an object in /dev/shm */
	bool writable;
	uint64_t start;
	uint64_t inode;
};

static inline struct demo_mapping demo_find_mapping(const void *pointer)
{
	struct demo_mapping m = { 0 };
	unsigned long start, end, inode;
	char line[512], flags[8];
	FILE *maps = fopen("/proc/self/maps", "re");

	while (maps && fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%lx-%lx %7s %*s %*s %lu", &start, &end, flags, &inode) != 4 ||
		    (uintptr_t)pointer < start || (uintptr_t)pointer >= end)
			continue;
		m.shared = flags[3] == 's' && strstr(line, "/dev/shm/");
		m.writable = flags[1] == 'w';
		m.start = start;
		m.inode = inode;
		break;
	}
	if (maps)
		fclose(maps);
	return m;
}

/* Publishes a copy of @count numbers of 64 bits. */
static inline void demo_put(tl_client *client, const char *name, int code, const void *values,
			    int64_t count, const void *metadata, size_t metadata_size)
{
	int64_t stride = 1;
	DLTensor tensor = { .data = (void *)(uintptr_t)values,
			    .device = { kDLCPU, 0 },
			    .ndim = 1,
			    .dtype = { (uint8_t)code, 64, 1 },
			    .shape = &count,
			    .strides = &stride };
	tl_put_options options = { .size = sizeof(options),
				   .metadata = metadata,
				   .metadata_size = metadata_size,
				   .timeout_ns = 10 * DEMO_SECOND };

	if (tl_put(client, name, &tensor, &options, NULL))
		demo_die("cannot publish %s", name);
}

/* Copies @count numbers of 64 bits out of the tensor @name. Returns false if it did not come in
 * time. */
static inline bool demo_read(tl_client *client, const char *name, void *values, int64_t count,
			     int64_t timeout_ns)
{
	tl_get_options options = { .size = sizeof(options), .timeout_ns = timeout_ns };
	DLManagedTensorVersioned *t;
	bool fits;

	if (tl_get(client, name, &options, &t))
		return false;
	fits = t->dl_tensor.ndim == 1 && t->dl_tensor.shape[0] == count &&
	       t->dl_tensor.dtype.bits == 64;
	if (fits)
		memcpy(values, t->dl_tensor.data, (size_t)count * 8);
	t->deleter(t);
	return fits;
}
