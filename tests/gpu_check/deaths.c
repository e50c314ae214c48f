/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out what becomes of GPU memory whose process is killed, and whether it opens across PID
 * namespaces. */
#include "tests/gpu_check/check.h"

#include <sched.h>
#include <sys/mount.h>

enum { N = 64 << 20, VALUE = 0x77 };

struct exported {
	struct cuda_ipc_handle memory, event;
	int sockets[2];
	pid_t pid;
};

static struct exported *exported_new(void)
{
	struct exported *e = shared_memory(sizeof(*e));

	must_be(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, e->sockets), 0);
	return e;
}

static void exported_free(struct exported *e)
{
	close(e->sockets[0]);
	close(e->sockets[1]);
	munmap(e, sizeof(*e));
}

/* ---- VMM memory, held by a process without CUDA ---- */

static int vmm_exporter(const struct test_daemon *d, void *arg)
{
	struct exported *e = arg;
	struct vmm_block b;

	(void)d;
	cuda = gpu_use(0);
	if (!cuda->mem_create || vmm_make(&b, N)) {
		parent_tell(0);
		return 0;
	}
	gpu_fill(b.at, VALUE, N, CUDA_STREAM_LEGACY);
	gpu_must(cuda->ctx_synchronize());
	fd_send(e->sockets[0], vmm_export(&b));
	pause_at(1);
	return 0;
}

static int observer(const struct test_daemon *d, void *arg)
{
	(void)d, (void)arg;
	cuda = gpu_use(0);
	for (int i = 0; i < 3; i++)
		pause_at(free_bytes());
	return 0;
}

static int vmm_late_importer(const struct test_daemon *d, void *arg)
{
	int fd = *(int *)arg;
	struct vmm_block b;
	CUresult r;
	int value;

	(void)d;
	cuda = gpu_use(0);
	r = vmm_import(&b, fd, N, CUDA_ACCESS_READ);
	if (r) {
		row("differs", "VMM import after the producer's SIGKILL", "%s", cuda_error_text(r));
		return 0;
	}
	value = gpu_read(b.at, N, CUDA_STREAM_LEGACY);
	row(value == VALUE ? "ok" : "differs", "VMM import after the producer's SIGKILL",
	    "opens; its bytes are %s", value == VALUE ? "right" : "not what was written");
	vmm_end(&b);
	return 0;
}

/* Like the daemon, this process has the descriptor and never uses CUDA. */
GPU_TEST(a_descriptor_keeps_memory_alive)
{
	struct exported *e = exported_new();
	struct test_child o = child_start(NULL, observer, NULL), p;
	uint64_t before = child_await(&o), held, after;
	int fd;

	p = child_start(NULL, vmm_exporter, e);
	if (!child_await(&p)) {
		row("skip", "VMM memory kept by a descriptor", "no such memory on this GPU");
		child_must_succeed(&p);
		child_kill(&o);
		exported_free(e);
		return;
	}
	fd = fd_receive(e->sockets[1]);
	child_kill(&p);
	held = child_step(&o);
	must_be(td_run_client(NULL, vmm_late_importer, &fd), 0);
	close(fd);
	after = child_step(&o);
	row(before >= held + N / 2 ? "ok" : "differs", "VMM memory kept by a descriptor alone",
	    "after the producer's SIGKILL %lld of 64 MiB are in use",
	    ((long long)before - (long long)held) >> 20);
	row(after + N / 2 >= before ? "ok" : "differs", "... after the descriptor is closed",
	    "%lld MiB are in use", ((long long)before - (long long)after) >> 20);
	child_finish(&o);
	exported_free(e);
}

/* ---- Legacy memory ---- */

static int legacy_exporter(const struct test_daemon *d, void *arg)
{
	struct exported *e = arg;
	CUdeviceptr p;
	CUevent event;

	(void)d;
	cuda = gpu_use(0);
	p = gpu_alloc(N);
	gpu_fill(p, VALUE, N, CUDA_STREAM_LEGACY);
	gpu_must(cuda->event_create(&event, CUDA_EVENT_INTERPROCESS | CUDA_EVENT_DISABLE_TIMING));
	gpu_must(cuda->event_record(event, CUDA_STREAM_LEGACY));
	gpu_must(cuda->ctx_synchronize());
	gpu_must(cuda->ipc_get_mem_handle(&e->memory, p));
	gpu_must(cuda->ipc_get_event_handle(&e->event, event));
	pause_at(1);
	return 0;
}

