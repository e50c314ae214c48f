/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fork(): the child's tensors are protected by holds of its own, drafts stay the parent's, who lets
 * it fill exported ones, and nothing is lost.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <tensorlease/watch.h>

#include "client/connection/process.h"
#include "tests/client/family.h"

enum { VERSIONS = 3000 };

static int reading_child(const struct test_daemon *d, void *arg)
{
	struct family *f = arg;
	DLManagedTensorVersioned *t;

	(void)d;
	read_across_a_pause(f);
	t = get(f->client, "f/0"); /* on the child's own connection */
	must(*(unsigned char *)t->dl_tensor.data == 200);
	drop(t);
	put_bytes(f->client, "from/child", 1, 10);
	pause_at(2);
	check_family(f);
	drop_family(f);
	pause_at(3);
	tl_close(f->client);
	return 0;
}

TEST(a_child_keeps_reading)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	struct test_child c;
	struct family f;

	take_family(&f, client);
	c = child_start_ready(&d, reading_child, &f);
	must_be(td_status(&d).clients, 2);
	drop_family(&f);
	for (int v = 0; v < VERSIONS; v++)
		replace_family(&f, v % 100 ? 4 : HELD); /* the large ones less often */
	must_be(td_status(&d).retired, HELD);
	must_be(child_step(&c), 2);
	must_be(child_step(&c), 3);
	must_be(td_status(&d).retired, 0); /* what the child gave back is free */
	child_finish(&c);
	must_be(td_status(&d).clients, 1);
	tl_close(client);
}

struct drafts {
	tl_client *client;
	tl_draft *plain; /* not exported */
	unsigned char *shown;
	tl_draft *exported;
};

static unsigned char *new_draft(tl_client *client, const char *name, tl_draft **draft)
{
	int64_t n = 1 << 20;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	unsigned char *data;

	must_be(tl_create(client, name, &spec, draft), 0);
	data = tl_draft_tensor(*draft)->data;
	memset(data, 1, 1 << 20);
	return data;
}

/* What the child maps itself does not lie where its parent's drafts are. */
static int filling_child(const struct test_daemon *d, void *arg)
{
	const struct drafts *drafts = arg;
	unsigned char *hidden = tl_draft_tensor(drafts->plain)->data, *own;
	tl_draft *draft;

	(void)d;
	for (int i = 0; i < 8; i++) {
		own = new_draft(drafts->client, "d/child", &draft);
		must(own + (1 << 20) <= hidden || hidden + (1 << 20) <= own);
		must(own + (1 << 20) <= drafts->shown || drafts->shown + (1 << 20) <= own);
		must_be(tl_commit(draft, NULL), 0);
	}
	must(drafts->shown[0] == 1);
	memset(drafts->shown, 2, 1 << 20);
	must_be(tl_commit(drafts->plain, NULL), -ESTALE);
	return 0;
}

TEST(a_child_fills_exported_drafts_and_has_nothing_in_the_place_of_others)
{
	cleanup_td struct test_daemon d = td_start();
	struct drafts drafts = { .client = td_connect(&d) };
	DLManagedTensorVersioned *exported;
	struct test_child c;

	new_draft(drafts.client, "d/plain", &drafts.plain);
	drafts.shown = new_draft(drafts.client, "d/shown", &drafts.exported);
	must_be(tl_draft_to_dlpack(drafts.exported, &exported), 0);
	c = child_start(&d, filling_child, &drafts);
	child_finish(&c);
	must(drafts.shown[0] == 2 && drafts.shown[(1 << 20) - 1] == 2);
	exported->deleter(exported);
	tl_abort(drafts.plain);
	td_sync(&d);
	must_be(td_status(&d).drafts, 0);
	tl_close(drafts.client);
}

static int dying_child(const struct test_daemon *d, void *arg)
{
	(void)d;
	read_across_a_pause(arg);
	return 0; /* with _exit(): no deleter, no destructor */
}

