/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metrics: what the daemon has and has done, as OpenMetrics 1.0 text. The text is made at once, by
 * the loop, so that its numbers belong together. It has no line for each tensor, and a bounded
 * number of users and streams, so that its size does not follow theirs.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "daemon/serve/handlers.h"
#include "daemon/serve/limit_error.h"
#include "daemon/serve/metrics.h"
#include "daemon/state/namespace.h"
#include "daemon/state/stream.h"
#include "util/cleanup.h"
#include "util/fd.h"

enum { USERS_MAX = 256, STREAMS_MAX = 256 }; /* of each namespace; others are left out */

/* ---- lines ---------------------------------------------------------------------------------- */

/* Begins a metric. All of its lines follow it. */
static void family(FILE *out, const char *name, const char *type, const char *help)
{
	fprintf(out, "# TYPE tensorlease_%s %s\n# HELP tensorlease_%s %s\n", name, type, name,
		help);
}

/* The value of a label, quoted. Names are UTF-8 without control characters. */
static void quoted(FILE *out, const char *text)
{
	putc('"', out);
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			putc('\\', out);
		putc(*text, out);
	}
	putc('"', out);
}

/* Prints `tensorlease_NAME{KEY="VALUE",...} number`, with pairs of keys and values up to a NULL. */
__attribute__((sentinel)) static void line(FILE *out, uint64_t number, const char *name, ...)
{
	const char *key, *before = "{";
	va_list args;

	va_start(args, name);
	fprintf(out, "tensorlease_%s", name);
	while ((key = va_arg(args, const char *)) != NULL) {
		fprintf(out, "%s%s=", before, key);
		quoted(out, va_arg(args, const char *));
		before = ",";
	}
	fprintf(out, "%s %" PRIu64 "\n", *before == ',' ? "}" : "", number);
	va_end(args);
}

enum { SAMPLE_NAME = 64 };

/* The name of the lines of a metric. Those of a counter end in _total. */
static const char *sample_name(const char *name, const char *type, char full[SAMPLE_NAME])
{
	snprintf(full, SAMPLE_NAME, "%s%s", name, strcmp(type, "counter") ? "" : "_total");
	return full;
}

static void one(FILE *out, const char *name, const char *type, const char *help, uint64_t number)
{
	char full[SAMPLE_NAME];

	family(out, name, type, help);
	line(out, number, sample_name(name, type, full), NULL);
}

static void seconds(FILE *out, const char *name, const char *type, const char *help, uint64_t ns)
{
	family(out, name, type, help);
	fprintf(out, "tensorlease_%s %.9f\n", name, (double)ns / 1e9);
}

static void histogram(FILE *out, const char *name, const char *help, const struct histogram *h)
{
	uint64_t sum = 0;

	family(out, name, "histogram", help);
	for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++) {
		sum += h->counts[i];
		fprintf(out, "tensorlease_%s_bucket{le=\"%g\"} %" PRIu64 "\n", name,
			(double)histogram_bound_ns(i) / 1e9, sum);
	}
	sum += h->counts[HISTOGRAM_BUCKETS];
	fprintf(out, "tensorlease_%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, sum);
	fprintf(out, "tensorlease_%s_count %" PRIu64 "\n", name, sum);
	fprintf(out, "tensorlease_%s_sum %.9f\n", name, (double)h->sum_ns / 1e9);
}

/* ---- of the daemon -------------------------------------------------------------------------- */

