/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps libuv from calling abort(), which it does when it finds no memory, no thread or no room in
 * the kernel's tables. A daemon that others rely on may only end like that before it serves. So
 * everything that libuv would ask for later is obtained at the start, where a failure is an error
 * like others.
 */
#pragma once

#include <stdbool.h>

#include <uv.h>

/*
 * Starts libuv's workers, of which a process has one set: call it after fork(), before anything
 * else is made, and end the process if it fails. 0, or a negative errno; -ENOMEM if libuv aborts.
 */
int loop_start_workers(void);
/* Did that fail? exit() would abort then. */
bool loop_is_broken(void);

/*
 * Returns @make(@arg), or -ENOMEM if libuv calls abort() in it. The loop must not be touched any
 * more then. For the start only.
 */
int loop_attempt(int (*make)(void *arg), void *arg);

/* Does what uv_poll_start() does, but reports here if the kernel has no room for @fd. @poll is
 * stopped then. */
int loop_poll(uv_poll_t *poll, int fd, int events, uv_poll_cb cb);

/*
 * Asks the scheduler for short slices for this thread. A daemon that works without a pause for one
 * user shares its processor with the clients of others: they wait for it as long as a slice is, and
 * so does a daemon that has slept, for who computes there. Linux takes it from 6.12 on, from
 * anybody; an older one, or a filter, leaves all as it was.
 */
void loop_ask_for_short_slices(void);
