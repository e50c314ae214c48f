/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects that are used after their owner has ended, or by others: deleters on any thread and after
 * tl_close(), drafts of a closed client, a client that many threads share.
 */
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "tests/client/common.h"

static void *drop_on_a_thread(void *arg)
{
	drop(arg);
	return NULL;
}

TEST(a_tensor_outlives_its_client)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *other = td_connect(&d);
	DLManagedTensorVersioned *a, *b;
	pthread_t thread;

	put_bytes(client, "a", 3, 100000);
	put_bytes(client, "b", 4, 1000);
	a = get(client, "a");
	b = get(client, "b");
	tl_close(client);
	put_bytes(other, "a", 5, 100000);
	for (int i = 0; i < 10; i++)
		put_bytes(other, "b", 5, 1000);
	must(all_bytes(a, 3, 100000) && all_bytes(b, 4, 1000));
	must_be(td_status(&d).retired, 2);
	must_be(td_status(&d).clients, 2);
	must_be(pthread_create(&thread, NULL, drop_on_a_thread, a), 0);
	pthread_join(thread, NULL);
	must_be(td_status(&d).retired, 1);
	drop(b);
	must_be(td_status(&d).retired, 0);
	must_be(td_status(&d).clients, 1); /* the connection ended with the last lease */
	tl_close(other);
	tl_close(NULL);
}

TEST(closing_aborts_drafts)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	int64_t n = 100000;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	tl_draft *a, *b;

	must_be(tl_create(client, "a", &spec, &a), 0);
	must_be(tl_create(client, "b", &spec, &b), 0);
	tl_close(client);
	must_be(td_status(&d).drafts, 0);
	tl_abort(a);
	must_be(tl_commit(b, NULL), -ESTALE);
	must_be(td_status(&d).clients, 0);
	tl_abort(NULL);
}

static int note_id(const tl_client_info *info, void *id)
{
	*(uint64_t *)id = info->id;
	return 0;
}

TEST(drafts_from_before_a_kick_say_so)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *admin;
	int64_t n = 1000;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	const tl_group_item item = { .name = "b", .shape = &n, .ndim = 1, .dtype = U8 };
	uint64_t id = 0;
	tl_group *group;
	tl_draft *draft;

	must_be(tl_list_clients(client, note_id, &id), 0);
	must_be(tl_create(client, "a", &spec, &draft), 0);
	must_be(tl_group_create(client, &item, 1, NULL, &group), 0);
	admin = td_connect(&d);
	must_be(tl_kick(admin, id), 0);
	must_be(tl_commit(draft, NULL), -ECONNABORTED);
	must(strstr(tl_last_error(), "disconnected"));
	must_be(tl_group_commit(group), -ECONNABORTED);
	must(strstr(tl_last_error(), "disconnected"));
	tl_close(client);
	tl_close(admin);
}

enum { THREADS = 6, NAMES = 5, LOOPS = 4000 };

struct hammer {
	tl_client *client;
	_Atomic(DLManagedTensorVersioned *) *mailbox; /* tensors change hands */
	unsigned seed;
	bool producer;
};

static void check_uniform(const DLManagedTensorVersioned *t)
{
	const unsigned char *p = t->dl_tensor.data;

	must(all_bytes(t, p[0], (size_t)t->dl_tensor.shape[0]));
}

static void *hammer(void *arg)
{
	struct hammer *h = arg;
	char name[16];

	for (int i = 0; i < LOOPS; i++) {
		DLManagedTensorVersioned *t = NULL;
		int which = rand_r(&h->seed) % NAMES;
		tl_get_options cow = { .size = sizeof(cow), .mode = TL_MODE_COPY_ON_WRITE };

		snprintf(name, sizeof(name), "h/%d", which);
		if (h->producer) {
			put_bytes(h->client, name, rand_r(&h->seed) & 255,
				  which == 4 ? 70000 : 100 << which);
			continue;
		}
		must_be(tl_get(h->client, name, i % 16 ? NULL : &cow, &t), 0);
		check_uniform(t);
		if (i % 16 == 0)
			memset(t->dl_tensor.data, i & 255, (size_t)t->dl_tensor.shape[0]);
		t = atomic_exchange(&h->mailbox[which], t);
		if (t) {
			check_uniform(t);
			drop(t);
		}
	}
	return NULL;
}

