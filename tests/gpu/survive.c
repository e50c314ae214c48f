/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors on GPUs live through the death of the daemon proper, if there is a keeper. */
#include "tests/gpu/common.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "client/connection/client.h"
#include "daemon/store/account.h"
#include "tests/harness/process.h"
#include "tests/harness/sleeper.h"

enum { N = 5 << 20, HELD = 2 };

static const char *const with_keeper[] = { "--keeper", "yes", NULL };
static const char *const names[] = { "draft", "vmm", "parts" };
enum { NAMES = sizeof(names) / sizeof(names[0]) };

static pid_t proper(tl_client *c)
{
	struct tl_status status = { .size = sizeof(status) };

	must_be(tl_get_status(c, &status), 0);
	return (pid_t)status.daemon_pid;
}

static void kill_proper(const struct test_daemon *d)
{
	tl_client *c = td_connect(d);
	pid_t pid = proper(c);

	must_be(kill(pid, SIGKILL), 0);
	eventually(proper(c) != pid);
	tl_close(c);
}

static void wait_until_written(const struct test_daemon *d)
{
	struct raw rc = rc_open(d);

	eventually(gpu_unfinished(&rc) == 0);
	rc_goodbye(&rc);
}

/* A tensor of each kind of memory that its descriptors keep. */
static int produces(const struct test_daemon *d, void *arg)
{
	static struct gpu_foreign f[NAMES];
	static struct gpu_memory m[NAMES];
	tl_client *client = gpu_open(d, 0);

	(void)arg;
	must_be(gpu_put_draft(client, names[0], 5, N, 0, CUDA_STREAM_LEGACY), 1);
	for (int i = 1; i < NAMES; i++) {
		gpu_memory_init(&m[i], i == 1 ? GPU_VMM : GPU_PARTS, N, 0);
		gpu_fill(m[i].base, 5 + i, N, CUDA_STREAM_LEGACY);
		gpu_foreign_init(&f[i], m[i].base, N, 0);
		f[i].owned = &m[i];
		must_be(tl_publish(client, names[i], &f[i].managed, NULL, NULL, NULL), 0);
	}
	wait_until_written(d);
	pause_at(1);
	for (int i = 1; i < NAMES; i++)
		must_be(atomic_load(&f[i].deleted), 0);
	must_be(gpu_put_draft(client, names[0], 9, N, 0, CUDA_STREAM_LEGACY), 2);
	wait_until_written(d);
	pause_at(2);
	for (int i = 0; i < NAMES; i++)
		must_be(tl_delete(client, names[i]), 0);
	tl_close(client);
	for (int i = 1; i < NAMES; i++) {
		eventually(atomic_load(&f[i].deleted));
		must_be(atomic_load(&f[i].deleted), 1);
	}
	return 0;
}

static void read_all(tl_client *client, int draft)
{
	for (int i = 0; i < NAMES; i++) {
		DLManagedTensorVersioned *t = gpu_get(client, names[i], 0);

		must_be(gpu_read(gpu_data(t), N, CUDA_STREAM_LEGACY), i ? 5 + i : draft);
		drop(t);
	}
}

static int own_id(const tl_client_info *info, void *context)
{
	if (info->pid == (uint32_t)getpid())
		*(uint64_t *)context = info->id;
	return 0;
}

static uint64_t id_of(tl_client *client)
{
	uint64_t id = 0;

	must_be(tl_list_clients(client, own_id, &id), 0);
	return id;
}

static int consumes(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *held[HELD];
	uint64_t id = id_of(client);

	(void)arg;
	read_all(client, 5);
	for (int i = 0; i < HELD; i++)
		held[i] = gpu_get(client, names[i], 0);
	pause_at(1);
	read_all(client, 5);
	pause_at(2);
	read_all(client, 9);
	for (int i = 0; i < HELD; i++) {
		must_be(gpu_read(gpu_data(held[i]), N, CUDA_STREAM_LEGACY), 5 + i);
		drop(held[i]);
	}
	read_all(client, 9);
	must_be(id_of(client), id); /* its connection is the same */
	pause_at(3);
	tl_close(client);
	return 0;
}

static unsigned fds_of_all(const struct test_daemon *d)
{
	tl_client *c = td_connect(d);
	unsigned n = count_fds(d->keeper) + count_fds(proper(c));

	tl_close(c);
	return n;
}

