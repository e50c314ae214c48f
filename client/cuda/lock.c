/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cuda/lock.h"

pthread_mutex_t cuda_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t cuda_changed = PTHREAD_COND_INITIALIZER;
