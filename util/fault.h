/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fault injection for tests. Code that can fail asks fault("what") just before it tries, and fails
 * if the answer is yes. While nothing is armed this costs one load. A test arms the n-th call, for
 * every n in turn:
 *
 *	r = fault_nth(n, segment_new(&seg, &store, user, 4096));
 *	if (!fault_fired())
 *		break;
 */
#pragma once

#include <stdbool.h>

extern int fault_countdown_; /* calls until one fails; 0: nothing is armed */

bool fault_hit_(const char *what);

/* True if the operation named @what must fail now. */
static inline bool fault(const char *what)
{
	if (__builtin_expect(__atomic_load_n(&fault_countdown_, __ATOMIC_RELAXED) == 0, 1))
		return false;
	return fault_hit_(what);
}

/* Makes the @n-th call of fault() from now on return true, once; 0 disarms. fault_fired() is NULL
 * again. */
void fault_arm(unsigned int n);

/* No call returns true from now on. fault_fired() keeps its result. */
void fault_disarm(void);

/* Returns the name of the call that was made to fail since fault_arm(), or NULL. */
const char *fault_fired(void);

/* Arms the n-th call if TENSORLEASE_FAULT_NTH=n is set, for programs under test. */
void fault_init_from_env(void);

#define fault_nth(n, expression)                                                                   \
	({                                                                                         \
		fault_arm(n);                                                                      \
		__typeof__(expression) fault_result_ = (expression);                               \
		fault_disarm();                                                                    \
		fault_result_;                                                                     \
	})
