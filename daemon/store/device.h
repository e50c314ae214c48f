/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory on devices: the handles and descriptors that open it, and how much of it each device has.
 * The memory is its producer's; we keep numbers and descriptors, and touch no device.
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
	struct device *device; /* it is charged to this one; NULL: it is not charged any more */
	struct quota_charge bytes, fds;
	/* Written by state/export.c: */
	struct client *producer; /* NULL: its connection has ended */
	struct list importers;	 /* of struct device_import: who has it open */
	struct notice *done;	 /* the answer to UNEXPORT, due when all have unmapped it */
	bool mortal;		 /* it dies with its producer's connection */
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
 * Charges the user @uid for @size bytes on the device @id, which will arrive in @parts. With
 * @has_fds each part will be a descriptor. DEVICE_E_FULL, DEVICE_E_USER (of that device),
 * DEVICE_E_DEVICES, DEVICE_E_FDS, -ENOMEM.
 */
int device_memory_new(struct device_memory **mp, struct device_table *table,
		      const uint8_t id[DEVICE_ID], uint32_t uid, uint64_t size, uint32_t parts,
		      bool has_fds);
struct device_memory *device_memory_free(struct device_memory *m);

/* The next part has arrived. Takes over @fd_take, which opens it, or is -1. */
void device_memory_add(struct device_memory *m, uint64_t size, int fd_take);
/* Closes the descriptors, so that nobody can open it any more. */
void device_memory_close(struct device_memory *m);
/* Gives back what it takes on its device. */
void device_memory_discharge(struct device_memory *m);

static inline bool device_memory_complete(const struct device_memory *m)
{
	return m->arrived == m->parts;
}

/* Finds the entry of that device. NULL: there is none. */
struct device *device_find(struct device_table *table, const uint8_t id[DEVICE_ID]);

/*
 * May @fd be kept as a descriptor that opens memory of @size bytes? A memfd must be sealed against
 * growing and shrinking, and have exactly that size; that of a pool, of which the memory is one
 * piece, at least that size. A character device must have a number that a GPU can have; only its
 * driver knows how much it opens. Returns NULL, or what is wrong.
 */
const char *device_descriptor_check(int fd, uint64_t size, bool pool);
/* May a character device with that number be a GPU's? */
bool device_number_fits(dev_t number);
