/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adoption: makes a state from the catalog that a dead daemon left, at any moment of its work.
 * Nothing that clients have mapped moves. Committed tensors stay, except tensors on devices that
 * die with their producers' connections (adopt_device.h).
 */
#pragma once

#include "daemon/state/client.h"

enum { ADOPT_WHY_MAX = 160 };

/*
 * To be called after state_map(). Does D1 for each client without a fact, completes or undoes
 * unfinished steps, and takes over names, segments and rows. Returns CATALOG_E_STRANGE with @why if
 * no daemon could have left the catalog so, CHARGE_E_FULL if the limits are lower now, or a
 * negative errno.
 */
int adopt_catalog(struct state *st, char why[ADOPT_WHY_MAX]);
/*
 * To be called after client_adopt() for each client that has a fact. Takes over the clients'
 * holdings and drafts, and ends everything that belongs to no client. Fails as holding_make() does.
 */
int adopt_finish(struct state *st);
