/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Users of a session, counted without read-modify-write.
 *
 * The number of users is the sum of all counters. A thread changes only its own counter, even when
 * it gives back a count that another thread took, so single counters may be negative. Two things
 * have to be shown: the sum, read one counter after the other, is never 0 too early; and some
 * thread reads it after it became 0.
 *
 * (1) use_count_close() sets `closing`, then orders all threads (membarrier), and only then lets
 * itself and others read the counters. A thread that enters counts first and then looks at
 * `closing`. If it saw false, its count was stored before the barrier and is read. If it saw true,
 * it takes the count back and touches nothing. So after the barrier the number of true users only
 *     falls, and each counter only falls too, except for counts that are taken back at once. The
 *     sum that is read is therefore never less than the number of users.
 *     use_count_join() is the exception, since it adds to a session that may be closing. It holds
 * the mutex under which the counters are read, so that no sum combines one thread's counter from
 *     before it with another's from after it.
 * (2) use_count_close() raises the session's `look` before the barrier too. A thread that leaves
 * counts first and then looks at that. If it saw 0, its count was stored before the barrier, and
 * the reading after it sees it. If not, it reads the sum itself. It does not touch the session to
 *     do so: `look` is static, and the session is found in the list of those that are closing,
 *     under the mutex. Sessions beyond the last number share a `look`, so it is a count.
 * (3) The session's struct outlives every enter: see session.c.
 *
 * A forked child has the counters, but not the other threads. What their calls counted would keep
 * its sessions open for ever, so calls that may take long note it, and the child takes these counts
 * back. Of another call that was running, its session stays until the child ends.
 *
 * ORDER: use_count_fence() is only a compiler barrier where membarrier(2) can do the processor's
 * part from the other side; elsewhere it is a full fence. Counters are stored with release and
 * summed with acquire, so that the thread that drains a session sees all that its users did.
 */
#include <errno.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/error.h"
#include "client/memory/use_count.h"

_Thread_local unsigned thread_number __attribute__((tls_model("initial-exec")));
bool use_count_asymmetric;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards the list and the numbers */
static struct list closing = LIST_INIT(closing);
static uint64_t threads[USE_COUNT_THREADS / 64]; /* a bit for each counter that a thread owns */
static unsigned threads_high;			 /* no counter from here on was ever used */
static uint64_t sessions[USE_COUNT_SESSIONS / 64];
/* By the number of sessions: how many with that number are closing and not drained. */
static _Atomic uint32_t looks[USE_COUNT_SESSIONS];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static bool key_made;

/* ---- Numbers ---- */

/* Takes the lowest free number, or the last one, which always stays free. */
static unsigned number_take(uint64_t *bits, unsigned n)
{
	for (unsigned i = 0; i < n; i += 64) {
		uint64_t left = ~bits[i / 64];

		if (i + 64 == n)
			left &= ~((uint64_t)1 << 63);
		if (left) {
			bits[i / 64] |= left & -left;
			return i + (unsigned)__builtin_ctzll(left);
		}
	}
	return n - 1;
}

/* Gives a number back; the last one too, which does nothing. */
static void number_give(uint64_t *bits, unsigned number)
{
	bits[number / 64] &= ~((uint64_t)1 << number % 64);
}

/* ---- Threads ---- */

/* The counter keeps its value, and the next thread with this number continues from there. */
static void thread_end(void *number)
{
	unsigned *mine = number;

	pthread_mutex_lock(&mutex);
	number_give(threads, *mine - 1);
	*mine = 0;
	pthread_mutex_unlock(&mutex);
}

static void thread_prepare(void)
{
	key_made = !pthread_key_create(&key, thread_end);
}

unsigned thread_assign(void)
{
	unsigned index = USE_COUNT_SHARED;
	bool ends;

	tl_failure_prepare();
	pthread_once(&once, thread_prepare);
	ends = key_made && !pthread_setspecific(key, &thread_number);
	pthread_mutex_lock(&mutex);
	if (ends)
		index = number_take(threads, USE_COUNT_THREADS);
	if (index >= threads_high)
		threads_high = index + 1;
	pthread_mutex_unlock(&mutex);
	thread_number = index + 1;
	return index;
}

/* ---- Sessions ---- */

/*
 * The tables that a get reads start at a page, and so does memory from mmap(). A processor that has
 * just stored to an address takes its time to load from one with the same low 12 bits, so the
 * counters are put elsewhere in their page. That saves 2 ns of a get.
 */
