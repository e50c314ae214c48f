/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of a daemon that has 100,000 tensors of 4 KiB and nothing else. One client has
 * published each of them and got it once.
 *
 * The bytes per tensor besides its payload are what grew meanwhile, divided by the number of
 * tensors. That is the sum of: the blocks that the kernel allocated to the catalog (st_blocks of
 * the daemon's descriptor, recognised by the magic number); the pages of the ledger (Rss of that
 * memfd here, since each tensor is got once); the memory of the daemon itself (RssAnon); and the
 * bytes of segments that no tensor uses (tl_status.bytes_used).
 */
#include <dirent.h>
#include <err.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/bench.h"
#include "proto/catalog_layout.h"
#include "util/fd.h"

enum { IDLE_CLIENTS = 8 };

/*
 * Sums the lines "Name:   123 kB" of /proc/PID/FILE. If @section is given, only lines below a line
 * with it count.
 */
static uint64_t proc_sum(pid_t pid, const char *file, const char *name, const char *section)
{
	char path[64], line[512];
	bool in = !section;
	uint64_t sum = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file);
	f = fopen(path, "re");
	if (!f)
		err(1, "%s", path);
	while (fgets(line, sizeof(line), f)) {
		char *end, *colon = strchr(line, ':');

		/* The first line of a mapping. */
		if (section && strtoull(line, &end, 16) && *end == '-')
			in = strstr(line, section) != NULL;
		else if (in && colon && !strncmp(line, name, strlen(name)) &&
			 line[strlen(name)] == ':')
			sum += strtoull(colon + 1, NULL, 10);
	}
	fclose(f);
	return sum;
}

/* Returns the bytes allocated to the catalog that the daemon has open. */
static uint64_t catalog_bytes(pid_t pid)
{
	char path[300];
	uint64_t bytes = 0;
	struct dirent *entry;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	if (!dir)
		err(1, "%s", path);
	while (!bytes && (entry = readdir(dir))) {
		uint64_t magic = 0;
		struct stat st;
		int fd;

		snprintf(path, sizeof(path), "/proc/%d/fd/%s", (int)pid, entry->d_name);
		if (stat(path, &st) || !S_ISREG(st.st_mode))
			continue;
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd >= 0 && pread(fd, &magic, sizeof(magic), 0) == sizeof(magic) &&
		    magic == CATALOG_MAGIC)
			bytes = (uint64_t)st.st_blocks * 512;
		fd_close(fd);
	}
	closedir(dir);
	return bytes;
}

struct usage {
	uint64_t catalog, ledger, anon, segments;
	uint64_t rss, rss_shmem, rss_file;
};

/* Usage without the tensors, and with them. */
static struct usage usage_before, usage_after;

static void usage_read(struct usage *u, pid_t pid, tl_client *client)
{
	tl_status status = { .size = sizeof(status) };

	bench_sync(client);
	bench_check(tl_get_status(client, &status), "status");
	u->catalog = catalog_bytes(pid);
	u->ledger = proc_sum(getpid(), "smaps", "Rss", "/memfd:") * 1024;
	u->anon = proc_sum(pid, "status", "RssAnon", NULL) * 1024;
	u->rss = proc_sum(pid, "status", "VmRSS", NULL) * 1024;
	u->rss_shmem = proc_sum(pid, "status", "RssShmem", NULL) * 1024;
	u->rss_file = proc_sum(pid, "status", "RssFile", NULL) * 1024;
	u->segments = status.bytes_used;
}

static void publish_all(tl_client *client, uint64_t nbytes)
{
	DLManagedTensorVersioned *tensor;
	char name[BENCH_NAME_SIZE];

	for (unsigned i = 0; i < BENCH_MANY; i++) {
		bench_name(name, i);
		bench_publish(client, name, nbytes);
	}
	bench_sync(client);
	for (unsigned i = 0; i < BENCH_MANY; i++) {
		bench_name(name, i);
		bench_check(tl_get(client, name, NULL, &tensor), name);
		tensor->deleter(tensor);
	}
}

