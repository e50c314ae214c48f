/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors in an event loop. No descriptor becomes readable when a tensor is published, because
 * nobody sends a message to consumers: they sleep on words in shared memory. So a thread sleeps for
 * the loop, in tl_wait_many(), and writes to an eventfd. SIGINT and SIGTERM end the program.
 *
 *	epoll [NAME]
 */
#include <err.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <tensorlease/tensorlease.h>

static tl_client *client;
static const char *name = "example/picture";
static int news;      /* an eventfd: there is something new */
static uint32_t stop; /* the interrupt word: not 0 ends the thread's wait */

static void *wait_for_news(void *unused)
{
	const tl_wait_options wait = TL_INIT(tl_wait_options, .timeout_ns = -1, .interrupt = &stop);
	tl_wait_item item = { .name = name };
	tl_info info = TL_INIT(tl_info);
	size_t which;
	int r;

	/* It outlives the daemon: versions go on where they were. */
	while ((r = tl_wait_many(client, &item, 1, &wait, &which)) != -ECANCELED) {
		if (r && r != -EINTR)
			errx(1, "%s", tl_last_error());
		if (!r && !tl_stat(client, name, &info)) {
			item.newer_than = info.version;
			eventfd_write(news, 1);
		}
	}
	return unused;
}

/* This does not wait: whatever is new is there, or newer. */
static void look_at_news(void)
{
	DLManagedTensorVersioned *tensor;
	uint64_t version;
	eventfd_t count;

	eventfd_read(news, &count);
	if (tl_get(client, name, NULL, &tensor)) {
		warnx("%s", tl_last_error()); /* it was deleted meanwhile, say */
		return;
	}
	if (!tl_tensor_version(tensor, &version))
		printf("%s version %llu\n", name, (unsigned long long)version);
	fflush(stdout);
	tensor->deleter(tensor);
}

static void watch(int epoll, int fd)
{
	if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &(struct epoll_event){ EPOLLIN, { .fd = fd } }))
		err(1, "epoll_ctl");
}

int main(int argc, char **argv)
{
	int epoll = epoll_create1(EPOLL_CLOEXEC), signals;
	struct epoll_event event = { 0 };
	pthread_t thread;
	sigset_t set;

	name = argc > 1 ? argv[1] : name;
	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &set, NULL); /* before the thread, which inherits it */
	signals = signalfd(-1, &set, SFD_CLOEXEC);
	news = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (tl_connect(NULL, &client))
		errx(1, "cannot connect: %s", tl_last_error());
	watch(epoll, news);
	watch(epoll, signals);
	errno = pthread_create(&thread, NULL, wait_for_news, NULL);
	if (errno)
		err(1, "pthread_create");

	while (event.data.fd != signals) {
		if (epoll_wait(epoll, &event, 1, -1) < 0 && errno != EINTR)
			err(1, "epoll_wait");
		if (event.data.fd == news)
			look_at_news();
	}

	__atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &stop, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	pthread_join(thread, NULL);
	return tl_close(client) ? 1 : 0;
}
