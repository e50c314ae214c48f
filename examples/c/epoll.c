/* SPDX-License-Identifier: Apache-2.0 */
/*
 * epoll [NAME]...: tensors beside a socket in one event loop.
 *
 * Each watch has a descriptor that is readable while there are changes. Whoever sends a datagram to
 * the port that is printed first is told how many tensors came, and "stop" ends the program.
 */
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <tensorlease/watch.h>

/* A name that is published faster than this program works always has a change. So it takes only
 * some at a time: the descriptor stays readable, and everything else has its turn first. */
enum { AT_ONCE = 8, WATCHES_MAX = 16 };

static unsigned came;

static void look(tl_client *client, const tl_watch_event *event)
{
	DLManagedTensorVersioned *tensor;

	if (event->what != TL_WATCH_PUBLISHED || tl_get(client, event->name, NULL, &tensor))
		return; /* perhaps it was deleted meanwhile */
	printf("%s version %llu, %d dimensions; %llu skipped\n", event->name,
	       (unsigned long long)event->version, tensor->dl_tensor.ndim,
	       (unsigned long long)event->skipped);
	fflush(stdout);
	tensor->deleter(tensor);
	came++;
}

static void take_some(tl_client *client, tl_watch *watch)
{
	tl_watch_event event = TL_INIT(tl_watch_event);
	int r = 0;

	for (int i = 0; i < AT_ONCE && !(r = tl_watch_next(watch, NULL, &event)); i++)
		look(client, &event);
	if (r && r != -EAGAIN && r != -ENOTCONN) /* for the next daemon it waits */
		errx(1, "%s", tl_last_error());
}

static void add(int epoll, int fd, void *what)
{
	struct epoll_event event = { .events = EPOLLIN, .data.ptr = what };

	if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event))
		err(1, "epoll_ctl");
}

static int udp_socket(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof(at);
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&at, size) ||
	    getsockname(fd, (struct sockaddr *)&at, &size))
		err(1, "a socket");
	printf("listening on 127.0.0.1 port %d\n", ntohs(at.sin_port));
	fflush(stdout);
	return fd;
}

/* Returns whether the program should go on. */
static int answer(int fd)
{
	char word[8] = "", text[64];
	struct sockaddr_in from;
	socklen_t size = sizeof(from);

	if (recvfrom(fd, word, sizeof(word) - 1, 0, (struct sockaddr *)&from, &size) < 0)
		return 1;
	snprintf(text, sizeof(text), "%u tensors came", came);
	sendto(fd, text, strlen(text), 0, (struct sockaddr *)&from, size);
	return strcmp(word, "stop") != 0;
}

int main(int argc, char **argv)
{
	static const char *const usual[] = { "example/picture", "example/depth", "example/pose" };
	const char *const *names = argc > 1 ? (const char *const *)argv + 1 : usual;
	int count = argc > 1 ? argc - 1 : 3, epoll = epoll_create1(EPOLL_CLOEXEC), fd, n;
	int udp = udp_socket(), running = 1;
	tl_watch *watches[WATCHES_MAX];
	struct epoll_event ready[WATCHES_MAX];
	tl_client *client;

	if (count > WATCHES_MAX)
		errx(2, "%d names; the limit is %d", count, WATCHES_MAX);
	if (tl_connect(NULL, &client))
		errx(1, "%s", tl_last_error());
	add(epoll, udp, NULL);
	for (int i = 0; i < count; i++) {
		if (tl_watch_open(client, names[i], NULL, &watches[i]) ||
		    tl_watch_fd(watches[i], &fd))
			errx(1, "%s", tl_last_error());
		add(epoll, fd, watches[i]);
	}
	while (running && (n = epoll_wait(epoll, ready, WATCHES_MAX, -1)) > 0) {
		for (int i = 0; i < n; i++) {
			if (ready[i].data.ptr)
				take_some(client, ready[i].data.ptr);
			else
				running = answer(udp);
		}
	}
	for (int i = 0; i < count; i++)
		tl_watch_close(watches[i]);
	return tl_close(client) ? 1 : 0;
}
