/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Producers that publish and end at once. Memory that outlives its producer is worthless if nobody
 * can tell any more that the GPU has written it: tl_close() and exit() wait for that, and for
 * nothing else.
 */
#include "tests/gpu/common.h"

enum { N = 3 << 20, MANY = 8 };

#define LATE_US "50000" /* the time that each piece of work on a stream takes */

/* ---- Publishing, and what is left of it ---- */

enum what { DRAFT, PUT, STAGED, OF_OTHERS, IN_PARTS, SEVERAL, WHATS };
enum ending { CLOSE, CLOSE_AND_EXIT, EXIT, ENDINGS };

struct producing {
	enum what what;
	enum ending ending;
};

static struct gpu_foreign foreign;
static struct gpu_memory memory;

static void publish_foreign(tl_client *client, enum gpu_kind kind)
{
	gpu_memory_init(&memory, kind, N, 0);
	gpu_fill(memory.base, 6, N, CUDA_STREAM_LEGACY);
	gpu_foreign_init(&foreign, memory.base, N, 0);
	must_be(tl_publish(client, "t", &foreign.managed, NULL, NULL, NULL), 0);
}

/* No other process can open it. */
static void publish_copy(tl_client *client)
{
	tl_put_options o = { .size = sizeof(o), .flags = TL_PUBLISH_STAGING };
	CUdeviceptr base;
	bool copied;

	gpu_must(cuda->mem_address_reserve(&base, 2 * GPU_PART, 0, 0, 0));
	gpu_map_part(base, 2 * GPU_PART, 0, 0);
	gpu_fill(base, 6, N, CUDA_STREAM_LEGACY);
	gpu_foreign_init(&foreign, base, N, 0);
	must_be(tl_publish(client, "t", &foreign.managed, &o, &copied, NULL), 0);
	must(copied);
}

static void put_foreign(tl_client *client)
{
	gpu_memory_init(&memory, GPU_LEGACY, N, 0);
	gpu_fill(memory.base, 6, N, CUDA_STREAM_LEGACY);
	gpu_foreign_init(&foreign, memory.base, N, 0);
	must_be(tl_put(client, "t", &foreign.managed.dl_tensor, NULL, NULL), 0);
}

static void publish(tl_client *client, enum what what)
{
	char name[] = "t0";

	switch (what) {
	case DRAFT:
		gpu_put_draft(client, "t", 6, N, 0, CUDA_STREAM_LEGACY);
		break;
	case PUT:
		put_foreign(client);
		break;
	case STAGED:
		publish_copy(client);
		break;
	case OF_OTHERS:
		publish_foreign(client, GPU_VMM);
		break;
	case IN_PARTS:
		publish_foreign(client, GPU_PARTS);
		break;
	default:
		for (; name[1] < '0' + MANY; name[1]++)
			gpu_put_draft(client, name, 6, N, 0, CUDA_STREAM_LEGACY);
		gpu_put_draft(client, "t", 6, N, 0, CUDA_STREAM_LEGACY);
	}
}

static int produces(const struct test_daemon *d, void *arg)
{
	const struct producing *p = arg;
	tl_client *client = gpu_open(d, 0);

	publish(client, p->what);
	if (p->ending != EXIT)
		must_be(tl_close(client), 0);
	if (p->ending != CLOSE)
		exit(0);
	return 0; /* it ends by _exit() */
}

static int reads_six(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t;
	char name[] = "t0";
	tl_info info = { .size = sizeof(info) };

	t = gpu_get(client, "t", TL_STREAM_LEGACY);
	must_be(tl_tensor_info(t, &info), 0);
	must(!info.lost);
	must_be(gpu_read(gpu_data(t), N, CUDA_STREAM_LEGACY), 6);
	drop(t);
	must_be(tl_delete(client, "t"), 0);
	for (; arg && *(enum what *)arg == SEVERAL && name[1] < '0' + MANY; name[1]++) {
		t = gpu_get(client, name, TL_STREAM_LEGACY);
		must_be(gpu_read(gpu_data(t), N, CUDA_STREAM_LEGACY), 6);
		drop(t);
		must_be(tl_delete(client, name), 0);
	}
	must_be(tl_close(client), 0);
	return 0;
}

static void ends_at_once(enum ending ending)
{
	for (enum what what = 0; what < WHATS; what++) {
		struct producing p = { what, ending };
		cleanup_gpu struct gpu_daemon g = gpu_start();

		must_be(td_run_client(&g.d, produces, &p), 0);
		must_be(td_run_client(&g.d, reads_six, &what), 0);
		gpu_nothing_left(&g);
	}
}

GPU_TEST(what_was_published_before_close_is_there_after_it)
{
	gpu_setenv("FAKECUDA_DELAY_US", LATE_US);
	ends_at_once(CLOSE);
	ends_at_once(CLOSE_AND_EXIT);
}

