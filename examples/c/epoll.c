/* SPDX-License-Identifier: Apache-2.0 */
/* epoll [NAME]: tensors in an event loop. A watch has a descriptor that is readable when there is
 * a change. */
#include <err.h>
#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>

#include <tensorlease/watch.h>

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
}

int main(int argc, char **argv)
{
	struct epoll_event ready, news = { .events = EPOLLIN };
	tl_watch_event event = TL_INIT(tl_watch_event);
	int epoll = epoll_create1(EPOLL_CLOEXEC), fd, r;
	tl_client *client;
	tl_watch *watch;

	if (tl_connect(NULL, &client) ||
	    tl_watch_open(client, argc > 1 ? argv[1] : "example/picture", NULL, &watch) ||
	    tl_watch_fd(watch, &fd))
		errx(1, "%s", tl_last_error());
	epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &news);
	do {
		while (!(r = tl_watch_next(watch, NULL, &event)))
			look(client, &event);
		if (r != -EAGAIN && r != -ENOTCONN) /* for the next daemon it waits */
			errx(1, "%s", tl_last_error());
	} while (epoll_wait(epoll, &ready, 1, -1) > 0);
}
