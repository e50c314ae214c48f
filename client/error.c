/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text and the cause of a thread's last failure. Thread-local storage is scarce for a library
 * that a program loads when it runs, and ours is all of that kind (initial-exec, for the hot path).
 * So a thread's text is allocated, when it first uses the library or fails.
 */
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "client/error.h"
#include "util/text.h"

enum { TEXT_MAX = 1024 };

static _Thread_local const char *last_text; /* the thread's buffer, or a constant */
static _Thread_local uint32_t last_cause, last_id;
static _Thread_local unsigned hidden;

/* A thread's text, or one that another thread may take. */
struct buffer {
	struct buffer *next;
	_Atomic bool used;
	char text[TEXT_MAX];
};

/* All that there are: a child of fork() has those of its parent's threads, too. */
static _Atomic(struct buffer *) buffers;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key; /* a thread's buffer */
static bool key_made;

static void buffer_give(void *buffer)
{
	last_text = NULL;
	last_cause = last_id = 0;
	atomic_store(&((struct buffer *)buffer)->used, false);
}

static void buffer_prepare(void)
{
	key_made = !pthread_key_create(&key, buffer_give);
}

static struct buffer *buffer_take(void)
{
	struct buffer *b;

	for (b = atomic_load(&buffers); b; b = b->next) {
		bool used = false;

		if (atomic_compare_exchange_strong(&b->used, &used, true))
			return b;
	}
	b = malloc(sizeof(*b));
	if (!b)
		return NULL;
	atomic_init(&b->used, true);
	b->next = atomic_load(&buffers);
	while (!atomic_compare_exchange_weak(&buffers, &b->next, b)) {}
	return b;
}

/* Returns TEXT_MAX bytes, or NULL: there is no memory. */
static char *buffer_get(void)
{
	struct buffer *b;

	pthread_once(&once, buffer_prepare);
	if (!key_made)
		return NULL;
	b = pthread_getspecific(key);
	if (b)
		return b->text;
	b = buffer_take();
	if (b && pthread_setspecific(key, b)) {
		atomic_store(&b->used, false);
		b = NULL;
	}
	return b ? b->text : NULL;
}

void tl_failure_prepare(void)
{
	buffer_get();
}

/* Returns the text of a failure for which there is no buffer. Those for want of memory mostly have
 * no arguments. */
static const char *constant_text(int err, const char *format)
{
	return strchr(format, '%') ? strerrordesc_np(-err) : format;
}

void tl_fail_say(int err, const char *format, ...)
{
	char text[TEXT_MAX]; /* the old text may be among the arguments */
	char *buffer;
	va_list args;

	errno = -err; /* for %m */
	if (hidden)
		return;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	buffer = buffer_get();
	if (buffer) /* escaped, since other users may have chosen the names in it */
		text_escape(buffer, TEXT_MAX, text, strlen(text));
	last_text = buffer ? buffer : constant_text(err, format);
	last_cause = last_id = 0;
	errno = -err;
}

/* Names a limit of this process that may be why there is no memory. */
static const char *limit_text(__rlimit_resource_t resource, const char *name, char *text,
			      size_t size)
{
	struct rlimit limit;

	*text = '\0';
	if (!getrlimit(resource, &limit) && limit.rlim_cur != RLIM_INFINITY)
		snprintf(text, size, "; its %s is %.1f MiB: raise it", name,
			 (double)limit.rlim_cur / (1 << 20));
	return text;
}

int tl_fail_mmap(const char *format, ...)
{
	int err = errno;
	char what[128], as[80], data[80];
	va_list args;

	va_start(args, format);
	vsnprintf(what, sizeof(what), format, args);
	va_end(args);
	if (err == ENOMEM)
		return tl_fail(
			-err, "%s: %m%s%s", what,
			limit_text(RLIMIT_AS, "RLIMIT_AS (ulimit -v)", as, sizeof(as)),
			limit_text(RLIMIT_DATA, "RLIMIT_DATA (ulimit -d)", data, sizeof(data)));
	if (err != EAGAIN)
		return tl_fail(-err, "%s: %m", what);
	return tl_fail(
		-ENOMEM,
		"%s: this process locks all of its memory (mlockall()), and may lock no more: "
		"raise its RLIMIT_MEMLOCK (ulimit -l)",
		what);
}

void tl_fail_because(uint32_t cause, uint32_t id)
{
	if (hidden)
		return;
	last_cause = cause;
	last_id = id;
}

void tl_failures_hide(void)
{
	hidden++;
}

void tl_failures_show(void)
{
	hidden--;
}

const char *tl_failure_text(void)
{
	return last_text ? last_text : "";
}

uint32_t tl_failure_cause(uint32_t *id)
{
	*id = last_id;
	return last_cause;
}
