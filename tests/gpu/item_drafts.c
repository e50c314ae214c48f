/* SPDX-License-Identifier: Apache-2.0 */
/* Items that are written in place on a GPU, beside parts on the CPU. */
#include "tests/gpu/capture.h"
#include "tests/gpu/items.h"
#include "tests/harness/sleeper.h"

enum { WEIGHTS, STEP, BIAS };

/* An item as those of items.h, whose parts on the GPU are written on @stream. */
static int try_draft(tl_stream *s, int device, intptr_t stream, tl_item_draft **draft)
{
	const tl_stream_put_options o = { .size = sizeof(o),
					  .timeout_ns = WAIT_S * SECOND,
					  .stream = stream };
	int64_t large = N, small = SMALL, one = 1;
	DLTensor weights = tensor_on(device, 0, &large), bias = tensor_on(0, 0, &small);
	DLTensor step = {
		.device = { kDLCPU, 0 }, .ndim = 1, .dtype = { kDLInt, 32, 1 }, .shape = &one
	};
	const tl_part parts[] = { { .name = "weights", .tensor = &weights },
				  { .name = "step", .tensor = &step },
				  { .name = "bias", .tensor = &bias } };

	return tl_stream_draft(s, parts, 3, &o, draft);
}

static tl_item_draft *draft_of(tl_stream *s, intptr_t stream)
{
	tl_item_draft *draft = NULL;

	must_be(try_draft(s, 0, stream, &draft), 0);
	return draft;
}

static CUdeviceptr address_of(tl_item_draft *draft, size_t i)
{
	return (CUdeviceptr)(uintptr_t)tl_item_draft_tensor(draft, i)->data;
}

static void write_draft(tl_item_draft *draft, int value, CUstream stream)
{
	gpu_fill(address_of(draft, WEIGHTS), value, N, stream);
	*(int *)tl_item_draft_tensor(draft, STEP)->data = value;
	gpu_fill(address_of(draft, BIAS), value, SMALL, stream);
}

static int try_commit(tl_item_draft *draft, intptr_t stream, uint32_t flags, int64_t timeout_ns)
{
	const tl_stream_put_options o = {
		.size = sizeof(o), .timeout_ns = timeout_ns, .stream = stream, .flags = flags
	};

	return tl_item_draft_commit(draft, &o, NULL);
}

static void commit(tl_item_draft *draft, CUstream stream)
{
	must_be(try_commit(draft, (intptr_t)stream, 0, WAIT_S * SECOND), 0);
}

static void drop_tensor(DLManagedTensorVersioned *t)
{
	t->deleter(t);
}

/* A process with a stream on which it writes, and a subscription on another one. */
struct writer {
	tl_client *client;
	tl_stream *s;
	tl_subscription *sub;
	CUstream writes, reads;
};

static struct writer writer_open(const struct test_daemon *d, uint32_t mode, uint32_t depth)
{
	struct writer w = { .client = gpu_open(d, 0) };

	w.writes = new_stream();
	w.reads = new_stream();
	w.s = open_stream(w.client, mode, depth);
	w.sub = subscribe_on(w.s, w.reads);
	return w;
}

static int writer_close(const struct writer *w)
{
	gpu_must(cuda->ctx_synchronize());
	tl_subscription_close(w->sub);
	tl_stream_close(w->s);
	must_be(tl_delete(w->client, "s"), 0);
	tl_close(w->client);
	return 0;
}

static void take_value(const struct writer *w, int value)
{
	tl_item *item = take(w->sub);

	item_must_be(item, value, w->reads);
	must_be(tl_item_release(item), 0);
}

static void in_one_process(child_fn *fn)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();

	must_be(td_run_client(&g.d, fn, NULL), 0);
	gpu_nothing_left(&g);
}

/* ---- putting --------------------------------------------------------------------------------- */

static int draft_many(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	tl_stream *s = open_stream(client, *(uint32_t *)arg, DEPTH);
	CUstream stream = new_stream();

	pause_at(1);
	for (int i = 0; i < ITEMS; i++) {
		tl_item_draft *draft = draft_of(s, TL_STREAM_DEFAULT);

		write_draft(draft, i, stream);
		must_be(try_commit(draft, (intptr_t)stream, i % 3 ? 0 : TL_PUBLISH_SEALED,
				   WAIT_S * SECOND),
			0);
	}
	must_be(tl_stream_end(s, &TL_INIT(tl_stream_put_options, .timeout_ns = -1)), 0);
	pause_at(2);
	tl_stream_close(s);
	tl_close(client);
	return 0;
}

