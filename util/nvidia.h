/* SPDX-License-Identifier: Apache-2.0 */
/* Data of NVIDIA's kernel driver about its GPUs, from /proc. */
#pragma once

/* The N of /dev/nvidiaN, which is not CUDA's number of the GPU. It is in the driver's report for
 * that PCI address. -1: there is none, as in a container without /proc/driver. */
int nvidia_minor(unsigned domain, unsigned bus, unsigned slot);
