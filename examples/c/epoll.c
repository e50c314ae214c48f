/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors in an event loop: a watch has a descriptor that is readable when there is a change.
 * SIGINT and SIGTERM end the program.
 *
 *	epoll [NAME]
 */
#include <err.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <tensorlease/watch.h>

static tl_client *client;

static void look(const tl_watch_event *event)
{
	DLManagedTensorVersioned *tensor;

	if (event->what != TL_WATCH_PUBLISHED || tl_get(client, event->name, NULL, &tensor))
		return; /* perhaps it was deleted meanwhile */
	printf("%s version %llu, %d dimensions; %llu skipped\n", event->name,
	       (unsigned long long)event->version, tensor->dl_tensor.ndim,
	       (unsigned long long)event->skipped);
	fflush(stdout);
	tensor->deleter(tensor);
}

int main(int argc, char **argv)
{
	int epoll = epoll_create1(EPOLL_CLOEXEC), news, signals, r;
	tl_watch_event event = TL_INIT(tl_watch_event);
	struct epoll_event ready = { 0 };
	tl_watch *watch;
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signals = signalfd(-1, &set, SFD_CLOEXEC);
	if (tl_connect(NULL, &client))
		errx(1, "cannot connect: %s", tl_last_error());
	if (tl_watch_open(client, argc > 1 ? argv[1] : "example/picture", NULL, &watch) ||
	    tl_watch_fd(watch, &news))
		errx(1, "cannot watch: %s", tl_last_error());
	for (int *fd = (int[]){ news, signals, -1 }; *fd >= 0; fd++)
		if (epoll_ctl(epoll, EPOLL_CTL_ADD, *fd,
			      &(struct epoll_event){ EPOLLIN, { .fd = *fd } }))
			err(1, "epoll_ctl");

	while (ready.data.fd != signals) {
		while ((r = tl_watch_next(watch, NULL, &event)) == 0)
			look(&event);
		if (r != -EAGAIN)
			warnx("%s", tl_last_error());
		if (epoll_wait(epoll, &ready, 1, -1) < 0 && errno != EINTR)
			err(1, "epoll_wait");
	}
	tl_watch_close(watch);
	return tl_close(client) ? 1 : 0;
}