/* Reads without must(), since the result is the question. */
static CUresult read_bytes(CUdeviceptr p, int *value)
{
	unsigned char *bytes = malloc(N);
	CUresult r = cuda->memcpy_dtoh(bytes, p, N);

	*value = bytes[0];
	for (int i = 0; i < N && *value >= 0; i++)
		*value = bytes[i] == bytes[0] ? *value : -1;
	free(bytes);
	return r;
}

static int legacy_importer(const struct test_daemon *d, void *arg)
{
	struct exported *e = arg;
	CUdeviceptr p = 0, fresh = 0;
	CUevent event = NULL;
	int value = -1;
	size_t before;
	CUresult r;

	(void)d;
	cuda = gpu_use(0);
	gpu_must(cuda->ipc_open_mem_handle(&p, e->memory, 1));
	gpu_must(cuda->ipc_open_event_handle(&event, e->event));
	gpu_must(read_bytes(p, &value));
	must_be(value, VALUE);
	before = free_bytes();
	pause_at(1); /* the exporter has ended */
	row("info", "memory given back at the exporter's death", "%lld MiB while it is open here",
	    ((long long)free_bytes() - (long long)before) >> 20);
	r = read_bytes(p, &value);
	row("info", "reading an open legacy import after its exporter's death", "%s, bytes %s",
	    cuda_error_text(r),
	    r		     ? "not read"
	    : value == VALUE ? "unchanged"
			     : "changed");
	row("info", "its event, queried", "%s", cuda_error_text(cuda->event_query(event)));
	row("info", "its event, waited for on a stream", "%s",
	    cuda_error_text(cuda->stream_wait_event(CUDA_STREAM_LEGACY, event, 0)));
	row("info", "closing the import", "%s", cuda_error_text(cuda->ipc_close_mem_handle(p)));
	row("info", "memory given back when it is closed", "%lld MiB",
	    ((long long)free_bytes() - (long long)before) >> 20);
	r = cuda->mem_alloc(&fresh, N);
	r = r ? r : cuda->memset_d8(fresh, 1, N);
	row(r ? "fail" : "ok", "the importer goes on working", "%s", cuda_error_text(r));
	return 0;
}

static int legacy_late_importer(const struct test_daemon *d, void *arg)
{
	struct exported *e = arg;
	CUdeviceptr p = 0;
	CUresult r;

	(void)d;
	cuda = gpu_use(0);
	r = cuda->ipc_open_mem_handle(&p, e->memory, 1);
	row(r ? "ok" : "differs", "opening a legacy handle after its exporter's death", "%s",
	    cuda_error_text(r));
	return 0;
}

GPU_TEST(a_legacy_exporter_dies)
{
	struct exported *e = exported_new();
	struct test_child p = child_start_ready(NULL, legacy_exporter, e), c;

	c = child_start_ready(NULL, legacy_importer, e);
	child_kill(&p);
	child_finish(&c);
	must_be(td_run_client(NULL, legacy_late_importer, e), 0);
	exported_free(e);
}

/* ---- An event that will never come ---- */

static int holding_exporter(const struct test_daemon *d, void *arg)
{
	struct exported *e = arg;
	CUdeviceptr p;
	CUevent event;

	(void)d;
	cuda = gpu_use(0);
	p = gpu_alloc(N);
	gpu_must(cuda->event_create(&event, CUDA_EVENT_INTERPROCESS | CUDA_EVENT_DISABLE_TIMING));
	gpu_must(cuda->ctx_synchronize());
	gpu_hold(getpid());
	gpu_fill(p, VALUE, N, CUDA_STREAM_LEGACY); /* it waits for gpu_hold(0) */
	gpu_must(cuda->event_record(event, CUDA_STREAM_LEGACY));
	gpu_must(cuda->ipc_get_event_handle(&e->event, event));
	pause_at(1);
	return 0;
}

static CUresult query_for(CUstream stream, int64_t ns)
{
	int64_t until = now_ns() + ns;
	CUresult r;

	while ((r = cuda->stream_query(stream)) == CUDA_E_NOT_READY && now_ns() < until)
		continue;
	return r;
}

