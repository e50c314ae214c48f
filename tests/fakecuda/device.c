/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/*
 * Start, devices and contexts. The environment sets:
 *	FAKECUDA_DIR		where the registry and legacy memory are, best on tmpfs; needed
 *	FAKECUDA_DEVICES	how many there are (2); CUDA_VISIBLE_DEVICES hides and reorders
 *				them like the real one
 *	FAKECUDA_MEMORY		bytes of each (1 GiB)
 *	FAKECUDA_EVENTS		how many interprocess events a process may have (4096, as of the
 *				real driver 580)
 *	FAKECUDA_DELAY_US	how long each piece of work on a stream takes (0)
 *	FAKECUDA_FAIL		"cuMemMap:3:2,...": the third call in each process returns error 2;
 *				with -1 the process stops there (SIGSTOP), and the call works when
 *				it continues
 *	FAKECUDA_INIT		what cuInit() returns
 *	FAKECUDA_VERSION	the driver's version (12040)
 *	FAKECUDA_HIDE		names, with commas between, that cuGetProcAddress() does not know
 *	FAKECUDA_PID		the PID that handles have and are opened by (getpid()): one of a
 *				process with the same PID, in another PID namespace, does not open
 *	FAKECUDA_PERSISTENCE	if set and not "0", a GPU keeps its memory when nobody has it open
 *	FAKECUDA_NO_NODES	if set and not "0", the files of the GPUs cannot be opened
 *	FAKECUDA_EARLY_UNMAP	if set and not "0", cuMemUnmap() does not wait for the device
 *	FAKECUDA_NO_VMM, _NO_LEGACY, _NO_POOLS, _NO_PEER, _INTEGRATED, _WSL, _MIG
 *				on if set and not "0"
 */
/* clang-format on */
#include "tests/fakecuda/fake.h"

#include <ctype.h>
#include <dirent.h>

struct fake fake = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

enum { STACK = 32, FAILS = 16 };
static _Thread_local struct CUctx_st *stack[STACK];
static _Thread_local int depth;

static struct fail {
	char name[64];
	int nth, code;
	_Atomic int calls;
} fails[FAILS];
static pthread_once_t fails_once = PTHREAD_ONCE_INIT;

bool fake_flag(const char *name)
{
	const char *value = getenv(name);

	return value && *value && strcmp(value, "0") != 0;
}

static long number(const char *name, long otherwise)
{
	const char *value = getenv(name);

	return value && *value ? strtol(value, NULL, 0) : otherwise;
}

static void fails_read(void)
{
	const char *p = getenv("FAKECUDA_FAIL");

	for (int i = 0; p && i < FAILS; i++) {
		if (sscanf(p, "%63[^:]:%d:%d", fails[i].name, &fails[i].nth, &fails[i].code) != 3)
			fails[i].nth = 0;
		p = strchr(p, ',');
		p += p != NULL;
	}
}

static CUresult injected(const char *function)
{
	const char *v2 = strstr(function, "_v2");
	size_t n = v2 ? (size_t)(v2 - function) : strlen(function);

	pthread_once(&fails_once, fails_read);
	for (int i = 0; i < FAILS; i++) {
		struct fail *f = &fails[i];

		if (!f->nth || strncmp(f->name, function, n) != 0 || f->name[n])
			continue;
		if (atomic_fetch_add(&f->calls, 1) + 1 != f->nth)
			continue;
		if (f->code >= 0)
			return f->code;
		raise(SIGSTOP);
	}
	return CUDA_OK;
}

/* Counts a broken rule. */
void fake_violation(enum fake_violation violation)
{
	fake_lock(fake.registry);
	fake.registry->violations[violation]++;
	fake_unlock(fake.registry);
}

/* The real driver takes itself down at exit: a call that comes later, or is under way, may crash.
 */
static void end_at_exit(void)
{
	const struct timespec teardown = { .tv_nsec = 20000000 };

	if (atomic_load(&fake.pid) != getpid())
		return;
	atomic_store(&fake.ended, true);
	nanosleep(&teardown, NULL);
}

