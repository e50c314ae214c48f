/* SPDX-License-Identifier: Apache-2.0 */
/* Threads. */
#pragma once

#include <stdint.h>

/* A number for this thread, from 1 on, that no other thread of the process ever has. */
uint64_t thread_unique(void);
