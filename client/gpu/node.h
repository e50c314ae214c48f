/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of a GPU, /dev/nvidiaN. The kernel's driver closes a GPU down when nobody has that file
 * open any more, unless persistence mode is on, and all memory there goes. The descriptor of
 * virtual memory is of /dev/nvidiactl and does not prevent that. So the daemon is given one of this
 * file.
 */
#pragma once

#include "client/gpu/device.h"

/* Opens it. -1: it is not known or cannot be opened, as in a container without /proc/driver. */
int cuda_node_open(const struct cuda_device *device);
