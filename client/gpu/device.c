/* SPDX-License-Identifier: Apache-2.0 */
/* The GPUs of this process, with their contexts and streams. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/error.h"
#include "client/gpu/device.h"
#include "client/gpu/threads.h"
#include "util/cancel.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/nvidia.h"

static struct {
	struct cuda_device list[CUDA_DEVICES_MAX];
	int n;
	CUresult result; /* CUDA_OK, or why they could not be found */
} devices;

static pthread_once_t devices_once = PTHREAD_ONCE_INIT;
static pthread_mutex_t context_mutex = PTHREAD_MUTEX_INITIALIZER; /* for device->context */
static _Atomic bool devices_known;

const struct cuda_driver *cuda_driver(void)
{
	const char *why = NULL;
	const struct cuda_driver *d = cuda_driver_get(&why);

	if (!d)
		tl_fail(-ENODEV, "CUDA cannot be used: %s", why);
	return d;
}

int cuda_fail(CUresult result, const char *what, ...)
{
	char text[256];
	va_list args;

	va_start(args, what);
	vsnprintf(text, sizeof(text), what, args);
	va_end(args);
	return tl_fail(cuda_errno(result), "%s: %s", text, cuda_error_text(result));
}

const char *cuda_uuid_format(const unsigned char uuid[16], char text[CUDA_UUID_TEXT])
{
	char *at = text;

	for (int i = 0; i < 16; i++)
		at += sprintf(at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
			      uuid[i]);
	return text;
}

/* ---- The end of the process ---- */

static struct {
	_Atomic unsigned inside; /* threads between cuda_enter() and cuda_leave() */
	_Atomic bool closed;
	pid_t process; /* the process that closes the gate at exit; not a child that it forks */
} gate;

/* ORDER: each side writes its own word and then reads the other's: either we see the gate closed,
 * or exit() sees us inside. */
static bool gate_enter(void)
{
	atomic_fetch_add(&gate.inside, 1);
	if (!atomic_load(&gate.closed))
		return true;
	atomic_fetch_sub(&gate.inside, 1);
	return false;
}

static void gate_leave(void)
{
	atomic_fetch_sub(&gate.inside, 1);
}

/* Runs before the driver's own exit handler, which was registered earlier. Waits for a thread that
 * is stuck in the driver for GPU_EXIT_NS only. */
static void gate_close(void)
{
	int64_t until = deadline_after(GPU_EXIT_NS);

	if (gate.process != getpid())
		return;
	atomic_store(&gate.closed, true);
	while (atomic_load(&gate.inside) && !deadline_passed(until))
		nap(NS_PER_MS / 10);
}

bool cuda_is_ending(void)
{
	return atomic_load(&gate.closed);
}

/* ---- Finding the devices ---- */

struct cuda_allocation_prop cuda_buffer_prop(const struct cuda_driver *d,
					     const struct cuda_device *device)
{
	int rdma = 0;

	if (d->device_get_attribute(&rdma, CUDA_DEVICE_VMM_RDMA, device->device))
		rdma = 0;
	return (struct cuda_allocation_prop){
		.type = CUDA_ALLOCATION_PINNED,
		.handle_types = CUDA_HANDLE_POSIX_FD,
		.location = { CUDA_LOCATION_DEVICE, device->ordinal },
		.gpudirect_rdma = rdma != 0,
	};
}

static size_t granularity(const struct cuda_driver *d, const struct cuda_device *dev)
{
	struct cuda_allocation_prop prop = cuda_buffer_prop(d, dev);
	size_t size = 0;
	int vmm = 0, posix = 0;

	d->device_get_attribute(&vmm, CUDA_DEVICE_VMM, dev->device);
	d->device_get_attribute(&posix, CUDA_DEVICE_POSIX_DESCRIPTORS, dev->device);
	if (!vmm || !posix || !d->mem_get_allocation_granularity ||
	    d->mem_get_allocation_granularity(&size, &prop, CUDA_GRANULARITY_MINIMUM))
		return 0;
	return size;
}

static void find_devices(void)
{
	const struct cuda_driver *d = cuda_driver_get(NULL);
	cleanup_(cancel_allow) int cancel = cancel_forbid();
	int count = 0;

	gate.process = getpid();
	if (atexit(gate_close)) {
		devices.result = CUDA_E_OUT_OF_MEMORY;
		return;
	}
	devices.result = d->device_get_count(&count);
	for (int i = 0; !devices.result && i < count && i < CUDA_DEVICES_MAX; i++) {
		struct cuda_device *dev = &devices.list[i];

		dev->ordinal = i;
		list_init(&dev->events);
		list_init(&dev->shared);
		devices.result = d->device_get(&dev->device, i);
		if (!devices.result)
			devices.result = d->device_get_uuid(&dev->uuid, dev->device);
		if (!devices.result)
			dev->granularity = granularity(d, dev);
		devices.n = i + 1;
	}
	atomic_store(&devices_known, true);
}

