/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Producers and consumers of GPU tensors are killed: after each of their steps in turn, and then a
 * thousand times whenever a timer fires, which may be in a call of the driver or in the library's
 * thread. Another pair goes on exchanging tensors all the while. At the end nothing is left of any
 * process.
 */
#include <sys/mman.h>
#include <time.h>

#include "tests/gpu/common.h"
#include "tests/harness/seed.h"

enum { N = 2 << 20, KILLS = 1000, KILLS_MIN = 100, ROUND = 50, LONGEST_US = 12000 };

static const char *const names[] = { "plain", "virtual", "parts", "pooled", "draft", "put" };
enum { NAMES = 6 };

/* ---- Steps ---- */

static unsigned steps_left; /* 0: never */

static void step(void)
{
	if (steps_left && --steps_left == 0)
		kill(getpid(), SIGKILL);
}

/* A name may be gone, and its producer may be dead. */
static void must_mostly(int r)
{
	if (r != 0 && r != -ENOENT && r != -ENODATA && r != -EAGAIN && r != -ETIMEDOUT)
		must_failed(__FILE__, __LINE__, "an error", r, 0);
}

static struct gpu_foreign foreign[GPU_KINDS];
static struct gpu_memory memory[GPU_KINDS];

static void produce_once(tl_client *client, int value)
{
	int64_t n = N;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	DLManagedTensorVersioned *exported;
	tl_draft *draft;

	for (int kind = 0; kind < GPU_KINDS; kind++) {
		gpu_memory_init(&memory[kind], kind, N, 0);
		step();
		gpu_fill(memory[kind].base, value, N, CUDA_STREAM_LEGACY);
		gpu_foreign_init(&foreign[kind], memory[kind].base, N, 0);
		foreign[kind].owned = &memory[kind];
		must_be(tl_publish(client, names[kind], &foreign[kind].managed, NULL, NULL, NULL),
			0);
		step();
	}
	must_be(tl_put(client, "put", &foreign[0].managed.dl_tensor, NULL, NULL), 0);
	step();
	for (int i = 0; i < 2; i++) {
		must_be(gpu_create(client, "draft", &spec, 0, &draft), 0);
		step();
		gpu_fill((CUdeviceptr)(uintptr_t)tl_draft_tensor(draft)->data, value, N,
			 CUDA_STREAM_LEGACY);
		step();
		must_be(tl_commit(draft, NULL), 0);
		step();
	}
	must_be(gpu_create(client, "draft", &spec, 0, &draft), 0);
	must_be(tl_draft_to_dlpack(draft, &exported), 0);
	step();
	drop(exported);
	step();
	for (int kind = 0; kind < GPU_KINDS; kind++) {
		must_mostly(tl_delete(client, names[kind]));
		step();
	}
	for (int kind = 0; kind < GPU_KINDS; kind++) {
		eventually(atomic_load(&foreign[kind].deleted));
		step();
	}
}

/* A tensor that was read while its producer lived has one value; if the producer died meanwhile the
 * library says so. */
static void consume_once(tl_client *client, CUstream stream)
{
	tl_get_options o = { .size = sizeof(o), .stream = (intptr_t)stream };
	DLManagedTensorVersioned *t[NAMES] = { 0 };

	for (int i = 0; i < NAMES; i++) {
		must_mostly(tl_get(client, names[i], &o, &t[i]));
		step();
	}
	for (int i = 0; i < NAMES; i++) {
		if (t[i] && gpu_read(gpu_data(t[i]), N, stream) < 0)
			eventually(tl_tensor_check(t[i]) == -ENODATA);
		step();
	}
	for (int i = 0; i < NAMES; i++) {
		if (t[i])
			drop(t[i]);
		step();
	}
}

/* ---- The victims ---- */

struct victim {
	bool consumes;
	unsigned steps; /* the step after which it kills itself; 0: none */
	unsigned us;	/* a timer kills it after that; 0: none */
};

static void arm(unsigned us)
{
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL };
	struct itimerspec when = { .it_value = { 0, (us + 1) * 1000L } };
	timer_t timer;

	must_be(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
	must_be(timer_settime(timer, 0, &when, NULL), 0);
}