static void memory(FILE *out, const struct server *server)
{
	const struct namespace *ns;

	one(out, "capacity_bytes", "gauge", "Bytes of shared memory that all segments may have.",
	    server->common.store.pool.capacity);
	family(out, "memory_bytes", "gauge",
	       "Bytes of segments: of tensors and drafts, warm for the next ones, or kept because "
	       "processes map deleted tensors.");
	list_for_each_entry(ns, &server->namespaces.list, link) {
		const struct segment_totals *t = &ns->state.segments.totals;
		const uint64_t idle = t->warm + t->kept;

		line(out, t->pool.used > idle ? t->pool.used - idle : 0, "memory_bytes",
		     "namespace", ns->config.name, "state", "in_use", NULL);
		line(out, t->warm, "memory_bytes", "namespace", ns->config.name, "state", "warm",
		     NULL);
		line(out, t->kept, "memory_bytes", "namespace", ns->config.name, "state", "kept",
		     NULL);
	}
	family(out, "gpu_bytes", "gauge", "Bytes of tensors in the memory of a GPU.");
	for (unsigned i = 0; i < DEVICES_MAX; i++) {
		const struct device *d = &server->common.devices.list[i];
		char uuid[2 * DEVICE_ID + 1];

		for (unsigned k = 0; k < DEVICE_ID; k++)
			snprintf(uuid + 2 * k, 3, "%02x", d->id[k]);
		if (d->segments)
			line(out, d->pool.used, "gpu_bytes", "uuid", uuid, NULL);
	}
}

/* Zeros are printed too for what is usual, since an increase from nothing is none to Prometheus. */
static bool is_usual(unsigned code, unsigned share)
{
	return !share || code == WIRE_E_QUOTA || code == share_error_code((enum share)(share - 1));
}

static void refusals(FILE *out, const struct peers *peers)
{
	family(out, "errors", "counter",
	       "Requests that were answered with an error, and the share that was used up.");
	for (unsigned code = 1; code < WIRE_E_END; code++) {
		for (unsigned share = 0; share <= SHARE_KINDS; share++) {
			if (peers->refused[code][share] || is_usual(code, share))
				line(out, peers->refused[code][share], "errors_total", "error",
				     wire_error_name(code), "share",
				     share ? share_name((enum share)(share - 1)) : "", NULL);
		}
	}
}

/* ---- of namespaces -------------------------------------------------------------------------- */

static uint64_t read_clients(const struct namespace *ns)
{
	return ns->clients;
}

static uint64_t read_rings(const struct namespace *ns)
{
	return ns->state.catalog.header->rings;
}

static uint64_t read_published(const struct namespace *ns)
{
	return ns->state.catalog.header->commits;
}

static uint64_t read_published_bytes(const struct namespace *ns)
{
	return ns->state.meters.bytes;
}

static uint64_t read_ring_publishes(const struct namespace *ns)
{
	return ns->state.meters.ring_publishes;
}

static uint64_t read_evicted(const struct namespace *ns)
{
	return ns->state.meters.evicted;
}

static uint64_t read_evicted_bytes(const struct namespace *ns)
{
	return ns->state.meters.evicted_bytes;
}

static uint64_t read_missed(const struct namespace *ns)
{
	uint64_t sum = ns->state.meters.missed;

	for (uint32_t i = 0; i < ns->state.catalog.clients.high; i++) {
		const struct client *c = ns->state.served[i];

		sum += c && !c->ended ? client_missed(c) : 0;
	}
	return sum;
}

/* What a namespace shows as one number. */
static const struct {
	const char *name, *type, *help;
	uint64_t (*read)(const struct namespace *ns);
} shown[] = {
	{ "clients", "gauge", "Connections, those included whose process still uses tensors.",
	  read_clients },
	{ "rings", "gauge", "Names that are published without the daemon.", read_rings },
	{ "published", "counter",
	  "Tensors published. One of a ring counts when the next one has replaced it.",
	  read_published },
	{ "published_bytes", "counter", "Bytes of these, since this daemon began.",
	  read_published_bytes },
	{ "ring_published", "counter", "Tensors published through rings, since this daemon began.",
	  read_ring_publishes },
	{ "missed_gets", "counter", "Gets that found no tensor, as the clients' ledgers say.",
	  read_missed },
	{ "evictions", "counter", "Evictable tensors that were given up for space.", read_evicted },
	{ "evicted_bytes", "counter", "Bytes of these.", read_evicted_bytes },
};

