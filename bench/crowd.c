/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of unrelated clients to a publisher: create and commit of 4 KiB, with the version
 * wanted. The rows are a daemon with 1,000 idle clients, the same one with 64 watched prefixes, and
 * with 1,000,000 names. Another row has a publisher to a ring. Beside these stands the cost of
 * watches of the name itself, with no watcher asleep. The floor is the same in a daemon without
 * such clients. Groups of both alternate, everything on one CPU.
 */
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <tensorlease/watch.h>

#include "bench/bench.h"

enum {
	CLIENTS = 1000,
	WATCHES = 64,
	NAMES = 1000000,
	QUICK_NAMES = 100000,
	GROUP = 25,
	WARM_UP = 5
};

struct crowd {
	struct bench *bench;
	char *address;
	pid_t daemon;
	tl_client *client, *idle[CLIENTS];
	tl_watch *watches[WATCHES];
};

static void crowd_start(struct crowd *c)
{
	struct rlimit files;

	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max; /* each client has a few descriptors */
	setrlimit(RLIMIT_NOFILE, &files);
	if (asprintf(&c->address, "%s/crowd", c->bench->dir) < 0)
		err(1, "no memory");
	/* One user may have half of both at most. */
	c->daemon = bench_daemon_start(c->bench, c->address, &c->client,
				       "--max-tensors 2200000 --max-clients 2100");
	for (unsigned i = 0; i < CLIENTS; i++)
		c->idle[i] = bench_connect(c->address);
}

static void crowd_stop(struct crowd *c)
{
	for (unsigned i = 0; i < CLIENTS; i++)
		tl_close(c->idle[i]);
	tl_close(c->client);
	bench_daemon_stop(c->daemon);
	free(c->address);
}

static double commit(tl_client *client)
{
	static const int64_t shape = 4096;
	static const tl_spec spec = { .size = sizeof(spec),
				      .shape = &shape,
				      .ndim = 1,
				      .dtype = { kDLUInt, 8, 1 },
				      .ring = TL_RING_NONE };
	double start = bench_now();
	uint64_t version;
	tl_draft *draft;

	bench_check(tl_create(client, "bench/crowd", &spec, &draft), "create");
	bench_check(tl_commit(draft, &version), "commit");
	return bench_now() - start;
}

/* The mean of a few puts to a ring: a single one is over before the clock is read. */
static double ring(tl_client *client)
{
	enum { PUTS = TL_RING_MAX / 2 };
	double start = bench_now();

	for (unsigned i = 0; i < PUTS; i++)
		bench_ring_put(client, "bench/crowd/ring");
	return (bench_now() - start) / PUTS;
}

static void measure(struct crowd *c, struct bench_result *r, double (*publish)(tl_client *client))
{
	struct bench *b = c->bench;

	bench_pin(0, 0);
	bench_pin(b->daemon_pid, 0);
	bench_pin(bench_daemon_proper(c->client), 0);
	for (unsigned i = 0; i < (b->quick ? 150 : 1000); i++) {
		double floor[GROUP], ours[GROUP];

		for (unsigned j = 0; j < GROUP; j++)
			floor[j] = publish(b->client);
		for (unsigned j = 0; j < GROUP; j++)
			ours[j] = publish(c->client);
		for (unsigned j = WARM_UP; i && j < GROUP; j++)
			bench_pair(r, floor[j], ours[j]);
	}
	bench_unpin(0);
	bench_unpin(b->daemon_pid);
	r->floor_what = "the same in a daemon without them";
	r->aim = BENCH_AIM_RATIO;
	r->limit = 1.2;
	r->target = "<= 1.2 x";
	bench_result_done(b, r);
}

static void publish_names(struct crowd *c, unsigned n)
{
	char name[BENCH_NAME_SIZE];

	for (unsigned i = 0; i < n; i++) {
		bench_name(name, i);
		bench_publish(c->client, name, 0);
	}
	bench_sync(c->client);
}

/* Opens watches, each by another client, of another prefix each; or all of @prefix. */
static void watches_open(struct crowd *c, const char *prefix)
{
	char other[32];

	for (unsigned i = 0; i < WATCHES; i++) {
		snprintf(other, sizeof(other), "other/%u/", i);
		bench_check(
			tl_watch_open(c->idle[i], prefix ? prefix : other, NULL, &c->watches[i]),
			"watching");
	}
}

static void watches_close(struct crowd *c)
{
	for (unsigned i = 0; i < WATCHES; i++)
		tl_watch_close(c->watches[i]);
	bench_sync(c->client);
}

void bench_crowd(struct bench *b)
{
	struct crowd c = { .bench = b };
	unsigned names = b->quick ? QUICK_NAMES : NAMES;
	struct bench_result *clients, *others, *watched, *rings, *all;

	clients = bench_result_new(b, "crowd/clients", "us",
				   "commit of 4 KiB beside %u idle clients", (unsigned)CLIENTS);
	others = bench_result_new(b, "crowd/watches", "us", "  while %u other prefixes are watched",
				  (unsigned)WATCHES);
	watched = bench_result_new(b, "crowd/watched", "us", "  while %u clients watch its prefix",
				   (unsigned)WATCHES);
	rings = bench_result_new(b, "crowd/ring", "us",
				 "  put of 4 KiB to a ring, without a pause");
	all = bench_result_new(b, "crowd/names", "us", "  and beside %u names", names);
	if (!clients && !others && !watched && !rings && !all)
		return;
	bench_daemon(b);
	crowd_start(&c);
	if (clients)
		measure(&c, clients, commit);
	if (others) {
		watches_open(&c, NULL);
		measure(&c, others, commit);
		watches_close(&c);
	}
	if (watched) {
		watches_open(&c, "bench/");
		measure(&c, watched, commit);
		watches_close(&c);
	}
	if (rings) {
		measure(&c, rings, ring);
		bench_check(tl_delete(b->client, "bench/crowd/ring"), "deleting");
	}
	if (all) {
		publish_names(&c, names);
		measure(&c, all, commit);
	}
	if (clients || others || watched || all)
		bench_check(tl_delete(b->client, "bench/crowd"), "deleting");
	crowd_stop(&c);
}
