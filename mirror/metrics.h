/* SPDX-License-Identifier: Apache-2.0 */
/* What a mirror does now, as OpenMetrics 1.0 text. */
#pragma once

#include <cjson/cJSON.h>
#include <stddef.h>

/* @status is that of status_make(). Returns what the caller frees, or NULL. */
char *metrics_write(const cJSON *status, size_t *size);
