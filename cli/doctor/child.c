/* SPDX-License-Identifier: Apache-2.0 */
/* doctor: its child processes, and their work. They publish and get tensors like any program. */
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tensorlease/cuda.h>

#include "cli/doctor/doctor.h"
#include "cli/format.h"
#include "util/clock.h"
#include "util/fd.h"

enum { SIZE = 4 << 20 };

static const int64_t answer_ns = 30 * NS_PER_SEC, end_ns = 10 * NS_PER_SEC;
static const int64_t request_ns = 10 * NS_PER_SEC, get_ns = 20 * NS_PER_SEC;

/* ---- In the doctor ---- */

void doctor_spawn(struct doctor_child *c, const char *role, const char *socket, const char *name,
		  int device, const char *kind)
{
	char number[16];
	int ends[2];

	*c = (struct doctor_child){ .fd = -1 };
	snprintf(number, sizeof(number), "%d", device);
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
		return;
	c->pid = fork(); /* no thread of this process has to go on there, and it has no CUDA */
	if (!c->pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(ends[1], STDIN_FILENO);
		dup2(ends[1], STDOUT_FILENO);
		execl("/proc/self/exe", "tensorlease", "doctor-child", role, socket, name, number,
		      kind, (char *)NULL);
		_exit(127);
	}
	c->fd = ends[0];
	fd_close(ends[1]);
	if (c->pid < 0) {
		c->pid = 0;
		c->fd = fd_close(c->fd);
	}
}

void doctor_go(struct doctor_child *c)
{
	if (write(c->fd, "\n", 1) != 1)
		return; /* doctor_answer() will report that it has ended */
}

/* One that hangs in the kernel, in a driver, ends later than we do, or never. */
void doctor_reap(pid_t pid)
{
	int64_t patience = deadline_after(end_ns), end = deadline_after(2 * end_ns);

	while (!waitpid(pid, NULL, WNOHANG) && !deadline_passed(end)) {
		if (deadline_passed(patience))
			kill(pid, SIGKILL);
		nanosleep(&(struct timespec){ .tv_nsec = NS_PER_MS }, NULL);
	}
}

void doctor_end(struct doctor_child *c)
{
	if (!c->pid)
		return;
	c->fd = fd_close(c->fd);
	doctor_reap(c->pid);
	c->pid = 0;
}

