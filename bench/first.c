/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first get of a segment: a new tensor of 1 MiB, in a segment of its own that this process has
 * never mapped. The floor is the least that it takes to reach the memory of another process: ask
 * for its descriptor, receive it in one round trip, and map it. The floor does not include
 * unmapping and closing.
 */
#include <err.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/bench.h"

enum { FIRST_BYTES = 1 << 20, GROUP = 25, WARM_UP = 5 };

union fd_control {
	struct cmsghdr header;
	char bytes[CMSG_SPACE(sizeof(int))];
};

static int send_with_fd(int socket, int fd)
{
	union fd_control control = { 0 };
	uint64_t word = 0;
	struct iovec iov = { .iov_base = &word, .iov_len = sizeof(word) };
	struct msghdr m = { .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = &control,
			    .msg_controllen = sizeof(control) };

	control.header.cmsg_level = SOL_SOCKET;
	control.header.cmsg_type = SCM_RIGHTS;
	control.header.cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	return sendmsg(socket, &m, 0) < 0 ? -1 : 0;
}

/* Answers message n with the descriptor of file n. @argument says how many files there are. */
int bench_role_descriptors(int socket, int shared_fd, const char *argument)
{
	unsigned n = (unsigned)strtoul(argument, NULL, 10);
	int *fds = calloc(n + 1, sizeof(*fds));
	uint64_t word;

	(void)shared_fd;
	if (!fds)
		err(1, "no memory");
	for (unsigned i = 0; i < n; i++) {
		fds[i] = memfd_create("bench", MFD_CLOEXEC);
		bench_check_errno(fds[i], "memfd_create");
		if (ftruncate(fds[i], FIRST_BYTES) || posix_fallocate(fds[i], 0, FIRST_BYTES))
			err(1, "no memory for the floor's files");
	}
	for (unsigned i = 0; i < n && recv(socket, &word, sizeof(word), 0) == sizeof(word); i++)
		if (send_with_fd(socket, fds[i]))
			return 1;
	recv(socket, &word, sizeof(word), 0); /* until it is stopped */
	free(fds);
	return 0;
}

static double first_floor(int socket)
{
	union fd_control control = { 0 };
	uint64_t word = 0;
	struct iovec iov = { .iov_base = &word, .iov_len = sizeof(word) };
	struct msghdr m = { .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = &control,
			    .msg_controllen = sizeof(control) };
	double start = bench_now(), ns;
	void *p;
	int fd;

	bench_check_errno((int)send(socket, &word, sizeof(word), 0), "send");
	bench_check_errno((int)recvmsg(socket, &m, MSG_CMSG_CLOEXEC), "recvmsg");
	memcpy(&fd, CMSG_DATA(&control.header), sizeof(fd));
	p = mmap(NULL, FIRST_BYTES, PROT_READ, MAP_SHARED, fd, 0);
	ns = bench_now() - start;
	if (p == MAP_FAILED)
		err(1, "mmap");
	munmap(p, FIRST_BYTES);
	close(fd);
	return ns;
}

static double first_ours(tl_client *client, unsigned i, DLManagedTensorVersioned **out)
{
	char name[32];
	double start;

	snprintf(name, sizeof(name), "bench/first/%u", i);
	start = bench_now();
	bench_check(tl_get(client, name, NULL, out), name);
	return bench_now() - start;
}

/*
 * Samples come in groups, because the process that is not measured falls asleep. The first samples
 * of each group wake it up again. Everything is on one CPU.
 */
static void first_samples(struct bench *b, struct bench_result *r, unsigned n)
{
	DLManagedTensorVersioned **held = calloc(n, sizeof(DLManagedTensorVersioned *));
	tl_client *client = bench_connect(b->address);
	struct bench_helper h;
	char text[32];

	if (!held)
		err(1, "no memory");
	snprintf(text, sizeof(text), "%u", n + 1);
	bench_helper_start(&h, "descriptors", -1, text);
	bench_pin(0, 0);
	bench_pin(h.pid, 0);
	bench_pin(b->daemon_pid, 0);
	first_floor(h.socket); /* waits until the helper is ready */
	for (unsigned i = 0; i + GROUP <= n; i += GROUP) {
		double floor[GROUP], ours[GROUP];

		for (unsigned j = 0; j < GROUP; j++)
			floor[j] = first_floor(h.socket);
		for (unsigned j = 0; j < GROUP; j++)
			ours[j] = first_ours(client, i + j, &held[i + j]);
		for (unsigned j = WARM_UP; j < GROUP; j++)
			bench_pair(r, floor[j], ours[j]);
	}
	for (unsigned i = 0; i < n; i++)
		if (held[i])
			held[i]->deleter(held[i]);
	free(held);
	tl_close(client);
	bench_helper_stop(&h);
	bench_unpin(0);
	bench_unpin(b->daemon_pid);
}

void bench_first(struct bench *b)
{
	struct bench_result *r = bench_result_new(b, "first", "us",
						  "first get of a segment, 1 MiB");
	unsigned n = b->quick ? 200 : 500;
	uint64_t space = bench_shm_free() / FIRST_BYTES;
	char name[32];

	if (!r)
		return;
	if (n > space / 4)
		n = (unsigned)(space / 4);
	bench_daemon(b);
	for (unsigned i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "bench/first/%u", i);
		bench_publish(b->client, name, FIRST_BYTES);
	}
	bench_sync(b->client);
	if (n)
		first_samples(b, r, n);
	for (unsigned i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "bench/first/%u", i);
		bench_check(tl_delete(b->client, name), "deleting");
	}
	r->floor_what = "a SEQPACKET round trip with a descriptor, and mmap of it";
	r->aim = BENCH_AIM_RATIO;
	r->limit = 1.3;
	r->target = "<= 1.3 x";
	bench_result_done(b, r);
}
