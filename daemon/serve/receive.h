/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a peer's socket. */
#pragma once

#include <uv.h>

/* The callback of a peer's poll: sends what is queued, then reads and dispatches messages. */
void receive_on_poll(uv_poll_t *poll, int status, int events);
