/* SPDX-License-Identifier: Apache-2.0 */
/* Children of a process that has used GPUs: CUDA does not work there, all else does, and the parent
 * is not disturbed. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "client/gpu/import.h"
#include "client/gpu/lease.h"
#include "client/gpu/threads.h"
#include "tests/gpu/common.h"
#include "tests/harness/process.h"

enum { N = 3 << 20 };

static int producer(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	struct gpu_foreign f;
	struct gpu_memory m;

	(void)arg;
	gpu_memory_init(&m, GPU_LEGACY, N, 0);
	gpu_fill(m.base, 1, N, CUDA_STREAM_LEGACY);
	gpu_foreign_init(&f, m.base, N, 0);
	f.owned = &m;
	must_be(tl_publish(client, "theirs", &f.managed, NULL, NULL, NULL), 0);
	put_bytes(client, "cpu", 5, 100);
	pause_at(1);
	must_be(tl_delete(client, "theirs") + tl_delete(client, "cpu"), 0);
	eventually(atomic_load(&f.deleted));
	tl_close(client);
	return 0;
}

struct parents {
	const struct test_daemon *d;
	tl_client *client;
	DLManagedTensorVersioned *theirs, *own, *draft_tensor, *cpu;
	tl_draft *draft;
	bool of_main_thread;
};

/* Makes the calls that a child may make, and those that are refused. */
static void may_and_may_not(struct parents *p, int value)
{
	int64_t n = N;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	DLManagedTensorVersioned *t;
	tl_ipc_handle h = { .size = sizeof(h) };
	tl_draft *draft;
	tl_info info = { .size = sizeof(info) };

	must_refuse(tl_get(p->client, "theirs", NULL, &t), -ENODEV, "fork()");
	must_refuse(tl_get(p->client, "own", NULL, &t), -ENODEV, "fork()");
	must_refuse(gpu_create(p->client, "x", &spec, 0, &draft), -ENODEV, "fork()");
	must_be(tl_get_ipc_handle(p->client, "theirs", NULL, &h, &t), 0);
	drop(t);
	must(all_bytes(t = get(p->client, "cpu"), 5, 100));
	drop(t);
	must_be(tl_stat(p->client, "own", &info), 0);
	put_bytes(p->client, "childs", value, 1000);
	must_be(tl_tensor_check(p->theirs), 0);
}

static _Noreturn void in_grandchild(struct parents *p)
{
	may_and_may_not(p, 2);
	drop(p->theirs);
	drop(p->own);
	_exit(0);
}

static _Noreturn void in_child(struct parents *p)
{
	int status;
	pid_t pid;

	must(all_bytes(p->cpu, 5, 100));
	drop(p->cpu);
	may_and_may_not(p, 1);
	pid = fork();
	must(pid >= 0);
	if (pid == 0)
		in_grandchild(p);
	must_be(waitpid(pid, &status, 0), pid);
	must_be(status, 0);
	drop(p->theirs);
	drop(p->own);
	must_be(tl_commit(p->draft, NULL), -ESTALE);
	drop(p->draft_tensor);
	tl_close(p->client);
	if (p->of_main_thread)
		exit(0); /* and runs what is registered with atexit() */
	_exit(0);
}

/*
 * A child of a process whose other threads are just in malloc() hangs in AddressSanitizer's look
 * for leaks, since its allocator knows nothing of fork().
 */
static void until_others_sleep(void)
{
	DIR *dir = opendir("/proc/self/task");
	struct dirent *entry;
	_Atomic pid_t tid;

	must(dir);
	while ((entry = readdir(dir))) {
		atomic_store(&tid, (pid_t)atoi(entry->d_name));
		if (tid && tid != (pid_t)syscall(SYS_gettid))
			until_it_sleeps(&tid);
	}
	closedir(dir);
}

static void *forks(void *arg)
{
	int status;
	pid_t pid;

	until_others_sleep();
	pid = fork();
	must(pid >= 0);
	if (pid == 0)
		in_child(arg);
	must_be(waitpid(pid, &status, 0), pid);
	must_be(status, 0);
	return NULL;
}

