/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control socket: who may connect to it can ask what the mirror does. Of those mirrors that
 * have the same one, one runs, and the others wait for its end.
 */
#pragma once

#include <signal.h>

#include "mirror/status.h"

struct control;

enum { CONTROL_PATH_MAX = 108 };

/* Where it is. Returns false if that is too long. */
bool control_path(const struct config *config, char path[CONTROL_PATH_MAX]);
/* Waits until no other mirror has it. Returns 0, 1 if one of the signals @ends has come, or a
 * negative errno after an error message. */
int control_wait(struct control **out, const struct config *config, const sigset_t *ends);
/* Begins to answer, also for metrics by TCP. Returns 0 or a negative errno after an error message.
 */
int control_start(struct control *control, const struct mirror *mirror);
/* Answers nobody any more. */
void control_stop(struct control *control);
/* Another mirror may take over. @control may be NULL. */
void control_close(struct control *control);