TEST(threads_share_a_client)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *second = td_connect(&d);
	_Atomic(DLManagedTensorVersioned *) mailbox[NAMES] = { NULL };
	pthread_t threads[THREADS];
	struct hammer h[THREADS];
	char name[16];

	for (int i = 0; i < NAMES; i++) {
		snprintf(name, sizeof(name), "h/%d", i);
		put_bytes(client, name, 1, 100);
	}
	for (unsigned i = 0; i < THREADS; i++) {
		h[i] = (struct hammer){ i & 1 ? client : second, mailbox, i + 1, i < 2 };
		must_be(pthread_create(&threads[i], NULL, hammer, &h[i]), 0);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < NAMES; i++)
		if (mailbox[i])
			drop(mailbox[i]);
	must_be(td_status(&d).retired, 0);
	tl_close(client);
	tl_close(second);
	must_be(td_status(&d).clients, 0);
}

struct holding_thread {
	tl_client *client;
	pthread_barrier_t *all;
	struct holding_thread *next;
	DLManagedTensorVersioned *held;
	pthread_t thread;
};

/* Gives back what another thread took. */
static void *hold_and_drop(void *arg)
{
	struct holding_thread *h = arg;

	h->held = get(h->client, "a");
	pthread_barrier_wait(h->all);
	drop(h->next->held);
	return NULL;
}

TEST(more_threads_than_there_are_counters)
{
	enum { MANY = 1100 };
	static struct holding_thread h[MANY];
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	pthread_barrier_t all;
	pthread_attr_t attr;

	put_bytes(client, "a", 1, 100);
	pthread_barrier_init(&all, NULL, MANY + 1);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 128 << 10);
	for (int i = 0; i < MANY; i++) {
		h[i] = (struct holding_thread){ .client = client,
						.all = &all,
						.next = &h[(i + 1) % MANY] };
		must_be(pthread_create(&h[i].thread, &attr, hold_and_drop, &h[i]), 0);
	}
	pthread_barrier_wait(&all);
	tl_close(client); /* the leases keep the session, and the last to end ends it */
	for (int i = 0; i < MANY; i++)
		pthread_join(h[i].thread, NULL);
	must_be(td_status(&d).clients, 0);
	pthread_attr_destroy(&attr);
	pthread_barrier_destroy(&all);
}

TEST(clients_come_and_go)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *keep = td_connect(&d);
	unsigned fds;

	put_bytes(keep, "k", 1, 5000);
	fds = count_fds(0);
	for (int i = 0; i < 300; i++) {
		tl_client *client = td_connect(&d);
		DLManagedTensorVersioned *t = get(client, "k");

		if (i % 2)
			drop(t);
		tl_close(client);
		if (i % 2 == 0)
			drop(t);
	}
	must_be(count_fds(0), fds);
	tl_close(keep);
}

TEST(a_daemon_that_is_full_says_so)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 4 * MIB);
	tl_client *client = td_connect(&d);
	int64_t n = 3 * MIB;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	tl_draft *a, *b;
	int64_t start;

	must_be(tl_create(client, "a", &spec, &a), 0);
	must_be(tl_create(client, "b", &spec, &b), -ENOSPC);
	spec.timeout_ns = 50 * MS;
	start = now_ns();
	must_be(tl_create(client, "b", &spec, &b), -ENOSPC);
	must(now_ns() - start >= 50 * MS);
	tl_abort(a);
	must_be(tl_create(client, "b", &spec, &b), 0);
	tl_abort(b);
	n = 100 * MIB;
	spec.timeout_ns = -1;
	must_be(tl_create(client, "b", &spec, &b), -ENOSPC); /* refused at once: it can never fit */
	tl_close(client);
}

