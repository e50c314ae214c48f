/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for one of several names. */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <tensorlease/tensorlease.h>

/* Does the work of tl_wait_many(). */
int wait_many(tl_client *client, const tl_wait_item *items, size_t count,
	      const _Atomic uint32_t *interrupt, uint32_t interrupt_value, int64_t timeout_ns,
	      size_t *which);