GPU_TEST(what_its_descriptors_keep_outlives_the_daemon)
{
	cleanup_gpu struct gpu_daemon g = gpu_start(.extra = with_keeper, .expect_ready = true);
	struct test_child p, c;
	unsigned fds;

	kill_proper(&g.d);
	td_sync(&g.d);
	fds = fds_of_all(&g.d);
	p = child_start_ready(&g.d, produces, NULL);
	c = child_start_ready(&g.d, consumes, NULL);
	kill_proper(&g.d);
	must_be(child_step(&c), 2);
	must_be(child_step(&p), 2);
	kill_proper(&g.d);
	must_be(child_step(&c), 3);
	child_finish(&p);
	eventually(gpu_charged(&g.d) == 0); /* the consumer is asked to close it */
	child_finish(&c);
	td_sync(&g.d);
	must_be(gpu_live_all(), 0);
	eventually(fds_of_all(&g.d) == fds);
	must_be(gpu_violations(FAKE_FREED_WHILE_OPEN), 0);
	must_be(gpu_violations(FAKE_EVENT_DESTROYED_EARLY), 0);
	must_be(gpu_violations(FAKE_BAD_ACCESS), 0);
}

/* ---- second names ---- */

static const char *const seconds[] = { "second draft", "second vmm" };
enum { SECONDS = sizeof(seconds) / sizeof(seconds[0]) };

static int produces_two(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	struct gpu_foreign f;
	struct gpu_memory m;

	(void)arg;
	gpu_put_draft(client, names[0], 5, N, 0, CUDA_STREAM_LEGACY);
	gpu_memory_init(&m, GPU_VMM, N, 0);
	gpu_fill(m.base, 6, N, CUDA_STREAM_LEGACY);
	gpu_foreign_init(&f, m.base, N, 0);
	f.owned = &m;
	must_be(tl_publish(client, names[1], &f.managed, NULL, NULL, NULL), 0);
	wait_until_written(d);
	pause_at(1);
	tl_close(client);
	eventually(atomic_load(&f.deleted));
	return 0;
}

static void name_again(tl_client *client, const char *from, const char *to)
{
	const tl_put_options o = { .size = sizeof(o), .flags = TL_PUBLISH_NO_COPY };

	must_be(tl_publish(client, to, gpu_get(client, from, 0), &o, NULL, NULL), 0);
}

static void must_read(tl_client *client, const char *name, int value)
{
	DLManagedTensorVersioned *t = gpu_get(client, name, 0);

	must_be(gpu_read(gpu_data(t), N, CUDA_STREAM_LEGACY), value);
	drop(t);
}

/* One of them loses its first name before the daemon dies, and the other after that. */
static int names_twice(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);

	(void)arg;
	for (int i = 0; i < SECONDS; i++)
		name_again(client, names[i], seconds[i]);
	must_be(tl_delete(client, names[0]), 0);
	pause_at(1);
	for (int i = 0; i < SECONDS; i++)
		must_read(client, seconds[i], 5 + i);
	must_read(client, names[1], 6);
	must_be(tl_delete(client, names[1]), 0);
	name_again(client, seconds[1], "third");
	must_be(tl_delete(client, seconds[1]), 0);
	must_read(client, "third", 6);
	must_be(tl_delete(client, seconds[0]) + tl_delete(client, "third"), 0);
	tl_close(client);
	return 0;
}

GPU_TEST(second_names_outlive_the_daemon)
{
	cleanup_gpu struct gpu_daemon g = gpu_start(.extra = with_keeper, .expect_ready = true);
	struct test_child p = child_start_ready(&g.d, produces_two, NULL), c;

	c = child_start_ready(&g.d, names_twice, NULL);
	kill_proper(&g.d);
	child_finish(&c);
	must_be(gpu_charged(&g.d), 0);
	child_finish(&p);
	must_be(gpu_live_all(), 0);
	must_be(gpu_violations(FAKE_FREED_WHILE_OPEN), 0);
	must_be(gpu_violations(FAKE_BAD_ACCESS), 0);
}

/* ---- who begins to produce later ---- */

