/* SPDX-License-Identifier: Apache-2.0 */
/* GPU tensors when the daemon answers late or dies, and when many ask it for the same at once. */
#include "tests/gpu/common.h"
#include "tests/gpu/exports.h"

#include <sys/socket.h>
#include <sys/un.h>

#include "client/connection/request.h"
#include "client/gpu/import.h"
#include "client/gpu/threads.h"
#include "proto/conn.h"
#include "proto/description.h"
#include "tests/harness/sleeper.h"

enum { N = 3 << 20, THREADS = 8, ROUNDS = 20 };

/* ---- No answer in time ---- */

struct asking {
	bool refused, by_handle;
	struct gpu_memory memory;
};

static void count_freed(void *context)
{
	atomic_fetch_add(&((struct gpu_foreign *)context)->deleted, 1);
}

static int publish(tl_client *client, const char *name, struct gpu_foreign *f,
		   const struct asking *a)
{
	tl_ipc_handle handle = { .size = sizeof(handle), .allocation_size = N };
	tl_spec spec = { .size = sizeof(spec), .shape = f->shape, .ndim = 1, .dtype = U8 };
	tl_cuda_info info = { .size = sizeof(info) };
	struct cuda_ipc_handle h;

	if (!a->by_handle)
		return tl_publish(client, name, &f->managed, NULL, NULL, NULL);
	must_be(tl_get_cuda_info(0, &info), 0);
	gpu_must(cuda->ipc_get_mem_handle(&h, a->memory.base));
	memcpy(handle.device_uuid, info.uuid, sizeof(handle.device_uuid));
	memcpy(handle.memory, h.bytes, sizeof(handle.memory));
	return tl_publish_ipc_handle(client, name, &handle, &spec, NULL, count_freed, f, NULL);
}

static int publishes_to_nobody(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0), *other = td_connect(d);
	struct asking *a = arg;
	struct gpu_foreign first, f;
	tl_info info = { .size = sizeof(info) };

	gpu_memory_init(&a->memory, a->by_handle ? GPU_LEGACY : GPU_VMM, N, 0);
	gpu_foreign_init(&first, a->memory.base, N, 0);
	gpu_foreign_init(&f, a->memory.base, N, 0);
	gpu_fill(a->memory.base, 5, N, CUDA_STREAM_LEGACY);
	gpu_must(cuda->ctx_synchronize());
	must_be(publish(client, "first", &first, a), 0);
	pause_at(1); /* the daemon stands still */
	client_set_timeout(client, SECOND);
	must_refuse(publish(client, "t", &f, a), -EINPROGRESS, "not known");
	must_be(f.deleted, 0);
	client_set_timeout(client, WAIT_S * SECOND);
	pause_at(1);
	if (a->refused) {
		eventually(atomic_load(&f.deleted)); /* its deleter was called after all */
		must_be(tl_stat(other, "t", &info), -ENOENT);
	} else {
		must_be(f.deleted, 0);
		must_be(tl_stat(other, "t", &info), 0);
		must_be(tl_delete(other, "t"), 0);
		pause_at(1); /* somebody still holds it */
		must_be(f.deleted, 0);
		parent_tell(1);
		eventually(atomic_load(&f.deleted));
	}
	must_be(f.deleted, 1);
	must_be(first.deleted, 0);
	must_be(tl_delete(other, "first"), 0);
	eventually(atomic_load(&first.deleted));
	gpu_memory_deinit(&a->memory);
	tl_close(client);
	tl_close(other);
	return 0;
}

static int holds_t(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t = gpu_get(client, "t", TL_STREAM_LEGACY);

	(void)arg;
	pause_at(1);
	must_be(gpu_read(gpu_data(t), N, CUDA_STREAM_LEGACY), 5);
	drop(t);
	tl_close(client);
	return 0;
}

