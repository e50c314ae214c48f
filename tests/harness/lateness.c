/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>

#include "tests/harness/harness.h"
#include "tests/harness/lateness.h"
#include "util/clock.h"

static struct sleeper {
	pthread_t thread;
	int cpu;
	_Atomic pid_t tid;
	_Atomic int64_t late_ns; /* of all sleeps that have ended */
	_Atomic int64_t due_ns;	 /* when the sleep that is under way should end */
} sleepers[LATENESS_CPUS_MAX];

static unsigned sleeping; /* so many of them */
static _Atomic bool stop;

static void *sleep_and_count(void *arg)
{
	struct sleeper *s = arg;
	int64_t due;
	struct timespec at;
	cpu_set_t only;

	CPU_ZERO(&only);
	CPU_SET((size_t)s->cpu, &only);
	sched_setaffinity(0, sizeof(only), &only);
	prctl(PR_SET_TIMERSLACK, 1UL); /* by default a sleep may take 50 us more */
	atomic_store(&s->tid, (pid_t)syscall(SYS_gettid));
	while (!atomic_load(&stop)) {
		due = now_mono_ns() + NS_PER_MS;
		atomic_store(&s->due_ns, due);
		at = (struct timespec){ .tv_sec = due / NS_PER_SEC, .tv_nsec = due % NS_PER_SEC };
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
		atomic_fetch_add(&s->late_ns, now_mono_ns() - due);
	}
	return NULL;
}

void lateness_start(void)
{
	cpu_set_t ours;

	atomic_store(&stop, false);
	must_be(sched_getaffinity(0, sizeof(ours), &ours), 0);
	sleeping = 0;
	for (int cpu = 0; cpu < CPU_SETSIZE && sleeping < LATENESS_CPUS_MAX; cpu++) {
		struct sleeper *s = &sleepers[sleeping];

		if (!CPU_ISSET((size_t)cpu, &ours))
			continue;
		*s = (struct sleeper){ .cpu = cpu, .due_ns = INT64_MAX };
		must_be(pthread_create(&s->thread, NULL, sleep_and_count, s), 0);
		sleeping++;
	}
}

void lateness_stop(void)
{
	atomic_store(&stop, true);
	for (unsigned i = 0; i < sleeping; i++)
		must_be(pthread_join(sleepers[i].thread, NULL), 0);
	sleeping = 0;
}

/* The sleep that is under way counts as far as it is late by now. */
static int64_t slept_late(const struct sleeper *s)
{
	int64_t now = now_mono_ns(), due = atomic_load(&s->due_ns);

	return atomic_load(&s->late_ns) + (now > due ? now - due : 0);
}

/* What it waits for a processor is part of its lateness. */
static bool is_sleeper(pid_t tid)
{
	for (unsigned i = 0; i < sleeping; i++)
		if (atomic_load(&sleepers[i].tid) == tid)
			return true;
	return false;
}

/* 0 where the kernel does not count it, or the thread has ended. */
static int64_t waited(pid_t tid)
{
	long long ran, waited = 0;
	char path[64];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%d/schedstat", (int)tid);
	f = fopen(path, "re");
	if (!f)
		return 0;
	if (fscanf(f, "%lld %lld", &ran, &waited) != 2)
		waited = 0;
	fclose(f);
	return waited;
}

void lateness_begin(struct lateness *l)
{
	struct dirent *entry;
	DIR *tasks;

	l->threads = 0;
	tasks = opendir("/proc/self/task");
	while (tasks && l->threads < LATENESS_THREADS_MAX && (entry = readdir(tasks))) {
		pid_t tid = (pid_t)strtol(entry->d_name, NULL, 10);

		if (tid > 0 && !is_sleeper(tid))
			l->thread[l->threads++] = (struct lateness_thread){ tid, waited(tid) };
	}
	if (tasks)
		closedir(tasks);
	for (unsigned i = 0; i < sleeping; i++)
		l->slept_late_ns[i] = slept_late(&sleepers[i]);
}

int64_t lateness_ns(const struct lateness *since)
{
	int64_t late = 0;
	struct lateness now;

	lateness_begin(&now);
	for (unsigned i = 0; i < sleeping; i++)
		if (now.slept_late_ns[i] - since->slept_late_ns[i] > late)
			late = now.slept_late_ns[i] - since->slept_late_ns[i];
	for (size_t i = 0; i < now.threads; i++) {
		int64_t before = 0;

		for (size_t j = 0; j < since->threads; j++)
			if (since->thread[j].tid == now.thread[i].tid)
				before = since->thread[j].waited_ns;
		late += now.thread[i].waited_ns - before;
	}
	return late;
}