/* Its connection has outlived a daemon when it first publishes on a GPU. */
static int produces_later(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	struct gpu_foreign f;
	struct gpu_memory m;
	uint64_t id, charged;

	(void)arg;
	put_bytes(client, "cpu", 1, 100);
	id = id_of(client);
	pause_at(1);
	put_alone(client, "cpu", 2, 100);
	cuda = gpu_use(0);
	gpu_memory_init(&m, GPU_PARTS, N, 0);
	gpu_hold(getpid());
	gpu_fill(m.base, 6, N, CUDA_STREAM_LEGACY);
	gpu_foreign_init(&f, m.base, N, 0);
	must_be(tl_publish(client, "parts", &f.managed, NULL, NULL, NULL), 0);
	gpu_put_draft(client, "draft", 5, N, 0, CUDA_STREAM_LEGACY);
	gpu_hold(0);
	wait_until_written(d);
	must_be(id_of(client), id);
	pause_at(2);
	charged = gpu_charged(d);
	must_be(tl_delete(client, "parts"), 0);
	eventually(atomic_load(&f.deleted));
	eventually(gpu_charged(d) < charged); /* its export has ended */
	pause_at(3);			      /* this process is gone */
	tl_close(client);
	return 0;
}

static int reads_parts(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t = gpu_get(client, "parts", 0);

	(void)arg;
	must_be(gpu_read(gpu_data(t), N, CUDA_STREAM_LEGACY), 6);
	drop(t);
	tl_close(client);
	return 0;
}

static int reads_what_is_left(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	DLManagedTensorVersioned *t = gpu_get(client, "draft", 0);

	(void)arg;
	must_be(gpu_read(gpu_data(t), N, CUDA_STREAM_LEGACY), 5);
	drop(t);
	must_be(tl_delete(client, "draft"), 0);
	tl_close(client);
	return 0;
}

GPU_TEST(a_connection_that_outlived_a_daemon_publishes_on_a_gpu)
{
	cleanup_gpu struct gpu_daemon g = gpu_start(.extra = with_keeper, .expect_ready = true);
	struct test_child p = child_start_ready(&g.d, produces_later, NULL);

	kill_proper(&g.d);
	must_be(child_step(&p), 2);
	must_be(td_run_client(&g.d, reads_parts, NULL), 0);
	must_be(child_step(&p), 3);
	child_kill(&p); /* nobody uses the GPU now */
	td_sync(&g.d);
	must_be(td_run_client(&g.d, reads_what_is_left, NULL), 0);
	must_be(gpu_live_all(), 0);
	must_be(gpu_charged(&g.d), 0);
}

/* ---- producers that slept ---- */

enum { SLEEPERS = 6 };

static int deletes_at_once(const struct test_daemon *d, void *name)
{
	tl_client *client = gpu_open(d, 0);

	gpu_put_draft(client, name, 5, 4096, 0, CUDA_STREAM_LEGACY);
	wait_until_written(d);
	pause_at(1);
	must_be(tl_delete(client, name), 0);
	tl_close(client);
	return 0;
}

/* The connection of such a producer ends with the daemon, and that may be after it sent a request
 * that no daemon has read. */
GPU_TEST(a_producer_that_slept_while_the_daemon_died_deletes)
{
	cleanup_gpu struct gpu_daemon g = gpu_start(.extra = with_keeper, .expect_ready = true);
	struct test_child c[SLEEPERS];
	char name[SLEEPERS][8];

	for (int i = 0; i < SLEEPERS; i++) {
		snprintf(name[i], sizeof(name[i]), "%d", i);
		c[i] = child_start_ready(&g.d, deletes_at_once, name[i]);
		process_stop(c[i].pid);
		child_go(&c[i]);
	}
	kill_proper(&g.d);
	for (int i = 0; i < SLEEPERS; i++)
		must_be(kill(c[i].pid, SIGCONT), 0);
	for (int i = 0; i < SLEEPERS; i++)
		child_must_succeed(&c[i]);
	td_sync(&g.d);
	must_be(gpu_live_all(), 0);
}

/* ---- under load ---- */

enum { KILLS = 3, READERS = 3 };

static atomic_bool *stop; /* shared with children */

/* Opens all segments again and again. */
static int reads_on(const struct test_daemon *d, void *arg)
{
	(void)arg;
	cuda = gpu_use(0);
	while (!atomic_load(stop)) {
		tl_client *client = td_connect(d);

		read_all(client, 5);
		tl_close(client);
	}
	return 0;
}