static int devices_get(void)
{
	if (!cuda_driver())
		return -ENODEV;
	pthread_once(&devices_once, find_devices);
	if (devices.result)
		return cuda_fail(devices.result, "looking for GPUs");
	return 0;
}

int cuda_device_at(int ordinal, struct cuda_device **out)
{
	int r = devices_get();

	if (r)
		return r;
	if (ordinal < 0 || ordinal >= devices.n)
		return tl_fail(-ENODEV, "there is no GPU %d; this process sees %d%s", ordinal,
			       devices.n,
			       devices.n ? ", from 0" : " (is CUDA_VISIBLE_DEVICES set?)");
	*out = &devices.list[ordinal];
	return 0;
}

static int find_uuid(const unsigned char uuid[16])
{
	for (int i = 0; i < devices.n; i++)
		if (!memcmp(devices.list[i].uuid.bytes, uuid, 16))
			return i;
	return -1;
}

int cuda_device_with(const unsigned char uuid[16], struct cuda_device **out)
{
	char text[CUDA_UUID_TEXT];
	int r = devices_get();
	int i;

	if (r)
		return r;
	i = find_uuid(uuid);
	if (i < 0)
		return tl_fail(
			-ENODEV,
			"the tensor is on GPU-%s, or under MIG on MIG-%s, which is not among the "
			"%d GPUs that this process sees: add it to CUDA_VISIBLE_DEVICES, or to the "
			"container's devices",
			cuda_uuid_format(uuid, text), text, devices.n);
	*out = &devices.list[i];
	return 0;
}

int cuda_ordinal(const unsigned char uuid[16])
{
	return atomic_load(&devices_known) ? find_uuid(uuid) : -1;
}

/* ---- Contexts ---- */

/* The state of a device's context that cuda_enter() uses. */
struct context {
	CUcontext handle;
	unsigned long long id; /* 0: the driver knows none */
	unsigned life;
};

static int retain(const struct cuda_driver *d, struct cuda_device *device, struct context *context)
{
	CUresult e = CUDA_OK;

	pthread_mutex_lock(&context_mutex);
	if (!device->context) {
		e = d->primary_ctx_retain(&device->context, device->device);
		if (e || !d->ctx_get_id || d->ctx_get_id(device->context, &device->id))
			device->id = 0;
	}
	*context = (struct context){ device->context, device->id, atomic_load(&device->life) };
	pthread_mutex_unlock(&context_mutex);
	return e ? cuda_fail(e, "retaining the primary context of GPU %d", device->ordinal) : 0;
}

/* Drops the context of @life, which was reset, unless another thread has already done so. */
static void forget(struct cuda_device *device, unsigned life)
{
	pthread_mutex_lock(&context_mutex);
	if (atomic_load(&device->life) == life) {
		device->context = NULL;
		atomic_fetch_add(&device->life, 1);
	}
	pthread_mutex_unlock(&context_mutex);
}

static bool is_gone(CUresult e)
{
	return e == CUDA_E_INVALID_CONTEXT || e == CUDA_E_CONTEXT_IS_DESTROYED;
}

/* True if the context was reset. A reset context keeps its handle, which can still be made current,
 * but gets another id. Drivers before CUDA 12 have no ids: they say only whether the context is
 * active, which it is again once the program uses it anew. */
static bool was_reset(const struct cuda_driver *d, const struct cuda_device *device,
		      const struct context *context)
{
	unsigned long long id = 0;
	unsigned flags;
	int active = 1;
	CUresult e;

	if (!context->id)
		return !d->primary_ctx_get_state(device->device, &flags, &active) && !active;
	e = d->ctx_get_id(context->handle, &id);
	return e ? is_gone(e) : id != context->id;
}

static int push(const struct cuda_driver *d, struct cuda_device *device)
{
	for (bool again = false;; again = true) {
		struct context context;
		CUresult e;
		int r = retain(d, device, &context);

		if (r)
			return r;
		e = was_reset(d, device, &context) ? CUDA_E_CONTEXT_IS_DESTROYED
						   : d->ctx_push(context.handle);
		if (!e)
			return 0;
		if (again || !is_gone(e))
			return cuda_fail(e, "making the context of GPU %d current",
					 device->ordinal);
		forget(device, context.life);
	}
}

static int enter(struct cuda_device *device, struct cuda_scope *scope)
{
	const struct cuda_driver *d = cuda_driver();
	int r;

	scope->driver = d;
	if (!d)
		return -ENODEV;
	if (!gate_enter())
		return tl_fail(-ENODEV, "CUDA cannot be used any more: the process is ending");
	scope->cancel = cancel_forbid();
	r = push(d, device);
	if (r) {
		cancel_allow(&scope->cancel);
		gate_leave();
	}
	return r;
}

