/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adoption of memory on devices. Memory survives if its descriptors were kept, and so do the
 * finished tensors in it. All other tensors on devices are lost. The connections of their producers
 * have ended.
 */
#pragma once

#include "daemon/state/state.h"

/* Takes over the segments on devices whose descriptors were kept, and counts them in *@count.
 * Clears the words of the other segments, which withdraws their tensors. -ENOMEM. */
int adopt_devices(struct state *st, uint32_t *count);
/* Puts a LIVE or RETIRED row on a device into its segment, or counts it as lost. */
void adopt_device_row(struct state *st, uint32_t slot);