static void published_late(bool by_handle)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct asking a = { .by_handle = by_handle };
	struct test_child p = child_start_ready(&g.d, publishes_to_nobody, &a), c;

	td_freeze(&g.d);
	child_step(&p);
	td_thaw(&g.d);
	td_sync(&g.d);
	c = child_start_ready(&g.d, holds_t, NULL);
	child_step(&p);
	td_sync(&g.d);
	child_step(&p);
	child_finish(&c);
	child_must_succeed(&p);
	gpu_nothing_left(&g);
}

GPU_TEST(a_publish_without_an_answer_may_be_one)
{
	published_late(false);
	published_late(true);
}

static void refused_late(bool by_handle)
{
	cleanup_gpu struct gpu_daemon g = gpu_start(.max_tensors = 1);
	struct asking a = { .refused = true, .by_handle = by_handle };
	struct test_child p = child_start_ready(&g.d, publishes_to_nobody, &a);

	td_freeze(&g.d);
	child_step(&p);
	td_thaw(&g.d);
	child_finish(&p);
	gpu_nothing_left(&g);
}

GPU_TEST(a_refusal_that_comes_late_gives_the_tensor_back)
{
	refused_late(false);
	refused_late(true);
}

/* ---- The daemon dies ---- */

static int exports_twice(const struct test_daemon *d, void *arg)
{
	enum gpu_kind kind = *(enum gpu_kind *)arg;
	tl_client *client = gpu_open(d, 0);
	struct gpu_foreign f[2];
	struct gpu_memory m;

	gpu_memory_init(&m, kind, N, 0);
	gpu_hold(getpid()); /* so that there is work to record an event for */
	gpu_fill(m.base, 1, N, CUDA_STREAM_LEGACY);
	for (int i = 0; i < 2; i++) {
		gpu_foreign_init(&f[i], m.base, N, 0);
		/* the first stops between its two requests, and then meets another daemon */
		must_be(tl_publish(client, i ? "b" : "a", &f[i].managed, NULL, NULL, NULL), 0);
	}
	gpu_hold(0);
	must_be(tl_delete(client, "a") + tl_delete(client, "b"), 0);
	eventually(atomic_load(&f[0].deleted) && atomic_load(&f[1].deleted));
	gpu_memory_deinit(&m);
	tl_close(client);
	return 0;
}

GPU_TEST(an_export_for_a_daemon_that_died)
{
	for (enum gpu_kind kind = 0; kind < GPU_KINDS; kind++) {
		struct test_daemon d = td_start();
		struct gpu_daemon g;
		struct test_child p;
		int status;

		gpu_setenv("FAKECUDA_FAIL", "cuEventRecord:1:-1");
		p = child_start(&d, exports_twice, &kind);
		must_be(waitpid(p.pid, &status, WUNTRACED), p.pid);
		must(WIFSTOPPED(status));
		td_kill(&d);
		gpu_setenv("FAKECUDA_FAIL", "");
		g = gpu_start(.socket = d.socket);
		must_be(kill(p.pid, SIGCONT), 0);
		child_must_succeed(&p);
		gpu_nothing_left(&g);
		td_stop(&g.d);
		td_stop(&d);
	}
}

static int makes_a_draft(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *own;

	(void)arg;
	gpu_put_draft(client, "t", 5, N, 0, CUDA_STREAM_LEGACY);
	gpu_put_draft(client, "own", 6, N, 0, CUDA_STREAM_LEGACY);
	own = gpu_get(client, "own", TL_STREAM_LEGACY);
	gpu_must(cuda->ctx_synchronize());
	pause_at(1);				     /* no daemon is there any more */
	eventually(gpu_live(FAKE_VMM_MAPPING) == 2); /* the consumer's and our own */
	must_be(gpu_read(gpu_data(own), N, CUDA_STREAM_LEGACY), 6);
	drop(own);
	eventually(gpu_live(FAKE_VMM_MAPPING) == 1);
	pause_at(1);
	tl_close(client);
	return 0;
}

