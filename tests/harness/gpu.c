/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/gpu.h"

#include <dlfcn.h>
#include <ftw.h>

enum { SET_MAX = 16 };

static char dir[256];
static const char *set[SET_MAX];
static const struct cuda_driver *driver;
static pid_t test_pid;
static bool skipped;

/*
 * With the real driver: who is held, and the call that makes a stream wait for a function on the
 * host.
 */
static _Atomic uint32_t *held;
static CUresult (*launch_host_function)(CUstream stream, void (*function)(void *), void *argument);

bool gpu_is_real(void)
{
	return test_gpu_is_real();
}

/* A child asks, since the test itself must not use CUDA. */
int gpu_devices(void)
{
	int status, count = 0;
	pid_t pid = fork();

	if (!pid) {
		const struct cuda_driver *d = cuda_driver_get(NULL);

		_exit(d && !d->device_get_count(&count) ? count : 0);
	}
	must(waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

/*
 * Skips the test. A child cannot skip it, so there must() fails, and tests/gpu_check/run takes a
 * failure that names gpu_is_real() for a skip.
 */
static void skip_if_real(const char *why)
{
	skipped = gpu_is_real() && getpid() == test_pid;
	SKIP_UNLESS(!skipped, why);
	must(!gpu_is_real());
}

/* Loads only the driver's code into the test itself. Only the children call cuInit(). */
static void find_hold(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (library)
		*(void **)&launch_host_function = dlsym(library, "cuLaunchHostFunc");
	held = mmap(NULL, sizeof(*held), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(held != MAP_FAILED);
}

static void wait_while_held(void *argument)
{
	const uint32_t self = (uint32_t)getpid();

	(void)argument;
	while (atomic_load(held) == self)
		syscall(SYS_futex, held, FUTEX_WAIT, self, NULL, NULL, 0);
}

void gpu_held_from_here(CUstream stream)
{
	if (gpu_is_real() && launch_host_function)
		gpu_must(launch_host_function(stream, wait_while_held, NULL));
}

void gpu_init(char **argv)
{
	char self[PATH_MAX - 64], path[2 * PATH_MAX];
	const char *before = getenv("LD_LIBRARY_PATH");
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	test_pid = getpid();
	if (gpu_is_real())
		find_hold();
	if (getenv("TL_TEST_FAKECUDA") || gpu_is_real())
		return;
	must(n > 0);
	self[n] = '\0';
	for (int up = 0; up < 2; up++)
		*strrchr(self, '/') = '\0'; /* from tests/unit/name to tests */
	snprintf(path, sizeof(path), "%s/fakecuda%s%s", self, before ? ":" : "",
		 before ? before : "");
	setenv("LD_LIBRARY_PATH", path, 1);
	setenv("TL_TEST_FAKECUDA", "1", 1);
	execv("/proc/self/exe", argv);
	must(!"execv");
}

static struct fake_registry *registry_look(void)
{
	struct fake_registry *reg = fake_registry_map();

	must(reg);
	fake_lock(reg);
	fake_reap(reg);
	return reg;
}

static void registry_leave(struct fake_registry *reg)
{
	fake_unlock(reg);
	munmap(reg, sizeof(*reg));
}

static int unlink_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st, (void)type, (void)ftw;
	return remove(path);
}

int gpu_setup(void **state)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(dir, sizeof(dir), "%.200s/fakecuda-XXXXXX", tmp && *tmp ? tmp : "/tmp");
	must(mkdtemp(dir));
	setenv("FAKECUDA_DIR", dir, 1);
	registry_leave(registry_look()); /* it knows this PID namespace */
	return test_setup(state);
}

int gpu_teardown(void **state)
{
	int r = test_teardown(state);

	for (int i = 0; i < SET_MAX && set[i]; i++) {
		unsetenv(set[i]);
		set[i] = NULL;
	}
	unsetenv("FAKECUDA_DIR");
	nftw(dir, unlink_one, 8, FTW_DEPTH | FTW_PHYS);
	if (held)
		atomic_store(held, 0);
	if (skipped) /* it ended halfway, and what it left is cleaned up by now */
		r = 0;
	skipped = false;
	return r;
}

void gpu_setenv(const char *name, const char *value)
{
	int i = 0;

	if (!strncmp(name, "FAKECUDA_", 9) && strcmp(name, "FAKECUDA_DELAY_US") != 0)
		skip_if_real("needs what only the fake driver can be told");
	while (set[i] && strcmp(set[i], name) != 0)
		i++;
	must(i < SET_MAX - 1);
	set[i] = name;
	setenv(name, value, 1);
}

/* ---- Counters ---- */

long long gpu_live(enum fake_kind kind)
{
	struct fake_registry *reg;
	long long n = 0;

	if (gpu_is_real())
		return 0;
	reg = registry_look();

	for (int i = 0; i < FAKE_PROCESSES; i++)
		n += reg->processes[i].live[kind];
	registry_leave(reg);
	return n;
}

long long gpu_live_all(void)
{
	long long n = 0;

	for (int kind = 0; kind < FAKE_KINDS; kind++)
		n += gpu_live(kind);
	return n;
}

unsigned long long gpu_violations(enum fake_violation violation)
{
	struct fake_registry *reg;
	unsigned long long n;

	if (gpu_is_real())
		return 0;
	reg = registry_look();
	n = reg->violations[violation];
	registry_leave(reg);
	return n;
}

void gpu_hold(pid_t pid)
{
	struct fake_registry *reg;

	if (gpu_is_real() && !launch_host_function)
		skip_if_real("needs a driver whose work can be held");
	if (gpu_is_real()) {
		atomic_store(held, (uint32_t)pid);
		syscall(SYS_futex, held, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
		return;
	}
	reg = registry_look();
	atomic_store(&reg->held, (uint32_t)pid);
	syscall(SYS_futex, &reg->held, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	registry_leave(reg);
}

/* ---- In a child ---- */

const struct cuda_driver *gpu_use(int device)
{
	const char *why = "";
	CUcontext context;

	driver = cuda_driver_get(&why);
	if (!driver)
		fprintf(stderr, "no CUDA: %s\n", why);
	must(driver);
	gpu_must(driver->primary_ctx_retain(&context, device));
	gpu_must(driver->ctx_set_current(context));
	return driver;
}

int gpu_read(CUdeviceptr pointer, size_t size, CUstream stream)
{
	unsigned char *bytes = malloc(size);
	int first;

	must(bytes);
	gpu_held_from_here(stream);
	gpu_must(driver->memcpy_dtoh_async(bytes, pointer, size, stream));
	gpu_must(driver->stream_synchronize(stream));
	first = bytes[0];
	for (size_t i = 0; i < size && first >= 0; i++)
		if (bytes[i] != first)
			first = -1;
	free(bytes);
	return first;
}

void gpu_fill(CUdeviceptr pointer, int byte, size_t size, CUstream stream)
{
	gpu_held_from_here(stream);
	gpu_must(driver->memset_d8_async(pointer, (unsigned char)byte, size, stream));
}