static int dies(const struct test_daemon *d, void *arg)
{
	const struct victim *v = arg;
	tl_client *client;
	CUstream stream;

	steps_left = v->steps;
	if (!v->steps)
		arm(v->us);
	client = gpu_open(d, 0);
	step();
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	for (int i = 0; !v->steps || i < 1; i++) {
		if (v->consumes)
			consume_once(client, stream);
		else
			produce_once(client, 1 + i % 200);
	}
	gpu_must(cuda->stream_destroy(stream));
	tl_close(client);
	step();
	return 0;
}

/* ---- The survivors ---- */

static int steady_device; /* not the victims' device, if there are two */

static int steady_producer(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, steady_device);
	const _Atomic bool *stop = arg;
	uint64_t version = 0;

	while (!atomic_load(stop)) {
		version = gpu_put_draft(client, "steady", (int)((version + 1) % 200), N,
					steady_device, CUDA_STREAM_LEGACY);
		gpu_must(cuda->stream_synchronize(CUDA_STREAM_LEGACY));
	}
	must_be(tl_delete(client, "steady"), 0);
	tl_close(client);
	return 0;
}

static int steady_consumer(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, steady_device);
	tl_get_options o = { .size = sizeof(o), .timeout_ns = 100 * MS };
	const _Atomic bool *stop = arg;

	while (!atomic_load(stop)) {
		DLManagedTensorVersioned *t;
		tl_info info = { .size = sizeof(info) };
		int r = tl_get(client, "steady", &o, &t);

		must_mostly(r);
		if (r)
			continue;
		must_be(tl_tensor_info(t, &info), 0);
		must_be(gpu_read(gpu_data(t), N, CUDA_STREAM_LEGACY), (int)(info.version % 200));
		if (o.newer_than <= 10 && info.version > 10)
			parent_tell(1);
		o.newer_than = info.version;
		drop(t);
	}
	tl_close(client);
	return 0;
}

/* ---- The tests ---- */

static void forget_names(const struct test_daemon *d)
{
	tl_client *client = td_connect(d);

	for (int i = 0; i < NAMES; i++)
		must_mostly(tl_delete(client, names[i]));
	tl_close(client);
}

GPU_TEST(killed_after_each_step)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	unsigned survived = 0;

	for (unsigned n = 1; survived < 2; n++) {
		struct victim producer = { .steps = n },
			      consumer = { .consumes = true, .steps = n };
		struct test_child p, c;

		survived = 0;
		p = child_start(&g.d, dies, &producer);
		c = child_start(&g.d, dies, &consumer);
		survived += WIFEXITED(child_wait(&p));
		survived += WIFEXITED(child_wait(&c));
		/* The dead producer's tensors are there for a consumer that dies as well. */
		c = child_start(&g.d, dies, &consumer);
		child_wait(&c);
		forget_names(&g.d);
		gpu_nothing_left(&g);
		must(n < 100);
	}
}

GPU_TEST(killed_at_any_moment)
{
	cleanup_gpu struct gpu_daemon g = gpu_start(.max_clients = 1000);
	_Atomic bool *stop = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
				  -1, 0);
	unsigned seed = (unsigned)test_seed((uint64_t)now_ns());
	int64_t end = now_ns() + test_limit(120) * SECOND; /* a slow machine makes fewer kills */
	struct test_child steady[2];
	int kills = 0;

	steady_device = gpu_devices() > 1;
	test_timeout(360);
	must(stop != MAP_FAILED);
	steady[0] = child_start(&g.d, steady_producer, stop);
	steady[1] = child_start(&g.d, steady_consumer, stop);
	for (; kills < KILLS && (kills < KILLS_MIN || now_ns() < end); kills += 2) {
		struct victim v[2] = {
			{ .us = (unsigned)rand_r(&seed) % LONGEST_US },
			{ .us = (unsigned)rand_r(&seed) % LONGEST_US, .consumes = true },
		};
		struct test_child c[2];

		for (int k = 0; k < 2; k++)
			c[k] = child_start(&g.d, dies, &v[k]);
		for (int k = 0; k < 2; k++) {
			int status = child_wait(&c[k]);

			must(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		}
		if (kills % ROUND == 0)
			forget_names(&g.d);
	}
	print_message("%d kills\n", kills);
	child_await(&steady[1]); /* it has read some of its tensors */
	atomic_store(stop, true);
	child_must_succeed(&steady[0]);
	child_must_succeed(&steady[1]);
	forget_names(&g.d);
	gpu_nothing_left(&g);
	munmap(stop, 4096);
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