static void of_namespaces(FILE *out, const struct namespaces *all)
{
	const struct namespace *ns;
	char full[SAMPLE_NAME];

	for (size_t i = 0; i < sizeof(shown) / sizeof(shown[0]); i++) {
		family(out, shown[i].name, shown[i].type, shown[i].help);
		sample_name(shown[i].name, shown[i].type, full);
		list_for_each_entry(ns, &all->list, link)
			line(out, shown[i].read(ns), full, "namespace", ns->config.name, NULL);
	}
}

static void tensors(FILE *out, const struct namespaces *all)
{
	const struct namespace *ns;

	family(out, "tensors", "gauge",
	       "Tensors that a name means, that clients hold although no name does, and that are "
	       "being written or ready to be.");
	list_for_each_entry(ns, &all->list, link) {
		const struct catalog_header *h = ns->state.catalog.header;

		line(out, h->tensors, "tensors", "namespace", ns->config.name, "state", "live",
		     NULL);
		line(out, h->retired, "tensors", "namespace", ns->config.name, "state", "retired",
		     NULL);
		line(out, h->drafts, "tensors", "namespace", ns->config.name, "state", "draft",
		     NULL);
	}
}

/* One share of each user in each namespace. */
static void users(FILE *out, const struct namespaces *all, const char *name, const char *help,
		  enum share share)
{
	const struct namespace *ns;
	char uid[16];

	family(out, name, "gauge", help);
	list_for_each_entry(ns, &all->list, link) {
		const struct accounts *accounts = &ns->state.accounts;

		for (unsigned i = 0; i < accounts->count && i < USERS_MAX; i++) {
			snprintf(uid, sizeof(uid), "%u", accounts->list[i]->uid);
			line(out, accounts->list[i]->used[share], name, "namespace",
			     ns->config.name, "uid", uid, NULL);
		}
	}
}

/* ---- of streams ----------------------------------------------------------------------------- */

static uint64_t read_items(const struct stream *s, const struct stream_stat *stat)
{
	const uint64_t first = stream_words(s->entry->depth);

	return stat->number > first ? stat->number - first : 0;
}

static uint64_t read_length(const struct stream *s, const struct stream_stat *stat)
{
	(void)s;
	return stat->length;
}

static uint64_t read_depth(const struct stream *s, const struct stream_stat *stat)
{
	(void)stat;
	return s->entry->depth;
}

static uint64_t read_stream_bytes(const struct stream *s, const struct stream_stat *stat)
{
	(void)s;
	return stat->bytes;
}

static uint64_t read_producers(const struct stream *s, const struct stream_stat *stat)
{
	(void)s;
	return stat->producers;
}

static uint64_t read_subscribers(const struct stream *s, const struct stream_stat *stat)
{
	(void)s;
	return stat->subscribers;
}

static const struct stream_shown {
	const char *name, *type, *help;
	uint64_t (*read)(const struct stream *s, const struct stream_stat *stat);
} stream_shown[] = {
	{ "stream_items", "counter", "Items and ends of producers that there have been.",
	  read_items },
	{ "stream_length", "gauge",
	  "Items of a queue that nobody has taken, or how far the slowest subscriber of a "
	  "broadcast is behind.",
	  read_length },
	{ "stream_depth", "gauge", "The length at which producers wait, or items are dropped.",
	  read_depth },
	{ "stream_bytes", "gauge", "Memory of a stream, held or not.", read_stream_bytes },
	{ "stream_producers", "gauge", "Producers of a stream.", read_producers },
	{ "stream_subscribers", "gauge", "Subscribers of a stream.", read_subscribers },
};

static void streams_of(FILE *out, const struct namespace *ns, const struct stream_shown *shows)
{
	const struct state *st = &ns->state;
	char full[SAMPLE_NAME], name[TENSOR_NAME_MAX + 1];
	unsigned told = 0;

	sample_name(shows->name, shows->type, full);
	for (unsigned i = 0; st->rings && i < CATALOG_RINGS && told < STREAMS_MAX; i++) {
		const struct stream *s = st->rings[i] ? st->rings[i]->stream : NULL;
		struct stream_stat stat;

		if (!s || s->over)
			continue;
		stat = stream_stat(st, s);
		name[name_text(&st->names, s->ring.name, name)] = '\0';
		line(out, shows->read(s, &stat), full, "namespace", ns->config.name, "stream", name,
		     NULL);
		told++;
	}
}

