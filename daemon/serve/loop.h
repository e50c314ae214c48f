/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps libuv from calling abort(), which it does when it finds no memory, no thread or no space in
 * the kernel's tables. A daemon that others rely on may end like that only before it serves. So
 * everything that libuv would ask for later is obtained at the start, where a failure is an
 * ordinary error.
 */
#pragma once

#include <stdbool.h>

#include <uv.h>

/*
 * Starts libuv's workers, of which a process has one set: call it after fork(), before anything
 * else is made, and end the process if it fails. 0, or a negative errno; -ENOMEM if libuv aborts.
 */
int loop_start_workers(void);
/* True if the workers could not be started. exit() would abort then. */
bool loop_is_broken(void);

/* Returns @make(@arg), or -ENOMEM if libuv calls abort() in it. Then the loop must not be touched
 * any more. For the start only. */
int loop_attempt(int (*make)(void *arg), void *arg);

/* Does the work of uv_poll_start(), but returns an error if the kernel has no space for @fd. @poll
 * is stopped then. */
int loop_poll(uv_poll_t *poll, int fd, int events, uv_poll_cb cb);

/*
 * Asks the scheduler for short slices for this thread. A daemon that works for one user without a
 * pause shares its processor with other users' clients, which wait for a slice. A daemon that wakes
 * up waits as long for a client that computes. Linux 6.12 and later grant this to any process; an
 * older kernel, or a filter, changes nothing.
 */
void loop_ask_for_short_slices(void);
