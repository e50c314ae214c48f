/* SPDX-License-Identifier: Apache-2.0 */
/* Sets the sizes of objects right that clients have changed. */
#pragma once

#include "daemon/serve/jobs.h"
#include "daemon/state/common.h"

/* Begins with up to @most of them, in jobs of the users that may have changed them. */
void trims_run_due(struct jobs *jobs, struct shared *shared, unsigned most);
/* Logs, if it is so, that growing this user's objects is not noticed at once. */
void guard_tell(struct guard *guard, struct account *account);
