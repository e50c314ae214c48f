/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients in containers that share only the directory of the daemon's socket: PID, IPC and mount
 * namespaces of their own, a /dev/shm of 64 MiB, and no other file of the machine.
 */
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "tests/client/rings.h"
#include "tests/harness/own_user.h"
#include "tests/harness/process.h"

enum { NOT_ALLOWED = 77, LARGE = 300 << 20, MEMBERS = 8, OTHER = 1234 };

/* What a container shares, and who it is. */
struct container {
	bool file;	     /* the socket itself instead of its directory */
	bool user_namespace; /* where our user is root */
	child_fn *fn;	     /* runs there, as process 1; its socket's path is that of there */
	void *arg;
};

/* ---- Containers ---- */

static bool make_file(const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	return fd >= 0 && !close(fd);
}

/* Makes a root with nothing but what @path leads to, as /run or /run/socket. */
static bool own_root(const char *path, bool file)
{
	const char *at = file ? "/tmp/run/socket" : "/tmp/run";
	int fd = open(path, O_PATH | O_CLOEXEC); /* it may lie below /tmp */
	char source[40];

	snprintf(source, sizeof(source), "/proc/self/fd/%d", fd);
	return fd >= 0 && !mount("tl-test", "/tmp", "tmpfs", 0, "mode=0755") &&
	       !mkdir("/tmp/run", 0755) && !mkdir("/tmp/dev", 0755) &&
	       !mkdir("/tmp/dev/shm", 0755) && !mkdir("/tmp/proc", 0755) &&
	       (!file || make_file(at)) && !mount(source, at, NULL, MS_BIND, NULL) &&
	       !mount("tl-test", "/tmp/dev/shm", "tmpfs", 0, "mode=1777,size=64M") && !close(fd) &&
	       !chroot("/tmp") && !chdir("/");
}

static bool contain(const char *path, bool file, bool user_namespace)
{
	uid_t uid = user_namespace ? 0 : geteuid();
	gid_t gid = user_namespace ? 0 : getegid();

	if ((user_namespace || geteuid()) && !own_user_namespace(uid, gid))
		return false;
	return !unshare(CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNS) &&
	       !mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) && own_root(path, file);
}

