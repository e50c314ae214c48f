/* SPDX-License-Identifier: Apache-2.0 */
/* File descriptors. */
#pragma once

/* Closes @fd if it is not negative, keeps errno, and returns -1: `fd = fd_close(fd);`. */
int fd_close(int fd);
