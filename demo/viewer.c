/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A consumer. It gets each frame, compares a hash of its bytes in place with the hash in its
 * metadata, and holds the last DEMO_WINDOW frames, as a program that tracks motion would.
 *
 * Usage: viewer NUMBER FRAMES
 */
#include "demo/demo.h"

struct samples {
	int64_t *ns;
	size_t count;
};

struct viewer {
	tl_client *client;
	char name[32];
	int64_t pid;
	double anonymous_start;
	int64_t progress[PROGRESS_COUNT];
	DLManagedTensorVersioned *window[DEMO_WINDOW];
	struct demo_mapping *mappings; /* the mappings in which frames were seen */
	size_t mapping_count;
	struct samples first; /* gets that had to map the memory of the frame */
	/* Gets of mapped memory after a frame was read, so that caches are cold. */
	struct samples later;
	struct samples warm;  /* a get and a release out of many, with warm caches */
	struct samples awake; /* from the commit to the return of a get that waited for it */
};

static void samples_init(struct samples *s, int64_t capacity)
{
	s->ns = calloc((size_t)capacity, sizeof(*s->ns));
	if (!s->ns)
		demo_die("out of memory");
}

static void sample(struct samples *s, int64_t ns)
{
	s->ns[s->count++] = ns;
}

static int compare(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

/* Stores count, median and 99th percentile in @to[3]. */
static void summarise(struct samples *s, double *to)
{
	size_t median = s->count / 2, p99 = s->count * 99 / 100;

	to[0] = (double)s->count;
	if (!s->count)
		return;
	qsort(s->ns, s->count, sizeof(*s->ns), compare);
	to[1] = (double)s->ns[median];
	to[2] = (double)s->ns[p99];
}

/* Returns the private memory of this process, in which a copy of a frame would show. */
static double anonymous_bytes(void)
{
	char line[256];
	long kib = -1;
	FILE *status = fopen("/proc/self/status", "re");

	while (status && fgets(line, sizeof(line), status) &&
	       sscanf(line, "RssAnon: %ld", &kib) != 1)
		continue;
	if (status)
		fclose(status);
	return (double)kib * 1024;
}

/* Notes the mapping in which @pointer lies. Returns whether it is new. */
static bool note_mapping(struct viewer *v, const void *pointer)
{
	struct demo_mapping m = demo_find_mapping(pointer);

	v->progress[PROGRESS_IN_PLACE] += m.shared && !m.writable;
	for (size_t i = 0; i < v->mapping_count; i++) {
		if (v->mappings[i].start == m.start && v->mappings[i].inode == m.inode)
			return false;
	}
	v->mappings[v->mapping_count++] = m;
	return true;
}

/* Returns whether this is the frame that was expected, with every byte as it was drawn. */
static bool right(const DLManagedTensorVersioned *frame, uint64_t id, const tl_info *info,
		  const struct demo_stamp *stamp)
{
	return info->metadata_size == sizeof(*stamp) && info->nbytes == DEMO_BYTES &&
	       stamp->id == id && info->version == id / DEMO_RING + 1 &&
	       demo_hash(frame->dl_tensor.data, DEMO_BYTES) == stamp->hash;
}

static void verify(struct viewer *v, const DLManagedTensorVersioned *frame, uint64_t id,
		   const tl_info *info, const struct demo_stamp *stamp)
{
	if (right(frame, id, info, stamp)) {
		v->progress[PROGRESS_VERIFIED]++;
		return;
	}
	v->progress[PROGRESS_WRONG]++;
	fprintf(stderr, "viewer: frame %llu is wrong: id %llu, version %llu, %llu bytes\n",
		(unsigned long long)id, (unsigned long long)stamp->id,
		(unsigned long long)info->version, (unsigned long long)info->nbytes);
}

static DLManagedTensorVersioned *get_again(struct viewer *v, const char *name)
{
	DLManagedTensorVersioned *frame;

	if (tl_get(v->client, name, NULL, &frame))
		demo_die("cannot get %s again", name);
	return frame;
}

/* Measures the cost of getting a frame whose memory is already mapped. */
static void time_more_gets(struct viewer *v, const char *name)
{
	enum { ROW = 64 };
	DLManagedTensorVersioned *frame;
	int64_t start, end;

	start = demo_now();
	frame = get_again(v, name);
	end = demo_now();
	frame->deleter(frame);
	sample(&v->later, end - start);
	start = demo_now();
	for (int i = 0; i < ROW; i++) {
		frame = get_again(v, name);
		frame->deleter(frame);
	}
	sample(&v->warm, (demo_now() - start) / ROW);
}

static void see_frame(struct viewer *v, uint64_t id)
{
	tl_get_options options = { .size = sizeof(options), .newer_than = id / DEMO_RING };
	DLManagedTensorVersioned *frame, **held = &v->window[id % DEMO_WINDOW];
	struct demo_stamp stamp;
	int64_t start, end;
	bool waited;
	char name[32];
	tl_info info = { .size = sizeof(info) };
	int r;

	snprintf(name, sizeof(name), "cam0/frame/%u", (unsigned)(id % DEMO_RING));
	start = demo_now();
	r = tl_get(v->client, name, &options, &frame);
	waited = r == -EAGAIN || r == -ENOENT;
	if (waited) {
		options.timeout_ns = 20 * DEMO_SECOND;
		r = tl_get(v->client, name, &options, &frame);
	}
	end = demo_now();
	if (r || tl_tensor_info(frame, &info))
		demo_die("cannot get frame %llu", (unsigned long long)id);
	memcpy(&stamp, info.metadata, sizeof(stamp));
	if (waited)
		sample(&v->awake, end - stamp.at_ns);
	if (note_mapping(v, frame->dl_tensor.data) && !waited)
		sample(&v->first, end - start);
	verify(v, frame, id, &info, &stamp);
	time_more_gets(v, name);
	if (*held)
		(*held)->deleter(*held);
	*held = frame;
}

static void report(struct viewer *v, const char *number)
{
	double values[REPORT_COUNT] = { 0 };
	char name[32];

	summarise(&v->first, &values[REPORT_FIRST_COUNT]);
	summarise(&v->later, &values[REPORT_LATER_COUNT]);
	summarise(&v->warm, &values[REPORT_WARM_COUNT]);
	summarise(&v->awake, &values[REPORT_AWAKE_COUNT]);
	values[REPORT_MAPPINGS] = (double)v->mapping_count;
	values[REPORT_ANONYMOUS] = anonymous_bytes() - v->anonymous_start;
	snprintf(name, sizeof(name), "demo/report/%s", number);
	demo_put(v->client, name, kDLFloat, values, REPORT_COUNT, NULL, 0);
}

int main(int argc, char **argv)
{
	struct viewer v = { .pid = getpid() };
	int64_t frames = argc > 2 ? atoll(argv[2]) : 0;

	if (frames < 1)
		demo_die("usage: viewer NUMBER FRAMES");
	samples_init(&v.first, frames);
	samples_init(&v.later, frames);
	samples_init(&v.warm, frames);
	samples_init(&v.awake, frames);
	v.mappings = calloc((size_t)frames, sizeof(*v.mappings));
	if (!v.mappings)
		demo_die("out of memory");
	if (tl_connect(NULL, &v.client))
		demo_die("cannot connect");
	snprintf(v.name, sizeof(v.name), "demo/viewer/%s", argv[1]);
	v.anonymous_start = anonymous_bytes();
	for (int64_t n = 0; n < frames; n++) {
		see_frame(&v, (uint64_t)n);
		demo_put(v.client, v.name, kDLInt, v.progress, PROGRESS_COUNT, &v.pid,
			 sizeof(v.pid));
	}
	report(&v, argv[1]);
	for (int i = 0; i < DEMO_WINDOW; i++) {
		if (v.window[i])
			v.window[i]->deleter(v.window[i]);
	}
	tl_close(v.client);
	free(v.first.ns);
	free(v.later.ns);
	free(v.warm.ns);
	free(v.awake.ns);
	free(v.mappings);
	return v.progress[PROGRESS_WRONG] ? 1 : 0;
}
