/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program does on an ordinary day: puts, in rings and alone, drafts, a group, a watch,
 * waits, lists, copy-on-write, many at once, deletes, a consumer that is killed and a daemon that
 * is. `make everyday` prints how much of the library and of the daemon runs for it.
 */
#include <signal.h>

#include <tensorlease/watch.h>

#include "tests/client/common.h"
#include "tests/harness/process.h"

enum { LAYERS = 8, LAYER_BYTES = 3 * MIB, FRAMES = 200, FRAME_BYTES = 100000 };

static int count_name(const tl_info *info, void *context)
{
	*(unsigned *)context += info->nbytes > 0;
	return 0;
}

static unsigned names_below(tl_client *client, const char *prefix)
{
	unsigned n = 0;

	must_be(tl_list(client, prefix, count_name, &n), 0);
	return n;
}

/* A model's layers are published in one step, and got as of one moment. */
static void publish_model(tl_client *client, int value)
{
	static const int64_t shape[1] = { LAYER_BYTES };
	char names[LAYERS][16];
	tl_group_item items[LAYERS];
	tl_group *group;

	for (unsigned i = 0; i < LAYERS; i++) {
		snprintf(names[i], sizeof(names[i]), "model/%u", i);
		items[i] = (tl_group_item){
			.name = names[i], .shape = shape, .ndim = 1, .dtype = U8
		};
	}
	must_be(tl_group_create(client, items, LAYERS, NULL, &group), 0);
	for (unsigned i = 0; i < LAYERS; i++)
		memset(tl_group_tensor(group, i)->data, value, LAYER_BYTES);
	must_be(tl_group_commit(group), 0);
}

static void get_model(tl_client *client, int value)
{
	static const char *const names[3] = { "model/0", "model/3", "model/7" };
	DLManagedTensorVersioned *got[3];

	must_be(tl_get_many(client, names, 3, NULL, got), 0);
	for (unsigned i = 0; i < 3; i++) {
		must(all_bytes(got[i], value, LAYER_BYTES));
		drop(got[i]);
	}
}

/* A camera: some frames of equal shape, then a name of its own for each. */
static void publish_frames(tl_client *client)
{
	static const int64_t shape[1] = { FRAME_BYTES };
	unsigned char *data = malloc(FRAME_BYTES);
	DLTensor frame = bytes_tensor(data, shape);
	char name[32];

	must(data);
	for (int i = 0; i < FRAMES; i++) {
		memset(data, i, FRAME_BYTES);
		must_be(tl_put(client, "cam/rgb", &frame, NULL, NULL), 0);
	}
	for (int i = 0; i < 20; i++) {
		snprintf(name, sizeof(name), "rollout/%d", i);
		must_be(tl_put(client, name, &frame, NULL, NULL), 0);
	}
	free(data);
}

/* A tensor that is written where consumers will read it. */
static void publish_draft(tl_client *client)
{
	int64_t shape[2] = { 64, 1000 };
	tl_spec spec = {
		.size = sizeof(spec), .shape = shape, .ndim = 2, .dtype = { TL_DTYPE_FLOAT, 32, 1 }
	};
	tl_draft *draft;
	uint64_t version = 0;

	must_be(tl_create(client, "features", &spec, &draft), 0);
	memset(tl_draft_tensor(draft)->data, 1, 64 * 1000 * 4);
	must_be(tl_draft_set_metadata(draft, "epoch 3", 8), 0);
	must_be(tl_commit(draft, &version), 0);
	must(version);
	must_be(tl_create(client, "features", &spec, &draft), 0);
	tl_abort(draft);
}

/* Waits for each version until the last one, and then for the producer to kill it. */
static int consume(const struct test_daemon *d)
{
	tl_client *client = td_connect(d);
	tl_get_options options = TL_INIT(tl_get_options, .timeout_ns = WAIT_S * SECOND);
	DLManagedTensorVersioned *t;

	for (bool last = false; !last;) {
		tl_info info = TL_INIT(tl_info);

		must_be(tl_get(client, "cam/rgb", &options, &t), 0);
		must_be(tl_tensor_info(t, &info), 0);
		must(all_bytes(t, *(const unsigned char *)t->dl_tensor.data, FRAME_BYTES));
		last = *(const unsigned char *)t->dl_tensor.data == (unsigned char)(FRAMES - 1);
		options.newer_than = info.version;
		if (!last)
			drop(t);
	}
	must_be(tl_put(client, "consumed", &t->dl_tensor, NULL, NULL), 0);
	for (;;)
		pause();
}

static void change_a_copy(tl_client *client)
{
	DLManagedTensorVersioned *copy, *t = get(client, "features");

	must_be(tl_remap(t, TL_MODE_COPY_ON_WRITE, &copy), 0);
	memset(copy->dl_tensor.data, 2, 1000);
	must_be(*(const unsigned char *)t->dl_tensor.data, 1);
	drop(copy);
	drop(t);
}

static void a_day(const struct test_daemon *d, bool daemon_dies)
{
	tl_client *producer = td_connect(d), *client = td_connect(d);
	tl_get_options wait = TL_INIT(tl_get_options, .timeout_ns = WAIT_S * SECOND);
	tl_watch_event event = { .size = sizeof(event) };
	DLManagedTensorVersioned *held, *t;
	tl_info info = TL_INIT(tl_info);
	tl_watch *watch;
	int status;
	pid_t consumer = fork();

	must(consumer >= 0);
	if (!consumer) {
		process_is_child();
		_exit(consume(d));
	}
	process_remember(consumer);
	must_be(tl_watch_open(client, "model", &TL_INIT(tl_watch_options, .flags = TL_WATCH_PREFIX),
			      &watch),
		0);
	publish_model(producer, 1);
	must_be(tl_watch_next(watch, &TL_INIT(tl_wait_options, .timeout_ns = WAIT_S * SECOND),
			      &event),
		0);
	must_be(event.what, TL_WATCH_PUBLISHED);
	get_model(client, 1);
	publish_frames(producer);
	publish_draft(producer);
	held = get(client, "model/5");
	must_be(tl_get(client, "consumed", &wait, &t), 0);
	drop(t);
	must_be(kill(consumer, SIGKILL), 0); /* while it holds the last frame */
	must_be(process_wait(consumer, &status), 0);
	if (daemon_dies)
		must_be(kill(d->pid, SIGKILL), 0);
	publish_model(producer, 2);
	get_model(client, 2);
	must(all_bytes(held, 1, LAYER_BYTES));
	drop(held);
	change_a_copy(client);
	must_be(names_below(client, "rollout"), 20);
	must_be(names_below(client, ""), 20 + LAYERS + 3);
	must_be(tl_stat(client, "cam/rgb", &info), 0);
	must_be(tl_delete(producer, "cam/rgb"), 0);
	must_be(tl_get(client, "cam/rgb", NULL, &t), -ENOENT);
	must_be(tl_watch_close(watch), 0);
	must_be(tl_close(client), 0);
	must_be(tl_close(producer), 0);
}

TEST(an_ordinary_day)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 256 * MIB);

	a_day(&d, false);
}

TEST(a_day_on_which_the_daemon_is_killed)
{
	static const char *const with_keeper[] = { "--keeper", "yes", NULL };
	cleanup_td struct test_daemon d = td_start(.extra = with_keeper, .expect_ready = true,
						   .capacity = 256 * MIB);

	a_day(&d, true);
}

int main(void)
{
	return suite_run();
}
