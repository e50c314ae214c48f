/* SPDX-License-Identifier: Apache-2.0 */
/* Measures by size what exporting, opening and importing cost: the driver's calls and the
 * library's. Medians of five. */
#include "tests/gpu_check/check.h"

enum { TIMES = 5, SIZES = 6 };

static const size_t sizes[SIZES] = { 64 << 10,	   2 << 20,    64 << 20,
				     512ULL << 20, 2ULL << 30, 8ULL << 30 };

struct exported {
	struct cuda_ipc_handle handle;
	size_t size;
	bool legacy, vmm;
	double legacy_us, export_us, make_us;
	int sockets[2];
};

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values)
{
	qsort(values, TIMES, sizeof(*values), by_value);
	return values[TIMES / 2];
}

static double since_us(int64_t begin)
{
	return (double)(now_ns() - begin) / 1e3;
}

static const char *size_text(size_t size, char text[24])
{
	if (size >> 30)
		snprintf(text, 24, "%zu GiB", size >> 30);
	else if (size >> 20)
		snprintf(text, 24, "%zu MiB", size >> 20);
	else
		snprintf(text, 24, "%zu KiB", size >> 10);
	return text;
}

static int exporter(const struct test_daemon *d, void *arg)
{
	struct exported *e = arg;
	struct vmm_block b = { 0 };
	CUdeviceptr p = 0;
	int64_t begin;

	(void)d;
	cuda = gpu_use(0);
	if (free_bytes() / 3 >= e->size && !cuda->mem_alloc(&p, e->size)) {
		begin = now_ns();
		e->legacy = !cuda->ipc_get_mem_handle(&e->handle, p);
		e->legacy_us = since_us(begin);
	}
	if (p && cuda->mem_create && e->size >= 2 << 20) {
		begin = now_ns();
		e->vmm = !vmm_make(&b, e->size);
		e->make_us = since_us(begin);
	}
	if (e->vmm) {
		begin = now_ns();
		fd_send(e->sockets[0], vmm_export(&b));
		e->export_us = since_us(begin);
	}
	pause_at(p != 0);
	return 0;
}

static int importer(const struct test_daemon *d, void *arg)
{
	struct exported *e = arg;
	double open[TIMES], close_[TIMES], map[TIMES], unmap[TIMES];
	char name[64], size[24];
	struct vmm_block b;
	int64_t begin;
	CUdeviceptr p;
	int fd;

	(void)d;
	cuda = gpu_use(0);
	size_text(e->size, size);
	for (int i = 0; i < TIMES && e->legacy; i++) {
		begin = now_ns();
		gpu_must(cuda->ipc_open_mem_handle(&p, e->handle, 1));
		open[i] = since_us(begin);
		begin = now_ns();
		gpu_must(cuda->ipc_close_mem_handle(p));
		close_[i] = since_us(begin);
	}
	snprintf(name, sizeof(name), "legacy, %s", size);
	if (e->legacy)
		row("info", name, "export %.1f us, open %.1f us, close %.1f us", e->legacy_us,
		    median(open), median(close_));
	fd = e->vmm ? fd_receive(e->sockets[1]) : -1;
	for (int i = 0; i < TIMES && e->vmm; i++) {
		begin = now_ns();
		gpu_must(vmm_import(&b, fd, e->size, CUDA_ACCESS_READ));
		map[i] = since_us(begin);
		begin = now_ns();
		vmm_end(&b);
		unmap[i] = since_us(begin);
	}
	snprintf(name, sizeof(name), "VMM, %s", size);
	if (e->vmm)
		row("info", name,
		    "make and map %.1f us, export and send %.1f us, import and map %.1f us, unmap %.1f us",
		    e->make_us, e->export_us, median(map), median(unmap));
	return 0;
}

GPU_TEST(the_drivers_calls)
{
	struct exported *e = shared_memory(sizeof(*e));

	test_timeout(300);
	for (int i = 0; i < SIZES; i++) {
		struct test_child p;
		char size[24];

		*e = (struct exported){ .size = sizes[i] };
		must_be(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, e->sockets), 0);
		p = child_start(NULL, exporter, e);
		if (child_await(&p))
			must_be(td_run_client(NULL, importer, e), 0);
		else
			row("skip", size_text(e->size, size),
			    "this GPU has too little free memory");
		child_finish(&p);
		close(e->sockets[0]);
		close(e->sockets[1]);
	}
	munmap(e, sizeof(*e));
}