static _Thread_local unsigned calls __attribute__((tls_model("initial-exec")));

/* How many calls this thread has made; for tests that count them. */
FAKE_PUBLIC unsigned fakecuda_calls(void);

unsigned fakecuda_calls(void)
{
	return calls;
}

_Thread_local bool fake_in_host_function __attribute__((tls_model("initial-exec")));

CUresult fake_enter(const char *function)
{
	calls++;
	if (fake_in_host_function &&
	    (!fake_flag("FAKECUDA_HOST_CONTEXTS") || !strncmp(function, "cuStream", 8) ||
	     !strncmp(function, "cuEvent", 7)))
		return CUDA_E_NOT_PERMITTED;
	if (atomic_load(&fake.pid) != getpid())
		return CUDA_E_NOT_INITIALIZED; /* or this is a forked child */
	if (atomic_load(&fake.ended)) {
		fake_violation(FAKE_LATE_CALL);
		return CUDA_E_DEINITIALIZED;
	}
	return injected(function);
}

uint64_t fake_id(void)
{
	uint64_t id;

	fake_lock(fake.registry);
	id = ++fake.registry->next_id;
	fake_unlock(fake.registry);
	return id;
}

void fake_live(enum fake_kind kind, int change)
{
	fake_lock(fake.registry);
	fake.registry->processes[fake.self].live[kind] += change;
	fake_unlock(fake.registry);
}

int fake_seen_pid(void)
{
	return (int)number("FAKECUDA_PID", getpid());
}

static unsigned long long used(int device)
{
	unsigned long long bytes = 0;

	for (int i = 0; i < FAKE_PROCESSES; i++)
		bytes += fake.registry->processes[i].used[fake.physical[device]];
	return bytes;
}

CUresult fake_charge(int device, size_t size)
{
	CUresult r = CUDA_E_OUT_OF_MEMORY;

	fake_lock(fake.registry);
	fake_reap(fake.registry);
	if (size <= fake.memory && used(device) <= fake.memory - size) {
		fake.registry->processes[fake.self].used[fake.physical[device]] += size;
		r = CUDA_OK;
	}
	fake_unlock(fake.registry);
	return r;
}

void fake_uncharge(int device, size_t size)
{
	fake_lock(fake.registry);
	fake.registry->processes[fake.self].used[fake.physical[device]] -= size;
	fake_unlock(fake.registry);
}

/* ---- Devices ---- */

static struct cuda_uuid uuid_of(int physical)
{
	struct cuda_uuid uuid = { { 0xfa, 0x4e, 0xcd, 0xa0, 0x10, 0x20, 0x40, 0x30, 0x80, 0x50,
				    0x60, 0x70, 0x11, 0x22, 0x33, (unsigned char)physical } };

	uuid.bytes[0] ^= (unsigned char)physical;
	if (fake_flag("FAKECUDA_MIG"))
		uuid.bytes[1] = 0x4d;
	return uuid;
}

static void uuid_text(char text[48], int physical)
{
	struct cuda_uuid uuid = uuid_of(physical);
	int n = sprintf(text, fake_flag("FAKECUDA_MIG") ? "MIG-" : "GPU-");

	for (int i = 0; i < 16; i++)
		n += sprintf(text + n, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
			     uuid.bytes[i]);
}

/* Returns the device that one entry of CUDA_VISIBLE_DEVICES names, or -1. */
static int visible_device(const char *entry, size_t length, int devices)
{
	char text[48];
	char *end;
	int found = -1;
	long index;

	if (!length)
		return -1;
	if (isdigit((unsigned char)*entry)) {
		index = strtol(entry, &end, 10);
		return end == entry + length && index < devices ? (int)index : -1;
	}
	for (int i = 0; i < devices; i++) {
		uuid_text(text, i);
		if (length <= 4 || strncasecmp(text, entry, length) != 0)
			continue;
		if (found >= 0)
			return -1; /* more than one begins like that */
		found = i;
	}
	return found;
}