GPU_TEST(consumers_see_no_error_when_the_daemon_is_killed_under_them)
{
	cleanup_gpu struct gpu_daemon g = gpu_start(.extra = with_keeper, .expect_ready = true);
	struct test_child p = child_start_ready(&g.d, produces, NULL), c[READERS];

	stop = mmap(NULL, sizeof(*stop), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(stop != MAP_FAILED);
	for (int i = 0; i < READERS; i++)
		c[i] = child_start(&g.d, reads_on, NULL);
	for (int i = 0; i < KILLS; i++) {
		usleep(20000 + i * 7919);
		kill_proper(&g.d);
	}
	atomic_store(stop, true);
	for (int i = 0; i < READERS; i++)
		child_must_succeed(&c[i]);
	must_be(child_step(&p), 2);
	child_finish(&p);
	td_sync(&g.d);
	must_be(gpu_live_all(), 0);
	must_be(gpu_charged(&g.d), 0);
	must_be(gpu_violations(FAKE_FREED_WHILE_OPEN), 0);
	must_be(gpu_violations(FAKE_BAD_ACCESS), 0);
	munmap(stop, sizeof(*stop));
}

/* ---- What keeps a GPU open ---- */

enum { MANY = 8 };

static int publishes_many(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	char name[16];

	(void)arg;
	for (int i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "many/%d", i);
		must_be(gpu_put_draft(client, name, 5, N, 0, CUDA_STREAM_LEGACY), 1);
	}
	wait_until_written(d);
	tl_close(client);
	return 0;
}

static uint64_t my_descriptors(const struct test_daemon *d)
{
	struct raw rc = rc_open(d);
	uint64_t used = rc_user(&rc, geteuid()).used[SHARE_DESCRIPTORS];

	rc_goodbye(&rc);
	return used;
}

/* One descriptor does for all of a user's segments there. */
GPU_TEST(the_next_daemon_keeps_a_gpu_open_once)
{
	cleanup_gpu struct gpu_daemon g = gpu_start(.extra = with_keeper, .expect_ready = true);
	uint64_t before;

	must_be(td_run_client(&g.d, publishes_many, NULL), 0);
	td_sync(&g.d); /* what that connection had is given back */
	before = my_descriptors(&g.d);
	must(before > MANY);
	kill_proper(&g.d);
	must_be(my_descriptors(&g.d), before);
	for (int i = 0; i < MANY; i++) {
		struct raw rc = rc_open(&g.d);
		char name[16];

		snprintf(name, sizeof(name), "many/%d", i);
		must_be(rc_delete(&rc, name), 0);
		rc_goodbye(&rc);
	}
	eventually(my_descriptors(&g.d) < before - MANY);
}

/* ---- A create that waits ---- */

enum { GPU_SIZE = 16 << 20, TAKEN = 12 << 20, WANTED = 8 << 20 };

static int fills_the_gpu(const struct test_daemon *d, void *arg)
{
	CUdeviceptr memory;

	(void)d;
	(void)arg;
	cuda = gpu_use(0);
	memory = gpu_alloc(TAKEN);
	pause_at(1);
	gpu_must(cuda->mem_free(memory));
	return 0;
}

static _Atomic pid_t creating;

static void *creates_in_time(void *client)
{
	const int64_t n = WANTED;
	tl_spec spec = { .size = sizeof(spec),
			 .shape = &n,
			 .ndim = 1,
			 .dtype = U8,
			 .timeout_ns = WAIT_S * SECOND };
	tl_draft *draft;

	atomic_store(&creating, (pid_t)syscall(SYS_gettid));
	must_be(gpu_create(client, "draft", &spec, 0, &draft), 0);
	tl_abort(draft);
	return NULL;
}

static int waits_across_daemons(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	const struct session *before;
	pthread_t thread;

	(void)arg;
	gpu_put_draft(client, "t", 1, 4096, 0, CUDA_STREAM_LEGACY);
	before = atomic_load(&client->session);
	must_be(pthread_create(&thread, NULL, creates_in_time, client), 0);
	until_it_sleeps(&creating);
	pause_at(1); /* there is another daemon */
	eventually(atomic_load(&client->session) != before);
	pause_at(2); /* there is space */
	must_be(pthread_join(thread, NULL), 0);
	must_be(tl_delete(client, "t"), 0);
	tl_close(client);
	return 0;
}

GPU_TEST(a_create_waits_for_space_though_the_daemon_dies)
{
	char size[16];

	SKIP_UNLESS(!gpu_is_real(), "needs a GPU of a known size");
	cleanup_gpu struct gpu_daemon g = gpu_start(.extra = with_keeper, .expect_ready = true);
	struct test_child full, c;

	snprintf(size, sizeof(size), "%d", GPU_SIZE);
	gpu_setenv("FAKECUDA_MEMORY", size);
	full = child_start_ready(&g.d, fills_the_gpu, NULL);
	c = child_start_ready(&g.d, waits_across_daemons, NULL);
	kill_proper(&g.d);
	child_step(&c);
	child_finish(&full);
	child_finish(&c);
	must_be(gpu_charged(&g.d), 0);
	must_be(gpu_live_all(), 0);
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