int cuda_enter(struct cuda_device *device, struct cuda_scope *scope)
{
	int r = enter(device, scope);

	if (r)
		return r;
	scope->capture_mode = CUDA_CAPTURE_MODE_RELAXED;
	if (scope->driver->thread_exchange_capture_mode(&scope->capture_mode))
		scope->capture_mode = -1;
	return 0;
}

void cuda_leave(struct cuda_scope *scope)
{
	CUcontext context;

	if (scope->capture_mode >= 0)
		scope->driver->thread_exchange_capture_mode(&scope->capture_mode);
	scope->driver->ctx_pop(&context);
	gate_leave();
	cancel_allow(&scope->cancel);
}

void cuda_relax_thread(void)
{
	static _Thread_local bool relaxed;
	const struct cuda_driver *d;
	int mode = CUDA_CAPTURE_MODE_RELAXED;

	if (relaxed || !atomic_load(&devices_known) || !gate_enter())
		return;
	d = cuda_driver_get(NULL);
	relaxed = d && !d->thread_exchange_capture_mode(&mode);
	gate_leave();
}

int cuda_look_at_stream(struct cuda_device *device, intptr_t stream)
{
	struct cuda_scope scope = { .capture_mode = -1 };
	int r = enter(device, &scope);

	if (r)
		return r;
	if (stream != TL_STREAM_NONE)
		r = cuda_stream_fits(&scope, device, stream);
	cuda_leave(&scope);
	return r;
}

void cuda_look_for_reset(struct cuda_device *device)
{
	cuda_look_at_stream(device, TL_STREAM_NONE);
}

/* True if the stream is being captured, or if it is the legacy stream and a stream that waits for
 * it is being captured. Neither can be used then. */
static bool is_captured(const struct cuda_scope *scope, CUstream stream)
{
	int status = CUDA_CAPTURE_NONE;
	CUresult e = scope->driver->stream_is_capturing(stream, &status);

	return e == CUDA_E_STREAM_CAPTURE_IMPLICIT || status != CUDA_CAPTURE_NONE;
}

int cuda_stream_usable(const struct cuda_scope *scope, intptr_t stream)
{
	if (is_captured(scope, cuda_stream(stream)))
		return tl_fail(
			-EBUSY,
			"stream %#llx is being captured into a graph: publish and get outside of the "
			"capture",
			(unsigned long long)stream);
	return 0;
}

/* True if the context belongs to the device. Streams of a device's other contexts may fit, too. */
static bool is_of(const struct cuda_driver *d, const struct cuda_device *device, CUcontext context)
{
	CUdevice on = device->device;

	if (context == device->context || d->ctx_push(context))
		return true;
	d->ctx_get_device(&on);
	d->ctx_pop(&context);
	return on == device->device;
}

/* Fails unless our events, which mark the end of leases, work on that stream of another context. */
static int takes_our_events(const struct cuda_driver *d, const struct cuda_device *device,
			    CUstream stream)
{
	CUevent event;
	CUresult e = d->event_create(&event, CUDA_EVENT_DISABLE_TIMING);

	if (e)
		return cuda_fail(e, "making an event for stream %#llx", (unsigned long long)stream);
	e = d->event_record(event, stream);
	d->event_destroy(event);
	return e ? cuda_fail(e,
			     "stream %#llx is of another context of GPU %d than its primary one, "
			     "and cannot show when it has read a tensor: pass a stream of that "
			     "one",
			     (unsigned long long)stream, device->ordinal)
		 : 0;
}

int cuda_stream_fits(const struct cuda_scope *scope, const struct cuda_device *device,
		     intptr_t stream)
{
	int r = cuda_stream_usable(scope, stream);
	CUcontext context;
	CUresult e;

	if (r || cuda_stream_is_shared(cuda_stream(stream)))
		return r;
	e = scope->driver->stream_get_ctx(cuda_stream(stream), &context);
	if (e)
		return cuda_fail(e, "asking which GPU stream %#llx is of",
				 (unsigned long long)stream);
	if (!is_of(scope->driver, device, context))
		return tl_fail(-EINVAL,
			       "stream %#llx is of another GPU than the tensor, which is on GPU "
			       "%d: pass a stream of that one",
			       (unsigned long long)stream, device->ordinal);
	return context == device->context
		       ? 0
		       : takes_our_events(scope->driver, device, cuda_stream(stream));
}

bool cuda_stream_tells(const struct cuda_scope *scope, CUstream stream)
{
	unsigned flags = 0;

	if (cuda_stream_is_shared(stream))
		return false;
	return !scope->driver->stream_get_flags(stream, &flags) && flags & CUDA_STREAM_NON_BLOCKING;
}

CUstream cuda_stream_later(const struct cuda_scope *scope, CUstream stream)
{
	if (cuda_stream_is_shared(stream))
		return CUDA_STREAM_LEGACY;
	if (is_captured(scope, stream)) /* the legacy stream may wait for it */
		return stream;
	return cuda_stream_tells(scope, stream) ? stream : CUDA_STREAM_LEGACY;
}

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