TEST(a_childs_end_gives_everything_back)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	struct test_child c[3];
	struct family f;

	take_family(&f, client);
	for (int i = 0; i < 3; i++)
		c[i] = child_start_ready(&d, dying_child, &f);
	must_be(td_status(&d).clients, 4);
	drop_family(&f);
	for (int i = 0; i < HELD; i++) {
		char name[16];

		snprintf(name, sizeof(name), "f/%d", i);
		must_be(tl_delete(client, name), 0);
	}
	must_be(td_status(&d).retired, HELD);
	child_kill(&c[0]);
	must_be(td_status(&d).retired, HELD);
	child_finish(&c[1]);
	child_finish(&c[2]);
	must_be(td_status(&d).retired, 0);
	must_be(td_status(&d).clients, 1);
	tl_close(client);
}

static int draft_child(const struct test_daemon *d, void *arg)
{
	struct family *f = arg;
	tl_client *client;

	must_be(tl_commit(f->draft, NULL), -ESTALE);
	must(strstr(tl_last_error(), "fork"));
	put_bytes(f->client, "child", 2, 100); /* the inherited handle connects anew */
	drop(get(f->client, "child"));
	client = td_connect(d);
	drop(get(client, "child"));
	tl_close(client);
	tl_close(f->client);
	return 0;
}

TEST(drafts_stay_the_parents)
{
	cleanup_td struct test_daemon d = td_start();
	struct family f = { .client = td_connect(&d) };
	int64_t n = 5000;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	DLManagedTensorVersioned *t;

	must_be(tl_create(f.client, "draft", &spec, &f.draft), 0);
	memset(tl_draft_tensor(f.draft)->data, 1, 2500);
	must_be(td_run_client(&d, draft_child, &f), 0);
	must_be(td_status(&d).drafts, 1);
	must_be(td_status(&d).clients, 1);
	memset((char *)tl_draft_tensor(f.draft)->data + 2500, 1, 2500);
	must_be(tl_commit(f.draft, &(uint64_t){ 0 }), 0);
	t = get(f.client, "draft");
	must(all_bytes(t, 1, 5000));
	drop(t);
	tl_close(f.client);
}

static int grandparent(const struct test_daemon *d, void *arg)
{
	struct family *f = arg;
	int status;
	pid_t pid;

	(void)d;
	pid = fork();
	must(pid >= 0);
	if (pid == 0) {
		for (int i = 0; i < HELD; i += 2)
			drop(f->held[i]);
		for (int i = 1; i < HELD; i += 2)
			must(all_bytes(f->held[i], i + 1, f->size[i]));
		_exit(0);
	}
	must_be(waitpid(pid, &status, 0), pid);
	must_be(status, 0);
	check_family(f);
	drop_family(f);
	return 0;
}

TEST(a_closed_clients_tensors_are_inherited_too)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *other = td_connect(&d);
	struct test_child c;
	struct family f;

	take_family(&f, client);
	tl_close(client);
	c = child_start_ready(&d, dying_child, &f);
	drop_family(&f);
	must_be(tl_delete(other, "f/3"), 0);
	must_be(td_status(&d).retired, 1);
	for (int i = 0; i < 100; i++)
		put_bytes(other, "x", 99, f.size[3]);
	child_finish(&c);
	must_be(td_status(&d).retired, 0);
	tl_close(other);
}

TEST(grandchildren_hold_too)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	struct family f;

	take_family(&f, client);
	must_be(td_run_client(&d, grandparent, &f), 0);
	check_family(&f);
	drop_family(&f);
	must_be(td_status(&d).clients, 1);
	tl_close(client);
}

struct busy {
	tl_client *client;
	_Atomic bool stop;
};

static void *busy_thread(void *arg)
{
	struct busy *b = arg;

	for (unsigned i = 0; !atomic_load(&b->stop); i++) {
		DLManagedTensorVersioned *t = get(b->client, "f/2");

		must(all_bytes(t, *(unsigned char *)t->dl_tensor.data,
			       (size_t)t->dl_tensor.shape[0]));
		drop(t);
		if (i % 64 == 0)
			put_bytes(b->client, "f/2", (int)(i & 127), 1600);
	}
	return NULL;
}

static int short_child(const struct test_daemon *d, void *arg)
{
	struct family *f = arg;

	(void)d;
	must(all_bytes(f->held[0], 1, f->size[0]));
	drop(f->held[0]);
	drop(get(f->client, "f/2"));
	put_bytes(f->client, "short", 1, 50);
	return 0;
}

