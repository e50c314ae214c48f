/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What keeps libuv from giving up. Where it finds no memory, no thread or no room in the kernel's
 * tables it calls abort(); a daemon that others rely on may only do that before it serves. So
 * everything that libuv would ask for later is had at the start, and a failure there is an error
 * like others.
 */
#pragma once

#include <uv.h>

/*
 * Before anything else is made, and after fork(): libuv's workers, which are the process's. If
 * libuv gives up, the process ends with a word. 0, or a negative errno.
 */
int loop_start_workers(void);

/*
 * @make(@arg), in which an abort() of libuv ends as -ENOMEM. What was made of a loop then is not to
 * be touched any more. For the start only.
 */
int loop_attempt(int (*make)(void *arg), void *arg);

/* Makes room for descriptors up to number @fds. @fd_peek is any that can be polled. */
int loop_provide(uv_loop_t *loop, int fd_peek, unsigned fds);

/* As uv_poll_start(), but that the kernel has no room for @fd is told here. @poll is stopped then.
 */
int loop_poll(uv_poll_t *poll, int fd, int events, uv_poll_cb cb);
