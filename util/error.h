/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors: 0 = done; < 0 = unexpected, a negative errno, passed up unchanged; > 0 = a named outcome
 * which the caller must act on. At the debug level each step of a failure leaves one line in the
 * log.
 */
#pragma once

#include <errno.h>

#include "util/log.h"

static inline int err_trace_(int r, const char *step, const char *file, int line, const char *func)
{
	if (r && log_enabled(LOG_LEVEL_DEBUG))
		log_at(LOG_LEVEL_DEBUG, step, "r=%d at=%s:%d func=%s", r, file, line, func);
	return r;
}

/* A failure starts here. */
#define err_new(r) err_trace_((r), "error", __FILE__, __LINE__, __func__)

/* A failure (or success) goes up unchanged. */
#define err_pass(r) err_trace_((r), "error passed", __FILE__, __LINE__, __func__)

/* An outcome which is not expected here becomes a fatal error; 0 and errors stay what they are. */
#define err_fold(r) err_trace_(err_folded_(r), "error folded", __FILE__, __LINE__, __func__)

static inline int err_folded_(int r)
{
	return r > 0 ? -ENOTRECOVERABLE : r;
}