TEST(forking_while_threads_are_at_work)
{
	SKIP_UNLESS(MAY_FORK_AMONG_THREADS, "AddressSanitizer's allocator does not survive it");
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	struct busy b = { .client = client };
	struct family f;
	pthread_t threads[3];

	take_family(&f, client);
	for (int i = 0; i < 3; i++)
		must_be(pthread_create(&threads[i], NULL, busy_thread, &b), 0);
	for (int i = 0; i < 40; i++)
		must_be(td_run_client(&d, short_child, &f), 0);
	atomic_store(&b.stop, true);
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	check_family(&f);
	drop_family(&f);
	must_be(td_status(&d).clients, 1);
	must_be(td_status(&d).retired, 0);
	tl_close(client);
}

static void fork_and_exec(uint32_t ring)
{
	enum { ROUNDS = 100, SIZE = 100000 };
	cleanup_td struct test_daemon d = td_start();
	const tl_put_options o = { .size = sizeof(o), .ring = ring };
	tl_client *client = td_connect(&d);
	DLManagedTensorVersioned *held, *small;
	struct tl_status s;

	put_as(client, "large", 1, SIZE, &o);
	put_as(client, "small", 1, 5000, &o);
	for (int i = 0; i < ROUNDS; i++) {
		pid_t pid;
		int status;

		held = get(client, "large");
		small = get(client, "small");
		pid = fork();
		if (pid == 0) {
			if (i % 2)
				execl("/bin/true", "true", NULL);
			_exit(0);
		}
		must(pid > 0);
		must_be(waitpid(pid, &status, 0), pid);
		must_be(status, 0);
		td_sync(&d); /* what the child held is there for the next tensors */
		put_as(client, "large", i, SIZE, &o);
		put_as(client, "small", i, 5000, &o);
		drop(held);
		drop(small);
	}
	s = td_status(&d);
	must_be(s.clients, 1);
	must_be(s.retired, 0);
	if (ring == TL_RING_NONE)
		must(s.bytes_used - s.bytes_warm <= 4 * SIZE); /* with what is prefetched */
	must_be(s.rings, ring == TL_RING_NONE ? 0 : 2);
	must(s.ring_slots <= 2 * TL_RING_MAX);
	tl_close(client);
}

TEST(fork_and_exec_give_everything_back)
{
	fork_and_exec(TL_RING_NONE);
	fork_and_exec(TL_RING_AUTO);
}

/* ---- No connection for the child ---- */

static int held_by_its_parent(const struct test_daemon *d, void *arg)
{
	struct family *f = arg;

	(void)d;
	read_across_a_pause(f);
	for (int i = 1; i < HELD; i++)
		drop(f->held[i]);
	pause_at(2);
	return 0;
}

static struct test_child start_unconnected(const struct test_daemon *d, child_fn *child,
					   struct family *f)
{
	struct test_child c;

	td_freeze(d); /* it cannot answer the child's connection */
	fork_timeout_ns = 50 * MS;
	c = child_start(d, child, f);
	fork_timeout_ns = WAIT_S * SECOND;
	td_thaw(d);
	must_be(child_await(&c), 1);
	return c;
}

static void must_be_held(child_fn *child)
{
	cleanup_td struct test_daemon d = td_start();
	struct test_child c;
	struct family f;

	take_family(&f, td_connect(&d));
	c = start_unconnected(&d, child, &f);
	drop_family(&f);
	replace_family_often(&f);
	must_be(td_status(&d).retired, HELD);
	must_be(child_step(&c), 2);
	must_be(td_status(&d).retired, HELD); /* it has one left, and one pin is for all of them */
	child_finish(&c);
	put_bytes(f.client, "f/0", 1, 100); /* the next call sees that it has ended */
	must_be(td_status(&d).retired, 0);
	tl_close(f.client);
}

TEST(a_parent_holds_for_its_child_and_no_longer)
{
	must_be_held(held_by_its_parent);
}

static int waits(const struct test_daemon *d, void *arg)
{
	(void)d;
	(void)arg;
	pause_at(1);
	return 0;
}