/* ---- The library ---- */

struct shared {
	size_t size;
	bool vmm;
};

static int library_producer(const struct test_daemon *d, void *arg)
{
	const struct shared *s = arg;
	tl_client *client = gpu_open(d, 0);
	tl_put_options o = { .size = sizeof(o), .stream = TL_STREAM_NONE };
	struct gpu_foreign f;
	double us[TIMES];
	char name[64], size[24];
	int64_t begin;

	if (free_bytes() / 3 < s->size) {
		parent_tell(0);
		return 0;
	}
	if (s->vmm) {
		gpu_put_draft(client, "t", 1, (int64_t)s->size, 0, CUDA_STREAM_LEGACY);
		gpu_must(cuda->ctx_synchronize());
	} else {
		CUdeviceptr p = gpu_alloc(s->size);

		for (int i = 0; i < TIMES; i++) { /* it starts from nothing, since the one before is
						     freed */
			gpu_foreign_init(&f, p, (int64_t)s->size, 0);
			begin = now_ns();
			must_be(tl_publish(client, "t", &f.managed, &o, NULL, NULL), 0);
			us[i] = since_us(begin);
			if (i + 1 == TIMES)
				break;
			must_be(tl_delete(client, "t"), 0);
			eventually(atomic_load(&f.deleted));
		}
		snprintf(name, sizeof(name), "tl_publish, %s", size_text(s->size, size));
		row("info", name, "%.1f us", median(us));
	}
	pause_at(1);
	tl_close(client);
	return 0;
}

static int library_consumer(const struct test_daemon *d, void *arg)
{
	const struct shared *s = arg;
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t;
	double again[TIMES], first;
	char name[64], size[24];
	int64_t begin = now_ns();

	t = gpu_get(client, "t", TL_STREAM_LEGACY);
	first = since_us(begin);
	for (int i = 0; i < TIMES; i++) {
		DLManagedTensorVersioned *more;

		begin = now_ns();
		more = gpu_get(client, "t", TL_STREAM_LEGACY);
		again[i] = since_us(begin);
		drop(more);
	}
	drop(t);
	snprintf(name, sizeof(name), "tl_get of %s memory, %s", s->vmm ? "VMM" : "plain",
		 size_text(s->size, size));
	row("info", name, "first %.1f us, again %.1f us", first, median(again));
	tl_close(client);
	return 0;
}

GPU_TEST(the_librarys_calls)
{
	test_timeout(300);
	for (int i = 0; i < 2 * 3; i++) {
		struct shared s = { .size = sizes[1 + i / 2], .vmm = i % 2 };
		cleanup_td struct test_daemon d = td_start();
		struct test_child p = child_start(&d, library_producer, &s);

		if (child_await(&p)) {
			must_be(td_run_client(&d, library_consumer, &s), 0);
			child_go(&p);
		}
		child_must_succeed(&p);
	}
}

/* ---- Streams with work on them ---- */

enum { WORK_NS = 200 * 1000 * 1000, QUEUE_MAX = 800, TENSOR = 1 << 20 };

struct work {
	CUstream stream;
	CUdeviceptr scratch;
	size_t size;
	int64_t each_ns;
};

static int64_t fill_once(const struct work *w)
{
	int64_t begin = now_ns();

	gpu_must(cuda->memset_d8_async(w->scratch, 1, w->size, w->stream));
	gpu_must(cuda->stream_synchronize(w->stream));
	return now_ns() - begin;
}

/* Finds memory that takes so long to fill that a queue holds WORK_NS of it. The first fill loads
 * the kernel. */
static void work_init(struct work *w)
{
	*w = (struct work){ .size = 16 << 20 };
	gpu_must(cuda->stream_create(&w->stream, CUDA_STREAM_NON_BLOCKING));
	for (;;) {
		w->scratch = gpu_alloc(w->size);
		fill_once(w);
		w->each_ns = fill_once(w) + 1;
		if (w->each_ns * QUEUE_MAX >= WORK_NS || w->size >= free_bytes() / 4)
			return;
		gpu_must(cuda->mem_free(w->scratch));
		w->size *= 2;
	}
}