GPU_TEST(a_broadcast_of_drafts_on_a_gpu)
{
	flow(TL_STREAM_BROADCAST, draft_many);
}

GPU_TEST(a_queue_of_drafts_on_a_gpu)
{
	flow(TL_STREAM_QUEUE, draft_many);
}

static int looks_at_parts(const struct test_daemon *d, void *arg)
{
	struct writer w = writer_open(d, TL_STREAM_BROADCAST, DEPTH);
	tl_item_draft *draft = draft_of(w.s, TL_STREAM_DEFAULT);
	const DLTensor *weights = tl_item_draft_tensor(draft, WEIGHTS),
		       *step = tl_item_draft_tensor(draft, STEP);

	(void)arg;
	must_be(weights->device.device_type, kDLCUDA);
	must_be(weights->device.device_id, 0);
	must_be(weights->shape[0], N);
	must_be(weights->strides[0], 1);
	must_be(step->device.device_type, kDLCPU);
	must(address_of(draft, BIAS) >= address_of(draft, WEIGHTS) + N);
	must_be(address_of(draft, BIAS) % 256, 0);
	must(!tl_item_draft_tensor(draft, 3));
	must_be(tensors_below(w.client, "s"), 0); /* nobody sees anything before the commit */
	write_draft(draft, 3, w.writes);
	commit(draft, w.writes);
	take_value(&w, 3);
	return writer_close(&w);
}

GPU_TEST(the_parts_of_a_draft_are_where_they_are_to_be)
{
	in_one_process(looks_at_parts);
}

static int refuses(const struct test_daemon *d, void *arg)
{
	struct writer w = writer_open(d, TL_STREAM_BROADCAST, DEPTH);
	tl_item_draft *draft = NULL;
	int64_t one = 1;
	DLTensor t = tensor_on(0, 0, &one);

	(void)arg;
	must_refuse(try_draft(w.s, 1, 0, &draft), -ENOTSUP, "are on one");
	t.device.device_type = kDLROCM;
	must_be(tl_stream_draft(w.s, &(tl_part){ .tensor = &t }, 1, NULL, &draft), -EINVAL);
	t.device = (DLDevice){ kDLCUDA, 99 };
	must_be(tl_stream_draft(w.s, &(tl_part){ .tensor = &t }, 1, NULL, &draft), -ENODEV);
	draft = draft_of(w.s, TL_STREAM_DEFAULT);
	write_draft(draft, 4, w.writes);
	capture_begin(w.writes, 2); /* relaxed */
	must_be(try_commit(draft, (intptr_t)w.writes, 0, 0), -EBUSY);
	capture_end(w.writes);
	commit(draft, w.writes);
	take_value(&w, 4);
	return writer_close(&w);
}

GPU_TEST(what_cannot_be_a_draft)
{
	in_one_process(refuses);
}

/* ---- the order ------------------------------------------------------------------------------- */

static int orders(const struct test_daemon *d, void *arg)
{
	struct writer w = writer_open(d, TL_STREAM_BROADCAST, DEPTH);
	tl_item *item;

	(void)arg;
	for (int named = 0; named < 2; named++) { /* when it is committed, or before */
		intptr_t early = named ? TL_STREAM_DEFAULT : (intptr_t)w.writes,
			 late = named ? (intptr_t)w.writes : TL_STREAM_DEFAULT;
		tl_item_draft *draft = draft_of(w.s, early);

		gpu_hold(getpid());
		write_draft(draft, 5 + named, w.writes);
		must_be(try_commit(draft, late, 0, 0), 0);
		item = take(w.sub);
		must_be(cuda->stream_query(w.reads), CUDA_E_NOT_READY);
		gpu_hold(0);
		item_must_be(item, 5 + named, w.reads);
		must_be(tl_item_release(item), 0);
	}
	return writer_close(&w);
}

GPU_TEST(consumers_wait_for_the_stream_that_writes_a_draft)
{
	in_one_process(orders);
}

struct sealing {
	tl_item_draft *draft;
	CUstream stream;
	CUcontext context;
	_Atomic pid_t tid;
	_Atomic int result;
};

