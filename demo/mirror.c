/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two hosts: the camera publishes a frame and its number on one of them, 30 times a second. The
 * viewer, on the other, watches both names, checks every byte, and prints what came and when. Both
 * hosts are on one machine, so they have one clock.
 *
 * Usage: mirror camera|viewer FRAMES
 */
#include <tensorlease/watch.h>

#include "demo/demo.h"

enum { WIDTH = 1920, HEIGHT = 1080, BYTES = WIDTH * HEIGHT * DEMO_CHANNELS };
enum { RATE = 30, FRAMES_MAX = 100000, NS_PER_MS = 1000000 };

#define PATIENCE_NS (20 * DEMO_SECOND)

static const char prefix[] = "cam/", front[] = "cam/front", number[] = "cam/number";

/* ---- The camera ---- */

static void publish_frame(tl_client *client, struct demo_stamp *stamp)
{
	static const int64_t shape[] = { HEIGHT, WIDTH, DEMO_CHANNELS };
	const tl_spec spec = { .size = sizeof(spec),
			       .shape = shape,
			       .ndim = 3,
			       .dtype = { kDLUInt, 8, 1 },
			       .timeout_ns = 10 * DEMO_SECOND };
	unsigned char *pixels;
	tl_draft *draft;

	if (tl_create(client, front, &spec, &draft))
		demo_die("cannot create a frame");
	pixels = tl_draft_tensor(draft)->data;
	for (size_t y = 0; y < HEIGHT; y++) /* bars that move */
		memset(pixels + y * WIDTH * DEMO_CHANNELS, (int)(y + 4 * stamp->id) & 255,
		       (size_t)WIDTH * DEMO_CHANNELS);
	stamp->hash = demo_hash(pixels, BYTES);
	stamp->at_ns = demo_now();
	if (tl_draft_set_metadata(draft, stamp, sizeof(*stamp)) || tl_commit(draft, NULL))
		demo_die("cannot publish a frame");
}

static void film(tl_client *client, int64_t frames)
{
	const int64_t start = demo_now();

	for (int64_t n = 0; n < frames; n++) {
		struct demo_stamp stamp = { .id = (uint64_t)n };
		int64_t wait = start + n * DEMO_SECOND / RATE - demo_now();

		if (wait > 0)
			nanosleep(&(struct timespec){ .tv_nsec = wait }, NULL);
		publish_frame(client, &stamp);
		stamp.at_ns = demo_now();
		demo_put(client, number, kDLInt, &n, 1, &stamp, sizeof(stamp));
	}
}

/* ---- The viewer ---- */

struct seen {
	const char *name;
	uint64_t version, bytes;
	int64_t came, wrong, last, *delays;
};

static int compare(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

static bool is_right(const DLTensor *tensor, const tl_info *info, const struct demo_stamp *stamp)
{
	if (tensor->ndim == 3)
		return info->nbytes == BYTES && demo_hash(tensor->data, BYTES) == stamp->hash;
	return info->nbytes == 8 && *(const uint64_t *)tensor->data == stamp->id;
}

/* Takes the newest version of a name. */
static void take(tl_client *client, struct seen *seen, int64_t frames)
{
	DLManagedTensorVersioned *tensor;
	tl_info info = { .size = sizeof(info) };
	struct demo_stamp stamp;
	int64_t delay;

	if (tl_get(client, seen->name, NULL, &tensor))
		demo_die("cannot get %s", seen->name);
	delay = demo_now();
	if (tl_tensor_info(tensor, &info))
		demo_die("cannot read what is known of %s", seen->name);
	if (info.version > seen->version && seen->came < frames &&
	    info.metadata_size == sizeof(stamp)) {
		memcpy(&stamp, info.metadata, sizeof(stamp));
		delay -= stamp.at_ns;
		seen->delays[seen->came++] = delay;
		seen->wrong += !is_right(&tensor->dl_tensor, &info, &stamp);
		if (seen->last / (RATE / 2) != (int64_t)stamp.id / (RATE / 2))
			printf("  %-10s version %4llu, %7llu bytes, %6.2f ms after its commit\n",
			       seen->name, (unsigned long long)info.version,
			       (unsigned long long)info.nbytes, (double)delay / NS_PER_MS);
		fflush(stdout);
		seen->version = info.version;
		seen->bytes = info.nbytes;
		seen->last = (int64_t)stamp.id;
	}
	tensor->deleter(tensor);
}

/* Returns whether it saw the last version, and nothing wrong. */
static bool report(struct seen *seen, int64_t frames)
{
	const int64_t median = seen->came / 2, p99 = seen->came * 99 / 100;

	qsort(seen->delays, (size_t)seen->came, sizeof(*seen->delays), compare);
	printf("%-10s %8llu %10lld %8lld %8lld %9.2f ms %9.2f ms\n", seen->name,
	       (unsigned long long)seen->bytes, (long long)frames, (long long)seen->came,
	       (long long)seen->wrong, (double)seen->delays[median] / NS_PER_MS,
	       (double)seen->delays[p99] / NS_PER_MS);
	return seen->last == frames - 1 && !seen->wrong;
}

static int view(tl_client *client, int64_t frames)
{
	static int64_t delays[2][FRAMES_MAX];
	struct seen seen[] = { { front, .last = -1, .delays = delays[0] },
			       { number, .last = -1, .delays = delays[1] } };
	const tl_wait_options wait = { .size = sizeof(wait), .timeout_ns = PATIENCE_NS };
	tl_watch_event event = { .size = sizeof(event) };
	tl_watch *watch;
	bool well;

	if (tl_watch_open(client, prefix, NULL, &watch))
		demo_die("cannot watch %s", prefix);
	printf("the viewer on host-b watches %s\n", prefix);
	fflush(stdout);
	while (seen[0].last < frames - 1 || seen[1].last < frames - 1) {
		if (tl_watch_next(watch, &wait, &event))
			demo_die("waited for the next version of %s", prefix);
		if (event.what == TL_WATCH_PUBLISHED)
			take(client, &seen[!strcmp(event.name, number)], frames);
	}
	tl_watch_close(watch);
	printf("\n%-10s %8s %10s %8s %8s %12s %12s\n", "", "bytes", "published", "came", "wrong",
	       "median", "p99");
	well = report(&seen[0], frames);
	return report(&seen[1], frames) && well ? 0 : 1;
}

int main(int argc, char **argv)
{
	int64_t frames = argc == 3 ? atoll(argv[2]) : 0;
	bool camera = argc == 3 && !strcmp(argv[1], "camera");
	const tl_connect_options options = { .size = sizeof(options),
					     .namespace_name = camera ? "" : "mirror" };
	tl_client *client;
	int status = 0;

	if (frames < 1 || frames > FRAMES_MAX || (!camera && strcmp(argv[1], "viewer") != 0))
		demo_die("usage: mirror camera|viewer FRAMES, at most %d", FRAMES_MAX);
	if (tl_connect(&options, &client))
		demo_die("cannot connect");
	if (camera)
		film(client, frames);
	else
		status = view(client, frames);
	tl_close(client);
	return status;
}