static int drops_all(const struct test_daemon *d, void *arg)
{
	drop_family(arg);
	return waits(d, NULL);
}

TEST(what_a_parent_holds_for_a_child_ends_after_tl_close_too)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *other = td_connect(&d);
	struct test_child c;
	struct family f;

	take_family(&f, td_connect(&d));
	c = start_unconnected(&d, waits, &f);
	tl_close(f.client);
	f.client = other;
	replace_family(&f, HELD);
	must_be(td_status(&d).retired, HELD);
	child_finish(&c);
	for (int i = 1; i < HELD; i++)
		drop(f.held[i]);
	must_be(td_status(&d).retired, 1);
	drop(f.held[0]);
	must_be(td_status(&d).retired, 0);
	tl_close(other);
}

/* Who has a connection of its own could not give that up. */
TEST(what_a_parent_holds_for_a_child_is_not_its_sisters)
{
	cleanup_td struct test_daemon d = td_start();
	struct test_child unconnected, sister;
	struct family f;

	take_family(&f, td_connect(&d));
	unconnected = start_unconnected(&d, waits, &f);
	sister = child_start_ready(&d, drops_all, &f);
	drop_family(&f);
	replace_family_often(&f);
	must_be(td_status(&d).retired, HELD);
	child_kill(&unconnected);
	put_bytes(f.client, "f/0", 1, 100); /* the next call sees that it has ended */
	must_be(td_status(&d).retired, 0);
	child_finish(&sister);
	tl_close(f.client);
}

/* As a child does that becomes a service. */
static int held_without_descriptors(const struct test_daemon *d, void *arg)
{
	child_close_all();
	return held_by_its_parent(d, arg);
}

TEST(a_parent_holds_for_a_child_that_closes_its_descriptors)
{
	must_be_held(held_without_descriptors);
}

enum { OTHERS = 64 };

static void sockets_open(int pairs[OTHERS][2])
{
	for (int i = 0; i < OTHERS; i++) {
		must_be(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pairs[i]), 0);
		for (int k = 0; k < 2; k++)
			must_be(send(pairs[i][k], "theirs", 6, 0), 6);
	}
}

static void sockets_must_be_as_they_were(int pairs[OTHERS][2])
{
	char text[8];

	for (int i = 0; i < OTHERS; i++) {
		for (int k = 0; k < 2; k++) {
			must_be(recv(pairs[i][k], text, sizeof(text), MSG_DONTWAIT), 6);
			must(!memcmp(text, "theirs", 6));
			must_be(recv(pairs[i][k], text, sizeof(text), MSG_DONTWAIT), -1);
			must_be(errno, EAGAIN);
		}
	}
}

/* The service then opens sockets of its own, which get the numbers of what it closed. */
static int others_have_the_numbers(const struct test_daemon *d, void *arg)
{
	struct family *f = arg;
	int pairs[OTHERS][2];

	(void)d;
	child_close_all();
	sockets_open(pairs);
	pause_at(1); /* meanwhile its tensors are replaced */
	for (int i = 0; i < HELD; i++)
		drop(f->held[i]);
	put_bytes(f->client, "its own", 1, 100);
	tl_close(f->client);
	sockets_must_be_as_they_were(pairs);
	return 0;
}

TEST(sockets_with_the_numbers_of_those_that_a_child_closed_are_left_alone)
{
	cleanup_td struct test_daemon d = td_start();
	struct test_child c;
	struct family f;

	take_family(&f, td_connect(&d));
	c = child_start(&d, others_have_the_numbers, &f);
	must_be(child_await(&c), 1);
	drop_family(&f);
	replace_family_often(&f);
	child_finish(&c);
	eventually(td_status(&d).retired == 0);
	tl_close(f.client);
}

struct caller {
	struct family f;
	bool slept; /* before it closed its descriptors */
	bool gets;  /* first, else it deletes */
};

