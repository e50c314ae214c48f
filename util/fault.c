/* SPDX-License-Identifier: Apache-2.0 */
/* All threads share the countdown, so exactly one call of them all fails. */
#include <limits.h>
#include <stdlib.h>

#include "util/fault.h"
#include "util/log.h"

int fault_countdown_;

static const char *fired;

bool fault_hit_(const char *what)
{
	int left = __atomic_load_n(&fault_countdown_, __ATOMIC_RELAXED);

	do {
		if (left == 0)
			return false; /* another thread's call was the n-th */
	} while (!__atomic_compare_exchange_n(&fault_countdown_, &left, left - 1, true,
					      __ATOMIC_RELAXED, __ATOMIC_RELAXED));
	if (left != 1)
		return false;
	__atomic_store_n(&fired, what, __ATOMIC_RELAXED);
	log_debug("fault injected", "what=%s", log_str(what));
	return true;
}

void fault_arm(unsigned int n)
{
	__atomic_store_n(&fired, NULL, __ATOMIC_RELAXED);
	__atomic_store_n(&fault_countdown_, n > INT_MAX ? INT_MAX : (int)n, __ATOMIC_RELAXED);
}

void fault_disarm(void)
{
	__atomic_store_n(&fault_countdown_, 0, __ATOMIC_RELAXED);
}

const char *fault_fired(void)
{
	return __atomic_load_n(&fired, __ATOMIC_RELAXED);
}

void fault_init_from_env(void)
{
	const char *text = secure_getenv("TENSORLEASE_FAULT_NTH");
	unsigned long n;
	char *end;

	if (!text || *text < '0' || *text > '9')
		return;
	n = strtoul(text, &end, 10);
	if (*end == '\0')
		fault_arm(n > INT_MAX ? INT_MAX : (unsigned int)n);
}
