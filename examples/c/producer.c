/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A producer: writes pictures straight into shared memory and publishes each under the same name.
 *
 *	producer [NAME [MILLISECONDS]]
 */
#define _DEFAULT_SOURCE /* nanosleep(), also with -std=c11 */
#include <err.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tensorlease/tensorlease.h>

enum { HEIGHT = 480, WIDTH = 640 };

static int publish(tl_client *client, const char *name, uint64_t number)
{
	const int64_t shape[] = { HEIGHT, WIDTH, 3 };
	const tl_spec spec = TL_INIT(tl_spec, .shape = shape, .ndim = 3,
				     .dtype = { kDLUInt, 8, 1 });
	tl_draft *draft;
	int r;

	r = tl_create(client, name, &spec, &draft);
	if (r)
		return r;
	/* Here a camera or a decoder would write the picture. */
	memset(tl_draft_tensor(draft)->data, (int)(number & 255), sizeof(char[HEIGHT][WIDTH][3]));
	r = tl_draft_set_metadata(draft, &number, sizeof(number));
	if (r) {
		tl_abort(draft);
		return r;
	}
	return tl_commit(draft, NULL); /* the version is not needed */
}

int main(int argc, char **argv)
{
	const tl_connect_options options = TL_INIT(tl_connect_options,
						   .flags = TL_CONNECT_AUTOSTART);
	const char *name = argc > 1 ? argv[1] : "example/picture";
	long pause_ms = argc > 2 ? atol(argv[2]) : 33;
	tl_client *client;

	if (tl_connect(&options, &client))
		errx(1, "cannot connect: %s", tl_last_error());
	for (uint64_t number = 0;; number++) {
		int r = publish(client, name, number);

		/*
		 * If consumers hold all the memory, this picture is dropped and the next one may
		 * find space. If the daemon has ended, a later call connects again.
		 */
		if (r == -ENOSPC || r == -EDQUOT || r == -ENOTCONN)
			warnx("picture %llu: %s", (unsigned long long)number, tl_last_error());
		else if (r)
			errx(1, "cannot publish: %s", tl_last_error());
		nanosleep(&(struct timespec){ pause_ms / 1000, pause_ms % 1000 * 1000000 }, NULL);
	}
}