/* Like the real one, sees the devices before the first entry that names none, and no device at all
 * if one is named twice. */
static void devices_read(void)
{
	const char *p = getenv("CUDA_VISIBLE_DEVICES");
	int devices = (int)number("FAKECUDA_DEVICES", 2);

	if (devices > FAKE_DEVICES)
		devices = FAKE_DEVICES;
	fake.devices = 0;
	if (!p) {
		for (; fake.devices < devices; fake.devices++)
			fake.physical[fake.devices] = fake.devices;
		return;
	}
	for (;;) {
		size_t length = strcspn(p, ",");
		int device = visible_device(p, length, devices);

		if (device < 0)
			return;
		for (int i = 0; i < fake.devices; i++) {
			if (fake.physical[i] == device) {
				fake.devices = 0;
				return;
			}
		}
		if (fake.devices < FAKE_DEVICES)
			fake.physical[fake.devices++] = device;
		if (!p[length])
			return;
		p += length + 1;
	}
}

int fake_ordinal(int physical)
{
	for (int i = 0; i < fake.devices; i++)
		if (fake.physical[i] == physical)
			return i;
	return -1;
}

static bool valid(CUdevice device)
{
	return device >= 0 && device < fake.devices;
}

/* ---- The files of the GPUs, and when a GPU loses its memory ---- */

static void node_name(char *text, size_t size, int physical)
{
	struct stat st = { 0 };

	stat(fake_dir(), &st);
	snprintf(text, size, "fakecuda-node-%d-%llu", physical, (unsigned long long)st.st_ino);
}

/*
 * Opens what stands for /dev/nvidiaN here. The library looks for this function, which only the fake
 * driver has. An empty memfd, so that the daemon may keep it.
 */
FAKE_PUBLIC int fakecuda_open_node(CUdevice device);

int fakecuda_open_node(CUdevice device)
{
	char name[64];

	if (!valid(device) || fake_flag("FAKECUDA_NO_NODES"))
		return -1;
	node_name(name, sizeof(name), fake.physical[device]);
	return fake_memfd(name, 0);
}

static bool has_open(const char *pid, const char *target)
{
	char path[PATH_MAX], found[128];
	struct dirent *entry;
	bool has = false;
	DIR *fds;

	snprintf(path, sizeof(path), "/proc/%.20s/fd", pid);
	fds = opendir(path);
	while (fds && !has && (entry = readdir(fds))) {
		ssize_t n = readlinkat(dirfd(fds), entry->d_name, found, sizeof(found) - 1);

		found[n > 0 ? n : 0] = '\0';
		has = !strncmp(found, target, strlen(target)) && found[strlen(target)] == ' ';
	}
	if (fds)
		closedir(fds);
	return has;
}

/* Like the real one, works only with the /proc of its PID namespace. */
static bool has_own_proc(void)
{
	char self[16] = "";

	return readlink("/proc/self", self, sizeof(self) - 1) > 0 && atoi(self) == getpid();
}

/*
 * Does any process, whatever it is, have the file of that GPU open? From another PID namespace that
 * cannot be seen: then there is one.
 */
static bool node_is_open(const struct fake_registry *reg, int physical)
{
	char target[80] = "/memfd:";
	struct dirent *entry;
	bool open = reg->pid_namespace != fake_pid_namespace();
	DIR *processes = opendir("/proc");

	node_name(target + strlen(target), sizeof(target) - strlen(target), physical);
	while (processes && !open && (entry = readdir(processes)))
		open = isdigit((unsigned char)*entry->d_name) && has_open(entry->d_name, target);
	if (processes)
		closedir(processes);
	return open;
}

