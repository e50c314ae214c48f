/* SPDX-License-Identifier: Apache-2.0 */
/* What has to mark its place on a stream that is being captured: the closer does so when the
 * capture has ended. */
#pragma once

#include <stdbool.h>

#include "util/list.h"

struct cuda_captured {
	struct list link;
	/* Marks the place, and may free what this is a part of. False: the stream is still being
	 * captured. */
	bool (*mark)(struct cuda_captured *captured);
};

/* Calls @captured->mark(), again and again, until it returns true. There is a closer. */
void cuda_captured_wait(struct cuda_captured *captured);