static void work_queue(const struct work *w)
{
	for (int64_t n = WORK_NS / w->each_ns + 1; n > 0; n--)
		gpu_must(cuda->memset_d8_async(w->scratch, (unsigned char)n, w->size, w->stream));
}

static bool is_busy(const struct work *w)
{
	return cuda->stream_query(w->stream) == CUDA_E_NOT_READY;
}

static const char *busy_text(unsigned busy)
{
	return busy == TIMES ? "" : " (some streams had ended their work by then)";
}

static int busy_producer(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	struct gpu_foreign known[2 * TIMES], again[2 * TIMES];
	double us[2][TIMES];
	unsigned busy = 0;
	struct work w;

	(void)arg;
	work_init(&w);
	for (int i = 0; i < 2 * TIMES; i++) {
		tl_put_options o = { .size = sizeof(o), .stream = (intptr_t)w.stream };
		int64_t begin;

		gpu_foreign_init(&known[i], gpu_alloc(TENSOR), TENSOR, 0);
		gpu_foreign_init(&again[i], known[i].memory, TENSOR, 0);
		must_be(tl_publish(client, "known", &known[i].managed, &o, NULL, NULL), 0);
		if (i % 2)
			work_queue(&w);
		begin = now_ns();
		must_be(tl_publish(client, "again", &again[i].managed, &o, NULL, NULL), 0);
		us[i % 2][i / 2] = since_us(begin);
		busy += i % 2 && is_busy(&w);
		gpu_must(cuda->stream_synchronize(w.stream));
	}
	row("info", "tl_publish of an allocation that is exported",
	    "idle stream %.1f us, busy %.1f us%s", median(us[0]), median(us[1]), busy_text(busy));
	for (int i = 0; i < TIMES; i++) { /* for gets that find work unfinished */
		struct gpu_foreign unfinished;
		tl_put_options o = { .size = sizeof(o), .stream = (intptr_t)w.stream };

		gpu_foreign_init(&unfinished, gpu_alloc(TENSOR), TENSOR, 0);
		work_queue(&w);
		must_be(tl_publish(client, "late", &unfinished.managed, &o, NULL, NULL), 0);
		pause_at(1);
		gpu_must(cuda->stream_synchronize(w.stream));
		must_be(tl_delete(client, "late"), 0);
		eventually(atomic_load(&unfinished.deleted));
	}
	must_be(tl_delete(client, "known") + tl_delete(client, "again"), 0);
	pause_at(1);
	tl_close(client);
	return 0;
}

static int busy_consumer(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	double get[TIMES], idle[TIMES], late[TIMES];
	unsigned busy = 0, waited = 0;
	struct work w;

	(void)arg;
	work_init(&w);
	for (int i = 0; i < TIMES; i++) {
		DLManagedTensorVersioned *t;
		int64_t begin = now_ns();

		t = gpu_get(client, "late", (intptr_t)w.stream);
		get[i] = since_us(begin);
		waited += is_busy(&w);
		gpu_must(cuda->stream_synchronize(w.stream));
		begin = now_ns();
		drop(t);
		idle[i] = since_us(begin);
		t = gpu_get(client, "late", (intptr_t)w.stream);
		work_queue(&w);
		begin = now_ns();
		drop(t);
		late[i] = since_us(begin);
		busy += is_busy(&w);
		gpu_must(cuda->stream_synchronize(w.stream));
		pause_at(1);
	}
	row("info", "tl_get of what is not finished", "%.1f us%s", median(get),
	    waited == TIMES ? "" : " (some work had ended by then)");
	row("info", "release", "idle stream %.1f us, busy %.1f us%s", median(idle), median(late),
	    busy_text(busy));
	tl_close(client);
	return 0;
}

GPU_TEST(streams_with_work)
{
	cleanup_td struct test_daemon d = td_start();
	struct test_child p, c;

	test_timeout(300);
	p = child_start_ready(&d, busy_producer, NULL);
	c = child_start(&d, busy_consumer, NULL);
	for (int i = 0; i < TIMES; i++) {
		child_await(&c);
		child_step(&p);
		child_go(&c);
	}
	child_must_succeed(&c);
	child_finish(&p);
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
