/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The closer: a thread of its own for calls of the driver that close memory, or mark a place on a
 * stream that may be full. They may wait until the device has done what is queued there, and that
 * work may wait for another process, which may wait for a lease of this one. So no thread that
 * others wait for makes them: neither the library's thread nor one that releases or closes
 * something. They leave tasks (task.h) to the closer, which also gives back draft buffers that have
 * been free for long.
 */
#pragma once

/* Starts the closer if need be. The caller has cuda_lock. 0, or a negative errno. */
int cuda_closer_start(void);