static void *seals(void *arg)
{
	struct sealing *g = arg;

	gpu_must(cuda->ctx_set_current(g->context));
	atomic_store(&g->tid, (pid_t)syscall(SYS_gettid));
	g->result = try_commit(g->draft, (intptr_t)g->stream, TL_PUBLISH_SEALED, 0);
	return NULL;
}

/* Writes a draft that stands still, and lets a thread commit it, which sleeps then. */
static pthread_t begin_to_seal(struct sealing *g, int value)
{
	pthread_t thread;

	g->result = 1;
	atomic_store(&g->tid, 0);
	gpu_must(cuda->ctx_get_current(&g->context));
	gpu_hold(getpid());
	write_draft(g->draft, value, g->stream);
	must_be(pthread_create(&thread, NULL, seals, g), 0);
	until_it_sleeps(&g->tid);
	must_be(g->result, 1);
	return thread;
}

static int end_sealing(const struct sealing *g, pthread_t thread)
{
	gpu_hold(0);
	pthread_join(thread, NULL);
	gpu_must(cuda->stream_query(g->stream));
	return g->result;
}

static int seals_a_draft(const struct test_daemon *d, void *arg)
{
	struct writer w = writer_open(d, TL_STREAM_BROADCAST, DEPTH);
	struct sealing g = { .draft = draft_of(w.s, TL_STREAM_DEFAULT), .stream = w.writes };
	pthread_t thread;

	(void)arg;
	thread = begin_to_seal(&g, 6);
	must_be(tensors_below(w.client, "s"), 0);
	must_be(end_sealing(&g, thread), 0);
	take_value(&w, 6);
	return writer_close(&w);
}

GPU_TEST(a_sealed_draft_is_written_when_it_is_put)
{
	SKIP_UNLESS(!gpu_is_real(), "needs a driver that holds work");
	in_one_process(seals_a_draft);
}

/* ---- no room --------------------------------------------------------------------------------- */

static int waits_for_room(const struct test_daemon *d, void *arg)
{
	struct writer w = writer_open(d, TL_STREAM_QUEUE, 1);
	tl_item_draft *draft = draft_of(w.s, TL_STREAM_DEFAULT);

	(void)arg;
	put_byte(w.s);
	write_draft(draft, 1, w.writes);
	must_be(try_commit(draft, (intptr_t)w.writes, 0, 0), -EAGAIN);
	must_be(try_commit(draft, (intptr_t)w.writes, TL_PUBLISH_SEALED, MS), -ETIMEDOUT);
	must_be(tensors_below(w.client, "s"), 0); /* so that it can be written again */
	write_draft(draft, 2, w.writes);
	must_be(tl_item_release(take(w.sub)), 0);
	commit(draft, w.writes);
	take_value(&w, 2);
	draft = draft_of(w.s, TL_STREAM_DEFAULT);
	put_byte(w.s);
	must_be(try_commit(draft, (intptr_t)w.writes, 0, MS), -ETIMEDOUT);
	must_be(tl_item_draft_abort(draft), 0);
	must_be(tl_stream_end(w.s, &TL_INIT(tl_stream_put_options, .timeout_ns = 0)), -EAGAIN);
	must_be(tl_item_release(take(w.sub)), 0);
	draft = draft_of(w.s, TL_STREAM_DEFAULT);
	must_be(tl_stream_end(w.s, NULL), 0);
	must_be(try_commit(draft, 0, 0, 0), -EPIPE);
	must_be(tl_item_draft_abort(draft), 0);
	return writer_close(&w);
}

GPU_TEST(a_draft_waits_for_room_before_it_is_published)
{
	in_one_process(waits_for_room);
}

/* Another producer is faster while the parts on the GPU are published. */
static void lose_the_room(const struct writer *w, struct sealing *g, tl_stream *other)
{
	pthread_t thread = begin_to_seal(g, 1);

	put_byte(other);
	must_be(end_sealing(g, thread), -EAGAIN);
	must_be(tensors_below(w->client, "s"), 1);
	must_be(tl_item_release(take(w->sub)), 0);
}

