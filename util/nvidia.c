/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "util/nvidia.h"

int nvidia_minor(unsigned domain, unsigned bus, unsigned slot)
{
	char path[96], line[128];
	int minor = -1;
	FILE *report;

	snprintf(path, sizeof(path), "/proc/driver/nvidia/gpus/%04x:%02x:%02x.0/information",
		 domain, bus, slot);
	report = fopen(path, "re");
	while (report && minor < 0 && fgets(line, sizeof(line), report))
		if (sscanf(line, "Device Minor: %d", &minor) != 1)
			minor = -1;
	if (report)
		fclose(report);
	return minor;
}