enum { SKEW = 33 };
#define COUNTERS_BYTES ((SKEW + USE_COUNT_THREADS) * sizeof(struct use_counter))

int use_count_open(struct use_count *u)
{
	struct use_counter *p = mmap(NULL, COUNTERS_BYTES, PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return -ENOMEM;
	u->of = p + SKEW;
	pthread_mutex_lock(&mutex);
	u->look = &looks[number_take(sessions, USE_COUNT_SESSIONS)];
	pthread_mutex_unlock(&mutex);
	return 0;
}

void use_count_free(struct use_count *u)
{
	if (!u->of)
		return;
	munmap(u->of - SKEW, COUNTERS_BYTES);
	u->of = NULL;
	if (atomic_load(&u->closing))
		return; /* it has drained already */
	pthread_mutex_lock(&mutex);
	number_give(sessions, (unsigned)(u->look - looks));
	pthread_mutex_unlock(&mutex);
}

/* ---- Closing ---- */

static long membarrier(int command)
{
	return syscall(SYS_membarrier, command, 0, 0);
}

void use_count_init(void)
{
	use_count_asymmetric = !membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
}

void use_count_barrier(void)
{
	atomic_thread_fence(memory_order_seq_cst);
	while (use_count_asymmetric && membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) &&
	       (errno == ENOMEM || errno == EINTR || errno == EAGAIN))
		sched_yield();
}

static bool use_count_drained(const struct use_count *u)
{
	int64_t sum = 0;

	for (unsigned i = 0; i < threads_high; i++)
		sum += atomic_load(&u->of[i].count);
	return sum == 0;
}

bool use_count_any(const struct use_count *u)
{
	bool any;

	pthread_mutex_lock(&mutex);
	any = !use_count_drained(u);
	pthread_mutex_unlock(&mutex);
	return any;
}

static struct use_count *use_count_pop_drained(const _Atomic uint32_t *look)
{
	struct use_count *found = NULL;

	pthread_mutex_lock(&mutex);
	list_for_each(node, &closing) {
		struct use_count *u = list_entry(node, struct use_count, link);

		if ((look && u->look != look) || !use_count_drained(u))
			continue;
		list_del(&u->link);
		atomic_fetch_sub(u->look, 1);
		number_give(sessions, (unsigned)(u->look - looks));
		found = u;
		break;
	}
	pthread_mutex_unlock(&mutex);
	return found;
}

void use_count_join(struct use_count *u, int64_t n)
{
	thread_index(); /* takes the mutex itself the first time */
	pthread_mutex_lock(&mutex);
	use_count_add(u, n);
	pthread_mutex_unlock(&mutex);
}

void use_count_check(const _Atomic uint32_t *look)
{
	int saved = errno; /* a tensor's deleter may call this, and must not change errno */
	struct use_count *u;

	while ((u = use_count_pop_drained(look)))
		u->drained(u);
	errno = saved;
}

void use_count_close(struct use_count *u)
{
	const _Atomic uint32_t *look = u->look; /* of a session that may end before it is used */
	bool first;

	pthread_mutex_lock(&mutex);
	first = !atomic_exchange(&u->closing, true);
	if (first) {
		atomic_fetch_add(u->look, 1);
		use_count_barrier(); /* before any thread can find the session in the list */
		list_add_tail(&closing, &u->link);
	}
	pthread_mutex_unlock(&mutex);
	if (first)
		use_count_check(look);
}

/* ---- fork() ---- */

void use_count_lock(void)
{
	pthread_mutex_lock(&mutex);
}

void use_count_unlock(void)
{
	pthread_mutex_unlock(&mutex);
}

/* Calls in other threads never go on. Leases and drafts of these stay. */
void use_count_fork_session(struct use_count *u)
{
	for (unsigned i = 0; i < threads_high; i++) {
		struct use_counter *counter = &u->of[i];

		if (i + 1 != thread_number)
			atomic_fetch_sub(&counter->count, atomic_exchange(&counter->calls, 0));
	}
}

/* Only the calling thread exists in the child. The other threads' counters stay as they are, and
 * their numbers are free. */
void use_count_after_fork_child(void)
{
	unsigned mine = thread_number;

	memset(threads, 0, sizeof(threads));
	if (mine && mine - 1 != USE_COUNT_SHARED)
		threads[(mine - 1) / 64] = (uint64_t)1 << (mine - 1) % 64;
	if (use_count_asymmetric)
		use_count_init();
}
