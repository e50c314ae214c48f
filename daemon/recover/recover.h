/* SPDX-License-Identifier: Apache-2.0 */
/* Adoption: makes a state from the catalog that a dead daemon left, at any moment of its work.
 * Nothing that clients have mapped moves. Committed tensors stay, except tensors on devices that
 * die with their producers' connections. serve/takeover.c calls these functions. */
#pragma once

#include "daemon/state/client.h"
#include "daemon/state/state.h"

enum { ADOPT_WHY_MAX = 160 };

/*
 * To be called after state_map(). Does D1 for each client without a fact, completes or undoes
 * unfinished steps, and takes over names, segments and rows. Returns CATALOG_E_STRANGE with @why if
 * no daemon could have left such a catalog, CHARGE_E_FULL if the limits are lower now, or a
 * negative errno.
 */
int adopt_catalog(struct state *st, char why[ADOPT_WHY_MAX]);
/*
 * To be called after client_adopt() for each client that has a fact. Takes over the clients'
 * holdings and drafts, and ends everything that belongs to no client. Fails as holding_make() does.
 */
int adopt_finish(struct state *st);

/*
 * Adoption of memory on devices. Memory survives if its descriptors were kept, and so do the
 * finished tensors in it. All other tensors on devices are lost. The connections of their producers
 * have ended.
 */

/* Takes over the segments on devices whose descriptors were kept, and counts them in *@count.
 * Clears the words of the other segments, which withdraws their tensors. -ENOMEM. */
int adopt_devices(struct state *st, uint32_t *count);
/* Puts a LIVE or RETIRED row on a device into its segment, or counts it as lost. */
void adopt_device_row(struct state *st, uint32_t slot);

/* Adoption of rings that a former daemon left. Their producers keep publishing meanwhile. */

/* True if a ring's producer may publish this row without the daemon. */
bool adopt_is_slot(const struct state *st, uint32_t slot);
/* The same for streams; adopt_rings() calls these. */
int adopt_streams(struct state *st, uint32_t *index);
int adopt_stream_row(struct state *st, uint32_t slot);
/* Gives streams their members, when clients are there, and ends those that have none. */
void adopt_streams_belong(struct state *st);
/* Makes the rings to which adopted rows belong. They have no clients yet. Returns SEGMENT_E_STRANGE
 * if the page of the ring *@index is missing or damaged; else as charge_adopt(). */
int adopt_rings(struct state *st, uint32_t *index);
/* Gives each ring that a name means to its producer, or to @nobody if that has ended. To be called
 * when the clients have been adopted. */
void adopt_rings_belong(struct state *st, struct client *nobody);
/* To be called last, when all rows are recovered. Ends the rings without a producer, and those that
 * the former daemon was ending. Fails as account_ref() does. */
int adopt_rings_end(struct state *st, const struct client *nobody);
