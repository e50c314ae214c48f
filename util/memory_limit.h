/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory the control groups of this process allow. */
#pragma once

#include <stdint.h>

/* Returns the lowest limit of our control groups and those above them. UINT64_MAX: none. */
uint64_t memory_limit(void);
/* Does the same with other files than /proc/self/cgroup and /sys/fs/cgroup. */
uint64_t memory_limit_of(const char *groups, const char *root);