/* This process begins to use that GPU. Called under the registry's lock. */
static void node_use(struct fake_registry *reg, int physical)
{
	struct fake_device *device = &reg->devices[physical];
	bool used = fake_flag("FAKECUDA_PERSISTENCE");

	for (int i = 0; i < FAKE_PROCESSES; i++)
		used |= reg->processes[i].pid && reg->processes[i].devices & 1U << physical;
	if (device->has_memory && !used && !node_is_open(reg, physical))
		*device = (struct fake_device){ .life = device->life + 1 };
	reg->processes[fake.self].devices |= 1U << physical;
}

/* Takes a place in the registry. Called under its lock. */
static bool enter(struct fake_registry *reg, bool apart)
{
	struct fake_process *self = reg->processes;
	struct flock lock = { .l_type = F_WRLCK, .l_len = 1 };

	for (fake.self = 0; fake.self < FAKE_PROCESSES && self->pid; fake.self++)
		self++;
	if (fake.self == FAKE_PROCESSES)
		return false;
	lock.l_start = fake.self;
	if (apart && fcntl(fake_apart_open(), F_OFD_SETLK, &lock)) /* it stays open */
		return false;
	self->pid = getpid();
	self->start = fake_process_start(getpid());
	self->apart = apart;
	for (int i = 0; i < fake.devices; i++)
		node_use(reg, fake.physical[i]);
	return true;
}

static CUresult start(void)
{
	struct fake_registry *reg = fake_registry_map();
	bool entered;

	if (!reg) {
		fprintf(stderr, "fakecuda: FAKECUDA_DIR is not set or cannot be used\n");
		return CUDA_E_UNKNOWN;
	}
	if (!has_own_proc())
		return CUDA_E_OPERATING_SYSTEM;
	fake_lock(reg);
	fake_reap(reg);
	entered = enter(reg, reg->pid_namespace != fake_pid_namespace());
	fake_unlock(reg);
	if (!entered)
		return CUDA_E_OUT_OF_MEMORY;
	fake.registry = reg;
	fake.memory = (size_t)number("FAKECUDA_MEMORY", 1L << 30);
	fake.events = number("FAKECUDA_EVENTS", 4096);
	fake.delay_us = number("FAKECUDA_DELAY_US", 0);
	atexit(end_at_exit);
	atomic_store(&fake.pid, getpid());
	return CUDA_OK;
}

CUresult cuInit(unsigned flags)
{
	CUresult r = (CUresult)number("FAKECUDA_INIT", CUDA_OK);

	if (flags)
		return CUDA_E_INVALID_VALUE;
	if (atomic_load(&fake.pid))
		return atomic_load(&fake.pid) == getpid() ? CUDA_OK : CUDA_E_NOT_INITIALIZED;
	if (!r)
		r = injected(__func__);
	if (r)
		return r;
	pthread_mutex_lock(&fake.lock);
	devices_read();
	r = fake.devices ? CUDA_OK : CUDA_E_NO_DEVICE;
	if (!r && !atomic_load(&fake.pid))
		r = start();
	return fake_leave(r);
}

CUresult cuDriverGetVersion(int *version)
{
	if (!version)
		return CUDA_E_INVALID_VALUE;
	*version = (int)number("FAKECUDA_VERSION", 12040);
	return CUDA_OK;
}

CUresult cuDeviceGetCount(int *count)
{
	ENTER();
	*count = fake.devices;
	return CUDA_OK;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	ENTER();
	if (ordinal < 0 || ordinal >= fake.devices)
		return CUDA_E_INVALID_DEVICE;
	*device = ordinal;
	return CUDA_OK;
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
	ENTER();
	if (!valid(device))
		return CUDA_E_INVALID_DEVICE;
	snprintf(name, (size_t)size, "Fake GPU%s", fake_flag("FAKECUDA_MIG") ? " MIG 1g.10gb" : "");
	return CUDA_OK;
}