GPU_TEST(memory_of_a_dead_daemon_goes_with_its_last_reader)
{
	struct test_daemon d;
	struct test_child p, c;
	struct gpu_daemon g;

	SKIP_UNLESS(!gpu_is_real(), "needs a driver that counts");
	d = td_start();
	p = child_start_ready(&d, makes_a_draft, NULL);
	c = child_start_ready(&d, holds_t, NULL);
	td_kill(&d);
	child_step(&p);
	child_finish(&c); /* it can still read them */
	child_finish(&p);
	g = gpu_start(.socket = d.socket);
	gpu_nothing_left(&g);
	td_stop(&g.d);
	td_stop(&d);
}

static int opens_and_stops(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);

	(void)arg;
	drop(gpu_get(client, "t", TL_STREAM_NONE)); /* its lease ends at once */
	pause_at(1);
	tl_close(client);
	return 0;
}

/* The socket of the only client in this process. */
static int only_socket(const struct test_daemon *d)
{
	for (int fd = 0; fd < 1024; fd++) {
		struct sockaddr_un peer = { 0 };
		socklen_t n = sizeof(peer) - 1;

		if (!getpeername(fd, (struct sockaddr *)&peer, &n) && peer.sun_family == AF_UNIX &&
		    !strcmp(peer.sun_path, d->socket))
			return fd;
	}
	must(!"a socket");
	return -1;
}

static int dies_unheard(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	struct raw rc = rc_open(d);
	struct gpu_foreign f;
	struct gpu_memory m;

	(void)arg;
	gpu_memory_init(&m, GPU_LEGACY, N, 0);
	gpu_foreign_init(&f, m.base, N, 0);
	f.owned = &m;
	must_be(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), 0);
	gpu_put_draft(client, "own", 6, N, 0, CUDA_STREAM_LEGACY);
	gpu_must(cuda->ctx_synchronize());
	pause_at(1); /* another process has it open, and stands still */
	must_be(tl_delete(client, "t"), 0);
	eventually(!(atomic_load(&rc_segment(&rc, 0)->word) & 1)); /* UNEXPORT has come */
	pause_at(1);						   /* no daemon is there any more */
	eventually(gpu_live(FAKE_VMM_MAPPING) == 0); /* the library's thread has heard of that */
	must_be(f.deleted, 0);
	pause_at(1); /* nobody has it open */
	must_be(f.deleted, 0);
	tl_close(client);
	eventually(atomic_load(&f.deleted));
	return 0;
}

GPU_TEST(memory_is_kept_if_the_daemon_dies_while_others_close_it)
{
	struct test_daemon d;
	struct test_child p, c;
	struct gpu_daemon g;
	int status;

	SKIP_UNLESS(!gpu_is_real(), "needs a driver that counts");
	d = td_start();
	p = child_start_ready(&d, dies_unheard, NULL);
	c = child_start_ready(&d, opens_and_stops, NULL);
	must_be(kill(c.pid, SIGSTOP), 0);
	must_be(waitpid(c.pid, &status, WUNTRACED), c.pid);
	child_step(&p);
	td_kill(&d);
	child_step(&p);
	must_be(kill(c.pid, SIGCONT), 0);
	child_finish(&c);
	child_finish(&p);
	g = gpu_start(.socket = d.socket);
	gpu_nothing_left(&g);
	td_stop(&g.d);
	td_stop(&d);
}

/* Places a tensor of the client's that the library knows nothing of. */
static void place_behind_its_back(int fd, const struct raw *rc, const char *name)
{
	int64_t shape[] = { 1 };
	DLTensor as = bytes_tensor(NULL, shape);
	struct tensor_description d = description_of(&as, 0, name, strlen(name), NULL, 0);
	struct wire_place m = {
		.header = { .type = WIRE_PLACE, .serial = 1U << 30 },
		.cookie = UINT64_MAX,
		.segment = 0,
		.segment_generation = (uint32_t)(atomic_load(&rc_segment(rc, 0)->word) >> 1),
	};
	unsigned char bytes[WIRE_MAX];

	description_encode(bytes, &m, &d);
	must_be(conn_send(fd, bytes, -1, 0), 0);
}

