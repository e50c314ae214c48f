/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer publishes sets of tensors, and workers wait for each newer one. The daemon, the trainer
 * and the workers are killed at random moments. Whenever something is published after that, every
 * worker gets it: whole, never an older one, and without an error. TL_ROLLOUT_KILLS says how often
 * each of the three is killed, TL_TEST_SEED what the random numbers start from.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>

#include "tests/client/common.h"
#include "tests/harness/child.h"
#include "tests/harness/messages.h"
#include "tests/harness/number.h"
#include "tests/harness/process.h"
#include "tests/harness/seed.h"

enum { WORKERS = 2, TENSORS = 8, WORDS = 1024, KILLS = 8, LONGEST_US = 20000, STEPS = 4096 };
enum victim { DAEMON, TRAINER, WORKER, VICTIMS };

static const char *const names[TENSORS] = {
	"p/0", "p/1", "p/2", "p/3", "p/4", "p/5", "p/6", "p/7"
};
static const char *const victims[VICTIMS] = { "daemons", "trainers", "workers" };

/* Shared with the children. */
struct board {
	bool autostart;
	char socket[108];
	_Atomic bool stop, over;      /* for the workers; then for all others */
	_Atomic uint64_t began, done; /* steps of the trainer */
	_Atomic int64_t done_ns[STEPS];
	_Atomic uint64_t seen[WORKERS];
	_Atomic int64_t slowest_ns; /* from a publication until a worker had all of it */
};

struct member {
	struct board *board;
	unsigned index;
};

static tl_client *join(const struct board *b)
{
	tl_connect_options o = { .size = sizeof(o),
				 .address = b->socket,
				 .timeout_ns = WAIT_S * SECOND,
				 .flags = b->autostart ? TL_CONNECT_AUTOSTART : 0 };
	tl_client *client = NULL;

	eventually(!tl_connect(&o, &client));
	return client;
}

/* A put may fail when the daemon dies under it, and says so. */
static int train(const struct test_daemon *d, void *arg)
{
	struct board *b = ((struct member *)arg)->board;
	static const int64_t shape = WORDS;
	static uint64_t words[WORDS];
	const DLTensor tensor = { .data = words,
				  .device = { kDLCPU, 0 },
				  .ndim = 1,
				  .dtype = { TL_DTYPE_UINT, 64, 1 },
				  .shape = (int64_t *)&shape };
	const DLTensor *sources[TENSORS];
	tl_client *client = join(b);

	(void)d;
	for (unsigned i = 0; i < TENSORS; i++)
		sources[i] = &tensor;
	while (!atomic_load(&b->over)) {
		uint64_t step = atomic_fetch_add(&b->began, 1) + 1;
		int r;

		for (unsigned i = 0; i < WORDS; i++)
			words[i] = step;
		r = tl_put_many(client, names, sources, TENSORS, NULL);
		if (r)
			must_be(r, -ENOTCONN);
		if (!r) {
			atomic_store(&b->done_ns[step % STEPS], now_ns());
			atomic_store(&b->done, step);
		}
		nanosleep(&(struct timespec){ .tv_nsec = MS }, NULL);
	}
	tl_close(client);
	return 0;
}

/* The step that all of the set is of. */
static uint64_t step_of(DLManagedTensorVersioned *const set[TENSORS])
{
	uint64_t step = *(uint64_t *)set[0]->dl_tensor.data;

	for (unsigned i = 0; i < TENSORS; i++)
		for (unsigned n = 0; n < WORDS; n++)
			must_be(((uint64_t *)set[i]->dl_tensor.data)[n], step);
	return step;
}

static void note_latency(struct board *b, uint64_t step)
{
	int64_t done_ns = atomic_load(&b->done_ns[step % STEPS]), slowest = b->slowest_ns;
	int64_t ns = now_ns() - done_ns;

	if (atomic_load(&b->done) >= step && done_ns && ns > slowest)
		atomic_store(&b->slowest_ns, ns);
}

