/* SPDX-License-Identifier: Apache-2.0 */
/* Sets the sizes of objects right that clients have changed. */
#pragma once

#include "daemon/serve/job.h"
#include "daemon/state/shared.h"

/* Begins with up to @most of them, in jobs of the users that may have changed them. */
void trims_run_due(struct jobs *jobs, struct shared *shared, unsigned most);
