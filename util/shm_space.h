/* SPDX-License-Identifier: Apache-2.0 */
/* How much /dev/shm can hold. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/*
 * A file system without a limit counts as a tmpfs of the default size, half of the machine's
 * memory, of which everything is left.
 */
struct shm_space {
	uint64_t size, left;
	bool limited;
};

/* 0 or a negative errno. */
int shm_space_find(struct shm_space *out);