/* Returns when the library's thread has looked at all that it was told before. */
static void let_the_thread_look(tl_client *client, CUdeviceptr memory)
{
	for (int i = 0; i < 3; i++) {
		struct gpu_foreign f;

		gpu_foreign_init(&f, memory, N, 0);
		must_be(tl_publish(client, "look", &f.managed, NULL, NULL, NULL), 0);
		must_be(tl_delete(client, "look"), 0);
		eventually(atomic_load(&f.deleted));
	}
}

/* The daemon refuses UNEXPORT as long as there is another tensor in the segment. */
static int is_refused_at_first(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0), *other;
	int fd = only_socket(d);
	struct raw rc = rc_open(d);
	struct gpu_foreign f;
	struct gpu_memory m, of_look;
	tl_info info = { .size = sizeof(info) };

	(void)arg;
	other = td_connect(d);
	gpu_memory_init(&m, GPU_LEGACY, N, 0);
	gpu_memory_init(&of_look, GPU_VMM, N, 0);
	gpu_foreign_init(&f, m.base, N, 0);
	f.owned = &m;
	must_be(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), 0);
	pause_at(1); /* another process has it open */
	place_behind_its_back(fd, &rc, "more");
	eventually(!tl_stat(other, "more", &info));
	must_be(tl_delete(other, "t"), 0);
	let_the_thread_look(client, of_look.base);
	must_be(f.deleted, 0);
	must_be(tl_delete(other, "more"), 0);
	eventually(atomic_load(&f.deleted));
	gpu_memory_deinit(&of_look);
	rc_goodbye(&rc);
	tl_close(client);
	tl_close(other);
	return 0;
}

GPU_TEST(memory_is_kept_if_the_daemon_refuses_to_end_its_export)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start_ready(&g.d, is_refused_at_first, NULL), c;

	c = child_start_ready(&g.d, opens_and_stops, NULL);
	child_finish(&p);
	child_finish(&c);
	gpu_nothing_left(&g);
}

/* ---- Many at once ---- */

static struct {
	pthread_barrier_t all;
	tl_client *client;
	struct gpu_memory memory;
	struct gpu_foreign f[THREADS];
} many;

static void *publishes_a_piece(void *arg)
{
	int i = (int)(intptr_t)arg;
	char name[] = { 't', (char)('0' + i), '\0' };

	for (int round = 0; round < ROUNDS; round++) {
		pthread_barrier_wait(&many.all);
		must_be(tl_publish(many.client, name, &many.f[i].managed, NULL, NULL, NULL), 0);
		pthread_barrier_wait(&many.all);
	}
	return NULL;
}

