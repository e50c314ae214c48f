/* SPDX-License-Identifier: Apache-2.0 */
/* doctor: GPUs. This process never loads the driver; its children do. */
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/doctor/doctor.h"

/* Returns whether the machine suggests that a GPU is to be used. */
static bool say_nodes(struct doctor *d)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES"), *closed = NULL;
	char module[200];
	glob_t found;

	glob("/dev/nvidiactl", 0, NULL, &found);
	glob("/dev/nvidia-uvm", GLOB_APPEND, NULL, &found);
	glob("/dev/nvidia[0-9]*", GLOB_APPEND, NULL, &found);
	glob("/dev/dxg", GLOB_APPEND, NULL, &found);
	glob("/dev/nvmap", GLOB_APPEND, NULL, &found);
	for (size_t i = 0; i < found.gl_pathc && !closed; i++)
		if (access(found.gl_pathv[i], R_OK | W_OK))
			closed = found.gl_pathv[i];
	doctor_read("/proc/driver/nvidia/version", "", module, sizeof(module));
	if (closed)
		doctor_say(
			d, DOCTOR_FAIL, "device nodes",
			"let this user read and write them: groups video or render, or the device options of the container",
			"%zu, but this user may not use %s", found.gl_pathc, closed);
	else if (found.gl_pathc)
		doctor_say(d, DOCTOR_OK, "device nodes", NULL, "%zu; CUDA_VISIBLE_DEVICES %s",
			   found.gl_pathc, visible ? visible : "not set");
	else
		doctor_say(d, *module ? DOCTOR_WARN : DOCTOR_SKIPPED, "device nodes",
			   *module ? "start the container with --gpus all" : NULL,
			   "there are no /dev/nvidia*%s",
			   *module ? ", but the kernel module is loaded" : "");
	globfree(&found);
	return found.gl_pathc || *module;
}

/* Reports why CUDA cannot be used. A machine without a GPU is fine. */
static void say_no_driver(struct doctor *d, bool gpu, const char *why)
{
	bool stub = strstr(why, "stub"), missing = strstr(why, "cannot be loaded");
	const char *advice =
		"if there should be a GPU: install its driver, or start the container with --gpus all";

	if (stub)
		advice =
			"take the toolkit's stubs folder out of LD_LIBRARY_PATH and the linker's configuration: it is for linking only";
	else if (!missing && getenv("CUDA_VISIBLE_DEVICES"))
		advice =
			"CUDA_VISIBLE_DEVICES hides the GPUs: unset it, or name a device (nvidia-smi -L)";
	doctor_say(d,
		   gpu		      ? DOCTOR_FAIL
		   : missing && !stub ? DOCTOR_SKIPPED
				      : DOCTOR_WARN,
		   "driver", advice, "%s", why);
}

void doctor_gpus(struct doctor *d)
{
	bool gpu = say_nodes(d);
	struct doctor_child c;
	enum doctor_result r;
	int count = 0;
	char probe[32];

	doctor_spawn(&c, "gpus", "", "", 0, "");
	if (doctor_answer(&c) == DOCTOR_OK) {
		doctor_say(d, DOCTOR_OK, "driver", NULL, "%s", c.words);
		sscanf(c.words, "CUDA %*d.%*d, %d", &count);
	} else {
		say_no_driver(d, gpu, c.words);
	}
	for (int i = 0; i < count; i++) {
		snprintf(probe, sizeof(probe), "gpu %d", i);
		doctor_go(&c);
		r = doctor_answer(&c);
		doctor_say(
			d, r, probe,
			"it allows one process at a time: run nvidia-smi -c DEFAULT as root, or start MPS (nvidia-cuda-mps-control -d)",
			"%s", c.words);
		if (doctor_socket())
			doctor_exchange_gpu(d, i);
	}
	if (count) {
		doctor_go(&c);
		r = doctor_answer(&c);
		doctor_say(
			d, r, "peer access",
			"sharing a tensor on its own GPU works; kernels on another GPU need a copy. See nvidia-smi topo -p2p r, and virtualisation settings (ACS, IOMMU)",
			"%s", c.words);
	}
	doctor_end(&c);
}
