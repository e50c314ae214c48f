/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a peer's socket. */
#pragma once

#include <uv.h>

/* What a peer's descriptor is polled with: sends what is queued, then reads and dispatches. */
void receive_on_poll(uv_poll_t *poll, int status, int events);
