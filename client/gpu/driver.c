/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding and initialising the driver, once per process. The table is written by one thread under
 * the lock before `state` becomes READY and never again.
 *
 * No lock may be held across fork(), since cuInit() itself forks to run nvidia-modprobe. Therefore
 * the child's handler starts with a fresh lock, and counts a driver that another thread was
 * initialising as initialised.
 */
#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/gpu/driver.h"
#include "client/gpu/driver_functions.h"
#include "util/cancel.h"

/* These structs have the driver's layout. tests/unit/cuda_driver.c compares more of them with
 * the toolkit's header, where that is installed. */
static_assert(sizeof(CUdeviceptr) == 8 && sizeof(void *) == 8, "64-bit only");
static_assert(sizeof(struct cuda_uuid) == 16, "CUuuid");
static_assert(sizeof(struct cuda_ipc_handle) == 64, "CUipcMemHandle, CUipcEventHandle");
static_assert(sizeof(struct cuda_location) == 8, "CUmemLocation");
static_assert(sizeof(struct cuda_access) == 12, "CUmemAccessDesc");
static_assert(sizeof(struct cuda_allocation_prop) == 32 &&
		      offsetof(struct cuda_allocation_prop, compression) == 24,
	      "CUmemAllocationProp");
static_assert(sizeof(struct cuda_pool_props) == 88 &&
		      offsetof(struct cuda_pool_props, max_size) == 24,
	      "CUmemPoolProps");
static_assert(sizeof(struct cuda_pool_pointer) == 64, "CUmemPoolPtrExportData");

enum group { NEEDED, ALONE, VMM, POOLS };
enum state { UNKNOWN, LOADING, READY, FAILED };

static const struct function {
	const char *name;
	const char *symbol;
	int version;
	enum group group;
	size_t offset; /* in struct cuda_driver */
} functions[] = {
#define FUNCTION(group, member, name, suffix, version)                                             \
	{ #name, #name #suffix, version, group, offsetof(struct cuda_driver, member) },
	CUDA_FUNCTIONS(FUNCTION)
#undef FUNCTION
};
enum { FUNCTIONS = sizeof(functions) / sizeof(functions[0]) };

static struct cuda_driver driver;
static char failure[512];
static _Atomic int state;
static atomic_bool forked;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const char forked_text[] =
	"CUDA was initialised before fork() and does not work in the child: start the process with spawn "
	"or exec, or fork before CUDA is used";

static void after_fork_in_child(void)
{
	int s = atomic_load(&state);

	pthread_mutex_init(&lock, NULL);
	if (s == LOADING || s == READY)
		atomic_store(&forked, true);
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, after_fork_in_child);
}

__attribute__((format(printf, 1, 2))) static bool fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(failure, sizeof(failure), format, args);
	va_end(args);
	return false;
}

/* ---- Symbols ---- */

typedef CUresult get_proc_address_v1(const char *name, void **function, int version,
				     unsigned long long flags);
typedef CUresult get_proc_address_v2(const char *name, void **function, int version,
				     unsigned long long flags, int *status);

/* The driver's own look-ups; a driver older than CUDA 11.3 has neither. */
struct finder {
	void *library;
	get_proc_address_v1 *v1;
	get_proc_address_v2 *v2;
};

static void *find(const struct finder *f, const struct function *function)
{
	const unsigned long long legacy_stream = 1;
	void *p = NULL;
	CUresult r;

	if (!f->v1 && !f->v2)
		return dlsym(f->library, function->symbol);
	if (f->v2)
		r = f->v2(function->name, &p, function->version, legacy_stream, NULL);
	else
		r = f->v1(function->name, &p, function->version, legacy_stream);
	return r ? NULL : p;
}

static void member_set(const struct function *function, void *p)
{
	memcpy((char *)&driver + function->offset, &p, sizeof(p));
}

/* Fills the table. Returns the first needed function that is missing, or NULL. */
static const char *load_functions(const struct finder *f)
{
	bool lacks[POOLS + 1] = { false };
	const char *missing = NULL;

	for (int i = 0; i < FUNCTIONS; i++) {
		void *p = find(f, &functions[i]);

		member_set(&functions[i], p);
		if (p)
			continue;
		lacks[functions[i].group] = true;
		if (functions[i].group == NEEDED && !missing)
			missing = functions[i].symbol;
	}
	for (int i = 0; i < FUNCTIONS; i++)
		if (functions[i].group > ALONE && lacks[functions[i].group])
			member_set(&functions[i], NULL);
	return missing;
}

/* ---- Loading ---- */

static bool init_failed(CUresult r)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");

	switch (r) {
	case CUDA_E_STUB_LIBRARY:
		return fail(
			"libcuda.so.1 is the stub of the CUDA toolkit, not a driver: a folder called "
			"stubs comes before the driver's in the library path");
	case CUDA_E_NO_DEVICE:
		if (visible)
			return fail("CUDA sees no device; CUDA_VISIBLE_DEVICES is \"%.100s\"",
				    visible);
		return fail("CUDA sees no device: was this container started without --gpus?");
	case CUDA_E_NOT_INITIALIZED:
		return fail("cuInit() failed: %s. %s", cuda_error_text(r), forked_text);
	case CUDA_E_SYSTEM_DRIVER_MISMATCH:
		return fail(
			"cuInit() failed: %s. The kernel's NVIDIA module and libcuda.so.1 are of "
			"different versions: restart the machine, or the container after an update",
			cuda_error_text(r));
	case CUDA_E_SYSTEM_NOT_READY:
		return fail(
			"cuInit() failed: %s. On machines with NVSwitch nvidia-fabricmanager must run",
			cuda_error_text(r));
	default:
		return fail("cuInit() failed: %s", cuda_error_text(r));
	}
}

