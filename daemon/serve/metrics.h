/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's metrics as text, and their HTTP server. */
#pragma once

#include <stddef.h>

#include "daemon/serve/server.h"

/* Returns the metrics as OpenMetrics text, which the caller frees, with its length in *@size. NULL:
 * no memory. */
char *metrics_text(const struct server *server, size_t *size);
