/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "client/connection/process.h"
#include "client/error.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct list clients = LIST_INIT(clients);
static _Atomic bool exiting;

struct list *process_lock(void)
{
	pthread_mutex_lock(&mutex);
	return &clients;
}

void process_unlock(void)
{
	pthread_mutex_unlock(&mutex);
}

void process_add_client(struct list *link)
{
	pthread_mutex_lock(&mutex);
	list_add_tail(&clients, link);
	pthread_mutex_unlock(&mutex);
}

void process_remove_client(struct list *link)
{
	pthread_mutex_lock(&mutex);
	list_del(link);
	pthread_mutex_unlock(&mutex);
}

void process_wait_fork(void)
{
	pthread_mutex_lock(&mutex);
	pthread_mutex_unlock(&mutex);
}

static _Thread_local bool forks;

void process_forks(bool now)
{
	forks = now;
}

bool process_in_fork(void)
{
	return forks;
}

int process_fork_check(void)
{
	if (!forks)
		return 0;
	return tl_fail(
		-EDEADLK,
		"a handler of pthread_atfork() that was registered before the library was "
		"loaded calls it during fork(): load it before, or register the handler later");
}

bool process_exiting(void)
{
	return atomic_load(&exiting);
}

/* Leaves the sessions open and tells the daemon nothing: other threads may work until the very end,
 * and the daemon sees when the process has ended. */
__attribute__((destructor)) static void process_ends(void)
{
	atomic_store(&exiting, true);
}