static int roll_out(const struct test_daemon *d, void *arg)
{
	const struct member *me = arg;
	struct board *b = me->board;
	tl_client *client = join(b);
	uint64_t version = 0, last = 0;

	(void)d;
	while (!atomic_load(&b->stop)) {
		tl_get_options newer = { .size = sizeof(newer),
					 .timeout_ns = WAIT_S * SECOND,
					 .newer_than = version };
		tl_get_options any = { .size = sizeof(any), .timeout_ns = WAIT_S * SECOND };
		DLManagedTensorVersioned *t, *set[TENSORS];
		tl_info info = { .size = sizeof(info) };
		uint64_t step;

		must_be(tl_get(client, names[TENSORS - 1], &newer, &t), 0);
		if (!tl_tensor_info(t, &info)) { /* else its daemon has just died */
			must(info.version > version);
			version = info.version;
		}
		must_be(tl_get_many(client, names, TENSORS, &any, set), 0);
		step = step_of(set);
		must(step >= last && step >= *(uint64_t *)t->dl_tensor.data);
		if (step > last)
			note_latency(b, step);
		last = step;
		atomic_store(&b->seen[me->index], step);
		drop(t);
		for (unsigned i = 0; i < TENSORS; i++)
			drop(set[i]);
	}
	tl_close(client);
	return 0;
}