uint64_t bench_many_bytes(void)
{
	static uint64_t bytes;

	if (!bytes)
		/* A container may have little shared memory. */
		bytes = bench_shm_free() > (uint64_t)1 << 30 ? 4096 : 256;
	return bytes;
}

void bench_many(struct bench *b)
{
	char *address = NULL;

	if (b->many_address)
		return;
	if (asprintf(&address, "%s/many", b->dir) < 0)
		err(1, "no memory");
	b->many_started = bench_daemon_start(b, address, &b->many_client, NULL);
	b->many_pid = bench_daemon_proper(b->many_client);
	b->many_address = address;
	usage_read(&usage_before, b->many_pid, b->many_client);
	publish_all(b->many_client, bench_many_bytes());
	usage_read(&usage_after, b->many_pid, b->many_client);
}

static void per_tensor(struct bench *b, struct bench_result *r)
{
	const struct usage *from = &usage_before, *to = &usage_after;
	double payload = (double)bench_many_bytes();
	double catalog = ((double)to->catalog - (double)from->catalog) / BENCH_MANY;
	double ledger = ((double)to->ledger - (double)from->ledger) / BENCH_MANY;
	double anon = ((double)to->anon - (double)from->anon) / BENCH_MANY;
	double segments = ((double)to->segments - (double)from->segments) / BENCH_MANY - payload;

	if (!r)
		return;
	bench_value(r, catalog + ledger + anon + segments);
	r->aim = BENCH_AIM_VALUE;
	r->limit = 512;
	r->target = "<= 512";
	snprintf(r->note, sizeof(r->note),
		 "catalog %.1f, a client's ledger %.1f, daemon %.1f, segments %.1f", catalog,
		 ledger, anon, segments);
	bench_result_done(b, r);
}

static void daemon_rss(struct bench *b, struct bench_result *r)
{
	double mib = 1.0 / (1 << 20);

	if (!r)
		return;
	bench_value(r, (double)usage_after.rss * mib);
	r->aim = BENCH_AIM_VALUE;
	r->limit = 32;
	r->target = "<= 32 MiB";
	snprintf(r->note, sizeof(r->note), "its own memory (RssAnon) %.1f, shared %.1f, files %.1f",
		 (double)usage_after.anon * mib, (double)usage_after.rss_shmem * mib,
		 (double)usage_after.rss_file * mib);
	bench_result_done(b, r);
}

static uint64_t switches(pid_t pid)
{
	return proc_sum(pid, "status", "voluntary_ctxt_switches", NULL) +
	       proc_sum(pid, "status", "nonvoluntary_ctxt_switches", NULL);
}

/*
 * Counts how often the daemon runs while nobody makes requests, though there are tensors and
 * clients: a process that runs goes to sleep again, which is a voluntary context switch.
 */
static void idle(struct bench *b, struct bench_result *r)
{
	tl_client *clients[IDLE_CLIENTS];
	double seconds = b->quick ? 1 : 2;
	uint64_t before;

	if (!r)
		return;
	for (unsigned i = 0; i < IDLE_CLIENTS; i++)
		clients[i] = bench_connect(b->many_address);
	bench_sleep(200e6);
	before = switches(b->many_pid);
	bench_sleep(seconds * 1e9);
	bench_value(r, (double)(switches(b->many_pid) - before));
	for (unsigned i = 0; i < IDLE_CLIENTS; i++)
		tl_close(clients[i]);
	r->aim = BENCH_AIM_VALUE;
	r->target = "0";
	bench_result_done(b, r);
}

void bench_memory(struct bench *b)
{
	struct bench_result *bytes, *rss, *wakes;

	bytes = bench_result_new(b, "memory/catalog", "bytes",
				 "beyond its payload, of %d tensors each", BENCH_MANY);
	rss = bench_result_new(b, "memory/daemon", "MiB", "daemon's RSS with %d tensors",
			       BENCH_MANY);
	wakes = bench_result_new(b, "memory/idle", "", "times an idle daemon woke in %d s",
				 b->quick ? 1 : 2);
	if (!bytes && !rss && !wakes)
		return;
	bench_many(b);
	per_tensor(b, bytes);
	daemon_rss(b, rss);
	idle(b, wakes);
}