/* @arg: the fork is done by a thread that never used the library. */
static int forking(const struct test_daemon *d, void *arg)
{
	struct parents p = { .d = d, .client = gpu_open(d, 0), .of_main_thread = !arg };
	int64_t n = N;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	static struct gpu_foreign f;
	static struct gpu_memory m;
	DLManagedTensorVersioned *queued;
	unsigned char *to = malloc(N);
	tl_draft *exported;
	pthread_t thread;
	CUstream stream;

	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	gpu_memory_init(&m, GPU_LEGACY, N, 0);
	gpu_fill(m.base, 2, N, CUDA_STREAM_LEGACY);
	gpu_foreign_init(&f, m.base, N, 0);
	f.owned = &m;
	must_be(tl_publish(p.client, "own", &f.managed, NULL, NULL, NULL), 0);
	gpu_put_draft(p.client, "kept", 3, N, 0, CUDA_STREAM_LEGACY);
	gpu_put_draft(p.client, "kept", 4, N, 0, CUDA_STREAM_LEGACY);
	p.theirs = gpu_get(p.client, "theirs", (intptr_t)stream);
	p.own = gpu_get(p.client, "own", (intptr_t)stream);
	p.cpu = get(p.client, "cpu");
	must_be(gpu_create(p.client, "d", &spec, 0, &p.draft), 0);
	must_be(gpu_create(p.client, "e", &spec, 0, &exported), 0);
	must_be(tl_draft_to_dlpack(exported, &p.draft_tensor), 0);
	queued = gpu_get(p.client, "theirs", (intptr_t)stream);
	gpu_must(cuda->stream_synchronize(stream));
	gpu_hold(getpid());
	gpu_must(cuda->memcpy_dtoh_async(to, gpu_data(queued), N, stream));
	drop(queued); /* its lease waits in the library's thread while we fork */
	if (arg) {
		must_be(pthread_create(&thread, NULL, forks, &p), 0);
		pthread_join(thread, NULL);
	} else {
		forks(&p);
	}
	gpu_hold(0);
	must_be(tl_delete(p.client, "childs"), 0);
	must_be(gpu_read(gpu_data(p.theirs), N, stream), 1);
	must_be(gpu_read(gpu_data(p.own), N, stream), 2);
	drop(p.theirs);
	drop(p.own);
	drop(p.cpu);
	must_be(f.deleted, 0);
	must_be(tl_delete(p.client, "own") + tl_delete(p.client, "kept"), 0);
	eventually(atomic_load(&f.deleted));
	must_be(f.deleted, 1);
	must_be(tl_commit(p.draft, NULL), 0);
	must_be(tl_delete(p.client, "d"), 0);
	drop(p.draft_tensor);
	eventually(leases_of(p.client, 0) == 0);
	gpu_must(cuda->stream_destroy(stream));
	free(to);
	tl_close(p.client);
	return 0;
}

GPU_TEST(a_child_releases_and_the_parent_goes_on)
{
	gpu_with_producer(producer, forking, NULL);
}

GPU_TEST(a_fork_by_a_thread_that_is_new_here)
{
	gpu_with_producer(producer, forking, (void *)1);
}

/* ---- A parent that never used CUDA ---- */

static int forks_first(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	DLManagedTensorVersioned *t;
	int status;
	pid_t pid;

	(void)arg;
	drop(get(client, "cpu"));
	pid = fork();
	if (pid == 0) {
		cuda = gpu_use(0);
		t = gpu_get(client, "theirs", TL_STREAM_LEGACY);
		must_be(gpu_read(gpu_data(t), N, CUDA_STREAM_LEGACY), 1);
		drop(t);
		gpu_put_draft(client, "childs", 1, N, 0, CUDA_STREAM_LEGACY);
		must_be(tl_delete(client, "childs"), 0);
		tl_close(client);
		_exit(0);
	}
	must_be(waitpid(pid, &status, 0), pid);
	must_be(status, 0);
	tl_close(client);
	return 0;
}

