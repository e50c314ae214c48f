/* SPDX-License-Identifier: Apache-2.0 */
/* Gives the memory of segments that have ended back to the kernel. */
#pragma once

#include "daemon/serve/jobs.h"
#include "daemon/state/common.h"

/* Begins with up to @most of them. @forgotten: what the keeper has forgotten, as of
 * keep_forgotten(). */
void destroys_run_due(struct jobs *jobs, struct shared *shared, uint64_t forgotten, unsigned most);
