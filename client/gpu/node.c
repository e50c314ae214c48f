/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "client/gpu/node.h"
#include "util/cancel.h"
#include "util/fd.h"
#include "util/nvidia.h"

static int device_minor(const struct cuda_driver *d, const struct cuda_device *device)
{
	int domain = 0, bus = 0, slot = 0;

	if (d->device_get_attribute(&domain, CUDA_DEVICE_PCI_DOMAIN_ID, device->device) ||
	    d->device_get_attribute(&bus, CUDA_DEVICE_PCI_BUS_ID, device->device) ||
	    d->device_get_attribute(&slot, CUDA_DEVICE_PCI_DEVICE_ID, device->device))
		return -1;
	return nvidia_minor((unsigned)domain, (unsigned)bus, (unsigned)slot);
}

int cuda_node_open(const struct cuda_device *device)
{
	const struct cuda_driver *d = cuda_driver_get(NULL);
	cleanup_(cancel_allow) int cancel = cancel_forbid();
	char path[32];
	int minor;

	if (!d)
		return -1;
	if (d->open_node)
		return d->open_node(device->device);
	minor = device_minor(d, device);
	if (minor < 0)
		return -1;
	snprintf(path, sizeof(path), "/dev/nvidia%d", minor);
	return open(path, O_RDWR | O_CLOEXEC);
}
