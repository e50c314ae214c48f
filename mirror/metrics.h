/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a mirror as OpenMetrics 1.0 text. */
#pragma once

#include <cjson/cJSON.h>
#include <stddef.h>

/* @status comes from status_make(). Returns a text, which the caller frees, or NULL. */
char *metrics_write(const cJSON *status, size_t *size);
