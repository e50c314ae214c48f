/* SPDX-License-Identifier: Apache-2.0 */
/* Quotas: how many bytes there may be in all, and of each user. They are charged when space is
 * asked for, not when it is touched. No I/O. */
#pragma once

#include <stdint.h>

enum { QUOTA_E_FULL = 1, QUOTA_E_USER };

struct quota_user {
	struct quota_user *next;
	struct quota *quota;
	uint32_t uid;
	uint32_t refs; /* clients and charges */
	uint64_t bytes;
};

struct quota {
	uint64_t capacity;
	uint64_t user_capacity;
	uint64_t used;
	struct quota_user *users;
};

/* The bytes that one segment takes; embedded in it. */
struct quota_charge {
	struct quota_user *user;
	uint64_t bytes;
};

/* Refers to the account of @uid, which is made if there is none. NULL: no memory. */
struct quota_user *quota_user_ref(struct quota *quota, uint32_t uid);
struct quota_user *quota_user_unref(struct quota_user *user);

/* QUOTA_E_FULL: over the capacity; QUOTA_E_USER: over this user's quota. Nothing is charged then.
 */
int quota_charge(struct quota_charge *charge, struct quota_user *user, uint64_t bytes);
void quota_charge_deinit(struct quota_charge *charge);
