/* SPDX-License-Identifier: Apache-2.0 */
/* Children that no handler of fork() announces, as those of _Fork() and clone(): they leave alone
 * what is their parent's. */
#include "tests/client/common.h"

enum { N = 1 << 20 };

/* Runs @fn in such a child, which must succeed. */
static void in_child(const struct test_daemon *d, void (*fn)(const struct test_daemon *, void *),
		     void *arg)
{
	pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
	int status;

	must(pid >= 0);
	if (pid == 0) {
		fn(d, arg);
		_exit(0);
	}
	must_be(waitpid(pid, &status, 0), pid);
	must_be(status, 0);
}

struct held {
	tl_client *client;
	DLManagedTensorVersioned *first, *second;
};

static void release_and_close(const struct test_daemon *d, void *arg)
{
	const struct held *h = arg;

	(void)d;
	must(all_bytes(h->first, 1, N));
	drop(h->first);
	drop(h->second);
	tl_close(h->client);
}

TEST(a_release_there_ends_no_lease_of_the_parent)
{
	cleanup_td struct test_daemon d = td_start();
	struct held h = { .client = td_connect(&d) };

	put_bytes(h.client, "first", 1, N);
	put_bytes(h.client, "second", 2, 100);
	h.first = get(h.client, "first");
	h.second = get(h.client, "second");
	in_child(&d, release_and_close, &h);
	put_bytes(h.client, "first", 3, N);
	must_be(tl_delete(h.client, "second"), 0);
	for (int i = 0; i < 8; i++)
		put_alone(h.client, "other", 4, N);
	must_be(td_status(&d).retired, 2);
	must(all_bytes(h.first, 1, N));
	must(all_bytes(h.second, 2, 100));
	drop(h.first);
	drop(h.second);
	eventually(td_status(&d).retired == 0);
	tl_close(h.client);
}

static tl_draft *draft_new(tl_client *client, const char *name)
{
	int64_t n = N;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	tl_draft *draft;

	must_be(tl_create(client, name, &spec, &draft), 0);
	memset(tl_draft_tensor(draft)->data, 5, N);
	return draft;
}

struct drafts {
	tl_client *client;
	tl_draft *committed, *aborted;
	DLManagedTensorVersioned *exported;
	tl_group *group;
	DLManagedTensorVersioned *tensor;
};

static void use_drafts(const struct test_daemon *d, void *arg)
{
	struct drafts *p = arg;
	DLManagedTensorVersioned *t;

	(void)d;
	must_be(tl_draft_to_dlpack(p->aborted, &t), -ECHILD);
	must(strstr(tl_last_error(), "_Fork()"));
	must_be(tl_commit(p->committed, NULL), -ECHILD);
	tl_abort(p->aborted);
	drop(p->exported);
	must_be(tl_group_commit(p->group), -ECHILD);
	must_be(tl_remap(p->tensor, TL_MODE_READ, &t), -ECHILD);
	tl_close(p->client);
}

TEST(drafts_and_groups_stay_the_parents)
{
	cleanup_td struct test_daemon d = td_start();
	struct drafts p = { .client = td_connect(&d) };
	int64_t n = 100;
	tl_group_item item = { .name = "member", .shape = &n, .ndim = 1, .dtype = U8 };

	p.committed = draft_new(p.client, "committed");
	p.aborted = draft_new(p.client, "aborted");
	must_be(tl_draft_to_dlpack(draft_new(p.client, "exported"), &p.exported), 0);
	must_be(tl_group_create(p.client, &item, 1, NULL, &p.group), 0);
	memset(tl_group_tensor(p.group, 0)->data, 6, 100);
	put_bytes(p.client, "tensor", 7, 100);
	p.tensor = get(p.client, "tensor");
	in_child(&d, use_drafts, &p);
	must_be(tl_commit(p.committed, NULL), 0);
	must_be(tl_commit(p.aborted, NULL), 0);
	must_be(tl_publish(p.client, "exported", p.exported, NULL, NULL, NULL), 0);
	must_be(tl_group_commit(p.group), 0);
	drop(p.tensor);
	for (int i = 0; i < 4; i++) {
		static const char *const names[] = { "committed", "aborted", "exported", "member" };
		DLManagedTensorVersioned *t = get(p.client, names[i]);

		must(all_bytes(t, i == 3 ? 6 : 5, i == 3 ? 100 : N));
		drop(t);
	}
	tl_close(p.client);
}