GPU_TEST(what_was_published_before_exit_is_there_after_it)
{
	gpu_setenv("FAKECUDA_DELAY_US", LATE_US);
	ends_at_once(EXIT);
}

/* ---- How long ---- */

/* Its work is held: what it publishes is not finished before gpu_hold(0). */
static tl_client *hold_and_publish(const struct test_daemon *d, int64_t timeout_ns)
{
	tl_client *client = gpu_open(d, 0);

	gpu_must(cuda->ctx_synchronize());
	gpu_hold(getpid());
	gpu_put_draft(client, "t", 6, N, 0, CUDA_STREAM_LEGACY);
	client_set_timeout(client, timeout_ns);
	return client;
}

static int closes_early(const struct test_daemon *d, void *arg)
{
	tl_client *client = hold_and_publish(d, WAIT_S * SECOND);

	(void)arg;
	parent_tell(1);
	must_be(tl_close(client), 0);
	parent_tell(2);
	return 0;
}

static int is_unfinished(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t = gpu_get(client, "t", TL_STREAM_NONE);

	(void)arg;
	must_be(tl_tensor_check(t), 0);
	drop(t);
	must_be(tl_close(client), 0);
	return 0;
}

GPU_TEST(close_lasts_as_long_as_the_work)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start_ready(&g.d, closes_early, NULL);

	must_be(td_run_client(&g.d, is_unfinished, NULL), 0);
	must_be(td_status(&g.d).clients, 1);
	gpu_hold(0);
	must_be(child_await(&p), 2);
	child_must_succeed(&p);
	must_be(td_run_client(&g.d, reads_six, NULL), 0);
	gpu_nothing_left(&g);
}

static int runs_out_of_time(const struct test_daemon *d, void *arg)
{
	tl_client *client = hold_and_publish(d, SECOND);

	must_refuse(tl_close(client), -ETIMEDOUT, "has not written 1 of the tensors");
	if (!arg)
		exit(0); /* tl_close() has waited, so exit() does not */
	pause_at(1);
	return 0;
}

static int is_lost(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t;

	(void)arg;
	must_refuse(tl_get(client, "t", NULL, &t), -ENODATA, "'t'");
	must_be(tl_delete(client, "t"), 0);
	must_be(tl_close(client), 0);
	return 0;
}

GPU_TEST(close_gives_up_after_the_clients_timeout_and_says_so)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, runs_out_of_time, NULL), 0);
	gpu_hold(0);
	td_sync(&g.d);
	must_be(td_run_client(&g.d, is_lost, NULL), 0);
	gpu_nothing_left(&g);
}

GPU_TEST(what_close_gave_up_is_finished_if_the_process_lives_on)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start_ready(&g.d, runs_out_of_time, &g);
	struct raw rc = rc_open(&g.d);

	must_be(rc_progress(&rc, 0), ROW_UNFINISHED);
	gpu_hold(0);
	eventually(rc_progress(&rc, 0) == ROW_FINISHED);
	rc_goodbye(&rc);
	child_finish(&p);
	must_be(td_run_client(&g.d, reads_six, NULL), 0);
	gpu_nothing_left(&g);
}

static int exits_too_early(const struct test_daemon *d, void *arg)
{
	(void)arg;
	hold_and_publish(d, SECOND);
	exit(0);
}