static int loses_the_room(const struct test_daemon *d, void *arg)
{
	struct writer w = writer_open(d, TL_STREAM_QUEUE, 1);
	tl_stream *other = open_stream(w.client, TL_STREAM_QUEUE, 1);
	struct sealing g = { .draft = draft_of(w.s, TL_STREAM_DEFAULT), .stream = w.writes };
	tl_item *item;

	(void)arg;
	lose_the_room(&w, &g, other);
	gpu_hold(getpid());
	write_draft(g.draft, 2, w.writes);
	must_be(try_commit(g.draft, (intptr_t)w.writes, 0, 0), 0);
	item = take(w.sub);
	must_be(cuda->stream_query(w.reads), CUDA_E_NOT_READY);
	gpu_hold(0);
	item_must_be(item, 2, w.reads);
	must_be(tl_item_release(item), 0);
	g.draft = draft_of(w.s, TL_STREAM_DEFAULT);
	must_be(tl_item_draft_abort(g.draft), 0);
	put_byte(w.s); /* the memory of the former item goes */
	must_be(tl_item_release(take(w.sub)), 0);
	must_be(tensors_below(w.client, "s"), 0);
	g.draft = draft_of(w.s, TL_STREAM_DEFAULT);
	lose_the_room(&w, &g, other);
	must_be(tl_item_draft_abort(g.draft), 0);
	must_be(tensors_below(w.client, "s"), 0);
	tl_stream_close(other);
	return writer_close(&w);
}

GPU_TEST(a_draft_that_lost_its_room_can_be_written_and_put_again)
{
	SKIP_UNLESS(!gpu_is_real(), "needs a driver that holds work");
	in_one_process(loses_the_room);
}

/* ---- the memory ------------------------------------------------------------------------------ */

enum { DRAFTS_MAX = 8 };

/* Makes drafts until the GPU is full. */
static int fill_gpu(tl_stream *s, tl_item_draft *drafts[DRAFTS_MAX])
{
	int n = 0, r;

	while (!(r = try_draft(s, 0, TL_STREAM_NONE, &drafts[n])))
		must(++n < DRAFTS_MAX);
	must(n >= 2);
	must_be(r, -ENOMEM);
	return n;
}

static int aborts(const struct test_daemon *d, void *arg)
{
	struct writer w = writer_open(d, TL_STREAM_BROADCAST, DEPTH);
	tl_item_draft *draft = draft_of(w.s, (intptr_t)w.writes), *others[DRAFTS_MAX];
	CUdeviceptr first = address_of(draft, WEIGHTS);
	int n = fill_gpu(w.s, others);

	(void)arg;
	gpu_hold(getpid());
	write_draft(draft, 1, w.writes);
	must_be(tl_item_draft_abort(draft), 0);
	must_be(try_draft(w.s, 0, TL_STREAM_NONE, &draft), -ENOMEM); /* it is being written */
	gpu_hold(0);
	eventually(!try_draft(w.s, 0, TL_STREAM_NONE, &draft));
	must(address_of(draft, WEIGHTS) == first);
	must_be(tl_item_draft_abort(draft), 0);
	while (n)
		must_be(tl_item_draft_abort(others[--n]), 0);
	must_be(tensors_below(w.client, "s"), 0);
	return writer_close(&w);
}

GPU_TEST(the_memory_of_an_aborted_draft_is_used_again_once_it_is_written)
{
	SKIP_UNLESS(!gpu_is_real(), "needs a GPU of 16 MiB");
	gpu_setenv("FAKECUDA_MEMORY", "16777216");
	in_one_process(aborts);
}

static int fills_gpu(const struct test_daemon *d, void *arg)
{
	struct writer w = writer_open(d, TL_STREAM_BROADCAST, DEPTH);
	tl_item_draft *drafts[DRAFTS_MAX];
	int n = fill_gpu(w.s, drafts);

	(void)arg;
	must_be(tl_item_draft_abort(drafts[--n]), 0);
	for (int i = 0; i < 20; i++) { /* all in the memory of one */
		tl_item_draft *draft = draft_of(w.s, TL_STREAM_NONE);

		write_draft(draft, i, w.writes);
		commit(draft, w.writes);
		take_value(&w, i);
	}
	while (n)
		must_be(tl_item_draft_abort(drafts[--n]), 0);
	return writer_close(&w);
}

GPU_TEST(a_full_gpu_refuses_a_draft)
{
	SKIP_UNLESS(!gpu_is_real(), "needs a GPU of 16 MiB");
	gpu_setenv("FAKECUDA_MEMORY", "16777216");
	in_one_process(fills_gpu);
}

/* The tensors of a draft keep its memory, whatever becomes of the item, the stream and the
 * client. */
