/* SPDX-License-Identifier: Apache-2.0 */
/* What a consumer asks the daemon for when a name has a ring: its page, once, and to be woken. */
#pragma once

#include <stdint.h>

#include "client/session/session.h"

/* Maps the page of that ring. 0: it is mapped, or the ring is over; LEASE_E_UNSERVED; or a negative
 * errno. */
int ring_ask_page(struct session *s, uint64_t ring);
/*
 * To be called before a sleep on the word of its page: from now on the producer wakes. 0,
 * LEASE_E_UNSERVED, or a negative errno.
 */
int ring_ask_wakes(struct session *s, uint64_t ring);
