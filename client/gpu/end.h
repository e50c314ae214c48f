/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a session that uses GPUs. */
#pragma once

#include <stdbool.h>

struct session;

/* The session has no user any more: what it has on GPUs is closed, by the closer (true) if it has
 * anything. */
bool cuda_session_end(struct session *s);