static bool load(void)
{
	struct finder f = { .library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) };
	const char *missing;
	int version = 0;
	CUresult r;

	if (!f.library) {
		const char *why = dlerror();

		return fail("libcuda.so.1 cannot be loaded: %s: is an NVIDIA driver installed? A "
			    "container must be started with --gpus",
			    why ? why : "no reason given");
	}
	*(void **)&f.v2 = dlsym(f.library, "cuGetProcAddress_v2");
	*(void **)&f.v1 = dlsym(f.library, "cuGetProcAddress");
	*(void **)&driver.open_node = dlsym(f.library, "fakecuda_open_node");
	missing = load_functions(&f);
	if (driver.driver_get_version && !driver.driver_get_version(&version))
		driver.version = version;
	/* This comes first, since a stub lacks functions as well, but its error says why. */
	r = driver.init ? driver.init(0) : CUDA_OK;
	if (r == CUDA_E_STUB_LIBRARY)
		return init_failed(r);
	if (missing)
		return fail("the NVIDIA driver is too old: it is for CUDA %d.%d and lacks %s; 11.4 "
			    "(driver 470) or newer is needed",
			    version / 1000, version % 1000 / 10, missing);
	return r ? init_failed(r) : true;
}

const struct cuda_driver *cuda_driver_get(const char **why)
{
	const char *text = failure;
	int s = atomic_load(&state);

	if (s < READY) {
		cleanup_(cancel_allow) int cancel = cancel_forbid();

		pthread_once(&once, watch_forks);
		pthread_mutex_lock(&lock);
		if (!atomic_load(&forked) && atomic_load(&state) == UNKNOWN) {
			atomic_store(&state, LOADING);
			atomic_store(&state, load() ? READY : FAILED);
		}
		s = atomic_load(&state);
		pthread_mutex_unlock(&lock);
	}
	if (atomic_load(&forked))
		text = forked_text;
	else if (s == READY)
		return &driver;
	if (why)
		*why = text;
	return NULL;
}

/* ---- Errors ---- */

/* The errors that occur where there is no driver to ask. */
static const char *known_name(CUresult result)
{
	switch (result) {
	case CUDA_OK:
		return "CUDA_SUCCESS";
	case CUDA_E_NOT_INITIALIZED:
		return "CUDA_ERROR_NOT_INITIALIZED";
	case CUDA_E_STUB_LIBRARY:
		return "CUDA_ERROR_STUB_LIBRARY";
	case CUDA_E_NO_DEVICE:
		return "CUDA_ERROR_NO_DEVICE";
	default:
		return "CUDA error";
	}
}

struct cuda_words cuda_words(CUresult result)
{
	struct cuda_words w;
	const char *name = NULL, *words = NULL;

	/* These two look into tables: they work without cuInit() and after fork(). */
	if (driver.get_error_name && driver.get_error_name(result, &name))
		name = NULL;
	if (driver.get_error_string && driver.get_error_string(result, &words))
		words = NULL;
	snprintf(w.text, sizeof(w.text), "%s (%d)%s%s", name ? name : known_name(result), result,
		 words ? ": " : "", words ? words : "");
	return w;
}

int cuda_errno(CUresult result)
{
	switch (result) {
	case CUDA_OK:
		return 0;
	case CUDA_E_INVALID_VALUE:
	case CUDA_E_INVALID_CONTEXT:
	case CUDA_E_INVALID_HANDLE:
		return -EINVAL;
	case CUDA_E_OUT_OF_MEMORY:
		return -ENOMEM;
	case CUDA_E_NOT_INITIALIZED:
	case CUDA_E_DEINITIALIZED:
	case CUDA_E_STUB_LIBRARY:
	case CUDA_E_DEVICE_UNAVAILABLE:
	case CUDA_E_NO_DEVICE:
	case CUDA_E_INVALID_DEVICE:
	case CUDA_E_SYSTEM_NOT_READY:
	case CUDA_E_SYSTEM_DRIVER_MISMATCH:
	case CUDA_E_COMPAT_NOT_SUPPORTED_ON_DEVICE:
		return -ENODEV;
	case CUDA_E_CALL_REQUIRES_NEWER_DRIVER:
	case CUDA_E_PEER_ACCESS_UNSUPPORTED:
	case CUDA_E_NOT_SUPPORTED:
		return -ENOTSUP;
	case CUDA_E_ALREADY_MAPPED:
		return -EBUSY;
	case CUDA_E_NOT_FOUND:
		return -ENOENT;
	case CUDA_E_NOT_READY:
		return -EAGAIN;
	case CUDA_E_NOT_PERMITTED:
		return -EACCES;
	case CUDA_E_TIMEOUT:
		return -ETIMEDOUT;
	default:
		if (result >= CUDA_E_STREAM_CAPTURE_UNSUPPORTED &&
		    result <= CUDA_E_STREAM_CAPTURE_WRONG_THREAD)
			return -EBUSY;
		return -EIO;
	}
}