/* The first call on the connection that it inherited, and has closed. */
static int calls_without_descriptors(const struct test_daemon *d, void *arg)
{
	const tl_get_options brief = { .size = sizeof(brief), .timeout_ns = MS };
	struct caller *c = arg;
	DLManagedTensorVersioned *t;

	(void)d;
	if (c->slept) /* a thread waits for the end of the connection from now on */
		must_be(tl_get(c->f.client, "none", &brief, &t), -ETIMEDOUT);
	child_close_all();
	if (c->gets) {
		t = get(c->f.client, "new");
		must(all_bytes(t, 9, MIB));
		drop(t);
	}
	must_be(tl_delete(c->f.client, "new"), 0);
	check_family(&c->f);
	drop_family(&c->f);
	tl_close(c->f.client);
	return 0;
}

TEST(the_calls_of_a_child_that_closed_its_descriptors_connect_anew)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *other = td_connect(&d);
	struct caller c;

	take_family(&c.f, td_connect(&d));
	for (int i = 0; i < 4; i++) {
		c.slept = i & 1;
		c.gets = i & 2;
		put_bytes(other, "new", 9, MIB);
		must_be(td_run_client(&d, calls_without_descriptors, &c), 0);
	}
	drop_family(&c.f);
	tl_close(c.f.client);
	tl_close(other);
}

static int closes_its_parents_watch(const struct test_daemon *d, void *arg)
{
	int pairs[OTHERS][2];

	(void)d;
	child_close_all();
	sockets_open(pairs);
	must_be(tl_watch_close(arg), 0);
	sockets_must_be_as_they_were(pairs);
	return 0;
}

TEST(a_watch_that_a_child_closes_takes_no_descriptor_of_others)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_watch *watch;
	int fd;

	must_be(tl_watch_open(client, "f/", NULL, &watch), 0);
	must_be(tl_watch_fd(watch, &fd), 0);
	must_be(td_run_client(&d, closes_its_parents_watch, watch), 0);
	must_be(tl_watch_close(watch), 0);
	tl_close(client);
}

/* It forks before it closes them, and files of its own are not sealed in place of the page by which
 * it knows of the grandchild's end. */
static int forks_and_closes(const struct test_daemon *d, void *arg)
{
	const struct family *f = arg;
	DLManagedTensorVersioned *exported;
	tl_draft *draft;
	int fds[OTHERS], status;
	pid_t pid;

	(void)d;
	new_draft(f->client, "d", &draft);
	must_be(tl_draft_to_dlpack(draft, &exported), 0);
	pid = fork();
	if (pid == 0)
		_exit(0);
	must_be(waitpid(pid, &status, 0), pid);
	child_close_all();
	for (int i = 0; i < OTHERS; i++)
		must((fds[i] = memfd_create("theirs", MFD_CLOEXEC | MFD_ALLOW_SEALING)) >= 0);
	drop(exported);
	put_bytes(f->client, "its own", 1, 100);
	drop_family(f);
	tl_close(f->client);
	for (int i = 0; i < OTHERS; i++)
		must_be(fcntl(fds[i], F_GET_SEALS), 0);
	return 0;
}

TEST(files_with_the_numbers_of_those_that_a_parent_closed_are_not_sealed)
{
	cleanup_td struct test_daemon d = td_start();
	struct family f;

	take_family(&f, td_connect(&d));
	must_be(td_run_client(&d, forks_and_closes, &f), 0);
	drop_family(&f);
	tl_close(f.client);
}

static int fork_and_leave(const struct test_daemon *d, void *arg)
{
	struct family *f = arg;
	pid_t pid;

	take_family(f, td_connect(d));
	pause_at(1); /* from here on the daemon stands still */
	fork_timeout_ns = 50 * MS;
	pid = fork();
	if (pid == 0)
		_exit(held_by_its_parent(d, f));
	must(pid > 0);
	return 0;
}

TEST(a_child_keeps_reading_after_its_parent_has_ended)
{
	cleanup_td struct test_daemon d = td_start();
	struct test_child c;
	struct family f, mine;

	c = child_start_ready(&d, fork_and_leave, &f);
	td_freeze(&d);
	child_go(&c);
	must_be(child_wait_open(&c), 0);
	must_be(child_await(&c), 1);
	td_thaw(&d);
	mine.client = td_connect(&d);
	for (int i = 0; i < HELD; i++)
		mine.size[i] = (size_t)100 << i * 2;
	replace_family_often(&mine);
	must_be(td_status(&d).retired, HELD);
	must_be(child_step(&c), 2);
	child_hang_up(&c);
	eventually(td_status(&d).retired == 0);
	tl_close(mine.client);
}

