/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Actors send rollouts to learners by a stream, and none is lost.
 *
 *	rollouts act ACTOR [HOW-MANY]
 *	rollouts learn [HOW-MANY]
 *
 * Start any number of either, in any order. An actor that is too fast waits in tl_stream_put(). If
 * a learner dies before it has released a rollout, another one gets it.
 */
#include <err.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tensorlease/stream.h>

enum { STEPS = 32, HEIGHT = 84, WIDTH = 84 };

static tl_stream *open_rollouts(tl_client *client)
{
	const tl_stream_options options = TL_INIT(tl_stream_options, .mode = TL_STREAM_QUEUE,
						  .depth = 16);
	tl_stream *stream;

	if (tl_stream_open(client, "example/rollouts", &options, &stream))
		errx(1, "%s", tl_last_error());
	return stream;
}

static void act(tl_client *client, uint32_t actor, long count)
{
	static uint8_t frames[STEPS][HEIGHT][WIDTH];
	float rewards[STEPS];
	int64_t shape[] = { STEPS, HEIGHT, WIDTH };
	const DLTensor observed = { .data = frames,
				    .device = { kDLCPU, 0 },
				    .ndim = 3,
				    .dtype = { kDLUInt, 8, 1 },
				    .shape = shape };
	const DLTensor rewarded = { .data = rewards,
				    .device = { kDLCPU, 0 },
				    .ndim = 1,
				    .dtype = { kDLFloat, 32, 1 },
				    .shape = shape };
	const tl_part parts[] = { { .name = "observations", .tensor = &observed },
				  { .name = "rewards", .tensor = &rewarded } };
	const tl_stream_put_options options = TL_INIT(tl_stream_put_options, .timeout_ns = -1,
						      .metadata = &actor,
						      .metadata_size = sizeof(actor));
	tl_stream *stream = open_rollouts(client);

	for (long number = 0; number < count; number++) {
		/* Here the actor would play. */
		memset(frames, (int)(number & 255), sizeof(frames));
		for (int i = 0; i < STEPS; i++)
			rewards[i] = (float)number;
		if (tl_stream_put(stream, parts, 2, &options, NULL))
			errx(1, "cannot put: %s", tl_last_error());
	}
	tl_stream_close(stream); /* what was put stays for those who take it */
}

static void look_at(const tl_item *item)
{
	tl_item_info info = TL_INIT(tl_item_info);
	const float *rewards = tl_item_tensor(item, 1, NULL)->data;
	float sum = 0;
	uint32_t actor;

	if (tl_item_get_info(item, &info) || info.metadata_size != sizeof(actor))
		errx(1, "not an item of an actor");
	memcpy(&actor, info.metadata, sizeof(actor));
	for (int i = 0; i < STEPS; i++)
		sum += rewards[i];
	printf("rollout of actor %u, return %.0f%s\n", actor, sum,
	       info.tries ? "; another learner died with it" : "");
	fflush(stdout);
}

static void learn(tl_client *client, long count)
{
	const tl_wait_options forever = TL_INIT(tl_wait_options, .timeout_ns = -1);
	tl_stream *stream = open_rollouts(client);
	tl_subscription *subscription;
	tl_item *item;

	if (tl_stream_subscribe(stream, NULL, &subscription))
		errx(1, "%s", tl_last_error());
	for (long i = 0; count < 0 || i < count; i++) {
		if (tl_stream_take(subscription, &forever, &item))
			errx(1, "cannot take: %s", tl_last_error());
		look_at(item);	       /* in shared memory: nothing was copied */
		tl_item_release(item); /* from here on nobody else gets it */
	}
	tl_subscription_close(subscription);
	tl_stream_close(stream);
}

int main(int argc, char **argv)
{
	const tl_connect_options options = TL_INIT(tl_connect_options,
						   .flags = TL_CONNECT_AUTOSTART);
	const char *what = argc > 1 ? argv[1] : "";
	tl_client *client;

	if ((strcmp(what, "act") || argc < 3) && strcmp(what, "learn"))
		errx(2, "usage: rollouts act ACTOR [HOW-MANY], or rollouts learn [HOW-MANY]");
	if (tl_connect(&options, &client))
		errx(1, "cannot connect: %s", tl_last_error());
	if (!strcmp(what, "act"))
		act(client, (uint32_t)atol(argv[2]), argc > 3 ? atol(argv[3]) : 1);
	else
		learn(client, argc > 2 ? atol(argv[2]) : -1);
	return tl_close(client) ? 1 : 0;
}
