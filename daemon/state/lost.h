/* SPDX-License-Identifier: Apache-2.0 */
/* The LIVE rows of each user that are lost, oldest first. A row stays while its name means it, so
 * that a get can report the loss. */
#pragma once

#include "daemon/state/state.h"

enum { LOST_MAX = 1024 }; /* of one user */

/* True: its user has too many of them now. */
bool lost_add(struct state *st, uint32_t slot);
/* The oldest lost row of a user that has some. */
uint32_t lost_oldest(const struct state *st, const struct account *account);
/* Does nothing if the row is not lost. */
void lost_remove(struct state *st, uint32_t slot);
