/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client is killed while it holds 1,000 leases on deleted tensors, which only these leases keep.
 * When the daemon has dropped the leases, it counts no retired tensor any more. The time runs from
 * SIGKILL until that number in shared memory is 0. The floor is the time until the socket of a
 * killed process ends.
 */
#include <err.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/bench.h"

enum { LEASES = 1000 };

static void name_of(char name[32], unsigned i)
{
	snprintf(name, 32, "bench/kill/%u", i);
}

/* Says that it is ready, then waits to be killed. */
static int hold_on(int socket)
{
	char byte = 1;

	if (send(socket, &byte, 1, 0) != 1)
		return 1;
	for (;;)
		pause();
}

int bench_role_mute(int socket, int shared_fd, const char *argument)
{
	(void)shared_fd;
	(void)argument;
	return hold_on(socket);
}

int bench_role_holder(int socket, int shared_fd, const char *argument)
{
	tl_client *client = bench_connect(argument);
	DLManagedTensorVersioned *tensor;
	char name[32];

	(void)shared_fd;
	for (unsigned i = 0; i < LEASES; i++) {
		name_of(name, i);
		bench_check(tl_get(client, name, NULL, &tensor), name);
	}
	return hold_on(socket);
}

static void await_ready(struct bench_helper *h)
{
	char byte;

	if (recv(h->socket, &byte, 1, 0) != 1)
		errx(1, "a helper of the bench ended");
}

static double kill_floor(void)
{
	struct bench_helper h;
	double start, ns;
	char byte;

	bench_helper_start(&h, "mute", -1, NULL);
	await_ready(&h);
	start = bench_now();
	kill(h.pid, SIGKILL);
	while (recv(h.socket, &byte, 1, 0) > 0)
		;
	ns = bench_now() - start;
	bench_helper_stop(&h);
	return ns;
}

static uint32_t retired(tl_client *client)
{
	tl_status status = { .size = sizeof(status) };

	bench_check(tl_get_status(client, &status), "status");
	return status.retired;
}

static double kill_ours(struct bench *b)
{
	struct bench_helper h;
	double start, ns;
	char name[32];

	for (unsigned i = 0; i < LEASES; i++) {
		name_of(name, i);
		bench_publish(b->client, name, 4096);
	}
	bench_sync(b->client);
	bench_helper_start(&h, "holder", -1, b->address);
	await_ready(&h);
	for (unsigned i = 0; i < LEASES; i++) {
		name_of(name, i);
		bench_check(tl_delete(b->client, name), "deleting");
	}
	if (retired(b->client) != LEASES)
		errx(1, "%u retired tensors, %d are held", retired(b->client), LEASES);
	bench_sleep(1e6);
	start = bench_now();
	kill(h.pid, SIGKILL);
	while (retired(b->client)) {
		if (bench_now() - start > 10e9)
			errx(1, "a killed client's leases stay");
		usleep(10); /* leaves the CPU to others, since there may be only one */
	}
	ns = bench_now() - start;
	bench_helper_stop(&h);
	return ns;
}

void bench_kill(struct bench *b)
{
	struct bench_result *r = bench_result_new(b, "kill", "ms",
						  "client killed, its %d leases ended", LEASES);

	if (!r)
		return;
	bench_daemon(b);
	for (unsigned i = 0; i < (b->quick ? 10 : 40); i++) {
		double floor = kill_floor();

		bench_pair(r, floor, kill_ours(b));
	}
	r->floor_what = "the end of a killed process's socket";
	r->aim = BENCH_AIM_VALUE;
	r->limit = 10e6;
	r->target = "<= 10 ms";
	bench_result_done(b, r);
}
