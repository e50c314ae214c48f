/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>

#include "util/thread.h"

uint64_t thread_unique(void)
{
	static _Thread_local uint64_t number;
	static _Atomic uint64_t last;

	if (!number)
		number = atomic_fetch_add(&last, 1) + 1;
	return number;
}
