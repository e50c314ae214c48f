/* SPDX-License-Identifier: Apache-2.0 */
/* Pins: leases that a session holds for forked children that have no ledger of their own. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

struct session;

/* To be called before a fork: adds a hold on each slot that is held. The produce mutex is held. */
void pin_all(struct session *s);

/*
 * pin_all() for exported drafts, whose mappings the child inherits. The mapping mutex is held too.
 */
void pin_drafts(struct session *s);

/* Takes the holds for other children off a copy of the session's ledger; returns how many they are.
 * @held may be NULL. The produce mutex is held. */
uint64_t pins_subtract(const struct session *s, _Atomic uint32_t *held);

/* Gives up holds that children need no more. To be called when session->pinned is true. */
void pin_look(struct session *s);
void pin_look_locked(struct session *s); /* the produce mutex is held */

/* To be called at the session's end, which also ends the holds. */
void pin_forget(struct session *s);