/* Explains why a child did not answer. */
static void explain_silence(struct doctor_child *c)
{
	struct pollfd p = { .fd = c->fd, .events = POLLIN };
	int status = 0;

	if (!c->pid) {
		snprintf(c->words, sizeof(c->words), "no process could be started (ulimit -u)");
	} else if (!poll(&p, 1, 0)) {
		snprintf(c->words, sizeof(c->words), "the process did not answer in %d s",
			 (int)(answer_ns / NS_PER_SEC));
	} else if (waitpid(c->pid, &status, 0) == c->pid) {
		c->pid = 0;
		c->fd = fd_close(c->fd);
		snprintf(c->words, sizeof(c->words), "the process ended with %s %d",
			 WIFSIGNALED(status) ? "signal" : "status",
			 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	}
}

enum doctor_result doctor_answer(struct doctor_child *c)
{
	struct pollfd p = { .fd = c->fd, .events = POLLIN };
	char line[sizeof(c->words) + 16];
	unsigned result = DOCTOR_FAIL;
	ssize_t n = -1;
	int at = 0;

	if (c->pid && poll(&p, 1, (int)(answer_ns / NS_PER_MS)) > 0)
		n = read(c->fd, line, sizeof(line) - 1); /* it is one write there */
	line[n > 0 ? n : 0] = '\0';
	if (n <= 0)
		explain_silence(c);
	else if (sscanf(line, "%u %n", &result, &at) == 1 && result < DOCTOR_RESULTS)
		snprintf(c->words, sizeof(c->words), "%.*s", (int)strcspn(line + at, "\n"),
			 line + at);
	else
		snprintf(c->words, sizeof(c->words), "it said: %.100s", line);
	return result < DOCTOR_RESULTS ? result : DOCTOR_FAIL;
}

/* ---- In the child ---- */

__attribute__((format(printf, 2, 3))) static void answer(enum doctor_result result,
							 const char *format, ...)
{
	va_list args;

	printf("%u ", (unsigned)result);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
}

/* Answers with a failure, and ends. */
#define FAIL(...) (answer(DOCTOR_FAIL, __VA_ARGS__), exit(CLI_FAILURE))

static void must(int r)
{
	if (r)
		FAIL("%s", cli_reason(r));
}

/* Waits for doctor_go(). Returns false at doctor_end(). */
static bool await(void)
{
	char byte;

	return read(STDIN_FILENO, &byte, 1) == 1;
}

struct role {
	const char *name; /* of the tensor */
	int device;
	bool gpu, legacy;
	tl_client *client;
	void *stream;
};

/* ---- CUDA ---- */

typedef unsigned long long cuda_pointer;

/* The few calls that another program would make: it has memory, fills it and reads it. */
#define CUDA_CALLS(F)                                                                              \
	F(cuInit, (unsigned flags))                                                                \
	F(cuGetErrorName, (int result, const char **name))                                         \
	F(cuDeviceGetAttribute, (int *value, int which, int device))                               \
	F(cuDeviceCanAccessPeer, (int *can, int device, int peer))                                 \
	F(cuDevicePrimaryCtxRetain, (void **context, int device))                                  \
	F(cuCtxSetCurrent, (void *context))                                                        \
	F(cuMemAlloc_v2, (cuda_pointer * pointer, size_t size))                                    \
	F(cuStreamCreate, (void **stream, unsigned flags))                                         \
	F(cuStreamSynchronize, (void *stream))                                                     \
	F(cuMemcpyDtoHAsync_v2, (void *to, cuda_pointer from, size_t size, void *stream))          \
	F(cuMemsetD8Async, (cuda_pointer to, unsigned char byte, size_t size, void *stream))       \
	F(cuLaunchHostFunc, (void *stream, void (*function)(void *), void *argument))

static struct {
#define F(name, arguments) int(*name) arguments;
	CUDA_CALLS(F)
#undef F
} cuda;

static void must_cuda(int result, const char *call)
{
	const char *name = "CUDA error";

	if (!result)
		return;
	cuda.cuGetErrorName(result, &name);
	FAIL("%s: %s (%d)", call, name, result);
}

#define CUDA(call, ...) must_cuda(cuda.call(__VA_ARGS__), #call)

/* Returns the path of the driver. */
static const char *cuda_open(void)
{
	void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	Dl_info info = { 0 };

	if (!handle)
		FAIL("%s", dlerror());
#define F(name, arguments)                                                                         \
	*(void **)&cuda.name = dlsym(handle, #name);                                               \
	if (!cuda.name)                                                                            \
		FAIL("libcuda.so.1 has no %s", #name);
	CUDA_CALLS(F)
#undef F
	CUDA(cuInit, 0);
	return dladdr(*(void **)&cuda.cuInit, &info) && info.dli_fname ? info.dli_fname : "";
}

static void device_open(struct role *r)
{
	const unsigned non_blocking = 1;
	void *context;

	cuda_open();
	CUDA(cuDevicePrimaryCtxRetain, &context, r->device);
	CUDA(cuCtxSetCurrent, context);
	CUDA(cuStreamCreate, &r->stream, non_blocking);
}

/* ---- put: publishes a tensor at once, and again each time it is told to ---- */

static const int64_t shape[1] = { SIZE };

/* The work of a producer. It is long enough for a consumer to see that it is not finished. */
static void nap(void *unused)
{
	(void)unused;
	nanosleep(&(struct timespec){ .tv_nsec = 200 * NS_PER_MS }, NULL);
}

static void fill(const struct role *r, void *at, unsigned char value)
{
	if (!r->gpu) {
		memset(at, value, SIZE);
		return;
	}
	if (value > 1) /* the first version is complete when it is published */
		CUDA(cuLaunchHostFunc, r->stream, nap, NULL);
	CUDA(cuMemsetD8Async, (cuda_pointer)(uintptr_t)at, value, SIZE, r->stream);
	if (value == 1)
		CUDA(cuStreamSynchronize, r->stream);
}

static void foreign_delete(DLManagedTensorVersioned *tensor)
{
	free(tensor); /* the memory goes with the process */
}

/* With memory that is not the library's. */
static void publish_foreign(const struct role *r, unsigned char value)
{
	tl_put_options o = { .size = sizeof(o), .stream = (intptr_t)r->stream };
	DLManagedTensorVersioned *t = cli_need(calloc(1, sizeof(*t)));
	cuda_pointer at;
	uint64_t version;

	CUDA(cuMemAlloc_v2, &at, SIZE);
	fill(r, (void *)(uintptr_t)at, value);
	t->version = (DLPackVersion){ DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION };
	t->deleter = foreign_delete;
	t->dl_tensor = (DLTensor){ .data = (void *)(uintptr_t)at,
				   .device = { kDLCUDA, r->device },
				   .ndim = 1,
				   .dtype = { kDLUInt, 8, 1 },
				   .shape = (int64_t *)(uintptr_t)shape };
	must(tl_publish(r->client, r->name, t, &o, NULL, &version));
}

static void publish_draft(const struct role *r, unsigned char value)
{
	tl_spec spec = { .size = sizeof(spec),
			 .shape = shape,
			 .ndim = 1,
			 .dtype = { kDLUInt, 8, 1 },
			 .device = { r->gpu ? kDLCUDA : kDLCPU, r->device },
			 .timeout_ns = request_ns };
	uint64_t version;
	tl_draft *draft;

	must(tl_create(r->client, r->name, &spec, &draft));
	fill(r, tl_draft_tensor(draft)->data, value);
	if (r->gpu)
		must(tl_draft_set_stream(draft, (intptr_t)r->stream));
	must(tl_commit(draft, &version));
}

static void put(const struct role *r)
{
	unsigned char value = 1;

	do {
		int64_t begin = now_mono_ns();

		(r->legacy ? publish_foreign : publish_draft)(r, value++);
		answer(DOCTOR_OK, "4 MiB published in %.0f us",
		       (double)(now_mono_ns() - begin) / 1e3);
	} while (await());
}

/* ---- get: gets the present version at once, and the next one each time it is told to ---- */

static void compare(const struct role *r, const DLManagedTensorVersioned *t, unsigned char value)
{
	unsigned char *bytes = t->dl_tensor.data;

	if (r->gpu) {
		bytes = cli_need(malloc(SIZE));
		CUDA(cuMemcpyDtoHAsync_v2, bytes, (cuda_pointer)(uintptr_t)t->dl_tensor.data, SIZE,
		     r->stream);
		CUDA(cuStreamSynchronize, r->stream);
	}
	if (t->dl_tensor.shape[0] != SIZE || *bytes != value || memcmp(bytes, bytes + 1, SIZE - 1))
		FAIL("its bytes are not what the producer wrote");
	if (r->gpu)
		free(bytes);
}

/* Gets a newer version, which may be neither published nor written yet. */
static uint64_t get_newer(const struct role *r, uint64_t version)
{
	/* A get that nobody wakes looks again after a second. */
	const int64_t late_ns = NS_PER_SEC / 2;
	tl_get_options o = { .size = sizeof(o),
			     .timeout_ns = get_ns,
			     .newer_than = version,
			     .stream = (intptr_t)r->stream };
	tl_info info = { .size = sizeof(info) };
	DLManagedTensorVersioned *t;
	int64_t begin = now_mono_ns(), ns;

	must(tl_get(r->client, r->name, &o, &t));
	ns = now_mono_ns() - begin;
	begin = now_real_ns();
	must(tl_tensor_info(t, &info));
	compare(r, t, (unsigned char)info.version);
	t->deleter(t);
	if (version)
		ns = begin - (int64_t)info.committed_ns;
	answer(version && !r->gpu && ns > late_ns ? DOCTOR_WARN : DOCTOR_OK,
	       "%s %.0f us%s; all bytes are right",
	       version ? "a get that waited returned" : "first got in", (double)ns / 1e3,
	       version ? " later" : "");
	return info.version;
}

static void get(const struct role *r)
{
	uint64_t version = 0;

	do
		version = get_newer(r, version);
	while (await());
}

/* ---- gpus: tells of the driver, and then of one GPU after another and of their pairs ---- */

/* Why plain memory of this GPU cannot be shared, or NULL. */
static const char *no_legacy(int device)
{
	tl_cuda_info info = { .size = sizeof(info) };
	struct utsname u;

	must(tl_get_cuda_info(device, &info));
	uname(&u);
	if (info.integrated || !access("/dev/nvmap", F_OK))
		return "GPUs that share the CPU's memory (Tegra) have no legacy handles";
	if (strcasestr(u.release, "microsoft"))
		return "WSL refuses legacy handles, whatever its capability flags say";
	return NULL;
}

static void tell_gpu(int device)
{
	const int compute_mode = 20;
	tl_cuda_info info = { .size = sizeof(info) };
	char *uuid, *memory;
	int mode = 0;

	must(tl_get_cuda_info(device, &info));
	cuda.cuDeviceGetAttribute(&mode, compute_mode, device);
	uuid = format_uuid(info.uuid);
	memory = format_size(info.total_bytes, true);
	answer(mode ? DOCTOR_FAIL : DOCTOR_OK,
	       "%s, %s-%s, %s, compute capability %d.%d%s%s; says: virtual memory management %s, "
	       "legacy handles %s, memory pools %s",
	       info.name, strstr(info.name, "MIG") ? "MIG" : "GPU", uuid + strlen("GPU-"), memory,
	       info.compute_major, info.compute_minor, info.integrated ? ", integrated" : "",
	       mode == 3   ? ", exclusive to one process"
	       : mode == 2 ? ", prohibited"
			   : "",
	       info.vmm ? "yes" : "no", info.legacy_ipc ? "yes" : "no",
	       info.memory_pools ? "yes" : "no");
	free(uuid);
	free(memory);
}

static void tell_peers(int count)
{
	int without = 0, pairs = count * (count - 1);
	char first[64] = "";

	for (int i = 0; i < count; i++)
		for (int k = 0; k < count; k++) {
			int can = 0;

			if (k == i || (!cuda.cuDeviceCanAccessPeer(&can, i, k) && can))
				continue;
			if (!without++)
				snprintf(first, sizeof(first), " (%d cannot read %d)", i, k);
		}
	if (count < 2)
		answer(DOCTOR_SKIPPED, "there is one GPU");
	else
		answer(without ? DOCTOR_WARN : DOCTOR_OK, "%d of %d pairs%s", pairs - without,
		       pairs, first);
}

static void gpus(void)
{
	tl_cuda_info info = { .size = sizeof(info) };
	int i = 0;

	must(tl_get_cuda_info(0, &info));
	answer(DOCTOR_OK, "CUDA %d.%d, %d GPUs, %s", info.driver_version / 1000,
	       info.driver_version % 1000 / 10, info.count, cuda_open());
	for (; i < info.count && await(); i++)
		tell_gpu(i);
	if (i == info.count && await())
		tell_peers(info.count);
}

int command_doctor_child(struct cli *cli)
{
	tl_connect_options o = { .size = sizeof(o),
				 .address = cli->args[1],
				 .namespace_name = "",
				 .timeout_ns = request_ns };
	struct role r = { .name = cli->args[2],
			  .device = atoi(cli->args[3]),
			  .gpu = strcmp(cli->args[4], "cpu") != 0,
			  .legacy = !strcmp(cli->args[4], "legacy") };
	const char *why = r.legacy ? no_legacy(r.device) : NULL;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!strcmp(cli->args[0], "gpus")) {
		gpus();
	} else if (why) {
		answer(DOCTOR_WARN, "%s", why); /* nobody could repair anything */
	} else {
		if (r.gpu)
			device_open(&r);
		must(tl_connect(&o, &r.client));
		(strcmp(cli->args[0], "put") ? get : put)(&r);
		tl_close(r.client);
	}
	return CLI_OK;
}
