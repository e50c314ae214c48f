/* SPDX-License-Identifier: Apache-2.0 */
/* Drafts asked for before they are needed. The session's produce mutex is taken inside. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "client/session/session.h"

/*
 * One of that size, taken into use and entered into the list as @draft: its DRAFT message; false:
 * there is none.
 */
bool prefetch_take(struct session *s, uint64_t nbytes, uint32_t extra, int64_t deadline,
		   struct draft_hold *draft, struct wire_draft *out);

/*
 * A tensor of that size is about to be committed. If another one looks like being needed: the
 * serial with which the COMMIT is to ask for it, else 0. If that COMMIT cannot be sent:
 * prefetch_cancel().
 */
uint32_t prefetch_begin(struct session *s, uint64_t nbytes, uint32_t extra, uint32_t *life);
void prefetch_cancel(struct session *s, uint32_t serial);

/* The requests' memory. */
void prefetch_deinit(struct session *s);