static void connect_anew(const struct test_daemon *d, void *arg)
{
	struct held *h = arg;
	DLManagedTensorVersioned *t;
	tl_client *mine;
	int status;
	pid_t pid;

	must_be(tl_get(h->client, "a", NULL, &t), -ECHILD);
	must(strstr(tl_last_error(), "tl_connect()"));
	must_be(tl_delete(h->client, "a"), -ECHILD);
	mine = td_connect(d);
	t = get(mine, "a");
	pid = fork(); /* a child of its own is announced, and holds what it does */
	must(pid >= 0);
	if (pid == 0) {
		must(all_bytes(t, 1, N));
		put_bytes(mine, "grandchild", 3, 10);
		drop(t);
		tl_close(mine);
		_exit(0);
	}
	must_be(waitpid(pid, &status, 0), pid);
	must_be(status, 0);
	put_bytes(mine, "child", 2, 10);
	drop(t);
	tl_close(mine);
	tl_close(h->client);
}

TEST(such_a_child_connects_anew)
{
	cleanup_td struct test_daemon d = td_start();
	struct held h = { .client = td_connect(&d) };

	put_bytes(h.client, "a", 1, N);
	h.first = get(h.client, "a");
	in_child(&d, connect_anew, &h);
	must(client_sees(h.client, "child") && client_sees(h.client, "grandchild"));
	must_be(td_status(&d).clients, 1);
	drop(h.first);
	tl_close(h.client);
}

static void close_with_the_last_lease(const struct test_daemon *d, void *arg)
{
	const struct held *h = arg;

	(void)d;
	drop(h->first);
}

TEST(the_last_release_after_tl_close_ends_nothing_there)
{
	cleanup_td struct test_daemon d = td_start();
	struct held h = { .client = td_connect(&d) };
	tl_get_options wait = { .size = sizeof(wait), .timeout_ns = 1 };
	DLManagedTensorVersioned *t;

	put_bytes(h.client, "a", 1, N);
	h.first = get(h.client, "a");
	must_be(tl_get(h.client, "none", &wait, &t), -ETIMEDOUT); /* starts the session's thread */
	tl_close(h.client);
	in_child(&d, close_with_the_last_lease, &h);
	must(all_bytes(h.first, 1, N));
	must_be(td_status(&d).clients, 1);
	drop(h.first);
	eventually(td_status(&d).clients == 0);
}

/* ---- Children that are announced ---- */

struct busy {
	tl_client *client;
	_Atomic bool stop;
};

static void *get_on(void *arg)
{
	struct busy *b = arg;

	while (!atomic_load(&b->stop))
		drop(get(b->client, "a"));
	return NULL;
}

/* Threads that wait for a fork to be over must not take the next one for a child. */
TEST(forks_that_follow_each_other_disturb_no_thread)
{
	enum { FORKS = 400 };
	SKIP_UNLESS(MAY_FORK_AMONG_THREADS, "AddressSanitizer's allocator does not survive it");
	cleanup_td struct test_daemon d = td_start();
	struct busy b = { .client = td_connect(&d) };
	pthread_t threads[3];

	put_bytes(b.client, "a", 1, 1600);
	for (int i = 0; i < 3; i++)
		must_be(pthread_create(&threads[i], NULL, get_on, &b), 0);
	for (int i = 0; i < FORKS; i++) {
		pid_t pid = fork();

		must(pid >= 0);
		if (!pid)
			_exit(0);
		must_be(waitpid(pid, NULL, 0), pid);
	}
	atomic_store(&b.stop, true);
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	tl_close(b.client);
}

int main(void)
{
	return suite_run();
}
