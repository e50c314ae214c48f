/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of a consumer to the daemon about a name's ring: for its page, once, and for wakes. */
#pragma once

#include <stdint.h>

#include "client/connection/session.h"

/* Maps the page of that ring. Returns 0 if it is mapped or the ring is over, LEASE_E_UNSERVED, or a
 * negative errno. */
int ring_ask_page(struct session *s, uint64_t ring);
/* To be called before a sleep on the word of the ring's page: from then on the producer wakes
 * sleepers. Returns 0, LEASE_E_UNSERVED, or a negative errno. */
int ring_ask_wakes(struct session *s, uint64_t ring, int64_t deadline);
