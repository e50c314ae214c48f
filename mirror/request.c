/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <search.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <tensorlease/watch.h>

#include "mirror/request.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/thread.h"

struct requests {
	const struct rule *rule;
	void (*on_request)(void *context);
	void *context;
	tl_client *client;
	tl_watch *watch;
	pthread_t thread;
	bool running;
	_Atomic uint32_t stop; /* interrupts waits */
	pthread_mutex_t lock;
	void *names; /* a tree of texts */
	size_t count;
};

static int compare_names(const void *a, const void *b)
{
	return strcmp(a, b);
}

static bool add(struct requests *s, const char *name)
{
	char *copy = strdup(name);
	char *const *found;
	bool is_new;

	pthread_mutex_lock(&s->lock);
	found = copy ? tsearch(copy, &s->names, compare_names) : NULL;
	is_new = found && *found == copy;
	s->count += is_new;
	pthread_mutex_unlock(&s->lock);
	if (!is_new)
		free(copy);
	return is_new;
}

static void *run(void *context)
{
	struct requests *s = context;
	const tl_wait_options wait = { .size = sizeof(wait),
				       .timeout_ns = -1,
				       .interrupt = (const uint32_t *)&s->stop };
	const size_t len = strlen(s->rule->requests);
	tl_watch_event event = { .size = sizeof(event) };
	int r;

	while (!atomic_load(&s->stop)) {
		r = tl_watch_next(s->watch, &wait, &event);
		if (!r && event.what == TL_WATCH_PUBLISHED && event.name[len]) {
			if (add(s, event.name + len))
				s->on_request(s->context);
		} else if (r && r != -ETIMEDOUT && r != -EAGAIN && r != -ECANCELED) {
			nanosleep(&(struct timespec){ .tv_sec = 1 }, NULL);
		}
	}
	return NULL;
}

struct requests *requests_open(const struct config *config, const struct rule *rule,
			       void (*on_request)(void *context), void *context)
{
	const tl_connect_options options = { .size = sizeof(options),
					     .address = config->socket,
					     .label = "tensorlease-mirror" };
	const tl_watch_options prefix = { .size = sizeof(prefix), .flags = TL_WATCH_PREFIX };
	struct requests *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return NULL;
	s->rule = rule;
	s->on_request = on_request;
	s->context = context;
	pthread_mutex_init(&s->lock, NULL);
	r = tl_connect(&options, &s->client);
	if (!r)
		r = tl_watch_open(s->client, rule->requests, &prefix, &s->watch);
	if (!r)
		r = thread_start(&s->thread, 0, run, s);
	s->running = !r;
	if (!r)
		return s;
	log_error("requests cannot be watched", "import=%s requests=%s why=%s", rule->name,
		  log_str(rule->requests), log_str(tl_last_error()));
	requests_close(s);
	return NULL;
}

bool requests_have(struct requests *s, const char *name)
{
	bool has;

	pthread_mutex_lock(&s->lock);
	has = tfind(name, &s->names, compare_names);
	pthread_mutex_unlock(&s->lock);
	return has;
}

size_t requests_count(struct requests *s)
{
	size_t count;

	pthread_mutex_lock(&s->lock);
	count = s->count;
	pthread_mutex_unlock(&s->lock);
	return count;
}

void requests_forget(struct requests *s, const char *name)
{
	char *const *found, *copy = NULL;

	pthread_mutex_lock(&s->lock);
	found = tfind(name, &s->names, compare_names);
	if (found) {
		copy = *found;
		tdelete(name, &s->names, compare_names);
		s->count--;
	}
	pthread_mutex_unlock(&s->lock);
	free(copy);
}

struct list {
	char *text;
	size_t size;
	bool failed;
};

static void add_to_list(const void *node, VISIT which, void *context)
{
	const char *name = *(char *const *)node;
	struct list *list = context;
	const size_t len = strlen(name) + 1;
	char *grown;

	if (which != postorder && which != leaf)
		return;
	grown = realloc(list->text, list->size + len);
	list->failed |= !grown;
	if (!grown)
		return;
	list->text = grown;
	list->text[list->size] = '\0';
	memcpy(list->text + list->size + 1, name, len - 1);
	list->size += len;
}

char *requests_list(struct requests *s, size_t *size)
{
	struct list list = { calloc(1, 1), 0, false };

	pthread_mutex_lock(&s->lock);
	if (list.text)
		twalk_r(s->names, add_to_list, &list);
	pthread_mutex_unlock(&s->lock);
	*size = list.size;
	if (list.text && !list.failed)
		return list.text;
	free(list.text);
	return NULL;
}

void requests_close(struct requests *s)
{
	if (!s)
		return;
	atomic_store(&s->stop, 1);
	syscall(SYS_futex, &s->stop, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
	if (s->running)
		pthread_join(s->thread, NULL);
	if (s->watch)
		tl_watch_close(s->watch);
	if (s->client)
		tl_close(s->client);
	tdestroy(s->names, free);
	pthread_mutex_destroy(&s->lock);
	free(s);
}
