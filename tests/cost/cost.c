/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tools/cost counts the instructions of: `cost WHAT ADDRESS N` does N times what WHAT says, in
 * a function of its own, says that it has, and ends when its standard input does. Everything before
 * and after those calls is not counted. Every put waits for its version, so that the daemon does
 * the same work for each, whatever the scheduler does.
 */
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorlease/tensorlease.h"

enum { SMALL = 1024, LARGE = 1 << 18 }; /* elements of 4 bytes */

static void check(int r, const char *what)
{
	if (r < 0)
		errx(1, "%s: %s", what, tl_last_error());
}

static void put(tl_client *client, const char *name, size_t elements)
{
	static float data[LARGE];
	int64_t shape = (int64_t)elements;
	DLTensor t = { .data = data,
		       .device = { .device_type = kDLCPU },
		       .ndim = 1,
		       .dtype = { .code = kDLFloat, .bits = 32, .lanes = 1 },
		       .shape = &shape };
	uint64_t version;

	check(tl_put(client, name, &t, NULL, &version), name);
}

static DLManagedTensorVersioned *get(tl_client *client, const char *name)
{
	DLManagedTensorVersioned *t;

	check(tl_get(client, name, NULL, &t), name);
	return t;
}

enum { NAME = 32 };

static void name_of(char name[NAME], int i)
{
	snprintf(name, NAME, "first/%d", i);
}

__attribute__((noinline)) static void measured_get(tl_client *client, int n)
{
	for (int i = 0; i < n; i++) {
		DLManagedTensorVersioned *t = get(client, "get");

		t->deleter(t);
	}
}

__attribute__((noinline)) static void measured_put(tl_client *client, int n)
{
	for (int i = 0; i < n; i++)
		put(client, "put", SMALL);
}

/* Each put has another shape than the last, so that no ring begins and the daemon handles it. */
__attribute__((noinline)) static void measured_reshape(tl_client *client, int n)
{
	for (int i = 0; i < n; i++)
		put(client, "reshape", i % 2 ? SMALL : SMALL / 2);
}

__attribute__((noinline)) static void measured_first(tl_client *client, int n)
{
	for (int i = 0; i < n; i++) {
		DLManagedTensorVersioned *t;
		char name[NAME];

		name_of(name, i);
		t = get(client, name);
		t->deleter(t);
	}
}

int main(int argc, char **argv)
{
	tl_connect_options options = { .size = sizeof(options) };
	tl_client *producer, *client;
	int n;

	if (argc != 4)
		errx(2, "usage: cost get|put|reshape|first ADDRESS N");
	n = atoi(argv[3]);
	options.address = argv[2];
	check(tl_connect(&options, &producer), "tl_connect");
	check(tl_connect(&options, &client), "tl_connect");
	if (!strcmp(argv[1], "get")) {
		DLManagedTensorVersioned *kept;

		put(producer, "get", SMALL);
		kept = get(client, "get"); /* the segment stays mapped */
		measured_get(client, n);
		kept->deleter(kept);
	} else if (!strcmp(argv[1], "put")) {
		for (int i = 0; i < 100; i++) /* until a ring has begun */
			put(client, "put", SMALL);
		measured_put(client, n);
	} else if (!strcmp(argv[1], "reshape")) {
		for (int i = 0; i < 100; i++)
			put(client, "reshape", i % 2 ? SMALL : SMALL / 2);
		measured_reshape(client, n);
	} else {
		for (int i = 0; i < n; i++) {
			char name[NAME];

			name_of(name, i);
			put(producer, name, LARGE); /* each has a segment of its own */
		}
		measured_first(client, n);
	}
	puts("done");
	fflush(stdout);
	getchar();
	tl_close(client);
	tl_close(producer);
	return 0;
}
