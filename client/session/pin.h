/* SPDX-License-Identifier: Apache-2.0 */
/* Pins: leases that a session holds for forked children that have no ledger of their own. */
#pragma once

struct session;

/* Before a fork: one more hold on each slot that is held. The produce mutex is held. */
void pin_all(struct session *s);

/* The same for exported drafts, whose mappings the child inherits. The mapping mutex is held too.
 */
void pin_drafts(struct session *s);

/* Gives up what children need no more. When session->pinned says that there is something. */
void pin_look(struct session *s);
void pin_look_locked(struct session *s); /* the produce mutex is held */

/* At the session's end, which takes the holds along. */
void pin_forget(struct session *s);
