/* SPDX-License-Identifier: Apache-2.0 */
/* What NVIDIA's kernel driver says of its GPUs in /proc. */
#pragma once

/*
 * The N of /dev/nvidiaN, which is not CUDA's number of the GPU: the driver's report for that PCI
 * address has it. -1: there is none, as in a container without /proc/driver.
 */
int nvidia_minor(unsigned domain, unsigned bus, unsigned slot);