static int exports(const struct test_daemon *d, void *arg)
{
	struct writer w = writer_open(d, TL_STREAM_BROADCAST, 1);
	tl_item_draft *draft = draft_of(w.s, TL_STREAM_DEFAULT);
	DLManagedTensorVersioned *weights, *bias, *aborted;

	(void)arg;
	must_be(tl_item_draft_to_dlpack(draft, WEIGHTS, &weights), 0);
	must_be(tl_item_draft_to_dlpack(draft, BIAS, &bias), 0);
	must_be(weights->flags & DLPACK_FLAG_BITMASK_READ_ONLY, 0);
	must_be(weights->dl_tensor.device.device_type, kDLCUDA);
	must(gpu_data(bias) == address_of(draft, BIAS));
	write_draft(draft, 7, w.writes);
	commit(draft, w.writes);
	drop_tensor(bias);
	take_value(&w, 7);
	draft = draft_of(w.s, TL_STREAM_DEFAULT);
	must_be(tl_item_draft_to_dlpack(draft, WEIGHTS, &aborted), 0);
	write_draft(draft, 8, CUDA_STREAM_LEGACY);
	must_be(tl_item_draft_abort(draft), 0);
	for (int i = 10; i < 16; i++) { /* the former has been replaced, and its memory has not */
		draft = draft_of(w.s, TL_STREAM_DEFAULT);
		must(address_of(draft, WEIGHTS) != gpu_data(weights));
		must(address_of(draft, WEIGHTS) != gpu_data(aborted));
		write_draft(draft, i, w.writes);
		commit(draft, w.writes);
		take_value(&w, i);
	}
	writer_close(&w);
	must_be(gpu_read(gpu_data(weights), N, w.reads), 7);
	must_be(gpu_read(gpu_data(aborted), N, w.reads), 8);
	drop_tensor(weights);
	drop_tensor(aborted);
	return 0;
}

GPU_TEST(the_tensors_of_a_draft_keep_its_memory)
{
	in_one_process(exports);
}

/* A tensor of a draft is published under a name as well: both are the same bytes. */
static int publishes_a_part(const struct test_daemon *d, void *arg)
{
	struct writer w = writer_open(d, TL_STREAM_BROADCAST, DEPTH);
	tl_item_draft *draft = draft_of(w.s, TL_STREAM_DEFAULT);
	DLManagedTensorVersioned *weights, *named;

	(void)arg;
	must_be(tl_item_draft_to_dlpack(draft, WEIGHTS, &weights), 0);
	write_draft(draft, 3, w.writes);
	must_be(tl_publish(w.client, "weights", weights,
			   &TL_INIT(tl_put_options, .stream = (intptr_t)w.writes), NULL, NULL),
		0);
	commit(draft, w.writes);
	take_value(&w, 3);
	for (int i = 10; i < 16; i++) {
		draft = draft_of(w.s, TL_STREAM_DEFAULT);
		write_draft(draft, i, w.writes);
		commit(draft, w.writes);
		take_value(&w, i);
	}
	named = gpu_get(w.client, "weights", (intptr_t)w.reads);
	must_be(gpu_read(gpu_data(named), N, w.reads), 3);
	drop_tensor(named);
	must_be(tl_delete(w.client, "weights"), 0);
	return writer_close(&w);
}

GPU_TEST(a_part_of_a_draft_may_be_published_too)
{
	in_one_process(publishes_a_part);
}

/* ---- the end --------------------------------------------------------------------------------- */

static int closes(const struct test_daemon *d, void *arg)
{
	struct writer w = writer_open(d, TL_STREAM_BROADCAST, DEPTH);
	tl_item_draft *draft = draft_of(w.s, TL_STREAM_DEFAULT),
		      *other = draft_of(w.s, TL_STREAM_DEFAULT);
	DLManagedTensorVersioned *t;

	(void)arg;
	must_be(tl_item_draft_to_dlpack(other, WEIGHTS, &t), 0);
	tl_subscription_close(w.sub);
	must_be(tl_stream_close(w.s), 0);
	must_be(try_commit(draft, 0, 0, 0), -ECANCELED);
	must_be(tl_item_draft_abort(other), 0);
	must_be(tl_delete(w.client, "s"), 0);
	must_be(try_commit(draft, 0, 0, 0), -ESTALE);
	tl_close(w.client);
	must_be(tl_item_draft_to_dlpack(draft, WEIGHTS, &t) < 0, 1);
	must_be(tl_item_draft_abort(draft), 0);
	gpu_fill(gpu_data(t), 1, N, CUDA_STREAM_LEGACY);
	drop_tensor(t);
	return 0;
}