GPU_TEST(a_child_may_be_the_first_to_use_a_gpu)
{
	gpu_with_producer(producer, forks_first, NULL);
}

/* ---- Forks among busy threads ---- */

static _Atomic bool stop;
static CUcontext context;

static void *churns(void *arg)
{
	gpu_must(cuda->ctx_set_current(context));
	while (!atomic_load(&stop)) {
		DLManagedTensorVersioned *t = gpu_get(arg, "theirs", TL_STREAM_PER_THREAD);

		gpu_put_draft(arg, "churn", 1, 1000, 0, CUDA_STREAM_PER_THREAD);
		drop(t);
	}
	gpu_must(cuda->stream_synchronize(CUDA_STREAM_PER_THREAD));
	return NULL;
}

static int churning(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	pthread_t thread[2];

	(void)arg;
	gpu_must(cuda->ctx_get_current(&context));
	for (int i = 0; i < 2; i++)
		must_be(pthread_create(&thread[i], NULL, churns, client), 0);
	for (int i = 0; i < 100; i++) {
		int status;
		pid_t pid = fork();

		if (pid == 0) {
			drop(get(client, "cpu"));
			tl_close(client);
			_exit(0);
		}
		must_be(waitpid(pid, &status, 0), pid);
		must_be(status, 0);
	}
	atomic_store(&stop, true);
	for (int i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
	must_be(tl_delete(client, "churn"), 0);
	tl_close(client);
	return 0;
}

GPU_TEST(forks_while_threads_publish_and_get)
{
	SKIP_UNLESS(MAY_FORK_AMONG_THREADS, "AddressSanitizer's allocator does not survive it");
	cleanup_gpu struct gpu_daemon g = gpu_start(.max_clients = 200);
	struct test_child p = child_start(&g.d, producer, NULL);

	gpu_setenv("FAKECUDA_DELAY_US", "100");
	child_await(&p);
	must_be(td_run_client(&g.d, churning, NULL), 0);
	child_finish(&p);
	gpu_nothing_left(&g);
}

/* ---- A producer that died ---- */

static int publishes_and_dies(const struct test_daemon *d, void *arg)
{
	static const char *const names[] = { "a", "b" };
	tl_client *client = gpu_open(d, 0);
	static struct gpu_foreign f[2];
	static struct gpu_memory m[2];

	(void)arg;
	for (int i = 0; i < 2; i++) {
		gpu_memory_init(&m[i], GPU_LEGACY, N, 0);
		gpu_foreign_init(&f[i], m[i].base, N, 0);
		must_be(tl_publish(client, names[i], &f[i].managed, NULL, NULL, NULL), 0);
	}
	pause_at(1);
	return 1;
}

static bool closes(const struct cuda_import *import)
{
	bool closing;

	pthread_mutex_lock(&cuda_lock);
	closing = import->state == IMPORT_CLOSING;
	pthread_mutex_unlock(&cuda_lock);
	return closing;
}

/* The daemon asks to close the memory of a tensor that is held, and the child gives that up. */
static int forks_after_a_death(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *a = gpu_get(client, "a", TL_STREAM_NONE);
	const struct cuda_import *import = cuda_lease_of(tensor_lease_of(a))->import;
	pid_t pid;

	(void)arg;
	drop(gpu_get(client, "b", TL_STREAM_NONE));
	must_be(gpu_live(FAKE_IMPORT), 2);
	pause_at(1); /* the producer is dead */
	eventually(gpu_live(FAKE_IMPORT) == 1);
	eventually(closes(import));
	pid = fork();
	must(pid >= 0);
	if (pid == 0) {
		drop(a);
		tl_close(client);
		_exit(0);
	}
	process_must_succeed(pid);
	drop(a);
	tl_close(client);
	return 0;
}

GPU_TEST(a_child_ends_a_session_with_memory_of_a_dead_producer)
{
	struct test_child p, c;
	tl_client *client;

	SKIP_UNLESS(!gpu_is_real(), "needs a driver that counts");
	cleanup_gpu struct gpu_daemon g = gpu_start();
	p = child_start_ready(&g.d, publishes_and_dies, NULL);
	c = child_start_ready(&g.d, forks_after_a_death, NULL);
	child_kill(&p);
	td_sync(&g.d);
	child_finish(&c);
	client = td_connect(&g.d);
	must_be(tl_delete(client, "a") + tl_delete(client, "b"), 0);
	tl_close(client);
	gpu_nothing_left(&g);
}

/* ---- A daemon that died ---- */

static unsigned catalogs_mapped(void)
{
	char line[512];
	unsigned n = 0;
	FILE *f = fopen("/proc/self/maps", "re");

	must(f);
	while (fgets(line, sizeof(line), f))
		n += strstr(line, "/dev/shm/tensorlease-") != NULL;
	fclose(f);
	return n;
}

/* In the child nothing will ever end what waits for the GPU here. */
static int forks_without_a_daemon(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	int status;
	pid_t pid;

	(void)arg;
	gpu_put_draft(client, "done", 1, N, 0, CUDA_STREAM_LEGACY);
	gpu_must(cuda->ctx_synchronize());
	gpu_hold(getpid());
	gpu_put_draft(client, "held", 2, N, 0, CUDA_STREAM_LEGACY);
	must_be(gpu_live(FAKE_VMM_MAPPING), 2);
	must(catalogs_mapped() > 0);
	pause_at(1); /* no daemon is there any more */
	/* Both exports are orphaned. What the GPU still writes has to stay, and what it has written
	 * is being unmapped, which waits for the GPU. */
	eventually(gpu_live(FAKE_CLOSING) == 1);
	pid = fork();
	must(pid >= 0);
	if (pid == 0) {
		must_be(catalogs_mapped(), 0);
		tl_close(client);
		_exit(0);
	}
	must_be(waitpid(pid, &status, 0), pid);
	must_be(status, 0);
	gpu_hold(0);
	must_be(tl_close(client), -ENOTCONN);
	return 0;
}

GPU_TEST(a_child_ends_a_session_whose_daemon_died)
{
	struct test_daemon d;
	struct test_child p;
	struct gpu_daemon g;

	SKIP_UNLESS(!gpu_is_real(), "needs a driver that counts");
	d = td_start();
	p = child_start_ready(&d, forks_without_a_daemon, NULL);
	td_kill(&d);
	child_finish(&p);
	g = gpu_start(.socket = d.socket);
	gpu_nothing_left(&g);
	td_stop(&g.d);
	td_stop(&d);
}

/* ---- Copies on a GPU ---- */

static uint64_t clients_of(tl_client *client)
{
	struct tl_status status = { .size = sizeof(status) };

	must_be(tl_get_status(client, &status), 0);
	return status.clients;
}

/* The copy is the child's to give up, and so is the lease on the original while the copy is made:
 * its connection ends with its client. */
static int forks_with_a_copy(const struct test_daemon *d, void *in_flight)
{
	tl_get_options o = { .size = sizeof(o),
			     .flags = TL_GET_DEVICE,
			     .device = { kDLCUDA, 0 },
			     .timeout_ns = WAIT_S * SECOND };
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t, *held;
	uint64_t clients;
	CUstream stream;
	pid_t pid;

	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	held = get(client, "cpu"); /* so that the child has a connection */
	o.stream = (intptr_t)stream;
	if (*(bool *)in_flight) {
		gpu_hold(getpid());
		gpu_held_from_here(stream);
	}
	must_be(tl_get(client, "cpu", &o, &t), 0);
	if (!*(bool *)in_flight)
		eventually(leases_of(client, 0) == 1);
	clients = clients_of(client);
	until_others_sleep();
	pid = fork();
	must(pid >= 0);
	if (pid == 0) {
		tl_client *other = td_connect(d);

		drop(held);
		drop(t);
		tl_close(client);
		eventually(clients_of(other) == clients + 1);
		tl_close(other);
		_exit(0);
	}
	process_must_succeed(pid);
	must_be(leases_of(client, 0), *(bool *)in_flight ? 2 : 1);
	gpu_hold(0);
	drop(held);
	drop(t);
	eventually(leases_of(client, 0) == 0);
	gpu_must(cuda->stream_synchronize(stream));
	gpu_must(cuda->stream_destroy(stream));
	tl_close(client);
	return 0;
}

GPU_TEST(a_child_gives_up_its_copy_on_a_gpu)
{
	gpu_with_producer(producer, forks_with_a_copy, &(bool){ false });
}

GPU_TEST(a_child_gives_up_what_is_being_copied)
{
	SKIP_UNLESS(MAY_FORK_AMONG_THREADS, "AddressSanitizer's allocator does not survive it");
	gpu_with_producer(producer, forks_with_a_copy, &(bool){ true });
}

/* ---- A fork while a thread opens memory of a pool ---- */

static struct {
	tl_client *client, *other; /* a thread opens with the other */
	CUresult (*import)(CUmemoryPool *pool, void *handle, int type, unsigned long long flags);
	_Atomic bool opening, may_open;
} pooled;

static CUresult import_late(CUmemoryPool *pool, void *handle, int type, unsigned long long flags)
{
	atomic_store(&pooled.opening, true);
	eventually(atomic_load(&pooled.may_open));
	return pooled.import(pool, handle, type, flags);
}

static void *opens_another(void *arg)
{
	gpu_use(0);
	drop(gpu_get(pooled.other, arg, TL_STREAM_NONE));
	return NULL;
}

static int publishes_pooled(const struct test_daemon *d, void *arg)
{
	static const char *const names[] = { "a", "b" };
	tl_client *client = gpu_open(d, 0);
	static struct gpu_foreign f[2];
	struct gpu_memory m[2];

	(void)arg;
	for (int i = 0; i < 2; i++) {
		gpu_memory_init(&m[i], GPU_POOL, N, 0);
		gpu_foreign_init(&f[i], m[i].base, N, 0);
		f[i].owned = &m[i];
		must_be(tl_publish(client, names[i], &f[i].managed, NULL, NULL, NULL), 0);
	}
	pause_at(1);
	must_be(tl_delete(client, "a") + tl_delete(client, "b"), 0);
	for (int i = 0; i < 2; i++)
		eventually(atomic_load(&f[i].deleted));
	tl_close(client);
	return 0;
}

/* The child's program has files of its own where its parent's descriptors were. */
static _Noreturn void closes_pools(DLManagedTensorVersioned *a)
{
	enum { FILES = 64 };
	int fds[FILES];

	alarm(WAIT_S / 2);
	child_close_all();
	for (int i = 0; i < FILES; i++)
		must((fds[i] = memfd_create("theirs", MFD_CLOEXEC)) >= 0);
	drop(a);
	tl_close(pooled.client);
	for (int i = 0; i < FILES; i++)
		must_be(fcntl(fds[i], F_GETFD), FD_CLOEXEC);
	_exit(0);
}

static int forks_while_opening(const struct test_daemon *d, void *arg)
{
	struct cuda_driver *driver;
	DLManagedTensorVersioned *a;
	char b[] = "b";
	pthread_t thread;
	pid_t pid;

	(void)arg;
	pooled.client = gpu_open(d, 0);
	pooled.other = td_connect(d);
	a = gpu_get(pooled.client, "a", TL_STREAM_NONE);
	driver = (struct cuda_driver *)(uintptr_t)cuda;
	pooled.import = driver->pool_import;
	driver->pool_import = import_late;
	must_be(pthread_create(&thread, NULL, opens_another, b), 0);
	eventually(atomic_load(&pooled.opening));
	pid = fork();
	must(pid >= 0);
	if (pid == 0)
		closes_pools(a);
	process_must_succeed(pid);
	atomic_store(&pooled.may_open, true);
	pthread_join(thread, NULL);
	drop(a);
	tl_close(pooled.other);
	tl_close(pooled.client);
	return 0;
}

GPU_TEST(a_child_closes_pools_while_a_thread_opens_one)
{
	SKIP_UNLESS(MAY_FORK_AMONG_THREADS, "AddressSanitizer's allocator does not survive it");
	gpu_with_producer(publishes_pooled, forks_while_opening, NULL);
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
