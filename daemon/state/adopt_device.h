/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adoption of what lies on devices. Memory that its descriptors keep is there still, and so are the
 * tensors in it that were finished; other tensors on devices are lost. The connections of producers
 * have ended.
 */
#pragma once

#include "daemon/state/state.h"

/*
 * Takes over the segments on devices whose descriptors were kept, *@count of them. The words of
 * others are cleared: their tensors are withdrawn. -ENOMEM.
 */
int adopt_devices(struct state *st, uint32_t *count);
/* The LIVE or RETIRED row lies on a device: it is in its segment, or lost. */
void adopt_device_row(struct state *st, uint32_t slot);