static int publishes_pieces(const struct test_daemon *d, void *arg)
{
	pthread_t threads[THREADS];
	tl_status status = { .size = sizeof(status) };

	(void)arg;
	many.client = gpu_open(d, 0);
	pthread_barrier_init(&many.all, NULL, THREADS + 1);
	for (intptr_t i = 0; i < THREADS; i++)
		must_be(pthread_create(&threads[i], NULL, publishes_a_piece, (void *)i), 0);
	for (int round = 0; round < ROUNDS; round++) {
		gpu_memory_init(&many.memory, (enum gpu_kind)(round % GPU_KINDS), N, 0);
		for (int i = 0; i < THREADS; i++)
			gpu_foreign_init(&many.f[i], many.memory.base, N, 0);
		pthread_barrier_wait(&many.all);
		pthread_barrier_wait(&many.all);
		must_be(tl_get_status(many.client, &status), 0);
		must_be(status.segments, 1);
		for (int i = 0; i < THREADS; i++) {
			char name[] = { 't', (char)('0' + i), '\0' };

			must_be(tl_delete(many.client, name), 0);
			eventually(atomic_load(&many.f[i].deleted));
		}
		gpu_memory_deinit(&many.memory);
		eventually(!tl_get_status(many.client, &status) && !status.segments);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	tl_close(many.client);
	return 0;
}

GPU_TEST(an_allocation_is_exported_once)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, publishes_pieces, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- Two threads look after what is published ---- */

static struct {
	_Atomic pid_t thread; /* the library's thread */
	_Atomic bool go_on;
	struct gpu_foreign stops, waits, passes;
	struct gpu_memory memory[3];
} look;

static void stop_the_thread(DLManagedTensorVersioned *managed)
{
	(void)managed;
	atomic_store(&look.thread, (pid_t)syscall(SYS_gettid));
	eventually(atomic_load(&look.go_on));
}

static int looks_from_two_threads(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	tl_put_options none = { .size = sizeof(none), .stream = TL_STREAM_NONE };
	int64_t n = N;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	struct raw rc = rc_open(d);
	tl_draft *draft;

	(void)arg;
	for (int i = 0; i < 3; i++)
		gpu_memory_init(&look.memory[i], GPU_VMM, N, 0);
	gpu_foreign_init(&look.stops, look.memory[0].base, N, 0);
	gpu_foreign_init(&look.waits, look.memory[1].base, N, 0);
	gpu_foreign_init(&look.passes, look.memory[2].base, N, 0);
	look.stops.managed.deleter = stop_the_thread;
	must_be(tl_publish(client, "stops", &look.stops.managed, &none, NULL, NULL), 0);
	must_be(tl_publish(client, "passes", &look.passes.managed, &none, NULL, NULL), 0);
	must_be(tl_delete(client, "stops"), 0);
	eventually(atomic_load(&look.thread));
	gpu_hold(getpid());
	gpu_fill(look.memory[1].base, 1, N, CUDA_STREAM_LEGACY);
	must_be(tl_publish(client, "waits", &look.waits.managed, NULL, NULL, NULL), 0);
	must_be(gpu_unfinished(&rc), 1);
	must_be(tl_delete(client, "passes"), 0);
	td_sync(d); /* FREED was sent to the client */
	must_be(gpu_create(client, "draft", &spec, 0, &draft), 0);
	must_be(look.passes.deleted, 0); /* its deleter is the thread's to call */
	atomic_store(&look.go_on, true);
	eventually(atomic_load(&look.passes.deleted));
	until_it_sleeps(&look.thread);
	gpu_hold(0);
	eventually(gpu_unfinished(&rc) == 0);
	tl_abort(draft);
	must_be(tl_delete(client, "waits"), 0);
	eventually(atomic_load(&look.waits.deleted));
	rc_goodbye(&rc);
	tl_close(client);
	for (int i = 0; i < 3; i++)
		gpu_memory_deinit(&look.memory[i]);
	return 0;
}

GPU_TEST(what_waits_for_the_gpu_is_not_lost_sight_of)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, looks_from_two_threads, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- fork() while an answer is awaited ---- */

/* The child's connection ends when it closes the client, whatever its parent waits for. */
static int closes_in_a_child(const struct test_daemon *d, tl_client *client,
			     DLManagedTensorVersioned *cpu, uint64_t clients)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		drop(cpu);
		tl_close(client);
		eventually(td_status(d).clients == clients);
		_exit(0);
	}
	must_be(waitpid(pid, &status, 0), pid);
	return status;
}

static int forks_while_it_ends(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	struct raw rc = rc_open(d);
	DLManagedTensorVersioned *cpu;
	struct gpu_foreign f;
	struct gpu_memory m;

	(void)arg;
	gpu_memory_init(&m, GPU_LEGACY, N, 0);
	gpu_foreign_init(&f, m.base, N, 0);
	must_be(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), 0);
	put_bytes(client, "cpu", 1, 100);
	cpu = get(client, "cpu");
	pause_at(1); /* another process has it open, and stands still */
	must_be(tl_delete(client, "t"), 0);
	eventually(!(atomic_load(&rc_segment(&rc, 0)->word) & 1)); /* UNEXPORT has come */
	must_be(closes_in_a_child(d, client, cpu, td_status(d).clients), 0);
	must_be(f.deleted, 0);
	parent_tell(1);
	eventually(atomic_load(&f.deleted));
	drop(cpu);
	must_be(tl_delete(client, "cpu"), 0);
	gpu_memory_deinit(&m);
	rc_goodbye(&rc);
	tl_close(client);
	return 0;
}

