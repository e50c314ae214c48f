/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accounts. Invariants: quota.used is the sum of all charges, and user.bytes the sum of that
 * user's. An account lives as long as a client or a charge refers to it, so that a user does not
 * get more by connecting again. Loop thread only.
 */
#include <assert.h>
#include <stdlib.h>

#include "daemon/store/quota.h"

struct quota_user *quota_user_ref(struct quota *quota, uint32_t uid)
{
	struct quota_user *user;

	for (user = quota->users; user; user = user->next) {
		if (user->uid == uid) {
			user->refs++;
			return user;
		}
	}
	user = calloc(1, sizeof(*user));
	if (!user)
		return NULL;
	*user = (struct quota_user){ .next = quota->users, .quota = quota, .uid = uid, .refs = 1 };
	quota->users = user;
	return user;
}

struct quota_user *quota_user_unref(struct quota_user *user)
{
	struct quota_user **link;

	if (!user || --user->refs)
		return NULL;
	assert(user->bytes == 0);
	for (link = &user->quota->users; *link != user; link = &(*link)->next)
		;
	*link = user->next;
	free(user);
	return NULL;
}

int quota_charge(struct quota_charge *charge, struct quota_user *user, uint64_t bytes)
{
	struct quota *quota = user->quota;

	/* The user's quota comes first: a user who is over it must not wait for others. */
	if (bytes > quota->user_capacity || user->bytes > quota->user_capacity - bytes)
		return QUOTA_E_USER;
	if (bytes > quota->capacity || quota->used > quota->capacity - bytes)
		return QUOTA_E_FULL;
	user->refs++;
	user->bytes += bytes;
	quota->used += bytes;
	*charge = (struct quota_charge){ .user = user, .bytes = bytes };
	return 0;
}

void quota_charge_deinit(struct quota_charge *charge)
{
	if (!charge->user)
		return;
	charge->user->quota->used -= charge->bytes;
	charge->user->bytes -= charge->bytes;
	charge->user = quota_user_unref(charge->user);
	charge->bytes = 0;
}
