/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory on devices: what opens it, and how much of it each device has. The memory is its
 * producer's; here are only numbers and descriptors. No device is ever touched.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/store/quota.h"
#include "util/list.h"

enum {
	DEVICES_MAX = 64,
	DEVICE_ID = 16,	    /* bytes of a device's UUID */
	DEVICE_HANDLE = 64, /* bytes of a handle that opens memory */
};

enum { DEVICE_E_FULL = QUOTA_E_FULL, DEVICE_E_USER = QUOTA_E_USER, DEVICE_E_DEVICES, DEVICE_E_FDS };

struct client;

struct device {
	uint8_t id[DEVICE_ID];
	struct quota quota;
	uint32_t segments; /* charged; 0: the entry may be given to another device */
};

/* What the daemon knows of devices; number N is list[N]. */
struct device_table {
	struct device list[DEVICES_MAX];
	uint64_t capacity, user_capacity; /* bytes of each device; UINT64_MAX: no limit */
	struct quota fds;		  /* descriptors that open memory, counted as bytes are */
};

/* The half of a struct segment that one on a device has besides. */
struct device_memory {
	struct device *device; /* what it is charged to; NULL: nothing any more */
	struct quota_charge bytes, fds;
	struct client *producer; /* NULL: its connection has ended. For state/ */
	struct list importers;	 /* those who have it open. For state/ */
	struct notice *done;	 /* the answer to UNEXPORT, when all have unmapped it. For state/ */
	bool mortal;		 /* dies with its producer's connection */
	uint8_t handle[DEVICE_HANDLE];
	uint32_t parts, arrived;
	uint64_t size_arrived;
	struct device_part {
		uint64_t size;
		int fd; /* -1: the handle alone opens it */
	} part[];
};

void device_table_init(struct device_table *table, uint64_t capacity, uint64_t user_capacity,
		       unsigned fds_max);

/*
 * Memory of @size bytes on the device @id for the user @uid, none of its @parts there yet; with
 * @has_fds each of them will be a descriptor. 0, DEVICE_E_FULL, DEVICE_E_USER (of that device),
 * DEVICE_E_DEVICES, DEVICE_E_FDS, -ENOMEM.
 */
int device_memory_new(struct device_memory **mp, struct device_table *table,
		      const uint8_t id[DEVICE_ID], uint32_t uid, uint64_t size, uint32_t parts,
		      bool has_fds);
struct device_memory *device_memory_free(struct device_memory *m);

/* Takes @fd_take over, which opens the next part, or -1. */
void device_memory_add(struct device_memory *m, uint64_t size, int fd_take);
/* Nobody can open it any more: the descriptors are closed. */
void device_memory_close(struct device_memory *m);
/* Gives what it takes on its device back. */
void device_memory_discharge(struct device_memory *m);

static inline bool device_memory_complete(const struct device_memory *m)
{
	return m->arrived == m->parts;
}

/* The entry of that device, or NULL. */
struct device *device_find(struct device_table *table, const uint8_t id[DEVICE_ID]);

/*
 * May @fd be kept, as what opens memory of @size bytes? A memfd may if it holds no more than that,
 * and never will: it is sealed against growing and shrinking, and has just that size, or, of a
 * pool, in which that memory is one piece, at least that. A character device may if its number can
 * be a GPU's; how much it opens only its driver knows. NULL, or what is wrong.
 */
const char *device_descriptor_check(int fd, uint64_t size, bool pool);
/* May a character device with that number be a GPU's? */
bool device_number_fits(dev_t number);
