/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A consumer: waits for each new version of a tensor and reads it where it lies.
 *
 *	consumer [NAME [HOW-MANY]]
 */
#include <err.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <tensorlease/tensorlease.h>

static uint64_t bytes_of(const DLTensor *tensor)
{
	uint64_t bits = (uint64_t)tensor->dtype.bits * tensor->dtype.lanes;

	for (int i = 0; i < tensor->ndim; i++)
		bits *= (uint64_t)tensor->shape[i];
	return (bits + 7) / 8;
}

/* Stores the version in *version. */
static int look_at(const DLManagedTensorVersioned *tensor, uint64_t *version)
{
	const unsigned char *data = tensor->dl_tensor.data;
	uint64_t n = bytes_of(&tensor->dl_tensor), sum = 0;
	tl_info info = TL_INIT(tl_info);
	int r = tl_tensor_info(tensor, &info);

	if (r)
		return r;
	for (uint64_t i = 0; i < n; i++)
		sum += data[i];
	printf("%s version %llu: %llu bytes, mean %.1f\n", info.name,
	       (unsigned long long)info.version, (unsigned long long)n,
	       n ? (double)sum / (double)n : 0);
	fflush(stdout);
	*version = info.version;
	return 0;
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "example/picture";
	char none[] = "", *end = none;
	long left = argc > 2 ? strtol(argv[2], &end, 10) : -1;
	tl_get_options options = TL_INIT(tl_get_options, .timeout_ns = -1);
	tl_client *client;

	if (*end || left == 0 || argc > 3)
		errx(2, "usage: consumer [NAME [HOW-MANY]], HOW-MANY at least 1");
	if (tl_connect(NULL, &client))
		errx(1, "cannot connect: %s", tl_last_error());
	while (left != 0) {
		DLManagedTensorVersioned *tensor;
		int r = tl_get(client, name, &options, &tensor);

		if (!r) {
			r = look_at(tensor, &options.newer_than);
			tensor->deleter(tensor); /* the memory may now hold another one */
		}
		/* Any tensor of the next daemon is new. */
		if (r == -ENOTCONN) {
			warnx("%s", tl_last_error());
			options.newer_than = 0;
		} else if (r) {
			errx(1, "%s", tl_last_error());
		}
		left -= !r && left > 0;
	}
	return tl_close(client) ? 1 : 0;
}
