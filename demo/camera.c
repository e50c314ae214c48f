/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The producer. It draws a moving picture, each frame in the memory in which it is published, and
 * stays less than DEMO_RING frames ahead of every viewer. It does not wait for a viewer that is no
 * longer connected.
 *
 * Usage: camera FRAMES VIEWERS
 */
#include "demo/demo.h"

struct viewer {
	char name[32];
	int64_t verified;
	int64_t pid; /* 0: not known yet */
	uint64_t version;
	bool ended;
};

struct camera {
	tl_client *client;
	struct viewer viewers[DEMO_VIEWERS];
	int viewer_count;
	int64_t report[CAMERA_COUNT];
};

/* ---- The picture ---- */

static void draw_waves(unsigned char *pixels, uint64_t t)
{
	static unsigned char wave[256];

	for (unsigned i = 0; i < 256 && !wave[255]; i++) /* a parabola instead of a sine */
		wave[i] = (unsigned char)(1 +
					  (i < 128 ? i * (127 - i) : (i - 128) * (255 - i)) / 17);
	for (unsigned y = 0; y < DEMO_HEIGHT; y++) {
		unsigned char *p = pixels + (size_t)y * DEMO_WIDTH * DEMO_CHANNELS;
		unsigned b = wave[(y + 2 * t) & 255];

		for (unsigned x = 0; x < DEMO_WIDTH; x++, p += DEMO_CHANNELS) {
			unsigned a = wave[(x + 3 * t) & 255], c = wave[(x + y + 5 * t) & 255];

			p[0] = (unsigned char)((a + b) / 2);
			p[1] = (unsigned char)((b + c) / 2);
			p[2] = (unsigned char)((a + c) / 2);
		}
	}
}

static unsigned bounce(uint64_t t, unsigned limit)
{
	unsigned at = (unsigned)(t % (2 * limit));

	return at < limit ? at : 2 * limit - at;
}

static void draw_ball(unsigned char *pixels, uint64_t t)
{
	enum { RADIUS = 40 };
	unsigned cx = RADIUS + bounce(7 * t, DEMO_WIDTH - 2 * RADIUS - 1);
	unsigned cy = RADIUS + bounce(5 * t, DEMO_HEIGHT - 2 * RADIUS - 1);

	for (int dy = -RADIUS; dy <= RADIUS; dy++) {
		for (int dx = -RADIUS; dx <= RADIUS; dx++) {
			size_t at = (size_t)((int)cy + dy) * DEMO_WIDTH + (size_t)((int)cx + dx);

			if (dx * dx + dy * dy <= RADIUS * RADIUS)
				memset(pixels + at * DEMO_CHANNELS, 255, DEMO_CHANNELS);
		}
	}
}

/*
 * Draws the number of the frame as a row of black and white squares, so that no two frames are
 * equal.
 */
static void draw_time_code(unsigned char *pixels, uint64_t id)
{
	enum { SIDE = 16, BITS = 32 };

	for (unsigned y = 0; y < SIDE; y++) {
		for (unsigned bit = 0; bit < BITS; bit++)
			memset(pixels + ((size_t)y * DEMO_WIDTH + (size_t)bit * SIDE) *
						DEMO_CHANNELS,
			       id >> bit & 1 ? 255 : 0, SIDE * DEMO_CHANNELS);
	}
}

/* ---- Publishing ---- */

static void publish_frame(struct camera *camera, uint64_t id)
{
	static const int64_t shape[] = { DEMO_HEIGHT, DEMO_WIDTH, DEMO_CHANNELS };
	tl_spec spec = { .size = sizeof(spec),
			 .shape = shape,
			 .ndim = 3,
			 .dtype = { kDLUInt, 8, 1 },
			 .timeout_ns = 10 * DEMO_SECOND };
	struct demo_stamp stamp = { .id = id };
	struct demo_mapping mapping;
	char name[32];
	tl_draft *draft;
	void *pixels;

	snprintf(name, sizeof(name), "cam0/frame/%u", (unsigned)(id % DEMO_RING));
	if (tl_create(camera->client, name, &spec, &draft))
		demo_die("cannot create frame %llu", (unsigned long long)id);
	pixels = tl_draft_tensor(draft)->data;
	draw_waves(pixels, id);
	draw_ball(pixels, id);
	draw_time_code(pixels, id);
	mapping = demo_find_mapping(pixels);
	camera->report[CAMERA_IN_PLACE] += mapping.shared && mapping.writable;
	stamp.hash = demo_hash(pixels, DEMO_BYTES);
	stamp.at_ns = demo_now();
	if (tl_draft_set_metadata(draft, &stamp, sizeof(stamp)) || tl_commit(draft, NULL))
		demo_die("cannot publish frame %llu", (unsigned long long)id);
	camera->report[CAMERA_PUBLISHED]++;
}