static int waits_for_the_dead(const struct test_daemon *d, void *arg)
{
	struct exported *e = arg;
	CUstream waits, other;
	CUevent event = NULL;
	CUresult r;

	(void)d;
	cuda = gpu_use(0);
	gpu_must(cuda->stream_create(&waits, CUDA_STREAM_NON_BLOCKING));
	gpu_must(cuda->stream_create(&other, CUDA_STREAM_NON_BLOCKING));
	gpu_must(cuda->ipc_open_event_handle(&event, e->event));
	gpu_must(cuda->stream_wait_event(waits, event, 0));
	row(query_for(waits, 100 * MS) == CUDA_E_NOT_READY ? "ok" : "differs",
	    "a stream that waits for another process's event", "%s",
	    cuda_error_text(cuda->stream_query(waits)));
	pause_at(1); /* the exporter has ended, and its work never will */
	row("info", "... a second after that process was killed", "%s",
	    cuda_error_text(query_for(waits, SECOND)));
	row("info", "... the event then, queried", "%s", cuda_error_text(cuda->event_query(event)));
	r = cuda->event_record(event, other);
	r = r ? r : query_for(other, SECOND);
	row("info", "... the event, recorded here on another stream", "%s", cuda_error_text(r));
	r = query_for(waits, SECOND);
	row(r == CUDA_E_NOT_READY ? "ok" : "differs", "... the stream that waited, after that",
	    "%s", cuda_error_text(r));
	pause_at(r); /* it is killed, since it may not be able to end by itself */
	return 0;
}

GPU_TEST(an_exporter_dies_before_its_event)
{
	struct exported *e = exported_new();
	struct test_child p = child_start_ready(NULL, holding_exporter, e), c;

	c = child_start_ready(NULL, waits_for_the_dead, e);
	child_kill(&p);
	gpu_hold(0);
	child_go(&c);
	child_await(&c);
	child_kill(&c);
	exported_free(e);
}

/* ---- PID namespaces ---- */

struct apart {
	struct exported *e;
	int fd;
	bool same_pid; /* the exporter is the first process of its namespace as well */
};

static int open_all(const struct test_daemon *d, void *arg)
{
	const struct apart *a = arg;
	const char *where = a->same_pid ? "in another PID namespace, with equal PIDs"
					: "in another PID namespace";
	char name[100];
	CUdeviceptr p = 0;
	CUevent event;
	struct vmm_block b;
	CUresult r;

	(void)d;
	cuda = gpu_use(0);
	r = cuda->ipc_open_mem_handle(&p, a->e->memory, 1);
	snprintf(name, sizeof(name), "legacy open %s", where);
	row("info", name, "%s", cuda_error_text(r));
	r = cuda->ipc_open_event_handle(&event, a->e->event);
	snprintf(name, sizeof(name), "event open %s", where);
	row("info", name, "%s", cuda_error_text(r));
	if (a->fd < 0)
		return 0;
	r = vmm_import(&b, a->fd, N, CUDA_ACCESS_READ);
	snprintf(name, sizeof(name), "VMM import %s", where);
	row(r ? "differs" : "ok", name, "%s", cuda_error_text(r));
	return 0;
}

/* Runs a function as the first process of a new PID namespace. */
struct first {
	child_fn *run;
	void *arg;
};

static int as_first(const struct test_daemon *d, void *arg)
{
	const struct first *first = arg;
	int status;
	pid_t pid;

	if (unshare(CLONE_NEWPID) && unshare(CLONE_NEWUSER | CLONE_NEWPID)) {
		row("skip", "PID namespaces", "this user may not make one");
		parent_tell(0);
		return 0;
	}
	fflush(stdout);
	pid = fork();
	if (!pid) {
		/* As containers have it: CUDA finds itself there. */
		if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
		    mount("proc", "/proc", "proc", 0, NULL)) {
			row("skip", "PID namespaces", "mounting a /proc: %s", strerror(errno));
			parent_tell(0);
			_exit(0);
		}
		_exit(first->run(d, first->arg));
	}
	must(waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static void opens_apart(bool same_pid)
{
	struct exported *e = exported_new();
	struct first first = { legacy_exporter, e };
	struct test_child p = same_pid ? child_start(NULL, as_first, &first)
				       : child_start(NULL, legacy_exporter, e);
	struct test_child v = child_start(NULL, vmm_exporter, e);
	struct apart a = { .e = e, .fd = -1, .same_pid = same_pid };

	if (child_await(&v))
		a.fd = fd_receive(e->sockets[1]);
	if (child_await(&p)) {
		first = (struct first){ open_all, &a };
		must_be(td_run_client(NULL, as_first, &first), 0);
		child_finish(&p);
	} else {
		child_must_succeed(&p);
	}
	child_kill(&v);
	if (a.fd >= 0)
		close(a.fd);
	exported_free(e);
}

GPU_TEST(opens_across_pid_namespaces)
{
	opens_apart(false);
}

GPU_TEST(opens_across_pid_namespaces_where_pids_are_equal)
{
	opens_apart(true);
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