static void file_size_set(rlim_t most)
{
	struct rlimit limit;

	must_be(getrlimit(RLIMIT_FSIZE, &limit), 0);
	limit.rlim_cur = most < limit.rlim_max ? most : limit.rlim_max;
	must_be(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* Beyond the limit SIGXFSZ would kill a program that does not ignore it. */
static int lives_with_small_files(const struct test_daemon *d, void *arg)
{
	const tl_connect_options o = { .size = sizeof(o), .address = d->socket };
	DLManagedTensorVersioned *t;
	tl_client *client = NULL;
	int status;
	pid_t pid;

	(void)arg;
	file_size_set(4096);
	must_be(tl_connect(&o, &client), -EFBIG);
	must(strstr(tl_last_error(), "at most 4096 bytes; raise its RLIMIT_FSIZE"));
	file_size_set(RLIM_INFINITY);
	client = td_connect(d);
	put_bytes(client, "a", 3, 100000);
	t = get(client, "a");
	file_size_set(0);
	pid = fork();
	must(pid >= 0);
	if (!pid)
		_exit(all_bytes(t, 3, 100000) ? 0 : 1);
	must_be(waitpid(pid, &status, 0), pid);
	must_be(status, 0);
	drop(t);
	tl_close(client);
	return 0;
}

TEST(a_limit_of_file_sizes_kills_no_client)
{
	cleanup_td struct test_daemon d = td_start();

	must_be(td_run_client(&d, lives_with_small_files, NULL), 0);
}

/* ---- Memory that cannot be locked ---- */

static void may_lock(rlim_t bytes)
{
	struct rlimit limit;

	must_be(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
	limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
	must_be(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
}

/* -EAGAIN would mean that the tensor is not newer, and a program would ask again for ever. */
static int locks_its_memory(const struct test_daemon *d, void *arg)
{
	tl_connect_options o = { .size = sizeof(o), .address = d->socket };
	tl_client *client = td_connect(d), *second;
	DLManagedTensorVersioned *t;

	(void)arg;
	may_lock(64 << 10);
	must_be(mlockall(MCL_FUTURE), 0);
	must_be(tl_get(client, "a", NULL, &t), -ENOMEM);
	must_be(strstr(tl_last_error(), "RLIMIT_MEMLOCK") != NULL, true);
	must_be(tl_connect(&o, &second), -ENOMEM);
	must_be(strstr(tl_last_error(), "RLIMIT_MEMLOCK") != NULL, true);
	must_be(munlockall(), 0);
	t = get(client, "a");
	must(all_bytes(t, 3, MIB));
	drop(t);
	tl_close(client);
	return 0;
}

TEST(a_limit_of_locked_memory_is_named)
{
	enum { UID = 60100 };
	SKIP_UNLESS(geteuid() == 0, "needs root, to be another user: root may lock all memory");
	SKIP_UNLESS(!SANITIZED, "sanitizers make nothing of mlockall()");
	cleanup_td struct test_daemon d = td_start(.for_others = true);
	tl_client *client = td_connect(&d);
	struct test_child c;

	put_bytes(client, "a", 3, MIB);
	c = child_start_as(UID, &d, locks_its_memory, NULL);
	child_must_succeed(&c);
	tl_close(client);
}

/* ---- Descriptors that cannot be received ---- */

static tl_draft *create_bytes(tl_client *client, const char *name, int64_t n, uint32_t ring)
{
	const tl_spec spec = {
		.size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8, .ring = ring
	};
	tl_draft *draft = NULL;

	must_be(tl_create(client, name, &spec, &draft), 0);
	return draft;
}

/* The daemon sends the descriptor of a segment, which the kernel cannot install. */
TEST(a_lack_of_descriptors_costs_one_call_and_no_connection)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *other = td_connect(&d);
	DLManagedTensorVersioned *t = NULL;
	struct rlimit all;
	uint64_t version;
	tl_draft *draft;

	draft = create_bytes(client, "draft", 100, 0);
	put_bytes(other, "a", 3, 5000);
	all = forbid_descriptors();
	must_be(tl_get(client, "a", NULL, &t), -EMFILE);
	must(strstr(tl_last_error(), "ulimit -n"));
	must_be(setrlimit(RLIMIT_NOFILE, &all), 0);
	t = get(client, "a");
	must(all_bytes(t, 3, 5000));
	drop(t);
	must_be(tl_commit(draft, &version), 0); /* it would be stale on another connection */
	tl_close(client);
	tl_close(other);
}

static unsigned losing; /* the type of a message that loses its descriptor; 0: none */

/* In place of the system's, for the library too. */
ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	static ssize_t (*receive)(int s, struct msghdr *m, int f);
	const struct wire_header *h;
	const struct cmsghdr *c;
	ssize_t n;

	if (!receive)
		*(void **)&receive = dlsym(RTLD_NEXT, "recvmsg");
	n = receive(fd, message, flags);
	if (n <= 0 || !losing)
		return n;
	h = message->msg_iov->iov_base;
	c = CMSG_FIRSTHDR(message);
	if (h->type != losing || !c)
		return n;
	close(*(const int *)(const void *)CMSG_DATA(c));
	message->msg_controllen = 0;
	message->msg_flags |= MSG_CTRUNC;
	losing = 0;
	return n;
}

/* A ring whose page cannot be received is of no use, but its first tensor is published. */
TEST(a_ring_begins_without_the_descriptor_of_its_page)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_draft *draft = NULL;
	uint64_t version = 0;

	losing = WIRE_GRANTED;
	for (unsigned i = 1; !td_status(&d).rings; i++) {
		must(i < 100);
		draft = create_bytes(client, "r", 5000, TL_RING_AUTO);
		memset(tl_draft_tensor(draft)->data, (int)i, 5000);
		must_be(tl_commit(draft, &version), 0);
		must_be(version, i);
	}
	must_be(losing, 0);
	for (int i = 0; i < 3; i++) { /* the daemon ends the ring */
		DLManagedTensorVersioned *t;

		must_be(put_bytes(client, "r", 50 + i, 5000), version + 1);
		version++;
		t = get(client, "r");
		must(all_bytes(t, 50 + i, 5000));
		drop(t);
	}
	tl_close(client);
}

struct claiming {
	tl_client *client;
	_Atomic pid_t tid;
};

static void *claims(void *arg)
{
	struct claiming *c = arg;

	atomic_store(&c->tid, (pid_t)syscall(SYS_gettid));
	must_be(tl_claim(c->client, "claimed",
			 &TL_INIT(tl_claim_options, .timeout_ns = WAIT_S * SECOND)),
		0);
	return NULL;
}

/* Without the memory of a draft the connection cannot be used, but requests can be made again. */
TEST(a_lost_draft_costs_other_threads_no_request)
{
	cleanup_td struct test_daemon d = td_start();
	struct claiming c = { .client = td_connect(&d) };
	tl_client *other = td_connect(&d);
	int64_t n = MIB;
	const tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	tl_draft *draft = NULL;
	struct rlimit all;
	pthread_t thread;
	int r;

	must_be(tl_claim(other, "claimed", NULL), 0);
	must_be(pthread_create(&thread, NULL, claims, &c), 0);
	until_it_sleeps(&c.tid);
	all = forbid_descriptors();
	r = tl_create(c.client, "draft", &spec, &draft);
	must_be(setrlimit(RLIMIT_NOFILE, &all), 0);
	must_be(r, -EMFILE);
	must(strstr(tl_last_error(), "ulimit -n"));
	must_be(tl_unclaim(other, "claimed"), 0);
	pthread_join(thread, NULL);
	tl_close(c.client);
	tl_close(other);
}

/* Whatever else is near such a limit, the error that a mapping meets names it. */
TEST(a_limit_of_addresses_is_named)
{
	static const struct {
		int resource;
		const char *name;
		enum tl_mode mode;
	} limits[] = { { RLIMIT_AS, "RLIMIT_AS (ulimit -v)", TL_MODE_READ },
		       { RLIMIT_DATA, "RLIMIT_DATA (ulimit -d)", TL_MODE_COPY_ON_WRITE } };

	SKIP_UNLESS(!SANITIZED, "sanitizers map terabytes");
	cleanup_td struct test_daemon d = td_start(.capacity = 512 * MIB);
	tl_client *client = td_connect(&d), *producer = td_connect(&d);

	put_bytes(producer, "a", 1, 128 * MIB);
	for (unsigned i = 0; i < sizeof(limits) / sizeof(*limits); i++) {
		tl_get_options o = { .size = sizeof(o), .mode = limits[i].mode };
		struct rlimit before, tight = { .rlim_cur = 64 * MIB };
		DLManagedTensorVersioned *t;

		must_be(getrlimit(limits[i].resource, &before), 0);
		tight.rlim_max = before.rlim_max;
		must_be(setrlimit(limits[i].resource, &tight), 0);
		must_be(tl_get(client, "a", &o, &t), -ENOMEM);
		must(strstr(tl_last_error(), limits[i].name));
		must_be(setrlimit(limits[i].resource, &before), 0);
		must_be(tl_get(client, "a", &o, &t), 0);
		drop(t);
	}
	tl_close(producer);
	tl_close(client);
}

/* A consumer that forgets to release is told so, when it publishes something itself. */
TEST(an_error_for_want_of_space_tells_what_this_process_holds)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 64 * MIB);
	tl_client *client = td_connect(&d), *producer = td_connect(&d);
	DLManagedTensorVersioned *held[9];
	int64_t shape = 32 * MIB;
	tl_spec spec = {
		.size = sizeof(spec), .shape = &shape, .ndim = 1, .dtype = { kDLUInt, 8, 1 }
	};
	tl_draft *draft;

	for (int i = 0; i < 9; i++) {
		put_bytes(producer, "cam", i, 4 * MIB);
		held[i] = get(client, "cam");
	}
	must_be(tl_create(client, "b", &spec, &draft), -ENOSPC);
	must(strstr(tl_last_error(), " of 64.0 MiB) are in use"));
	must(strstr(tl_last_error(), "this process holds 8 tensors that no name means any more, of "
				     "32.0 MiB: release them (the oldest, version 1 of 'cam', "));
	for (int i = 0; i < 9; i++)
		drop(held[i]);
	tl_close(producer);
	tl_close(client);
}

int main(void)
{
	return suite_run();
}