/* ---- Waiting for viewers ---- */

static int visit_client(const tl_client_info *info, void *context)
{
	return info->pid == (uint32_t)((const struct viewer *)context)->pid;
}

static bool viewer_lives(struct camera *camera, struct viewer *viewer)
{
	int r = tl_list_clients(camera->client, visit_client, viewer);

	if (r < 0)
		demo_die("cannot list clients");
	return r == 1;
}

/* Reads the next version of demo/viewer/k. Returns false if none came in time. */
static bool viewer_hear(struct camera *camera, struct viewer *viewer, int64_t timeout_ns)
{
	tl_get_options options = { .size = sizeof(options),
				   .timeout_ns = timeout_ns,
				   .newer_than = viewer->version };
	DLManagedTensorVersioned *tensor;
	tl_info info = { .size = sizeof(info) };
	int r;

	r = tl_get(camera->client, viewer->name, &options, &tensor);
	if (r == -ETIMEDOUT)
		return false;
	if (r || tl_tensor_info(tensor, &info))
		demo_die("cannot get %s", viewer->name);
	viewer->version = info.version;
	viewer->verified = ((const int64_t *)tensor->dl_tensor.data)[PROGRESS_VERIFIED];
	memcpy(&viewer->pid, info.metadata, sizeof(viewer->pid));
	tensor->deleter(tensor);
	return true;
}

/* Waits until @viewer has verified @frames frames, or has ended. */
static void viewer_await(struct camera *camera, struct viewer *viewer, int64_t frames)
{
	int64_t deadline = demo_now() + 20 * DEMO_SECOND;

	while (!viewer->ended && viewer->verified < frames) {
		if (viewer_hear(camera, viewer, DEMO_SECOND / 20))
			continue;
		if (viewer->pid && !viewer_lives(camera, viewer)) {
			if (viewer_hear(camera, viewer, 1)) /* its last words */
				continue;
			viewer->ended = true;
			camera->report[CAMERA_VIEWERS_ENDED]++;
			fprintf(stderr,
				"camera: %s (pid %d) ended after %d frames; goes on without it\n",
				viewer->name, (int)viewer->pid, (int)viewer->verified);
		} else if (demo_now() > deadline) {
			demo_die("%s has verified %d frames, waited 20 s for %d", viewer->name,
				 (int)viewer->verified, (int)frames);
		}
	}
}

int main(int argc, char **argv)
{
	int64_t frames = argc > 1 ? atoll(argv[1]) : 1000, start;
	struct camera camera = { .viewer_count = argc > 2 ? atoi(argv[2]) : DEMO_VIEWERS };

	if (frames < 1 || camera.viewer_count < 0 || camera.viewer_count > DEMO_VIEWERS)
		demo_die("usage: camera FRAMES VIEWERS");
	if (tl_connect(NULL, &camera.client))
		demo_die("cannot connect");
	for (int k = 0; k < camera.viewer_count; k++)
		snprintf(camera.viewers[k].name, sizeof(camera.viewers[k].name), "demo/viewer/%d",
			 k);
	start = demo_now();
	for (int64_t n = 0; n < frames; n++) {
		for (int k = 0; k < camera.viewer_count; k++)
			viewer_await(&camera, &camera.viewers[k], n - DEMO_RING + 1);
		publish_frame(&camera, (uint64_t)n);
	}
	for (int k = 0; k < camera.viewer_count; k++)
		viewer_await(&camera, &camera.viewers[k], frames);
	camera.report[CAMERA_NS] = demo_now() - start;
	demo_put(camera.client, "demo/report/camera", kDLInt, camera.report, CAMERA_COUNT, NULL, 0);
	tl_close(camera.client);
	return 0;
}
