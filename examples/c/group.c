/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two tensors that belong together: they are published in one step, and got as of one moment.
 *
 *	group publish [HOW-MANY]
 *	group get
 */
#include <err.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tensorlease/tensorlease.h>

enum { LEFT, RIGHT, COUNT };
static const char *const names[COUNT] = { "example/left", "example/right" };

static int publish(tl_client *client, uint8_t value)
{
	const int64_t shape[] = { 480, 640 };
	const tl_group_options wait_for_space = TL_INIT(tl_group_options, .timeout_ns = -1);
	tl_group_item items[COUNT] = { 0 };
	tl_group *group;
	int r;

	for (int i = 0; i < COUNT; i++)
		items[i] = (tl_group_item){
			.name = names[i], .shape = shape, .ndim = 2, .dtype = { kDLUInt, 8, 1 }
		};
	r = tl_group_create(client, items, COUNT, &wait_for_space, &group);
	if (r)
		return r;
	for (size_t i = 0; i < COUNT; i++)
		memset(tl_group_tensor(group, i)->data, value, (size_t)(shape[0] * shape[1]));
	return tl_group_commit(group);
}

/* Both are of the same step, however often they are published meanwhile. */
static int get(tl_client *client)
{
	const tl_get_options options = TL_INIT(tl_get_options, .timeout_ns = -1);
	DLManagedTensorVersioned *pair[COUNT];
	int r = tl_get_many(client, names, COUNT, &options, pair);
	const uint8_t *left, *right;

	if (r)
		return r;
	left = pair[LEFT]->dl_tensor.data;
	right = pair[RIGHT]->dl_tensor.data;
	printf("left %d, right %d: %s\n", left[0], right[0], left[0] == right[0] ? "a pair" : "?");
	for (int i = 0; i < COUNT; i++)
		pair[i]->deleter(pair[i]);
	return 0;
}

int main(int argc, char **argv)
{
	tl_client *client;
	int r = 0;

	if (argc < 2)
		errx(2, "usage: group publish [HOW-MANY], or group get");
	if (tl_connect(NULL, &client))
		errx(1, "cannot connect: %s", tl_last_error());
	if (!strcmp(argv[1], "get"))
		r = get(client);
	for (long i = 0;
	     strcmp(argv[1], "publish") == 0 && !r && i < atol(argc > 2 ? argv[2] : "1"); i++)
		r = publish(client, (uint8_t)i);
	if (r)
		errx(1, "%s", tl_last_error());
	return tl_close(client) ? 1 : 0;
}
