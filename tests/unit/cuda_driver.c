/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding the driver: every way in which it is not there says what is missing. Each case is a
 * process of its own, since the answer holds for the life of one. Where <cuda.h> is installed
 * (CPPFLAGS=-I.../cuda/include) our declarations are compared with it.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <sys/stat.h>

#include "client/gpu/driver_functions.h"
#include "tests/harness/gpu.h"

/* In a process of its own. */
static void run(child_fn *fn, const char *arg)
{
	must_be(td_run_client(NULL, fn, (void *)arg), 0);
}

static int absent(const struct test_daemon *d, void *arg)
{
	const char *why = NULL;
	const struct cuda_driver *cu = cuda_driver_get(&why);

	(void)d;
	if (cu || !why || !strstr(why, arg)) {
		fprintf(stderr, "%s: \"%s\" lacks \"%s\"\n", cu ? "found" : "not found", why,
			(char *)arg);
		return 1;
	}
	must(!cuda_driver_get(NULL)); /* still, and *why may be left out */
	return 0;
}

GPU_TEST(what_cuInit_says_is_said)
{
	static const char *const cases[][2] = {
		{ "34", "stub" },
		{ "100", "--gpus" },
		{ "803", "different versions" },
		{ "802", "fabricmanager" },
		{ "3", "fork" },
		{ "999", "CUDA_ERROR_UNKNOWN (999)" },
		{ "12345", "(12345)" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		gpu_setenv("FAKECUDA_INIT", cases[i][0]);
		run(absent, cases[i][1]);
	}
}

GPU_TEST(devices_hidden_by_the_environment_are_named)
{
	gpu_setenv("CUDA_VISIBLE_DEVICES", "7");
	run(absent, "CUDA_VISIBLE_DEVICES is \"7\"");
}

GPU_TEST(an_old_driver_is_told_by_the_symbol_it_lacks)
{
	gpu_setenv("FAKECUDA_VERSION", "11020");
	run(absent, "11.2 and lacks cuDeviceGetUuid_v2");
}

/* ---- Optional groups ---- */

static int groups(const struct test_daemon *d, void *arg)
{
	const struct cuda_driver *cu = cuda_driver_get(NULL);
	const char *hidden = arg;

	(void)d;
	must(cu);
	must_be(cu->version, 12040);
	must_be(!cu->mem_map, !strcmp(hidden, "cuMemRetainAllocationHandle"));
	must_be(!cu->mem_retain_handle, !strcmp(hidden, "cuMemRetainAllocationHandle"));
	must_be(!cu->mem_alloc_async, !strcmp(hidden, "cuMemPoolExportPointer"));
	must_be(!cu->stream_create_with_priority, !strcmp(hidden, "cuStreamCreateWithPriority"));
	must(cu->mem_alloc);
	return 0;
}

GPU_TEST(an_optional_group_is_whole_or_not_there)
{
	static const char *const names[] = { "", "cuMemRetainAllocationHandle",
					     "cuMemPoolExportPointer",
					     "cuStreamCreateWithPriority" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		gpu_setenv("FAKECUDA_HIDE", names[i]);
		run(groups, names[i]);
	}
}

/* ---- Other libraries: copies of the fake in which a name is another ---- */

static char *file_read(const char *path, size_t *size)
{
	FILE *f = fopen(path, "re");
	struct stat st;
	char *bytes;

	must(f);
	must_be(fstat(fileno(f), &st), 0);
	*size = (size_t)st.st_size;
	bytes = malloc(*size);
	must(bytes);
	must_be(fread(bytes, 1, *size, f), *size);
	fclose(f);
	return bytes;
}

/* Makes $FAKECUDA_DIR/libcuda.so.1 without that symbol, or of nonsense for NULL. */
static void library_without(char *dir, size_t n, const char *symbol)
{
	const char *fake = getenv("LD_LIBRARY_PATH");
	char path[2048];
	unsigned found = 0;
	size_t size;
	char *bytes;
	FILE *f;

	SKIP_UNLESS(!gpu_is_real(), "changes a copy of the fake driver");
	must(fake);
	snprintf(path, sizeof(path), "%.*s/libcuda.so.1", (int)strcspn(fake, ":"), fake);
	bytes = file_read(path, &size);
	for (size_t i = 0; symbol && i + strlen(symbol) < size; i++) {
		if (memcmp(bytes + i, symbol, strlen(symbol)) != 0)
			continue;
		bytes[i] = 'x'; /* its hash is still the old one's: nothing finds it */
		found++;
	}
	must(found || !symbol);
	snprintf(dir, n, "%s/other", fake_dir());
	must_be(mkdir(dir, 0700), 0);
	snprintf(path, sizeof(path), "%s/libcuda.so.1", dir);
	f = fopen(path, "we");
	must(f);
	must_be(fwrite(bytes, 1, symbol ? size : 100, f), symbol ? size : 100);
	fclose(f);
	free(bytes);
}

/* Runs this program again with that library path: which case, what must be said. Returns its
 * status. */
static int status_with_library(const char *dir, const char *which, const char *text)
{
	pid_t pid;
	int status;

	pid = fork();
	must(pid >= 0);
	if (pid == 0) {
		setenv("LD_LIBRARY_PATH", dir, 1);
		execl("/proc/self/exe", "cuda_driver", which, text, (char *)NULL);
		_exit(127);
	}
	must_be(waitpid(pid, &status, 0), pid);
	return status;
}

static void run_with_library(const char *dir, const char *which, const char *text)
{
	must_be(status_with_library(dir, which, text), 0);
}

GPU_TEST(a_missing_or_broken_library_is_told)
{
	char dir[1024];

	SKIP_UNLESS(status_with_library("/nonexistent", "loads", ""),
		    "this machine has a libcuda.so.1 of its own");
	run_with_library("/nonexistent", "absent", "libcuda.so.1 cannot be loaded: ");
	run_with_library("/nonexistent", "absent", "is an NVIDIA driver installed?");
	library_without(dir, sizeof(dir), NULL);
	run_with_library(dir, "absent", "other/libcuda.so.1");
}

GPU_TEST(a_driver_without_a_needed_symbol_is_told)
{
	char dir[1024];

	library_without(dir, sizeof(dir), "cuIpcOpenMemHandle");
	run_with_library(dir, "absent", "lacks cuIpcOpenMemHandle_v2");
}

GPU_TEST(without_cuGetProcAddress_the_symbols_are_found_by_name)
{
	char dir[1024];

	library_without(dir, sizeof(dir), "cuGetProcAddress");
	run_with_library(dir, "works", "");
}

static int works(void)
{
	const struct cuda_driver *cu = gpu_use(0);
	CUdeviceptr p;

	must(cu->mem_map && cu->pool_create);
	gpu_must(cu->mem_alloc(&p, 100));
	gpu_must(cu->mem_free(p));
	return 0;
}

/* ---- fork() ---- */

static int child_sees(const char *expected)
{
	const char *why = "";
	const struct cuda_driver *cu;
	int status;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	must(pid >= 0);
	if (pid == 0) {
		cu = cuda_driver_get(&why);
		_exit(expected ? cu || !strstr(why, expected) : !cu);
	}
	must_be(waitpid(pid, &status, 0), pid);
	return status;
}

static int forks(const struct test_daemon *d, void *arg)
{
	(void)d, (void)arg;
	must_be(child_sees(NULL), 0); /* nobody has used it yet */
	must(cuda_driver_get(NULL));
	must_be(child_sees("spawn"), 0);
	must(cuda_driver_get(NULL)); /* the parent still may */
	return 0;
}

GPU_TEST(the_child_of_a_user_of_cuda_is_told_to_spawn)
{
	run(forks, NULL);
}

static int forks_without(const struct test_daemon *d, void *arg)
{
	(void)d, (void)arg;
	must(!cuda_driver_get(NULL));
	must_be(child_sees("no device"), 0);
	return 0;
}

GPU_TEST(a_failure_is_remembered_over_fork)
{
	gpu_setenv("FAKECUDA_INIT", "100");
	run(forks_without, NULL);
}

/* Somebody else in the process may have used CUDA: then cuInit() itself says so in the child. */
static int forks_foreign(const struct test_daemon *d, void *arg)
{
	CUresult (*init)(unsigned);

	(void)d, (void)arg;
	*(void **)&init = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuInit");
	must(init);
	must_be(init(0), 0);
	must_be(child_sees("CUDA_ERROR_NOT_INITIALIZED (3)"), 0);
	return 0;
}

GPU_TEST(the_child_of_another_user_of_cuda_is_told_too)
{
	run(forks_foreign, NULL);
}

static void *get(void *arg)
{
	(void)arg;
	return (void *)cuda_driver_get(NULL);
}

static int threads(const struct test_daemon *d, void *arg)
{
	pthread_t thread[8];
	void *got[8];

	(void)d, (void)arg;
	for (int i = 0; i < 8; i++)
		must_be(pthread_create(&thread[i], NULL, get, NULL), 0);
	for (int i = 0; i < 8; i++) {
		must_be(pthread_join(thread[i], &got[i]), 0);
		must(got[i] && got[i] == got[0]);
	}
	return 0;
}

GPU_TEST(threads_find_it_once)
{
	gpu_setenv("FAKECUDA_FAIL", "cuInit:2:999"); /* so it must not be called twice */
	run(threads, NULL);
}

GPU_TEST(results_become_errnos)
{
	static const int cases[][2] = {
		{ 0, 0 },	  { 1, -EINVAL },    { 2, -ENOMEM },	  { 3, -ENODEV },
		{ 34, -ENODEV },  { 100, -ENODEV },  { 101, -ENODEV },	  { 201, -EINVAL },
		{ 400, -EINVAL }, { 801, -ENOTSUP }, { 899, -EIO },	  { 900, -EBUSY },
		{ 907, -EBUSY },  { 908, -EBUSY },   { 909, -ETIMEDOUT }, { 700, -EIO },
		{ 719, -EIO },	  { 999, -EIO },     { 600, -EAGAIN },	  { 800, -EACCES },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		must_be(cuda_errno(cases[i][0]), cases[i][1]);
	assert_string_equal(cuda_error_text(34), "CUDA_ERROR_STUB_LIBRARY (34)");
	assert_string_equal(cuda_error_text(719), "CUDA error (719)");
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "absent"))
		return absent(NULL, argv[2]);
	if (argc == 3 && !strcmp(argv[1], "loads"))
		return !dlopen("libcuda.so.1", RTLD_NOW);
	if (argc == 3 && !strcmp(argv[1], "works"))
		return works();
	gpu_init(argv);
	return suite_run();
}

#if __has_include(<cuda.h>)
#include "tests/fakecuda/real.h"
#endif