CUresult cuDeviceGetUuid_v2(struct cuda_uuid *uuid, CUdevice device)
{
	ENTER();
	if (!valid(device))
		return CUDA_E_INVALID_DEVICE;
	*uuid = uuid_of(fake.physical[device]);
	return CUDA_OK;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	ENTER();
	if (!valid(device))
		return CUDA_E_INVALID_DEVICE;
	*bytes = fake.memory;
	return CUDA_OK;
}

static CUresult attribute_value(int *value, int attribute, int device)
{
	switch (attribute) {
	case CUDA_DEVICE_INTEGRATED:
		*value = fake_flag("FAKECUDA_INTEGRATED");
		break;
	case CUDA_DEVICE_COMPUTE_MODE:
	case CUDA_DEVICE_PCI_DEVICE_ID:
	case CUDA_DEVICE_PCI_DOMAIN_ID:
	case CUDA_DEVICE_FABRIC_HANDLES:
		*value = 0;
		break;
	case CUDA_DEVICE_PCI_BUS_ID:
		*value = fake.physical[device] + 1;
		break;
	case CUDA_DEVICE_UNIFIED_ADDRESSING:
	case CUDA_DEVICE_MANAGED_MEMORY:
		*value = 1;
		break;
	case CUDA_DEVICE_IPC_EVENTS:
		*value = 1;
		return number("FAKECUDA_VERSION", 12040) < 12000 ? CUDA_E_INVALID_VALUE : CUDA_OK;
	case CUDA_DEVICE_COMPUTE_CAPABILITY_MAJOR:
		*value = 9;
		break;
	case CUDA_DEVICE_COMPUTE_CAPABILITY_MINOR:
		*value = 0;
		break;
	case CUDA_DEVICE_VMM:
	case CUDA_DEVICE_POSIX_DESCRIPTORS:
	case CUDA_DEVICE_VMM_RDMA:
		*value = !fake_flag("FAKECUDA_NO_VMM");
		break;
	case CUDA_DEVICE_MEMORY_POOLS:
		*value = !fake_flag("FAKECUDA_NO_POOLS");
		break;
	case CUDA_DEVICE_POOL_HANDLE_TYPES:
		*value = fake_flag("FAKECUDA_NO_POOLS") || fake_flag("FAKECUDA_NO_VMM")
				 ? 0
				 : CUDA_HANDLE_POSIX_FD;
		break;
	default:
		return CUDA_E_INVALID_VALUE;
	}
	return CUDA_OK;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	ENTER();
	return valid(device) ? attribute_value(value, attribute, device) : CUDA_E_INVALID_DEVICE;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
	ENTER();
	if (!valid(device) || !valid(peer))
		return CUDA_E_INVALID_DEVICE;
	*can = device != peer && !fake_flag("FAKECUDA_NO_PEER");
	return CUDA_OK;
}

/* ---- Contexts: the primary ones, and others for tests with two ---- */

struct CUctx_st *fake_context(void)
{
	return depth ? stack[depth - 1] : NULL;
}

static struct CUctx_st *primary_find(int device)
{
	for (struct CUctx_st *ctx = fake.contexts; ctx; ctx = ctx->next)
		if (ctx->primary && ctx->device == device)
			return ctx;
	return NULL;
}

/* Contexts are never freed: a thread may have a destroyed one on its stack. Like the real one, a
 * primary context that was reset begins anew with the same handle. */
static struct CUctx_st *context_new(int device, bool primary)
{
	static uint64_t last_id;
	struct CUctx_st *ctx = primary ? primary_find(device) : NULL;

	if (!ctx) {
		ctx = calloc(1, sizeof(*ctx));
		ctx->device = device;
		ctx->primary = primary;
		ctx->next = fake.contexts;
		fake.contexts = ctx;
	}
	ctx->destroyed = false;
	ctx->sticky = CUDA_OK;
	ctx->refs = 1;
	ctx->id = ++last_id;
	fake_live(FAKE_CONTEXT, 1);
	return ctx;
}

