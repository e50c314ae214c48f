/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the daemon's answers, and waiting until a socket has one. */
#pragma once

#include <stdint.h>

#include "proto/conn.h"

/* The negative errno of a wire_error. */
int answer_errno(uint32_t code);

/*
 * Is it an answer of type @want? Otherwise a negative errno with a text that starts with @what; its
 * fd is closed.
 */
int answer_expect(struct conn_message *answer, unsigned want, const char *what);

/* Waits until @socket is ready for @events. 0, or -ETIMEDOUT without a text. */
int socket_wait(int socket, short events, int64_t deadline);
