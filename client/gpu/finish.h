/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a producer. Memory of CUDA's virtual memory management outlives this process, but a
 * tensor in it is lost if the process ends before anybody knows that the GPU has written it. So
 * tl_close() and exit() wait for that, and see to it that the daemon is told.
 */
#pragma once

#include <stdbool.h>

struct session;

/*
 * For tl_close(): waits until the session's tensors need this process no more, at most the client's
 * timeout. No lock is held. 0, -ETIMEDOUT, -EIO if the GPU failed now or before, or -ENOTCONN if
 * the daemon went meanwhile.
 */
int cuda_finish(struct session *s);

/*
 * Makes exit() wait for all sessions. Call it when the driver is initialised, so that the driver's
 * own function at exit, which was registered before, is called later. 0, or -ENOMEM with a text.
 */
int cuda_finish_at_exit(void);

/* Does exit() wait, or has it? Then no deleter of a program is called any more. */
bool cuda_is_exiting(void);