static void streams(FILE *out, const struct namespaces *all)
{
	const struct namespace *ns;

	for (size_t i = 0; i < sizeof(stream_shown) / sizeof(stream_shown[0]); i++) {
		family(out, stream_shown[i].name, stream_shown[i].type, stream_shown[i].help);
		list_for_each_entry(ns, &all->list, link)
			streams_of(out, ns, &stream_shown[i]);
	}
}

/* ---- the text ------------------------------------------------------------------------------- */

char *metrics_text(const struct server *server, size_t *size)
{
	const struct catalog_header *h = namespace_default(&server->namespaces)
						 ->state.catalog.header;
	char *text = NULL;
	FILE *out = open_memstream(&text, size);

	if (!out)
		return NULL;
	family(out, "build", "info", "The version of the daemon.");
	line(out, 1, "build_info", "version", TENSORLEASE_VERSION, NULL);
	seconds(out, "start_time_seconds", "gauge", "When the daemon began, since 1970.",
		h->started_ns);
	memory(out, server);
	of_namespaces(out, &server->namespaces);
	tensors(out, &server->namespaces);
	users(out, &server->namespaces, "user_bytes", "Bytes that a user has.", SHARE_BYTES);
	users(out, &server->namespaces, "user_tensors", "Tensors that a user has, drafts included.",
	      SHARE_TENSORS);
	one(out, "connections", "counter", "Connections that there have been.",
	    server->peers.connections);
	one(out, "orphans", "gauge", "Connections that have ended, whose process uses tensors.",
	    server->peers.orphans);
	one(out, "restarts", "counter", "How often another daemon has taken over.", h->restarts);
	seconds(out, "restart_duration_seconds", "gauge",
		"How long no daemon served, the last time.", h->restart_ns);
	refusals(out, &server->peers);
	one(out, "creates_waiting", "gauge", "Requests that wait for space.",
	    server->space.waiting);
	histogram(out, "space_wait_seconds", "How long requests waited for space, also in vain.",
		  &server->space.waits);
	histogram(out, "turn_seconds",
		  "Turns: how long one user kept all others waiting each time.",
		  &server->turns.took);
	seconds(out, "longest_turn_seconds", "gauge", "The longest of these.",
		server->turns.longest_ns);
	streams(out, &server->namespaces);
	fputs("# EOF\n", out);
	if (fclose(out)) {
		free(text);
		return NULL;
	}
	return text;
}

/* ---- for clients ---------------------------------------------------------------------------- */

/* Returns a descriptor of memory with the text, or a negative errno. */
static int text_file(const char *text, size_t size)
{
	int fd = memfd_create("tensorleased-metrics", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return -errno;
	if (write(fd, text, size) != (ssize_t)size ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)) {
		close(fd);
		return -ENOMEM;
	}
	return fd;
}

/* They are of all users. */
void handle_metrics(struct peer *peer, struct conn_message *m)
{
	const struct server *server = server_of(peer);
	struct wire_metrics_are answer = { .header = { .type = WIRE_METRICS_ARE,
						       .length = sizeof(answer),
						       .serial = m->header.serial } };
	const uint32_t me = peer->client.uid, own = server->common.uid;
	char *text;
	size_t size;
	int fd;

	if (me != 0 && me != own) {
		peer_error(peer, m->header.serial, WIRE_E_DENIED,
			   "user %u may not see the metrics, which are of all users: root and user "
			   "%u (the daemon's) may",
			   me, own);
		return;
	}
	text = metrics_text(server, &size);
	fd = !text ? -ENOMEM : size > WIRE_METRICS_MAX ? -EFBIG : text_file(text, size);
	free(text);
	if (fd < 0) {
		peer_error(peer, m->header.serial, WIRE_E_NO_RESOURCES,
			   "cannot make the metrics: %s", strerror(-fd));
		return;
	}
	answer.size = size;
	peer_send(peer, &answer, fd);
}