GPU_TEST(a_child_does_not_wait_for_its_parents_answers)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start_ready(&g.d, forks_while_it_ends, NULL), c;
	int status;

	c = child_start_ready(&g.d, opens_and_stops, NULL);
	must_be(kill(c.pid, SIGSTOP), 0);
	must_be(waitpid(c.pid, &status, WUNTRACED), c.pid);
	child_step(&p);
	must_be(kill(c.pid, SIGCONT), 0);
	child_must_succeed(&p);
	child_finish(&c);
	gpu_nothing_left(&g);
}

/* ---- The daemon reads nothing ---- */

/* Fills the socket while the daemon stands still, with messages that the daemon will ignore. */
static void fill_socket(int fd)
{
	const struct wire_finished m = {
		.header = { .type = WIRE_FINISHED, .length = sizeof(m) },
		.ref = ref_make(1, 0xffffff),
	};

	while (send(fd, &m, sizeof(m), MSG_DONTWAIT) == sizeof(m))
		;
	must_be(errno, EAGAIN);
}

/* Long enough for other threads to try to tell the daemon something, and give up. */
static void say_something_in_vain(tl_client *client)
{
	client_set_timeout(client, 2 * SECOND);
	for (int i = 0; i < 2; i++)
		must_refuse(tl_delete(client, "x"), -ETIMEDOUT, "reads no messages");
	client_set_timeout(client, WAIT_S * SECOND);
}

static int frees_when_nobody_listens(const struct test_daemon *d, void *arg)
{
	enum gpu_kind kind = *(enum gpu_kind *)arg;
	tl_client *client = gpu_open(d, 0), *other;
	int fd = only_socket(d);
	struct gpu_foreign f;
	struct gpu_memory m;
	CUstream stream;

	other = td_connect(d);
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	gpu_memory_init(&m, kind, N, 0);
	gpu_foreign_init(&f, m.base, N, 0);
	f.owned = &m;
	gpu_hold(getpid());
	gpu_fill(m.base, 1, N, stream);
	must_be(tl_publish(client, "t", &f.managed,
			   &(tl_put_options){ .size = sizeof(tl_put_options),
					      .stream = (intptr_t)stream },
			   NULL, NULL),
		0);
	pause_at(1); /* another process has it open */
	must_be(tl_delete(other, "t"), 0);
	td_sync(d);  /* the client was sent that, too */
	pause_at(1); /* the daemon stands still */
	fill_socket(fd);
	client_set_timeout(client, 2 * SECOND);
	gpu_hold(0);
	gpu_must(cuda->stream_synchronize(stream));
	say_something_in_vain(client);
	if (kind == GPU_VMM) /* the driver keeps that for who has it open */
		eventually(atomic_load(&f.deleted));
	else
		must_be(f.deleted, 0);
	parent_tell(1);
	eventually(atomic_load(&f.deleted));
	eventually(td_status(d).segments == 0);
	gpu_must(cuda->stream_destroy(stream));
	tl_close(client);
	tl_close(other);
	return 0;
}

GPU_TEST(memory_is_kept_until_the_daemon_was_told)
{
	for (enum gpu_kind kind = GPU_LEGACY; kind <= GPU_VMM; kind++) {
		cleanup_gpu struct gpu_daemon g = gpu_start();
		struct test_child p = child_start_ready(&g.d, frees_when_nobody_listens, &kind), c;

		c = child_start_ready(&g.d, opens_and_stops, NULL);
		child_step(&p);
		td_freeze(&g.d);
		child_step(&p);
		td_thaw(&g.d);
		child_must_succeed(&p);
		child_finish(&c);
		gpu_nothing_left(&g);
	}
}

