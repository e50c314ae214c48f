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

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
