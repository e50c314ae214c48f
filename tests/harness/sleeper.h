/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that sleep: how to know that they do, and some that sleep on a word of a catalog. */
#pragma once

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>

#include "tests/harness/harness.h"

/* The state that /proc tells, 'S' while the thread sleeps in the kernel. */
static inline char state_of_thread(pid_t tid)
{
	char path[64], state = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
	f = fopen(path, "re");
	must(f);
	must(fscanf(f, "%*d (%*[^)]) %c", &state) == 1);
	fclose(f);
	return state;
}

/*
 * Waits until the thread that stores its number in *@tid was seen asleep ten times in a row: a
 * short sleep, such as one for a lock, would be over before that.
 */
static inline void until_it_sleeps(const _Atomic pid_t *tid)
{
	unsigned rounds = 0;

	eventually(atomic_load(tid));
	for (int asleep = 0; asleep < 10; test_pause(&rounds))
		asleep = state_of_thread(atomic_load(tid)) == 'S' ? asleep + 1 : 0;
}

/* What those sleep on who wait for a newer version of that tensor's name. */
static inline const _Atomic uint32_t *rc_changes_word(const struct raw *rc, uint64_t ref)
{
	const unsigned char *base = (const unsigned char *)rc->catalog + rc->catalog->off_names;

	return &((const struct catalog_name *)(const void *)base + rc_row(rc, ref)->name)->changes;
}

/* The word that those sleep on who wait for a newer version of the name: its entry's if it is among
 * the first, else that of names that are not there. */
static inline uint32_t *rc_name_word(const struct raw *rc, const char *text)
{
	enum { FIRST = 512 };
	const unsigned char *base = (const unsigned char *)rc->catalog + rc->catalog->off_names;
	const struct catalog_name *name = (const struct catalog_name *)(const void *)base;

	for (int i = 0; i < FIRST; i++)
		if (name[i].len == strlen(text) && !memcmp(name[i].text, text, name[i].len))
			return (uint32_t *)(uintptr_t)&name[i].changes;
	return (uint32_t *)((uintptr_t)rc->catalog + rc->catalog->off_wakes);
}

/* A thread that sleeps on a word as long as that has the value that it was seen with. */
struct sleeping {
	const _Atomic uint32_t *word;
	uint32_t seen;
	_Atomic pid_t tid;
	_Atomic bool awake;
	pthread_t thread;
};

static inline void *sleeping_run(void *arg)
{
	struct sleeping *s = arg;
	struct timespec ts = { .tv_sec = WAIT_S };

	atomic_store(&s->tid, (pid_t)syscall(SYS_gettid));
	must_be(syscall(SYS_futex, s->word, FUTEX_WAIT, s->seen, &ts, NULL, 0), 0);
	atomic_store(&s->awake, true);
	return NULL;
}

/* Returns when all @n sleep. */
static inline void sleeping_start(struct sleeping *s, unsigned n, const _Atomic uint32_t *word)
{
	pthread_attr_t attr;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 64 << 10);
	for (unsigned i = 0; i < n; i++) {
		s[i] = (struct sleeping){ .word = word, .seen = atomic_load(word) };
		must_be(pthread_create(&s[i].thread, &attr, sleeping_run, &s[i]), 0);
	}
	pthread_attr_destroy(&attr);
	for (unsigned i = 0; i < n; i++)
		until_it_sleeps(&s[i].tid);
}

/* All of them must have been woken, or be woken soon. */
static inline void sleeping_end(struct sleeping *s, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		must_be(pthread_join(s[i].thread, NULL), 0);
}