GPU_TEST(a_draft_of_a_stream_and_a_client_that_were_closed)
{
	in_one_process(closes);
}

static _Noreturn void in_child(tl_item_draft *draft, DLManagedTensorVersioned *t, tl_stream *s)
{
	DLManagedTensorVersioned *more;

	must_be(try_commit(draft, 0, 0, 0), -ECHILD);
	must_be(tl_item_draft_to_dlpack(draft, WEIGHTS, &more), -ESTALE);
	drop_tensor(t);
	must_be(tl_item_draft_abort(draft), 0);
	must_be(tl_stream_close(s), 0);
	_exit(0);
}

static int forks(const struct test_daemon *d, void *arg)
{
	struct writer w = writer_open(d, TL_STREAM_BROADCAST, DEPTH);
	tl_item_draft *draft = draft_of(w.s, TL_STREAM_DEFAULT);
	DLManagedTensorVersioned *t;
	int status = -1;
	pid_t pid;

	(void)arg;
	must_be(tl_item_draft_to_dlpack(draft, WEIGHTS, &t), 0);
	pid = fork();
	must(pid >= 0);
	if (!pid)
		in_child(draft, t, w.s);
	must_be(waitpid(pid, &status, 0), pid);
	must_be(status, 0);
	write_draft(draft, 5, w.writes);
	commit(draft, w.writes);
	take_value(&w, 5);
	drop_tensor(t);
	return writer_close(&w);
}

GPU_TEST(a_draft_is_its_processs)
{
	in_one_process(forks);
}

static int drafts_and_stays(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	tl_stream *s = open_stream(client, TL_STREAM_QUEUE, DEPTH);
	tl_item_draft *draft = draft_of(s, TL_STREAM_DEFAULT), *other;
	DLManagedTensorVersioned *t;

	(void)arg;
	must_be(tl_item_draft_to_dlpack(draft, BIAS, &t), 0);
	write_draft(draft, 1, CUDA_STREAM_LEGACY);
	commit(draft, CUDA_STREAM_LEGACY);
	other = draft_of(s, TL_STREAM_DEFAULT);
	write_draft(other, 2, CUDA_STREAM_LEGACY);
	gpu_must(cuda->ctx_synchronize());
	pause_at(1);
	return 0;
}

/* What it has put stays, and the draft that it was about to put leaves nothing. */
GPU_TEST(a_producer_is_killed_with_a_draft)
{
	cleanup_gpu struct gpu_daemon g = gpu_start();
	tl_client *client = td_connect(&g.d);
	struct test_child producer = child_start_ready(&g.d, drafts_and_stays, NULL);
	struct raw rc = rc_open(&g.d);

	must_be(look(client).rows, 2);
	eventually(gpu_unfinished(&rc) == 0);
	rc_goodbye(&rc);
	child_kill(&producer);
	eventually(look(client).rows == 1);
	must_be(tensors_below(client, "s"), 1);
	tl_close(client);
	delete_stream(&g.d);
	gpu_nothing_left(&g);
}

static int loses_its_daemon(const struct test_daemon *d, void *arg)
{
	struct writer w = writer_open(d, TL_STREAM_BROADCAST, DEPTH);
	tl_item_draft *draft = draft_of(w.s, TL_STREAM_DEFAULT);
	DLManagedTensorVersioned *t;

	(void)arg;
	must_be(tl_item_draft_to_dlpack(draft, WEIGHTS, &t), 0);
	pause_at(1); /* the daemon is killed */
	write_draft(draft, 5, w.writes);
	eventually(try_commit(draft, (intptr_t)w.writes, 0, 0) == -ESTALE);
	must_be(gpu_read(gpu_data(t), N, w.writes), 5);
	must_be(tl_item_draft_abort(draft), 0);
	drop_tensor(t);
	tl_subscription_close(w.sub);
	tl_stream_close(w.s);
	tl_close(w.client);
	return 0;
}

GPU_TEST(a_draft_of_a_daemon_that_was_killed)
{
	struct gpu_daemon g = gpu_start();
	struct test_child producer = child_start_ready(&g.d, loses_its_daemon, NULL);

	td_kill(&g.d);
	child_finish(&producer);
	g = gpu_start(.socket = g.d.socket); /* removes what the dead one left */
	gpu_nothing_left(&g);
	td_stop(&g.d);
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