/* As a service manager: starts a daemon whenever there is none. */
static int supervise(const struct test_daemon *d, void *arg)
{
	struct board *b = ((struct member *)arg)->board;
	const char *binary = getenv("TL_TEST_DAEMON");

	(void)d;
	must(binary);
	while (!atomic_load(&b->over)) {
		pid_t pid = fork();
		int status;

		must(pid >= 0);
		if (pid == 0) {
			execl(binary, binary, "--foreground", "--keeper", "no", "--log-level",
			      "error", "--socket", b->socket, NULL);
			_exit(127);
		}
		must_be(waitpid(pid, &status, 0), pid);
		must(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
	}
	return 0;
}

/* ---- killing -------------------------------------------------------------------------------- */

static bool status_try(const struct board *b, tl_status *status)
{
	tl_connect_options o = { .size = sizeof(o), .address = b->socket };
	tl_client *client;
	int r;

	*status = (tl_status){ .size = sizeof(*status) };
	if (tl_connect(&o, &client))
		return false;
	r = tl_get_status(client, status);
	tl_close(client);
	return !r;
}

/* The keeper of a daemon, which is its parent. */
static pid_t parent_of(pid_t pid)
{
	char path[64];
	int parent = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	f = fopen(path, "re");
	if (!f)
		return 0;
	if (fscanf(f, "%*d (%*[^)]) %*c %d", &parent) != 1)
		parent = 0;
	fclose(f);
	return parent;
}

/* Both, so that all that was published is gone. */
static void kill_daemon(const struct board *b)
{
	tl_status status;
	pid_t keeper = 0;

	eventually(status_try(b, &status));
	if (status.keeper == TL_KEEPER_PROCESS)
		keeper = parent_of((pid_t)status.daemon_pid);
	if (keeper)
		kill(keeper, SIGKILL);
	kill((pid_t)status.daemon_pid, SIGKILL);
}

struct cast {
	struct board *board;
	struct member members[1 + WORKERS];
	struct test_child trainer, workers[WORKERS], supervisor;
};

static void worker_start(struct cast *c, unsigned i)
{
	atomic_store(&c->board->seen[i], 0);
	c->workers[i] = child_start(NULL, roll_out, &c->members[i]);
}

static void kill_one(struct cast *c, enum victim victim, unsigned worker)
{
	if (victim == DAEMON) {
		kill_daemon(c->board);
	} else if (victim == TRAINER) {
		child_kill(&c->trainer);
		c->trainer = child_start(NULL, train, &c->members[0]);
	} else {
		child_kill(&c->workers[worker]);
		worker_start(c, worker);
	}
}

static bool all_have(struct board *b, uint64_t step)
{
	for (unsigned i = 0; i < WORKERS; i++)
		if (atomic_load(&b->seen[i]) < step)
			return false;
	return true;
}

/* What begins to be published from now on comes to all. */
static void all_go_on(struct board *b)
{
	uint64_t began = atomic_load(&b->began), done;

	eventually((done = atomic_load(&b->done)) > began);
	eventually(all_have(b, done));
}

static void cast_end(struct cast *c)
{
	tl_status status;
	pid_t pid;

	atomic_store(&c->board->stop, true);
	for (unsigned i = 0; i < WORKERS; i++)
		child_must_succeed(&c->workers[i]);
	atomic_store(&c->board->over, true);
	child_must_succeed(&c->trainer);
	eventually(status_try(c->board, &status));
	pid = (pid_t)status.daemon_pid;
	end_daemon(pid);
	if (!c->board->autostart)
		child_must_succeed(&c->supervisor);
}

static void kill_all(struct board *b)
{
	unsigned kills = test_number("TL_ROLLOUT_KILLS", KILLS),
		 left[VICTIMS] = { kills, kills, kills };
	uint64_t x = test_seed((uint64_t)getpid());
	struct cast c = { .board = b };

	test_timeout(TEST_TIMEOUT_S + 2 * kills);
	for (unsigned i = 0; i <= WORKERS; i++)
		c.members[i] = (struct member){ .board = b, .index = i };
	if (!b->autostart)
		c.supervisor = child_start(NULL, supervise, &c.members[0]);
	c.trainer = child_start(NULL, train, &c.members[0]);
	for (unsigned i = 0; i < WORKERS; i++)
		worker_start(&c, i);
	all_go_on(b);
	for (unsigned n = VICTIMS * kills; n; n--) {
		enum victim victim = (enum victim)(samples_random(&x) % VICTIMS);

		while (!left[victim])
			victim = (enum victim)((victim + 1) % VICTIMS);
		left[victim]--;
		nanosleep(&(struct timespec){ .tv_nsec = (long)(samples_random(&x) % LONGEST_US) *
							 1000 },
			  NULL);
		kill_one(&c, victim, (unsigned)(samples_random(&x) % WORKERS));
		all_go_on(b);
	}
	cast_end(&c);
	print_message("%u of each killed (%s, %s, %s); %llu sets; the slowest was everywhere after "
		      "%.3f s\n",
		      kills, victims[DAEMON], victims[TRAINER], victims[WORKER],
		      (unsigned long long)atomic_load(&b->done), (double)b->slowest_ns / 1e9);
}

static void rollouts(bool autostart)
{
	struct board *b = mmap(NULL, sizeof(*b), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			       -1, 0);
	const char *tmp = getenv("TMPDIR"), *binary = getenv("TL_TEST_DAEMON");
	char dir[64], lock[128];

	must(b != MAP_FAILED);
	must(binary);
	snprintf(dir, sizeof(dir), "%s/tl-rl-XXXXXX", tmp ? tmp : "/tmp");
	must(mkdtemp(dir));
	snprintf(b->socket, sizeof(b->socket), "%s/socket", dir);
	b->autostart = autostart;
	setenv("TENSORLEASE_DAEMON", binary, 1);
	kill_all(b);
	unsetenv("TENSORLEASE_DAEMON");
	snprintf(lock, sizeof(lock), "%s.lock", b->socket);
	unlink(lock);
	must_be(rmdir(dir), 0);
	munmap(b, sizeof(*b));
}

TEST(workers_starve_for_nothing_with_daemons_that_clients_start)
{
	rollouts(true);
}

TEST(workers_starve_for_nothing_with_a_daemon_at_an_address)
{
	rollouts(false);
}

int main(void)
{
	return suite_run();
}