/* Waits for process 1 of the container. */
static int outside(const struct test_daemon *d, void *arg)
{
	const struct container *c = arg;
	struct test_daemon there = d ? *d : (struct test_daemon){ .socket = "/tmp/socket" };
	char *slash = strrchr(there.socket, '/'), name[64];
	int status;
	pid_t pid;

	snprintf(name, sizeof(name), "%s", slash + 1);
	if (!c->file)
		*slash = '\0';
	if (!contain(there.socket, c->file, c->user_namespace))
		return NOT_ALLOWED;
	snprintf(there.socket, sizeof(there.socket), "/run/%s", c->file ? "socket" : name);
	pid = fork();
	must(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		must_be(getpid(), 1);
		(void)mount("proc", "/proc", "proc", 0, NULL); /* not needed, and not always allowed
								*/
		_exit(c->fn ? c->fn(&there, c->arg) : 0);
	}
	must_be(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static struct test_child start(const struct test_daemon *d, const struct container *c)
{
	return child_start(d, outside, (void *)(uintptr_t)c);
}

#define container_start(d, ...) start(d, &(const struct container){ __VA_ARGS__ })

/* False: this user may make none. */
static bool can_contain(bool user_namespace)
{
	struct container c = { .user_namespace = user_namespace };

	return td_run_client(NULL, outside, &c) == 0;
}

#define NEEDS_CONTAINERS SKIP_UNLESS(can_contain(false), "may not make namespaces and mounts")

static bool shm_is_empty(void)
{
	struct statvfs s;

	must_be(statvfs("/dev/shm", &s), 0);
	must_be(s.f_blocks * s.f_frsize, 64 * MIB);
	return s.f_bfree == s.f_blocks;
}

/* ---- What clients do there ---- */

static const char *const members[MEMBERS] = {
	"g/0", "g/1", "g/2", "g/3", "g/4", "g/5", "g/6", "g/7"
};

static void put_group(tl_client *client)
{
	tl_group_item items[MEMBERS];
	int64_t shape[1] = { SIZE };
	tl_group *group;

	for (int i = 0; i < MEMBERS; i++)
		items[i] = (tl_group_item){
			.name = members[i], .shape = shape, .ndim = 1, .dtype = U8
		};
	must_be(tl_group_create(client, items, MEMBERS, NULL, &group), 0);
	for (size_t i = 0; i < MEMBERS; i++)
		memset(tl_group_tensor(group, i)->data, (int)i, SIZE);
	must_be(tl_group_commit(group), 0);
}

static void put_large(tl_client *client, int value)
{
	int64_t shape[1] = { LARGE };
	const tl_spec spec = { .size = sizeof(spec), .shape = shape, .ndim = 1, .dtype = U8 };
	tl_draft *draft;

	must_be(tl_create(client, "large", &spec, &draft), 0);
	memset(tl_draft_tensor(draft)->data, value, LARGE);
	must_be(tl_commit(draft, NULL), 0);
}

static int producer(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);

	(void)arg;
	must_be(access("/etc", F_OK), -1); /* there is nothing of the machine */
	put_bytes(client, "small", 5, 100);
	put_large(client, 6);
	put_group(client);
	begin(client, "r");
	pause_at(put_ring(client, "r", 8));
	for (int i = 9; i < 40; i++)
		put_ring(client, "r", i);
	must(shm_is_empty());
	pause_at(0);
	must_be(tl_close(client), 0);
	return 0;
}

static int consumer(const struct test_daemon *d, void *arg)
{
	const tl_get_options next = { .size = sizeof(next),
				      .timeout_ns = -1,
				      .newer_than = *(uint64_t *)arg };
	DLManagedTensorVersioned *t, *all[MEMBERS];
	tl_client *client = td_connect(d);

	t = get(client, "small");
	must(all_bytes(t, 5, 100));
	drop(t);
	t = get(client, "large");
	must(all_bytes(t, 6, LARGE));
	drop(t);
	must_be(tl_get_many(client, members, MEMBERS, NULL, all), 0);
	for (int i = 0; i < MEMBERS; i++) {
		must(all_bytes(all[i], i, SIZE));
		drop(all[i]);
	}
	t = get(client, "r");
	must(all_bytes(t, 8, SIZE));
	drop(t);
	parent_tell(1);
	must_be(tl_get(client, "r", &next, &t), 0); /* the producer wakes it */
	must(((unsigned char *)t->dl_tensor.data)[0] > 8);
	drop(t);
	must(shm_is_empty());
	must_be(tl_close(client), 0);
	return 0;
}

static bool has_room(void)
{
	struct statvfs s;

	return !statvfs("/dev/shm", &s) && s.f_bavail * s.f_frsize > LARGE + 64 * MIB;
}

TEST(containers_that_share_the_sockets_directory_share_tensors)
{
	struct test_child from, to;
	uint64_t version;

	NEEDS_CONTAINERS;
	SKIP_UNLESS(has_room(), "/dev/shm has not enough room for 300 MiB");
	cleanup_td struct test_daemon d = td_start(.capacity = 512 * MIB);

	from = container_start(&d, .fn = producer);
	version = child_await(&from);
	to = container_start(&d, .fn = consumer, .arg = &version);
	must_be(child_await(&to), 1);
	child_step(&from);
	child_must_succeed(&to);
	child_finish(&from);
}

/* ---- Deaths ---- */

static int holder(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	int64_t shape[1] = { (int64_t)MIB };
	const tl_spec spec = { .size = sizeof(spec), .shape = shape, .ndim = 1, .dtype = U8 };
	DLManagedTensorVersioned *t = get(client, "held");
	tl_draft *draft;

	(void)arg;
	must_be(tl_create(client, "draft", &spec, &draft), 0);
	pause_at(t != NULL);
	return 0;
}

static int note_pid(const tl_client_info *info, void *context)
{
	if (info->leases)
		*(uint32_t *)context = info->pid;
	return 0;
}

/* And leaves no draft in store. */
static void put_and_leave(const struct test_daemon *d, const char *name, int value, size_t n)
{
	tl_client *client = td_connect(d);

	put_bytes(client, name, value, n);
	must_be(tl_close(client), 0);
}

/* To the daemon it is an ordinary process, which the kernel numbers as in the daemon's namespace.
 */
TEST(what_a_killed_process_of_a_container_held_is_given_back)
{
	struct test_child c;
	uint32_t pid = 0;
	tl_client *client;

	NEEDS_CONTAINERS;
	cleanup_td struct test_daemon d = td_start();
	put_and_leave(&d, "held", 1, MIB);
	c = container_start(&d, .fn = holder);
	child_await(&c);
	put_and_leave(&d, "held", 2, MIB);
	must_be(td_status(&d).retired, 1);
	must_be(td_status(&d).drafts, 1);
	client = td_connect(&d);
	must_be(tl_list_clients(client, note_pid, &pid), 0);
	must_be(tl_close(client), 0);
	must(pid > 1);
	must_be(kill((pid_t)pid, SIGKILL), 0);
	must_be(WEXITSTATUS(child_wait(&c)), 128 + SIGKILL);
	eventually(td_status(&d).retired == 0);
	must_be(td_status(&d).drafts, 0);
}

static int stays(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);
	DLManagedTensorVersioned *t = get(client, "x");

	(void)arg;
	pause_at(1);
	must(all_bytes(t, 1, SIZE));
	drop(t);
	t = get(client, "x");
	must(all_bytes(t, 2, SIZE));
	drop(t);
	put_bytes(client, "y", 3, SIZE);
	must_be(tl_close(client), 0);
	return 0;
}

