/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's thread, one for the process and only once GPUs are used. It reads the sockets of
 * sessions that use GPUs (the daemon speaks up: FREED, UNMAP), looks whether queued GPU work has
 * ended, and then does what had to wait for it: gives up leases, tells the daemon that a producer's
 * work is finished, calls the deleters of what was published. The closer (closer.h) closes memory.
 */
#pragma once

#include "client/gpu/session.h"

/* cuda_session_get(), and the thread runs, as it must where something will be left to it. 0, or a
 * negative errno with a text. */
int cuda_session_with_thread(struct session *s, struct cuda_session **out);

/* Does at once what the thread would do about publications that have no deleter to call, so that
 * draft buffers which the daemon freed just now are free. */
void cuda_catch_up(struct session *s);

/* In a forked child, where the thread is not: first under the lock, then without any. */
void cuda_thread_inherit(void);
void cuda_thread_give_up_leases(void);
