/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members of groups that lie on GPUs. Those that the group's user writes are in one draft buffer
 * for each GPU; those that are handed over stay where they are. One event for each GPU stands for
 * the work that writes all of them. session/kind.h says what each function does.
 */
#pragma once

#include "client/publish/group.h"

int cuda_members_allocate(struct members *m, int64_t deadline);
int cuda_members_copy(struct members *m, const DLTensor *const *sources);
int cuda_members_place(struct members *m);
void cuda_member_message(const struct group_member *member, unsigned char *bytes);
void cuda_member_made(struct group_member *member, uint64_t ref);
void cuda_members_asked(struct members *m, uint32_t serial);
void cuda_members_end(struct members *m, int end);
