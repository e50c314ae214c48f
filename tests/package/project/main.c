/* SPDX-License-Identifier: Apache-2.0 */
/* A user's program: says which library it runs with, and fails to connect. */
#include <errno.h>
#include <stdio.h>

#include <tensorlease/cuda.h>
#include <tensorlease/tensorlease.h>

int main(void)
{
	const tl_connect_options options = { .size = sizeof(options),
					     .address = "/nonexistent/socket" };
	tl_client *client;

	if (tl_connect(&options, &client) != -ENOENT)
		return 1;
	printf("with %s\n", tl_version());
	return 0;
}
