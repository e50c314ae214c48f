/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes: what the daemon may use in all, and each user of it. Accounted when space is asked for. No
 * I/O. */
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

/* What one segment takes; embedded in it. */
struct quota_charge {
	struct quota_user *user;
	uint64_t bytes;
};

/* A reference to the account of @uid, made at need; NULL: no memory. */
struct quota_user *quota_user_ref(struct quota *quota, uint32_t uid);
struct quota_user *quota_user_unref(struct quota_user *user);

/* 0, or QUOTA_E_FULL (capacity), QUOTA_E_USER (this user's quota): nothing is charged then. */
int quota_charge(struct quota_charge *charge, struct quota_user *user, uint64_t bytes);
void quota_charge_deinit(struct quota_charge *charge);
