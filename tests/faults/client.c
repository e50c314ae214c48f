/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client that does everything the library can do, in steps. A call may fail only after the fault
 * has been injected, as the report says. It must then give a text and leave nothing half done. The
 * step is tried again and must succeed soon. What a call says it did is checked. At the end nothing
 * of the library may be left in this process.
 *
 * Arguments: the prefix of all names, which tells runs apart; `restart` if the process at the other
 * end of descriptor 3 may kill the daemon and start it again; `autostart` if there is no daemon
 * yet.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tensorlease/admin.h>
#include <tensorlease/tensorlease.h>

#include "tests/faults/report.h"

enum {
	SMALL = 3000,
	LARGE = 400 << 10, /* large enough for a worker of the daemon */
	HUGE_PAGES = 3 << 20,
	LEASES = 16,
	ATTEMPTS = 4,
	TALK_FD = 3,
};

#define MS 1000000LL
/* Longer than anything takes, so that a request whose answer never comes is found by its error. */
#define REQUEST_NS (20000 * MS)

static const struct report *report; /* NULL if no fault is injected */
static const char *step_name = "start";
static const char *prefix = "";
static bool in_child;
static tl_client *client;
static DLManagedTensorVersioned *leases[LEASES]; /* of one step */
static DLManagedTensorVersioned *kept;		 /* across all steps */
static tl_draft *draft;
static tl_group *group;
static unsigned char bytes[HUGE_PAGES];

static _Noreturn __attribute__((format(printf, 1, 2))) void wrong(const char *format, ...)
{
	va_list args;

	fprintf(stderr, "WRONG: %s%s: ", step_name, in_child ? " (child)" : "");
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	_exit(1);
}

static bool fired(void)
{
	return report && atomic_load(&report->fired);
}

/* A call has failed. It must say why, and only the fault may be the cause. */
static int failed(const char *call, int r)
{
	const char *text = tl_last_error();

	fprintf(stderr, "%s: %.60s...: %d %s\n", step_name, call, r, text);
	if (!fired())
		wrong("%.60s: %d (%s) without a fault", call, r, text);
	if (r >= 0)
		wrong("%.60s: %d is no errno", call, r);
	if (!*text)
		wrong("%.60s: %d without a text", call, r);
	if ((r == -ETIMEDOUT || strstr(text, "did not answer in time")) &&
	    report->fired_how != ETIMEDOUT)
		wrong("%.60s: an answer never came: %s", call, text);
	return r;
}

