/* SPDX-License-Identifier: Apache-2.0 */
/* Memory on devices: handles and descriptors that open it, and the use of each device. The memory
 * is its producer's. The daemon keeps numbers and descriptors, and touches no device. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/store/account.h"
#include "util/list.h"

enum {
	DEVICE_ID = 16,	    /* bytes of a device's UUID */
	DEVICE_HANDLE = 64, /* bytes of a handle that opens memory */
};

enum { DEVICE_E_DEVICES = 1 };

struct client;

struct device {
	uint8_t id[DEVICE_ID];
	struct pool pool;
	uint32_t segments; /* charged; 0: the entry may be given to another device */
};

/* The devices that clients have named. Number N is list[N], with the share SHARE_DEVICE + N. */
struct device_table {
	struct device list[DEVICES_MAX];
	struct accounts *accounts; /* outlive us */
	struct pool *fds;	   /* outlives us */
	struct closer *closer;	   /* outlives us */
	uint64_t capacity;	   /* bytes of each device; UINT64_MAX: no limit */
};

/* A connection's descriptor that keeps a device open. The client and its segments there refer to
 * it. */
struct device_hold {
	struct list link; /* in client.device_holds, while the client refers to it */
	unsigned refs;
	struct charge charge;  /* of one descriptor */
	struct closer *closer; /* outlives us */
	int fd;
	uint8_t id[DEVICE_ID];
};

/* The part of a struct segment that only segments on a device have. */
struct device_memory {
	struct device *device; /* charged for it; NULL: it is not charged any more */
	struct charge bytes, fds;
	struct device_hold *hold; /* a reference, or NULL */
	struct closer *closer;	  /* outlives us */
	/* Written by state/export.c: */
	struct client *producer; /* NULL: its connection has ended */
	struct list importers;	 /* of struct device_import: clients that have it open */
	/* The answer to UNEXPORT, due when all clients have unmapped it. NULL: no producer. */
	struct notice *done;
	bool mortal;		 /* it dies with its producer's connection */
	struct list ending;	 /* in account.parts of its ender, while its parts are closed */
	struct account *ender;	 /* a reference, or NULL */
	struct segment *segment; /* its segment, while it is ending */
	uint8_t handle[DEVICE_HANDLE];
	uint32_t parts, arrived;
	uint64_t size_arrived;
	struct device_part {
		uint64_t size;
		int fd; /* -1: the handle alone opens it */
	} part[];
};

void device_table_init(struct device_table *table, struct accounts *accounts, struct pool *fds,
		       struct closer *closer, uint64_t capacity);

/*
 * Charges @account for @size bytes on the device @id, which will arrive in @parts. With @has_fds
 * each part will be a descriptor. Returns DEVICE_E_DEVICES, -ENOMEM, or an outcome of
 * account_take().
 */
int device_memory_new(struct device_memory **mp, struct device_table *table,
		      const uint8_t id[DEVICE_ID], struct account *account, uint64_t size,
		      uint32_t parts, bool has_fds);
/* Does the same for memory that a former daemon charged to @account. */
int device_memory_adopt(struct device_memory **mp, struct device_table *table,
			const uint8_t id[DEVICE_ID], struct account *account, uint64_t size,
			uint32_t parts);
struct device_memory *device_memory_free(struct device_memory *m);

/* Makes a hold with one reference and takes over @fd_take on success. Returns -ENOMEM, or an
 * outcome of account_take(). */
int device_hold_new(struct device_hold **hp, struct device_table *table,
		    const uint8_t id[DEVICE_ID], struct account *account, int fd_take);
/* Does the same for a hold of a former daemon: CHARGE_E_FULL. */
int device_hold_adopt(struct device_hold **hp, struct device_table *table,
		      const uint8_t id[DEVICE_ID], struct account *account, int fd_take);
struct device_hold *device_hold_ref(struct device_hold *hold);
/* Gives up a reference; @hold may be NULL. Returns NULL. With the last reference the closer gets
 * the descriptor, and @forgets as closer_take_after() has it. */
struct device_hold *device_hold_unref(struct device_hold *hold, uint64_t forgets);

/* Adds the next part. Takes over @fd_take, which opens it, or is -1. */
void device_memory_add(struct device_memory *m, uint64_t size, int fd_take);
/* Lets the closer close the descriptor of the last part that is left, with @forgets as
 * closer_take_after() has it. After the first part, gives back the charge of all descriptors. */
void device_memory_close_part(struct device_memory *m, uint64_t forgets);
/* Lets the closer close all descriptors, so that no client can open the memory any more. */
void device_memory_close(struct device_memory *m);
/* Gives back the charge on its device. */
void device_memory_discharge(struct device_memory *m);

static inline bool device_memory_complete(const struct device_memory *m)
{
	return m->arrived == m->parts;
}

/* The entry of that device, or NULL. */
struct device *device_find(struct device_table *table, const uint8_t id[DEVICE_ID]);

/*
 * Checks whether @fd may be kept as a descriptor that opens memory of @size bytes. It must be a
 * character device with a number that a GPU can have; only its driver knows how much it opens. With
 * TENSORLEASE_FAKE_GPU=1 in the environment it may be a memfd, too. That must be sealed against
 * growing and shrinking, and have exactly that size. A memfd of a pool, of which the memory is one
 * piece, must have at least that size. Returns NULL, or the reason for the refusal.
 */
const char *device_descriptor_check(int fd, uint64_t size, bool pool);
/* True if a character device with that number may be a GPU. */
bool device_number_fits(dev_t number);
