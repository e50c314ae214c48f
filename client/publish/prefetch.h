/* SPDX-License-Identifier: Apache-2.0 */
/* Prefetched drafts. The functions take the session's produce mutex, but for the last. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/connection/session.h"

/* Takes a prefetched draft of that size into use, enters it into the list as @draft, and copies its
 * DRAFT message. False: there is none. */
bool prefetch_take(struct session *s, uint64_t nbytes, uint32_t extra, int64_t deadline,
		   struct draft_hold *draft, struct wire_draft *out);

/*
 * To be called before a tensor of that size is committed. If another one is likely to be needed,
 * returns the serial with which the COMMIT must ask for it, else 0. If that COMMIT cannot be sent:
 * prefetch_cancel().
 */
uint32_t prefetch_begin(struct session *s, uint64_t nbytes, uint32_t extra);
void prefetch_cancel(struct session *s, uint32_t serial);

/* Frees the requests. The caller has both the produce mutex and the receive mutex. */
void prefetch_deinit(struct session *s);
