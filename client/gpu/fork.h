/* SPDX-License-Identifier: Apache-2.0 */
/* fork(): cuda_lock is held around it; in the child nothing of CUDA can be used. */
#pragma once

void cuda_before_fork(void);
void cuda_after_fork_parent(void);
void cuda_after_fork_child(void); /* the lock is free then */
void cuda_child_releases(void);	  /* after the locks are free */