#define TRY(call)                                                                                  \
	do {                                                                                       \
		int r_ = (call);                                                                   \
		if (r_)                                                                            \
			return failed(#call, r_);                                                  \
	} while (0)

#define MUST(condition)                                                                            \
	do {                                                                                       \
		if (!(condition))                                                                  \
			wrong("%s", #condition);                                                   \
	} while (0)

/* ---- Tensors that tell who wrote them ---- */

static const char *name_of(const char *name)
{
	static char text[4][TL_NAME_MAX + 1];
	static unsigned n;
	char *at = text[n++ % 4];

	snprintf(at, sizeof(text[0]), "%s/%s", prefix, name);
	return at;
}

static DLTensor tensor_of(void *data, int64_t *shape)
{
	return (DLTensor){ .data = data,
			   .device = { kDLCPU, 0 },
			   .ndim = 1,
			   .dtype = { kDLUInt, 8, 1 },
			   .shape = shape };
}

static bool all(const void *data, int value, size_t n)
{
	const unsigned char *p = data;

	for (size_t i = 0; i < n; i++)
		if (p[i] != value)
			return false;
	return true;
}

static int put(const char *name, int value, size_t n, uint64_t *version)
{
	int64_t shape[1] = { (int64_t)n };
	DLTensor t = tensor_of(bytes, shape);

	memset(bytes, value, n);
	return tl_put(client, name_of(name), &t, NULL, version);
}

/* Gets a tensor into leases[at] and checks it. */
static int get(unsigned at, const char *name, int value, size_t n, enum tl_mode mode)
{
	tl_get_options o = { .size = sizeof(o), .mode = mode };
	int r = tl_get(client, name_of(name), &o, &leases[at]);

	if (r) {
		MUST(!leases[at]);
		return r;
	}
	MUST(leases[at]->dl_tensor.ndim == 1 && leases[at]->dl_tensor.shape[0] == (int64_t)n);
	MUST(all(leases[at]->dl_tensor.data, value, n));
	return 0;
}

static void drop(DLManagedTensorVersioned **t)
{
	if (*t)
		(*t)->deleter(*t);
	*t = NULL;
}

/* ---- Steps; each can be done again ---- */

static int step_connect(void)
{
	tl_connect_options o = { .size = sizeof(o), .timeout_ns = REQUEST_NS };

	if (!client)
		TRY(tl_connect(&o, &client));
	return 0;
}

static int step_autostart(void)
{
	tl_connect_options o = { .size = sizeof(o),
				 .flags = TL_CONNECT_AUTOSTART,
				 .timeout_ns = REQUEST_NS };

	if (!client)
		TRY(tl_connect(&o, &client));
	return 0;
}

static int step_keep(void)
{
	TRY(put("kept", 7, LARGE, NULL));
	TRY(put("kept", 8, LARGE, &(uint64_t){ 0 }));
	TRY(get(0, "kept", 8, LARGE, TL_MODE_READ));
	drop(&kept);
	kept = leases[0];
	leases[0] = NULL;
	return 0;
}

static int step_put_get(void)
{
	uint64_t version = 0;

	for (int i = 1; i <= 3; i++) { /* drafts are prefetched from the second on */
		TRY(put("small", i, SMALL, &version));
		TRY(get(0, "small", i, SMALL, TL_MODE_READ));
		TRY(get(1, "small", i, SMALL, TL_MODE_READ));
		drop(&leases[0]);
		drop(&leases[1]);
	}
	TRY(put("huge", 4, HUGE_PAGES, &version));
	TRY(get(0, "huge", 4, HUGE_PAGES, TL_MODE_READ));
	TRY(put("empty", 0, 0, &version));
	TRY(get(1, "empty", 0, 0, TL_MODE_READ));
	return 0;
}

/* Nobody waits for these commits, so a later call tells of a refusal. */
static int step_commit(void)
{
	int64_t shape[1] = { SMALL };
	tl_spec spec = {
		.size = sizeof(spec), .shape = shape, .ndim = 1, .dtype = { kDLUInt, 8, 1 }
	};
	tl_get_options o = { .size = sizeof(o), .timeout_ns = REQUEST_NS };
	uint64_t version = 0;
	tl_info info = { .size = sizeof(info) };
	int r;

	for (int i = 0; i < 3; i++) {
		TRY(tl_create(client, name_of("draft"), &spec, &draft));
		memset(tl_draft_tensor(draft)->data, 20 + i, SMALL);
		TRY(tl_draft_set_metadata(draft, bytes, 200));
		r = tl_commit(draft, i == 2 ? &version : NULL);
		draft = NULL;
		TRY(r);
	}
	o.newer_than = version - 1;
	TRY(tl_get(client, name_of("draft"), &o, &leases[0]));
	MUST(all(leases[0]->dl_tensor.data, 22, SMALL));
	TRY(tl_tensor_info(leases[0], &info));
	MUST(info.version == version && info.metadata_size == 200);
	TRY(tl_create(client, name_of("never"), &spec, &draft));
	tl_abort(draft);
	draft = NULL;
	r = tl_stat(client, name_of("never"), &info);
	if (r != -ENOENT)
		TRY(r);
	return 0;
}

/* A long name and many sizes do not fit into a row. */
static int step_shapes(void)
{
	static const char name[] =
		"a/name/that/is/longer/than/what/an/entry/of/the/catalog/has/space/for/by/itself";
	int64_t shape[9] = { 2, 1, 3, 1, 1, 5, 1, 1, 2 };
	DLTensor t = tensor_of(bytes, shape);
	tl_put_options o = { .size = sizeof(o), .metadata = bytes, .metadata_size = 900 };
	tl_info info = { .size = sizeof(info) };

	t.ndim = 9;
	memset(bytes, 31, 1000);
	TRY(tl_put(client, name_of(name), &t, &o, NULL));
	TRY(tl_put(client, name_of(name), &t, &o, &(uint64_t){ 0 }));
	TRY(tl_get(client, name_of(name), NULL, &leases[0]));
	MUST(leases[0]->dl_tensor.ndim == 9 && leases[0]->dl_tensor.shape[5] == 5);
	MUST(all(leases[0]->dl_tensor.data, 31, 60));
	TRY(tl_stat(client, name_of(name), &info));
	MUST(info.metadata_size == 900 && all(info.metadata, 31, 900) && info.shape[8] == 2);
	return 0;
}

static int step_copy_on_write(void)
{
	TRY(put("cow", 41, LARGE, &(uint64_t){ 0 }));
	for (unsigned i = 0; i < 2; i++) {
		TRY(get(i, "cow", 41, LARGE, TL_MODE_COPY_ON_WRITE));
		memset(leases[i]->dl_tensor.data, 99, LARGE);
	}
	TRY(get(2, "cow", 41, LARGE, TL_MODE_READ));
	TRY(tl_remap(leases[2], TL_MODE_COPY_ON_WRITE, &leases[3]));
	MUST(all(leases[3]->dl_tensor.data, 41, LARGE));
	memset(leases[3]->dl_tensor.data, 98, LARGE);
	MUST(all(leases[2]->dl_tensor.data, 41, LARGE));
	TRY(tl_remap(leases[2], TL_MODE_READ, &leases[4]));
	MUST(leases[4]->dl_tensor.data == leases[2]->dl_tensor.data);
	return 0;
}

static int step_groups(void)
{
	int64_t shape[1] = { SMALL };
	tl_group_item items[3] = { 0 };
	char names[3][TL_NAME_MAX + 1];
	const char *list[3];
	DLTensor t = tensor_of(bytes, shape);
	const DLTensor *sources[3] = { &t, &t, &t };
	int r;

	for (int i = 0; i < 3; i++) {
		snprintf(names[i], sizeof(names[i]), "%s/group/%d", prefix, i);
		list[i] = names[i];
		items[i] = (tl_group_item){ .name = names[i],
					    .shape = shape,
					    .ndim = 1,
					    .dtype = { kDLUInt, 8, 1 },
					    .metadata = "meta",
					    .metadata_size = 4 };
	}
	TRY(tl_group_create(client, items, 3, NULL, &group));
	for (size_t i = 0; i < 3; i++)
		memset(tl_group_tensor(group, i)->data, 50 + (int)i, SMALL);
	r = tl_group_commit(group);
	group = NULL;
	TRY(r);
	TRY(tl_get_many(client, list, 3, NULL, leases));
	for (int i = 0; i < 3; i++)
		MUST(all(leases[i]->dl_tensor.data, 50 + i, SMALL));
	memset(bytes, 55, SMALL);
	TRY(tl_put_many(client, list, sources, 3, NULL));
	TRY(get(4, "group/2", 55, SMALL, TL_MODE_READ));
	TRY(tl_group_create(client, items, 3, NULL, &group));
	tl_group_abort(group);
	group = NULL;
	return 0;
}

static int step_waits(void)
{
	tl_get_options o = { .size = sizeof(o), .timeout_ns = 3 * MS };
	tl_wait_item items[2] = { { .name = name_of("nobody") }, { .name = name_of("nothing") } };
	uint32_t word = 0;
	size_t which;
	int r;

	r = tl_get(client, name_of("nobody"), &o, &leases[0]);
	if (r != -ETIMEDOUT || !*tl_last_error())
		TRY(r ? r : 1);
	r = tl_wait_many(client, items, 2,
			 &TL_INIT(tl_wait_options, .timeout_ns = 3 * MS, .interrupt = &word),
			 &which);
	if (r != -ETIMEDOUT)
		TRY(r ? r : 1);
	r = tl_wait_many(client, items, 1, &TL_INIT(tl_wait_options, .timeout_ns = 3 * MS), &which);
	if (r != -ETIMEDOUT)
		TRY(r ? r : 1);
	items[1].name = name_of("small");
	TRY(tl_wait_many(client, items, 2, &TL_INIT(tl_wait_options, .timeout_ns = REQUEST_NS),
			 &which));
	MUST(which == 1);
	return 0;
}

/* Hands over a lease, an exported draft and memory of our own. */
static int step_publish(void)
{
	int64_t shape[1] = { SMALL }, ones[1] = { 1 };
	tl_spec spec = {
		.size = sizeof(spec), .shape = shape, .ndim = 1, .dtype = { kDLUInt, 8, 1 }
	};
	DLManagedTensorVersioned own = { .version = { DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION },
					 .dl_tensor = tensor_of(bytes, shape) };
	bool copied = true;

	own.dl_tensor.strides = ones;
	TRY(put("first", 61, SMALL, &(uint64_t){ 0 }));
	TRY(get(0, "first", 61, SMALL, TL_MODE_READ));
	TRY(tl_publish(client, name_of("second"), leases[0], NULL, &copied, &(uint64_t){ 0 }));
	leases[0] = NULL;
	TRY(get(1, "second", 61, SMALL, TL_MODE_READ));

	TRY(tl_create(client, name_of("third"), &spec, &draft));
	memset(tl_draft_tensor(draft)->data, 63, SMALL);
	TRY(tl_draft_to_dlpack(draft, &leases[0]));
	draft = NULL;
	TRY(tl_publish(client, name_of("third"), leases[0], NULL, &copied, &(uint64_t){ 0 }));
	leases[0] = NULL;
	TRY(get(2, "third", 63, SMALL, TL_MODE_READ));

	memset(bytes, 64, SMALL);
	TRY(tl_publish(client, name_of("fourth"), &own, NULL, &copied, &(uint64_t){ 0 }));
	MUST(copied);
	TRY(get(3, "fourth", 64, SMALL, TL_MODE_READ));
	return 0;
}

static int count_names(const tl_info *info, void *context)
{
	*(unsigned *)context += info->nbytes > 0;
	return 0;
}

static int find_us(const tl_client_info *info, void *context)
{
	if (info->pid == (uint32_t)getpid())
		*(uint64_t *)context = info->id;
	return 0;
}

static int count_holding(const tl_holding *holding, void *context)
{
	*(unsigned *)context += holding->leases > 0;
	return 0;
}

static int step_look(void)
{
	tl_status status = { .size = sizeof(status) };
	unsigned names = 0, held = 0;
	uint64_t id = 0;
	tl_info info = { .size = sizeof(info) };

	TRY(tl_get_status(client, &status));
	MUST(status.tensors >= 10 && status.clients >= 1 && status.max_tensors);
	TRY(tl_stat(client, name_of("small"), &info));
	MUST(info.nbytes == SMALL);
	TRY(tl_list(client, prefix, count_names, &names));
	MUST(names >= 10);
	TRY(tl_list_clients(client, find_us, &id));
	MUST(id);
	TRY(tl_list_holdings(client, id, count_holding, &held));
	return 0;
}

static void release_step(void)
{
	for (unsigned i = 0; i < LEASES; i++)
		drop(&leases[i]);
	tl_abort(draft);
	draft = NULL;
	tl_group_abort(group);
	group = NULL;
}

static void run_step(const char *name, int (*run)(void))
{
	step_name = name;
	for (unsigned attempt = 1;; attempt++) {
		int r = run();

		release_step();
		if (!r)
			break;
		if (attempt == ATTEMPTS)
			wrong("does not work any more, %u times: %d %s", attempt, r,
			      tl_last_error());
	}
	if (kept && !all(kept->dl_tensor.data, 8, LARGE))
		wrong("the bytes of a lease have changed");
}

static int step_in_child(void)
{
	TRY(put("child", 71, SMALL, &(uint64_t){ 0 }));
	TRY(get(0, "child", 71, SMALL, TL_MODE_READ));
	return 0;
}

/* The child reads what its parent held, releases it, and then works on its own. */
static int step_fork(void)
{
	int status = 0;
	pid_t pid;

	TRY(get(0, "cow", 41, LARGE, TL_MODE_READ));
	TRY(get(1, "small", 3, SMALL, TL_MODE_COPY_ON_WRITE));
	pid = fork();
	if (pid < 0)
		wrong("fork: %s", strerror(errno));
	if (!pid) {
		in_child = true;
		MUST(all(leases[0]->dl_tensor.data, 41, LARGE));
		MUST(all(leases[1]->dl_tensor.data, 3, SMALL));
		MUST(all(kept->dl_tensor.data, 8, LARGE));
		release_step();
		run_step("in the child", step_in_child);
		drop(&kept);
		tl_close(client);
		_exit(0);
	}
	while (waitpid(pid, &status, 0) < 0)
		MUST(errno == EINTR);
	if (WIFSIGNALED(status))
		fprintf(stderr, "crashed: the child, by signal %d\n", WTERMSIG(status));
	if (status)
		wrong("the child ended with status %#x", status);
	MUST(all(leases[0]->dl_tensor.data, 41, LARGE));
	return 0;
}

/* Everything that was published and not replaced is there. */
static int step_still_there(void)
{
	TRY(get(0, "kept", 8, LARGE, TL_MODE_READ));
	TRY(get(1, "small", 3, SMALL, TL_MODE_READ));
	TRY(get(2, "huge", 4, HUGE_PAGES, TL_MODE_READ));
	TRY(get(3, "draft", 22, SMALL, TL_MODE_READ));
	TRY(get(4, "cow", 41, LARGE, TL_MODE_READ));
	TRY(get(5, "group/0", 55, SMALL, TL_MODE_READ));
	TRY(get(6, "second", 61, SMALL, TL_MODE_READ));
	TRY(get(7, "third", 63, SMALL, TL_MODE_READ));
	TRY(get(8, "fourth", 64, SMALL, TL_MODE_READ));
	TRY(get(9, "child", 71, SMALL, TL_MODE_READ));
	return 0;
}

/*
 * The daemon is killed and started again. Held tensors stay. Calls that need the daemon either say
 * so or connect again.
 */
static void restart(void)
{
	char byte = 'r';

	step_name = "restart";
	MUST(write(TALK_FD, &byte, 1) == 1 && read(TALK_FD, &byte, 1) == 1);
}

static int step_after_restart(void)
{
	int r = put("kept", 8, LARGE, &(uint64_t){ 0 });

	if (r == -ENOTCONN) /* the first call afterwards may say so without a fault too */
		r = put("kept", 8, LARGE, &(uint64_t){ 0 });
	TRY(r);
	TRY(get(0, "kept", 8, LARGE, TL_MODE_READ));
	return 0;
}

struct names {
	char name[32][TL_NAME_MAX + 1];
	unsigned n;
};

static int note_name(const tl_info *info, void *context)
{
	struct names *names = context;

	MUST(names->n < 32);
	strcpy(names->name[names->n++], info->name);
	return 0;
}

static int step_delete(void)
{
	static struct names names;

	names.n = 0;
	drop(&kept);
	TRY(tl_list(client, prefix, note_name, &names));
	for (unsigned i = 0; i < names.n; i++)
		TRY(tl_delete(client, names.name[i]));
	names.n = 0;
	TRY(tl_list(client, prefix, note_name, &names));
	MUST(names.n == 0);
	return 0;
}

/* ---- What must not be left ---- */

static unsigned count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	MUST(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* Counts the library's mappings: those of the daemon's objects, and large anonymous ones. */
static unsigned count_maps(bool tell)
{
	FILE *f = fopen("/proc/self/maps", "re");
	unsigned long start, end, inode;
	unsigned n = 0;
	char line[512];

	if (!f)
		_exit(1);
	while (fgets(line, sizeof(line), f)) {
		MUST(sscanf(line, "%lx-%lx %*s %*s %*s %lu", &start, &end, &inode) == 3);
		if (!strstr(line, "/dev/shm/tensorlease-") && !strstr(line, "memfd:tensorlease") &&
		    (inode || strchr(line, '[') || end - start < 1 << 20))
			continue;
		n++;
		if (tell)
			fputs(line, stderr);
	}
	fclose(f);
	return n;
}

static void map_report(void)
{
	const char *path = getenv("TL_FAULT_REPORT");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	void *p;

	if (fd < 0)
		return;
	p = mmap(NULL, sizeof(*report), PROT_READ, MAP_SHARED, fd, 0);
	MUST(p != MAP_FAILED);
	close(fd);
	report = p;
}

int main(int argc, char **argv)
{
	bool with_restart = argc > 2 && !strcmp(argv[2], "restart");
	bool with_autostart = argc > 2 && !strcmp(argv[2], "autostart");
	unsigned fds, maps;

	prefix = argc > 1 ? argv[1] : "client";
	setvbuf(stderr, NULL, _IONBF, 0);
	map_report();
	fds = count_fds();
	maps = count_maps(false);

	run_step("connect", with_autostart ? step_autostart : step_connect);
	run_step("keep", step_keep);
	run_step("put and get", step_put_get);
	if (!with_autostart) {
		run_step("commit", step_commit);
		run_step("shapes", step_shapes);
		run_step("copy on write", step_copy_on_write);
		run_step("groups", step_groups);
		run_step("waits", step_waits);
		run_step("publish", step_publish);
		run_step("look", step_look);
		run_step("fork", step_fork);
		run_step("still there", step_still_there);
	}
	if (with_restart) {
		restart();
		run_step("after the restart", step_after_restart);
	}
	run_step("delete", step_delete);
	step_name = "close";
	tl_close(client);
	if (count_fds() != fds)
		wrong("%u descriptors, %u at the beginning", count_fds(), fds);
	if (count_maps(false) != maps)
		wrong("%u mappings of the library, %u at the beginning", count_maps(true), maps);
	return 0;
}
