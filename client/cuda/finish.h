/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a producer. Memory of CUDA's virtual memory management outlives this process, but a
 * tensor in it is lost if the process ends before anybody knows that the GPU has written it. So
 * tl_close() and exit() wait for that, and see to it that the daemon is told.
 */
#pragma once

struct session;

/*
 * tl_close(): waits until the session's tensors need this process no more, at most the client's
 * timeout. No lock is held. 0; -ETIMEDOUT; -EIO: the GPU failed, now or before; -ENOTCONN: the
 * daemon went meanwhile.
 */
int cuda_finish(struct session *s);

/*
 * From now on exit() does it for all sessions. To be called when the driver is initialised: what it
 * does at exit comes later then. 0, or -ENOMEM with a text.
 */
int cuda_finish_at_exit(void);
