/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one lock of all that concerns GPUs. It is taken after any other of the library's, and never
 * held across a request or a call that waits.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

extern pthread_mutex_t cuda_lock;
extern pthread_mutex_t cuda_asking; /* of who asks the driver for events; taken before cuda_lock,
				       which is free meanwhile: a context's calls wait for each
				       other, some as long as the GPU is at work */
extern pthread_cond_t cuda_changed; /* an import or a mapping was opened, a pool imported, memory
				       of one freed, an export made, a session is not claimed any
				       more */

/* Waits for a change. False: the deadline has passed. Called with cuda_lock. */
bool cuda_wait_changed(int64_t deadline);
