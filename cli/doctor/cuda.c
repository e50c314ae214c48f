/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/doctor/cuda.h"
#include "util/nvidia.h"

static const struct symbol {
	const char *name;
	size_t offset;
} symbols[] = {
#define SYMBOL(member, name)                                                                       \
	{                                                                                          \
		name, offsetof(struct doctor_cuda, member)                                         \
	}
	SYMBOL(init, "cuInit"),
	SYMBOL(error_name, "cuGetErrorName"),
	SYMBOL(count, "cuDeviceGetCount"),
	SYMBOL(attribute, "cuDeviceGetAttribute"),
	SYMBOL(can_access_peer, "cuDeviceCanAccessPeer"),
	SYMBOL(retain, "cuDevicePrimaryCtxRetain"),
	SYMBOL(set_current, "cuCtxSetCurrent"),
	SYMBOL(alloc, "cuMemAlloc_v2"),
	SYMBOL(free, "cuMemFree_v2"),
	SYMBOL(stream_create, "cuStreamCreate"),
	SYMBOL(stream_query, "cuStreamQuery"),
	SYMBOL(stream_synchronize, "cuStreamSynchronize"),
	SYMBOL(write, "cuMemcpyHtoD_v2"),
	SYMBOL(read, "cuMemcpyDtoHAsync_v2"),
	SYMBOL(fill, "cuMemsetD8Async"),
#undef SYMBOL
};

static void *library(void)
{
	return dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
}

const char *doctor_cuda_path(void)
{
	static char path[PATH_MAX];
	void *handle = library();
	void *init = handle ? dlsym(handle, "cuInit") : NULL;
	Dl_info info;

	if (init && dladdr(init, &info) && info.dli_fname)
		snprintf(path, sizeof(path), "%s", info.dli_fname);
	return path;
}

const char *doctor_cuda_error(const struct doctor_cuda *c, const char *call, int result, char *text,
			      size_t size)
{
	const char *name = NULL;

	if (c->error_name && c->error_name(result, &name))
		name = NULL;
	snprintf(text, size, "%s: %s (%d)", call, name ? name : "CUDA error", result);
	return text;
}

bool doctor_cuda_open(struct doctor_cuda *c, int device, const char **why)
{
	static char text[200];
	void *handle = library(), *context;
	int r;

	*why = text;
	if (!handle) {
		snprintf(text, sizeof(text), "%s", dlerror());
		return false;
	}
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *p = dlsym(handle, symbols[i].name);

		if (!p) {
			snprintf(text, sizeof(text), "libcuda.so.1 has no %s", symbols[i].name);
			return false;
		}
		memcpy((char *)c + symbols[i].offset, &p, sizeof(p));
	}
	r = c->init(0);
	if (r) {
		doctor_cuda_error(c, "cuInit", r, text, sizeof(text));
		return false;
	}
	if (device < 0)
		return true;
	r = c->retain(&context, device);
	if (!r)
		r = c->set_current(context);
	if (r)
		doctor_cuda_error(c, "cuDevicePrimaryCtxRetain", r, text, sizeof(text));
	return !r;
}

int doctor_cuda_persistence(const char *uuid)
{
	void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	void *gpu = NULL;
	int (*init)(void), (*by_uuid)(const char *uuid, void **found),
		(*get_mode)(void *of, int *mode);
	int mode = 0;

	if (!nvml)
		return -1;
	*(void **)&init = dlsym(nvml, "nvmlInit_v2");
	*(void **)&by_uuid = dlsym(nvml, "nvmlDeviceGetHandleByUUID");
	*(void **)&get_mode = dlsym(nvml, "nvmlDeviceGetPersistenceMode");
	if (!init || !by_uuid || !get_mode || init() || by_uuid(uuid, &gpu) || get_mode(gpu, &mode))
		return -1;
	return mode == 1;
}

static int node_minor(const struct doctor_cuda *c, int device)
{
	int domain = 0, bus = 0, slot = 0;

	if (c->attribute(&domain, CUDA_PCI_DOMAIN, device) ||
	    c->attribute(&bus, CUDA_PCI_BUS, device) || c->attribute(&slot, CUDA_PCI_SLOT, device))
		return -1;
	return nvidia_minor((unsigned)domain, (unsigned)bus, (unsigned)slot);
}

void doctor_cuda_node(const struct doctor_cuda *c, int device, char path[32])
{
	int minor = node_minor(c, device);

	snprintf(path, 32, "/dev/nvidia%d", minor);
	if (minor < 0 || access(path, R_OK | W_OK))
		*path = '\0';
}
