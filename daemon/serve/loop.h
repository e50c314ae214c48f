/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps libuv from calling abort(), which it does when it finds no memory, no thread or no room in
 * the kernel's tables. A daemon that others rely on may only end like that before it serves. So
 * everything that libuv would ask for later is obtained at the start, where a failure is an error
 * like others.
 */
#pragma once

#include <uv.h>

/*
 * Starts libuv's workers, of which a process has one set: call it after fork(), before anything
 * else is made. If libuv aborts, the process says why and exits. 0, or a negative errno.
 */
int loop_start_workers(void);

/*
 * Returns @make(@arg), or -ENOMEM if libuv calls abort() in it. The loop must not be touched any
 * more then. For the start only.
 */
int loop_attempt(int (*make)(void *arg), void *arg);

/* Makes room for descriptors up to number @fds. @fd_peek is any one that can be polled. */
int loop_provide(uv_loop_t *loop, int fd_peek, unsigned fds);

/* Does what uv_poll_start() does, but reports here if the kernel has no room for @fd. @poll is
 * stopped then. */
int loop_poll(uv_poll_t *poll, int fd, int events, uv_poll_cb cb);