GPU_TEST(exit_gives_up_after_the_clients_timeout)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, exits_too_early, NULL), 0);
	gpu_hold(0);
	td_sync(&g.d);
	must_be(td_run_client(&g.d, is_lost, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- What is not waited for ---- */

static int publishes_what_dies_anyway(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	static struct gpu_foreign f[2];
	static struct gpu_memory m[2];

	gpu_must(cuda->ctx_synchronize());
	gpu_hold(getpid());
	for (int i = 0; i < 2; i++) {
		gpu_memory_init(&m[i], i ? GPU_POOL : GPU_LEGACY, N, 0);
		gpu_fill(m[i].base, 6, N, CUDA_STREAM_LEGACY);
		gpu_foreign_init(&f[i], m[i].base, N, 0);
		must_be(tl_publish(client, i ? "pooled" : "t", &f[i].managed, NULL, NULL, NULL), 0);
	}
	gpu_put_draft(client, "deleted", 6, N, 0, CUDA_STREAM_LEGACY);
	must_be(tl_delete(client, "deleted"), 0);
	if (!arg)
		exit(0);
	must_be(tl_close(client), 0);
	return 0;
}

static int deletes_pooled(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);

	(void)arg;
	must_be(tl_delete(client, "pooled"), 0);
	return tl_close(client);
}

GPU_TEST(what_dies_with_its_producer_is_not_waited_for)
{
	for (int close = 0; close < 2; close++) {
		cleanup_gpu struct gpu_daemon g = gpu_start();

		must_be(td_run_client(&g.d, publishes_what_dies_anyway, close ? &close : NULL), 0);
		gpu_hold(0);
		td_sync(&g.d);
		must_be(td_run_client(&g.d, is_lost, NULL), 0);
		must_be(td_run_client(&g.d, deletes_pooled, NULL), 0);
		gpu_nothing_left(&g);
	}
}

/* ---- What goes wrong ---- */

static int fails_to_write(const struct test_daemon *d, void *arg)
{
	tl_client *client = hold_and_publish(d, WAIT_S * SECOND);

	if (!arg)
		exit(0);
	must_refuse(tl_close(client), -EIO, "CUDA_ERROR_ILLEGAL_ADDRESS");
	return 0;
}

GPU_TEST(what_the_gpu_failed_to_write_is_lost_and_close_says_so)
{
	for (int close = 0; close < 2; close++) {
		cleanup_gpu struct gpu_daemon g = gpu_start();

		/* the first query comes right after recording, when the work is held */
		gpu_setenv("FAKECUDA_FAIL", "cuEventQuery:2:700");
		must_be(td_run_client(&g.d, fails_to_write, close ? &close : NULL), 0);
		unsetenv("FAKECUDA_FAIL");
		gpu_hold(0);
		td_sync(&g.d);
		must_be(td_run_client(&g.d, is_lost, NULL), 0);
		gpu_nothing_left(&g);
	}
}

static int loses_its_daemon(const struct test_daemon *d, void *arg)
{
	tl_client *client = hold_and_publish(d, WAIT_S * SECOND);

	parent_tell(1);
	if (!arg)
		exit(0);
	must_refuse(tl_close(client), -ENOTCONN, "1 of the tensors");
	return 0;
}

GPU_TEST(a_daemon_that_dies_ends_the_wait)
{
	struct test_daemon d;
	struct test_child p;

	for (int close = 0; close < 2; close++) {
		d = td_start();
		p = child_start_ready(&d, loses_its_daemon, close ? &close : NULL);
		td_kill(&d);
		child_must_succeed(&p);
		gpu_hold(0);
		d = td_start(.socket = d.socket); /* it removes what the killed one left */
		td_stop(&d);
		must_be(gpu_live_all(), 0);
	}
}

static int is_not_answered(const struct test_daemon *d, void *arg)
{
	tl_client *client = hold_and_publish(d, SECOND);

	pause_at(1); /* it stands still */
	gpu_hold(0);
	gpu_must(cuda->ctx_synchronize());
	if (!arg)
		exit(0);
	must_refuse(tl_close(client), -ETIMEDOUT, "1 of the tensors");
	return 0;
}

/* It was told all the same, and reads that before the end of the connection. */
GPU_TEST(a_daemon_that_stands_still_is_not_waited_for_longer)
{
	for (int close = 0; close < 2; close++) {
		cleanup_gpu struct gpu_daemon g = gpu_start();
		struct test_child p = child_start_ready(&g.d, is_not_answered,
							close ? &close : NULL);

		td_freeze(&g.d);
		child_finish(&p);
		td_thaw(&g.d);
		must_be(td_run_client(&g.d, reads_six, NULL), 0);
		gpu_nothing_left(&g);
	}
}

/* ---- What is on its way ---- */

/* A prefetched draft, which comes when the session has ended and the closer is busy with it. */
static int closes_before_a_draft_comes(const struct test_daemon *d, void *arg)
{
	const tl_put_options o = { .size = sizeof(o), .ring = TL_RING_NONE };
	tl_client *client = gpu_open(d, 0);
	int64_t n = 5000;
	unsigned char bytes[5000] = { 1 };
	DLTensor t = {
		.data = bytes, .device = { kDLCPU, 0 }, .dtype = U8, .ndim = 1, .shape = &n
	};
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	tl_draft *draft;

	(void)arg;
	must_be(gpu_create(client, "g", &spec, 0, &draft), 0);
	tl_abort(draft); /* its buffer stays for some time */
	for (int i = 0; i < 3; i++)
		must_be(tl_put(client, "a", &t, &o, &(uint64_t){ 0 }), 0);
	td_sync(d);
	td_freeze(d);
	client_set_timeout(client, SECOND / 100);
	must_be(tl_put(client, "a", &t, &o, NULL), -ETIMEDOUT);
	must_be(tl_close(client), 0);
	td_thaw(d);
	eventually(td_status(d).clients == 0);
	client = td_connect(d);
	must_be(tl_delete(client, "a"), 0);
	must_be(tl_close(client), 0);
	return 0;
}

GPU_TEST(a_client_is_closed_before_a_draft_comes)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, closes_before_a_draft_comes, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- What is bound to the connection ---- */

/* Memory that a closed client used last is given back when the GPU has ended its work. */
static int closes_beside_work(const struct test_daemon *d, void *arg)
{
	const tl_put_options bound = { .size = sizeof(bound),
				       .lifetime = TL_LIFETIME_OWNER_BOUND,
				       .ring = TL_RING_NONE };
	const tl_claim_options soon = { .size = sizeof(soon), .timeout_ns = WAIT_S * SECOND };
	tl_client *client = gpu_open(d, 0), *other = td_connect(d);
	CUdeviceptr other_memory = gpu_alloc(N);
	int64_t n = 100;
	unsigned char bytes[100] = { 1 };
	DLTensor t = {
		.data = bytes, .device = { kDLCPU, 0 }, .dtype = U8, .ndim = 1, .shape = &n
	};
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	tl_info info = { .size = sizeof(info) };
	tl_draft *draft;

	(void)arg;
	must_be(tl_claim(client, "c", NULL), 0);
	must_be(tl_put(client, "bound", &t, &bound, &(uint64_t){ 0 }), 0);
	must_be(gpu_create(client, "g", &spec, 0, &draft), 0);
	must_be(tl_draft_set_stream(draft, TL_STREAM_NONE), 0);
	tl_abort(draft);
	gpu_hold(getpid());
	gpu_fill(other_memory, 1, N, CUDA_STREAM_LEGACY);
	must_be(tl_close(client), 0);
	must_be(tl_claim(other, "c", &soon), 0);
	eventually(tl_stat(other, "bound", &info) == -ENOENT);
	if (!gpu_is_real()) /* a real driver may close memory without waiting for the GPU */
		must_be(td_status(d).clients, 2); /* this one's connection is still there */
	gpu_hold(0);
	eventually(td_status(d).clients == 1);
	must_be(tl_close(other), 0);
	gpu_must(cuda->mem_free(other_memory));
	return 0;
}

GPU_TEST(what_is_bound_to_a_client_ends_with_it_whatever_the_gpu_does)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, closes_beside_work, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- Other threads, other processes ---- */

static _Atomic bool deleting;

static void delete_never(DLManagedTensorVersioned *managed)
{
	(void)managed;
	atomic_store(&deleting, true);
	for (;;)
		pause();
}

static int is_stuck_in_a_deleter(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	static struct gpu_foreign f;
	static struct gpu_memory m;

	gpu_memory_init(&m, GPU_VMM, N, 0);
	gpu_foreign_init(&f, m.base, N, 0);
	f.managed.deleter = delete_never;
	must_be(tl_publish(client, "never", &f.managed, NULL, NULL, NULL), 0);
	must_be(tl_delete(client, "never"), 0);
	eventually(atomic_load(&deleting));
	gpu_put_draft(client, "t", 6, N, 0, CUDA_STREAM_LEGACY);
	if (!arg)
		exit(0);
	must_be(tl_close(client), 0);
	return 0;
}

GPU_TEST(the_librarys_thread_is_not_needed)
{
	gpu_setenv("FAKECUDA_DELAY_US", LATE_US);
	for (int close = 0; close < 2; close++) {
		cleanup_gpu struct gpu_daemon g = gpu_start();

		must_be(td_run_client(&g.d, is_stuck_in_a_deleter, close ? &close : NULL), 0);
		must_be(td_run_client(&g.d, reads_six, NULL), 0);
		gpu_nothing_left(&g);
	}
}

static int forks_unfinished(const struct test_daemon *d, void *arg)
{
	tl_client *client = hold_and_publish(d, WAIT_S * SECOND);
	int status;

	(void)arg;
	for (int close = 0; close < 2; close++) {
		pid_t pid = fork();

		must(pid >= 0);
		if (pid == 0) {
			if (close)
				must_be(tl_close(client), 0);
			exit(0);
		}
		must_be(waitpid(pid, &status, 0), pid);
		must_be(status, 0);
	}
	pause_at(1); /* the children have not waited for it */
	must_be(tl_close(client), 0);
	return 0;
}

GPU_TEST(a_forked_child_leaves_it_to_its_parent)
{
	struct test_child p;

	SKIP_UNLESS(MAY_FORK_AMONG_THREADS, "a sanitizer's allocator does not survive fork()");
	cleanup_gpu struct gpu_daemon g = gpu_start();
	p = child_start_ready(&g.d, forks_unfinished, NULL);
	must_be(td_run_client(&g.d, is_unfinished, NULL), 0);
	gpu_hold(0);
	child_finish(&p);
	must_be(td_run_client(&g.d, reads_six, NULL), 0);
	gpu_nothing_left(&g);
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