TEST(a_client_in_a_container_goes_on_when_another_daemon_takes_over)
{
	static const char *const keeper[] = { "--keeper", "yes", NULL };
	DLManagedTensorVersioned *t;
	struct test_child c;
	tl_client *client;

	NEEDS_CONTAINERS;
	cleanup_td struct test_daemon d = td_start(.extra = keeper);
	client = td_connect(&d);
	put_bytes(client, "x", 1, SIZE);
	c = container_start(&d, .fn = stays);
	child_await(&c);
	daemon_kill(client);
	put_bytes(client, "x", 2, SIZE);
	child_finish(&c);
	t = get(client, "y");
	must(all_bytes(t, 3, SIZE));
	drop(t);
	must_be(tl_close(client), 0);
}

static int loses_it(const struct test_daemon *d, void *arg)
{
	tl_connect_options o = { .size = sizeof(o), .address = d->socket };
	tl_client *client = td_connect(d);

	(void)arg;
	must_be(tl_close(client), 0);
	pause_at(1);
	must_be(tl_connect(&o, &client), -ECONNREFUSED);
	return 0;
}

/* That daemon makes a socket of its own, which only those find who see the directory. */
TEST(a_new_daemons_socket_is_found_in_the_directory)
{
	struct test_child directory, file;
	tl_client *client;

	NEEDS_CONTAINERS;
	struct test_daemon first = td_start();
	client = td_connect(&first);
	put_bytes(client, "x", 1, SIZE);
	directory = container_start(&first, .fn = stays);
	file = container_start(&first, .fn = loses_it, .file = true);
	child_await(&directory);
	child_await(&file);
	td_kill(&first);
	cleanup_td struct test_daemon d = td_start(.socket = first.socket);
	put_bytes(client, "x", 2, SIZE);
	child_finish(&directory);
	child_finish(&file);
	must(d.pid);
	must_be(tl_close(client), 0);
}

/* ---- Users ---- */

static int root_there(const struct test_daemon *d, void *arg)
{
	must_be(geteuid(), 0);
	return stays(d, arg);
}

struct seen {
	uint32_t uid;
	bool there;
};

static int note_uid(const tl_client_info *info, void *context)
{
	struct seen *seen = context;

	seen->there |= info->leases && info->uid == seen->uid;
	return 0;
}

/* As without a daemon for the whole machine. */
TEST(the_user_of_a_user_namespace_is_to_the_daemon_who_it_is_outside)
{
	struct seen seen = { .uid = geteuid() };
	struct test_child c;
	tl_client *client;

	SKIP_UNLESS(can_contain(true), "may not make user namespaces");
	cleanup_td struct test_daemon d = td_start();
	client = td_connect(&d);
	put_bytes(client, "x", 1, SIZE);
	c = container_start(&d, .fn = root_there, .user_namespace = true);
	child_await(&c);
	must_be(tl_list_clients(client, note_uid, &seen), 0);
	must(seen.there);
	put_bytes(client, "x", 2, SIZE);
	child_finish(&c);
	must_be(tl_close(client), 0);
}

static int distrusts(const struct test_daemon *d, void *arg)
{
	tl_connect_options o = { .size = sizeof(o), .address = d->socket };
	uint32_t uid;
	tl_client *client;

	(void)arg;
	unsetenv("TENSORLEASE_TRUST_UID");
	must_be(tl_connect(&o, &client), -EACCES);
	must_be(tl_last_cause(&uid), TL_CAUSE_UNTRUSTED);
	must_be(uid, 65534);
	setenv("TENSORLEASE_TRUST_UID", "65534", 1);
	must_be(tl_connect(&o, &client), 0);
	put_bytes(client, "x", 1, SIZE);
	must_be(tl_close(client), 0);
	return 0;
}

TEST(a_daemon_whose_user_is_not_mapped_must_be_trusted_as_nobody)
{
	const struct container c = { .fn = distrusts, .user_namespace = true };
	struct test_child child;
	tl_info info = { .size = sizeof(info) };
	tl_client *client;

	SKIP_UNLESS(geteuid() == 0, "needs root, to be another user");
	SKIP_UNLESS(can_contain(true), "may not make user namespaces");
	cleanup_td struct test_daemon d = td_start(.for_others = true);
	client = td_connect(&d);
	child = child_start_as(OTHER, &d, outside, (void *)(uintptr_t)&c);
	child_must_succeed(&child);
	must_be(tl_stat(client, "x", &info), 0);
	must_be(info.uid, OTHER);
	must_be(tl_close(client), 0);
}

int main(void)
{
	return suite_run();
}
