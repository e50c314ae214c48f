/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control socket. Whoever may connect to it can ask what the mirror does. Only one mirror with
 * the same control socket runs at a time; the others wait for its end.
 */
#pragma once

#include <signal.h>

#include "mirror/status.h"

struct control;

enum { CONTROL_PATH_MAX = 108 };

/* Finds the path of the control socket. Returns false if that is too long. */
bool control_path(const struct config *config, char path[CONTROL_PATH_MAX]);
/* Waits until no other mirror has the control socket. Returns 0, 1 if one of the signals @ends has
 * come, or a negative errno after an error message. */
int control_wait(struct control **out, const struct config *config, const sigset_t *ends);
/* Begins to answer, also metrics by TCP. Returns 0 or a negative errno after an error message. */
int control_start(struct control *control, const struct mirror *mirror);
/* Stops answering. */
void control_stop(struct control *control);
/* Lets another mirror take over. @control may be NULL. */
void control_close(struct control *control);