/* ---- Copy-on-write ---- */

enum { PRIVATE_BYTES = 64 * 1024, PAGE = 4096 };

struct written {
	tl_client *client;
	DLManagedTensorVersioned *tensor; /* its first page was written to before the fork */
};

static bool is_as_it_was(const struct written *w, int first, int second, int others)
{
	const unsigned char *p = w->tensor->dl_tensor.data;

	for (size_t i = 0; i < PRIVATE_BYTES; i++)
		if (p[i] != (i < PAGE ? first : i < 2 * PAGE ? second : others))
			return false;
	return true;
}

static int writing_child(const struct test_daemon *d, void *arg)
{
	struct written *w = arg;
	unsigned char *data = w->tensor->dl_tensor.data;

	(void)d;
	must(is_as_it_was(w, 7, 1, 1));
	memset(data + PAGE, 9, PAGE);
	pause_at(1);
	must(is_as_it_was(w, 7, 9, 1)); /* the parent has let go, and others reused what they could
					 */
	drop(w->tensor);
	pause_at(2);
	tl_close(w->client);
	return 0;
}

TEST(a_childs_private_pages_and_those_it_never_wrote_stay_as_they_were)
{
	cleanup_td struct test_daemon d = td_start();
	tl_get_options how = { .size = sizeof(how), .mode = TL_MODE_COPY_ON_WRITE };
	struct written w = { .client = td_connect(&d) };
	struct test_child c;

	put_bytes(w.client, "w", 1, PRIVATE_BYTES);
	must_be(tl_get(w.client, "w", &how, &w.tensor), 0);
	memset(w.tensor->dl_tensor.data, 7, PAGE);
	c = child_start_ready(&d, writing_child, &w);
	must(is_as_it_was(&w, 7, 1, 1));
	drop(w.tensor);
	for (int v = 0; v < 100; v++)
		put_bytes(w.client, "w", 200, PRIVATE_BYTES);
	must_be(td_status(&d).retired, 1);
	must_be(child_step(&c), 2);
	must_be(td_status(&d).retired, 0);
	child_finish(&c);
	tl_close(w.client);
}

/* ---- A parent whose connection ended ---- */

static void lose_connection(const struct test_daemon *d)
{
	for (int fd = 3; fd < 1024; fd++) {
		struct sockaddr_un peer = { 0 };
		socklen_t n = sizeof(peer);

		if (!getpeername(fd, (struct sockaddr *)&peer, &n) && peer.sun_family == AF_UNIX &&
		    !strcmp(peer.sun_path, d->socket))
			must_be(shutdown(fd, SHUT_RDWR), 0);
	}
}

static int reads_without_a_connection(const struct test_daemon *d, void *arg)
{
	struct family *f = arg;

	(void)d;
	read_across_a_pause(f);
	drop_family(f);
	tl_close(f->client);
	return 0;
}

/*
 * The daemon keeps reading the ledger of the parent's lost connection, so the parent must not
 * release there what the child still reads.
 */
TEST(a_child_of_a_client_without_a_connection_keeps_reading)
{
	cleanup_td struct test_daemon d = td_start();
	struct test_child c;
	struct family f, mine;

	for (int noticed = 0; noticed < 2; noticed++) {
		take_family(&f, td_connect(&d));
		lose_connection(&d);
		td_sync(&d);
		if (noticed) /* by this request, which opens a new session */
			must_be(tl_delete(f.client, "f/0"), 0);
		c = child_start_ready(&d, reads_without_a_connection, &f);
		drop_family(&f);
		mine = (struct family){ .client = td_connect(&d) };
		memcpy(mine.size, f.size, sizeof(mine.size));
		replace_family_often(&mine);
		must_be(td_status(&d).retired, HELD);
		child_finish(&c);
		tl_close(mine.client);
		tl_close(f.client);
		eventually(td_status(&d).retired == 0);
		eventually(td_status(&d).clients == 0);
	}
}

int main(void)
{
	return suite_run();
}