static int deletes_t(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	struct raw rc = rc_open(d);
	struct gpu_foreign f;
	struct gpu_memory m;

	(void)arg;
	gpu_memory_init(&m, GPU_LEGACY, N, 0);
	gpu_foreign_init(&f, m.base, N, 0);
	f.owned = &m;
	must_be(tl_publish(client, "t", &f.managed, NULL, NULL, NULL), 0);
	pause_at(1); /* another process has it open */
	must_be(tl_delete(client, "t"), 0);
	eventually(!(atomic_load(&rc_segment(&rc, 0)->word) & 1)); /* UNMAP was sent */
	pause_at(1);
	eventually(atomic_load(&f.deleted));
	rc_goodbye(&rc);
	tl_close(client);
	return 0;
}

/* Closes the memory while the daemon reads nothing, and then never calls the library again. */
static int closes_when_nobody_listens(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	CUdeviceptr memory = gpu_alloc(N);
	int fd = only_socket(d);
	CUstream stream;

	(void)arg;
	drop(gpu_get(client, "t", TL_STREAM_NONE));
	gpu_must(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING));
	gpu_hold(getpid());
	gpu_fill(memory, 1, N, stream);
	pause_at(1); /* the producer deletes it */
	eventually(gpu_live(FAKE_CLOSING) == 1);
	pause_at(1); /* the daemon stands still */
	fill_socket(fd);
	client_set_timeout(client, 2 * SECOND);
	gpu_hold(0);
	eventually(gpu_live(FAKE_IMPORT) == 0);
	say_something_in_vain(client);
	pause_at(1);
	gpu_must(cuda->mem_free(memory));
	gpu_must(cuda->stream_destroy(stream));
	tl_close(client);
	return 0;
}

GPU_TEST(the_daemon_is_told_later_that_memory_was_closed)
{
	SKIP_UNLESS(!gpu_is_real(), "needs a driver that counts");
	cleanup_gpu struct gpu_daemon g = gpu_start();
	struct test_child p = child_start_ready(&g.d, deletes_t, NULL), c;

	c = child_start_ready(&g.d, closes_when_nobody_listens, NULL);
	child_step(&p);
	child_step(&c);
	td_freeze(&g.d);
	child_step(&c);
	td_thaw(&g.d);
	child_finish(&p);
	child_finish(&c);
	gpu_nothing_left(&g);
}

/* ---- An export of one's own that ends before the answer ---- */

struct opening {
	struct cuda_session *cs;
	uint32_t generation;
	_Atomic pid_t tid;
};

static void *opens(void *arg)
{
	struct opening *o = arg;
	struct get_until until;
	struct cuda_import *import = NULL;

	until.answer = until.work = session_deadline(o->cs->session);
	atomic_store(&o->tid, gettid());
	must_be(cuda_import_get(o->cs, 0, o->generation, until, &import), 0);
	must(import->mapping); /* as if another process had exported it */
	cuda_import_put(import);
	return NULL;
}

/* The connection that exported the memory ends while another of the process asks for it. */
static int loses_its_export(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0), *other = td_connect(d);
	const struct session *s = atomic_load(&client->session);
	struct raw rc = rc_open(d);
	struct opening o = { 0 };
	pthread_t thread;

	(void)arg;
	gpu_put_draft(client, "t", 5, N, 0, CUDA_STREAM_LEGACY);
	eventually(gpu_unfinished(&rc) == 0);
	o.generation = (uint32_t)(atomic_load(&rc_segment(&rc, 0)->word) >> 1);
	must_be(cuda_session_with_thread(atomic_load(&other->session), &o.cs), 0);
	td_freeze(d);
	must_be(pthread_create(&thread, NULL, opens, &o), 0);
	until_it_sleeps(&o.tid); /* it waits for the answer */
	must_be(shutdown(session_socket(s), SHUT_RDWR), 0);
	eventually(!exports_any(s));
	td_thaw(d);
	pthread_join(thread, NULL);
	must_be(tl_delete(other, "t"), 0);
	rc_goodbye(&rc);
	tl_close(other);
	tl_close(client);
	return 0;
}

GPU_TEST(memory_of_a_connection_that_ends_is_opened_by_another)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, loses_its_export, NULL), 0);
	gpu_nothing_left(&g);
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
