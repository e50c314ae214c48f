/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A camera that publishes under one name as fast as it can: the name gets a ring, and no frame
 * needs the daemon. Then it publishes at a camera's pace, which shows the time from a commit until
 * a sleeping reader has the frame. The reader is another process. It takes the newest frame, as a
 * display would, and checks that no frame changes while it holds it.
 *
 * Usage: live FRAMES
 */
#include <sys/wait.h>

#include "demo/demo.h"

#define LIVE_NAME "cam0/live"
#define PACE_NS (DEMO_SECOND / 200)

enum { PACED = 200 };

/* The reader's results, which it sends at its end. */
struct seen {
	int64_t frames, wrong, awake, median_ns, p99_ns;
};

/* ---- The reader ---- */

static int compare(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

/* The number of the frame is in its first and its last bytes, and in its metadata. */
static bool is_whole(const DLManagedTensorVersioned *frame, const struct demo_stamp *stamp)
{
	const char *pixels = frame->dl_tensor.data;

	return !memcmp(pixels, &stamp->id, sizeof(stamp->id)) &&
	       !memcmp(pixels + DEMO_BYTES - sizeof(stamp->id), &stamp->id, sizeof(stamp->id));
}

/* Reads until frame number @last. For the last PACED frames it also measures how long they took to
 * come. */
static struct seen read_frames(tl_client *client, uint64_t last)
{
	tl_get_options options = { .size = sizeof(options), .timeout_ns = 20 * DEMO_SECOND };
	static int64_t awake[PACED];
	struct seen seen = { 0 };
	struct demo_stamp stamp;

	do {
		DLManagedTensorVersioned *frame;
		tl_info info = { .size = sizeof(info) };
		int64_t now;

		if (tl_get(client, LIVE_NAME, &options, &frame))
			demo_die("cannot get the next frame");
		now = demo_now();
		if (tl_tensor_info(frame, &info))
			demo_die("cannot read what is known of a frame");
		memcpy(&stamp, info.metadata, sizeof(stamp));
		seen.frames++;
		seen.wrong += info.metadata_size != sizeof(stamp) || !is_whole(frame, &stamp);
		if (stamp.id + PACED > last && seen.awake < PACED)
			awake[seen.awake++] = now - stamp.at_ns;
		options.newer_than = info.version;
		frame->deleter(frame);
	} while (stamp.id < last);
	qsort(awake, (size_t)seen.awake, sizeof(*awake), compare);
	seen.median_ns = awake[seen.awake / 2];
	seen.p99_ns = awake[seen.awake * 99 / 100];
	return seen;
}

static void reader(int to, uint64_t last)
{
	struct seen seen;
	tl_client *client;

	if (tl_connect(NULL, &client))
		demo_die("cannot connect");
	seen = read_frames(client, last);
	tl_close(client);
	if (write(to, &seen, sizeof(seen)) != sizeof(seen))
		demo_die("cannot tell what it saw");
}

/* ---- The camera ---- */

static void publish(tl_client *client, const void *picture, uint64_t id)
{
	static const int64_t shape[] = { DEMO_HEIGHT, DEMO_WIDTH, DEMO_CHANNELS };
	static const tl_spec spec = { .size = sizeof(spec),
				      .shape = shape,
				      .ndim = 3,
				      .dtype = { kDLUInt, 8, 1 },
				      .timeout_ns = 10 * DEMO_SECOND,
				      .ring = TL_RING_AUTO };
	struct demo_stamp stamp = { .id = id };
	uint64_t version; /* a commit that asks for it may begin a ring */
	tl_draft *draft;
	char *pixels;

	if (tl_create(client, LIVE_NAME, &spec, &draft))
		demo_die("cannot create frame %llu", (unsigned long long)id);
	pixels = tl_draft_tensor(draft)->data;
	memcpy(pixels, picture, DEMO_BYTES);
	memcpy(pixels, &id, sizeof(id));
	memcpy(pixels + DEMO_BYTES - sizeof(id), &id, sizeof(id));
	stamp.at_ns = demo_now();
	if (tl_draft_set_metadata(draft, &stamp, sizeof(stamp)) || tl_commit(draft, &version))
		demo_die("cannot publish frame %llu", (unsigned long long)id);
}

static bool film(tl_client *client, uint64_t frames)
{
	const struct timespec pace = { .tv_nsec = PACE_NS };
	tl_info info = { .size = sizeof(info) };
	char *picture = malloc(DEMO_BYTES);
	int64_t start = demo_now();

	if (!picture)
		demo_die("out of memory");
	memset(picture, 128, DEMO_BYTES);
	for (uint64_t id = 0; id < frames; id++)
		publish(client, picture, id);
	if (tl_stat(client, LIVE_NAME, &info))
		demo_die("cannot look at %s", LIVE_NAME);
	printf("one name with a ring of %u slots: %.0f frames of %.1f MB a second\n", info.ring,
	       (double)frames * DEMO_SECOND / (double)(demo_now() - start), DEMO_BYTES / 1e6);
	for (uint64_t id = frames; id < frames + PACED; id++) {
		nanosleep(&pace, NULL);
		publish(client, picture, id);
	}
	free(picture);
	return info.ring > 0;
}

int main(int argc, char **argv)
{
	uint64_t frames = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000;
	struct seen seen = { 0 };
	tl_client *client;
	int pair[2], status = 0;
	bool ring;
	pid_t child;

	if (frames < 10 || pipe(pair))
		demo_die("usage: live FRAMES, at least 10");
	child = fork(); /* before anything is connected */
	if (!child) {
		reader(pair[1], frames + PACED - 1);
		return 0;
	}
	if (child < 0 || tl_connect(NULL, &client))
		demo_die("cannot start");
	ring = film(client, frames);
	close(pair[1]);
	if (read(pair[0], &seen, sizeof(seen)) != sizeof(seen))
		seen.wrong = 1;
	waitpid(child, &status, 0);
	if (tl_delete(client, LIVE_NAME))
		demo_die("cannot delete %s", LIVE_NAME);
	tl_close(client);
	printf("commit to reader awake: %.1f us (median), %.1f us (p99); it saw %lld frames, %lld wrong\n",
	       (double)seen.median_ns / 1e3, (double)seen.p99_ns / 1e3, (long long)seen.frames,
	       (long long)seen.wrong);
	if (!ring)
		fputs("FAILED: the name has a ring\n", stdout);
	return ring && !seen.wrong && seen.awake && !status ? 0 : 1;
}