static void context_end(struct CUctx_st *ctx)
{
	stream_context_wait(ctx);
	memory_context_end(ctx);
	stream_context_end(ctx);
	ctx->destroyed = true;
	fake_live(FAKE_CONTEXT, -1);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	ENTER_LOCKED();
	if (!valid(device))
		return fake_leave(CUDA_E_INVALID_DEVICE);
	if (fake.primary[device])
		fake.primary[device]->refs++;
	else
		fake.primary[device] = context_new(device, true);
	*context = fake.primary[device];
	return fake_leave(CUDA_OK);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	ENTER_LOCKED();
	if (!valid(device))
		return fake_leave(CUDA_E_INVALID_DEVICE);
	if (!fake.primary[device])
		return fake_leave(CUDA_E_INVALID_CONTEXT);
	if (--fake.primary[device]->refs == 0) {
		context_end(fake.primary[device]);
		fake.primary[device] = NULL;
	}
	return fake_leave(CUDA_OK);
}

/* The library's table does not have this one; cudaDeviceReset() calls it. However often the context
 * was retained, all that it has goes. */
FAKE_PUBLIC CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	ENTER_LOCKED();
	struct CUctx_st *ctx = valid(device) ? fake.primary[device] : NULL;

	if (!valid(device))
		return fake_leave(CUDA_E_INVALID_DEVICE);
	if (ctx) {
		context_end(ctx);
		fake.primary[device] = NULL;
	}
	return fake_leave(CUDA_OK);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
	ENTER_LOCKED();
	if (!valid(device))
		return fake_leave(CUDA_E_INVALID_DEVICE);
	*flags = 0;
	*active = fake.primary[device] != NULL;
	return fake_leave(CUDA_OK);
}

/* A primary context can be made current even if it was reset. */
static bool current_refused(const struct CUctx_st *ctx)
{
	return ctx->destroyed && !ctx->primary;
}

static CUresult push(CUcontext context)
{
	if (!context || current_refused(context))
		return CUDA_E_INVALID_CONTEXT;
	if (depth == STACK)
		return CUDA_E_UNKNOWN;
	stack[depth++] = context;
	return CUDA_OK;
}

/* The library's table does not have this one. */
FAKE_PUBLIC CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
FAKE_PUBLIC CUresult cuCtxDestroy_v2(CUcontext context);

CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
	ENTER_LOCKED();
	(void)flags;
	if (!valid(device))
		return fake_leave(CUDA_E_INVALID_DEVICE);
	*context = context_new(device, false);
	return fake_leave(push(*context));
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
	ENTER_LOCKED();
	if (!context || context->primary || context->destroyed)
		return fake_leave(CUDA_E_INVALID_CONTEXT);
	context_end(context);
	if (fake_context() == context)
		depth--;
	return fake_leave(CUDA_OK);
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
	ENTER();
	*context = fake_context();
	return CUDA_OK;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
	ENTER_LOCKED();
	if (context && current_refused(context))
		return fake_leave(CUDA_E_INVALID_CONTEXT);
	if (depth)
		depth--;
	return fake_leave(context ? push(context) : CUDA_OK);
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	ENTER_LOCKED();
	return fake_leave(push(context));
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
	ENTER();
	if (!depth)
		return CUDA_E_INVALID_CONTEXT;
	depth--;
	if (context)
		*context = stack[depth];
	return CUDA_OK;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
	ENTER_CONTEXT(ctx);
	*device = ctx->device;
	return fake_leave(CUDA_OK);
}

CUresult cuCtxGetId(CUcontext context, unsigned long long *id)
{
	ENTER_LOCKED();
	if (!context)
		context = fake_context();
	if (!context || !id)
		return fake_leave(CUDA_E_INVALID_CONTEXT);
	*id = context->id;
	return fake_leave(fake_context_state(context));
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
	ENTER_CONTEXT(ctx);
	fake_lock(fake.registry);
	fake_reap(fake.registry);
	*total = fake.memory;
	*free = fake.memory - used(ctx->device);
	fake_unlock(fake.registry);
	return fake_leave(CUDA_OK);
}
