/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helpers for tests with a real daemon: daemons on sockets of their own, child processes, raw
 * protocol connections that may misbehave, and counts of what must not be left behind. must() works
 * in a test and in its children, but cmocka's asserts work in the test only.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness/limit.h"
#include "tests/harness/suite.h"
#include <tensorlease/admin.h>
#include <tensorlease/tensorlease.h>

#define KIB (1ULL << 10)
#define MIB (1ULL << 20)
#define SECOND 1000000000LL

/* ---- Checks ---- */

#define must(condition) ((condition) ? (void)0 : must_failed(__FILE__, __LINE__, #condition, 0, 0))
/* Checks that two numbers are equal, and else prints both and the library's last error. */
#define must_be(value, expected)                                                                   \
	do {                                                                                       \
		long long v_ = (long long)(value), e_ = (long long)(expected);                     \
		if (v_ != e_)                                                                      \
			must_failed(__FILE__, __LINE__, #value, v_, e_);                           \
	} while (0)

/*
 * How long tests wait for what must happen, even on a busy machine. It is less than a test's time,
 * so that a failure can say what did not happen.
 */
#define WAIT_S test_limit(60)
#define WAIT_MS ((int)WAIT_S * 1000)

/*
 * Waits at most WAIT_S for what another thread or process does. It looks again and again, with
 * pauses of at most a millisecond.
 */
#define eventually(condition)                                                                      \
	do {                                                                                       \
		int64_t until_ = now_ns() + WAIT_S * SECOND;                                       \
		unsigned rounds_ = 0;                                                              \
		bool seen_;                                                                        \
		while (!(seen_ = (condition)) && now_ns() < until_)                                \
			test_pause(&rounds_);                                                      \
		if (!seen_)                                                                        \
			must_failed(__FILE__, __LINE__, "never: " #condition, 0, 0);               \
	} while (0)

_Noreturn void must_failed(const char *file, int line, const char *what, long long value,
			   long long expected);

/* ---- Tests ---- */

/*
 * A test that has a timeout and must leave nothing behind: no process, descriptor, directory or shm
 * object.
 */
#define TEST(name) TEST_WITH(name, test_setup, test_teardown)

enum { TEST_TIMEOUT_S = 120 };

void test_init(void); /* suite_run() calls it */
int test_setup(void **state);
int test_teardown(void **state);
void test_timeout(unsigned seconds); /* for a test that needs longer; scaled by test_limit() */
/* Ends the test right here without cleaning up, so nothing may be running when it is called. */
#define SKIP_UNLESS(condition, reason)                                                             \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			print_message("SKIP: %s\n", reason);                                       \
			skip();                                                                    \
		}                                                                                  \
	} while (0)

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

/*
 * Whether a process may fork while other threads of it allocate. AddressSanitizer's allocator does
 * not hold its locks during fork(), so that a child may find one locked for ever.
 */
#if defined(__SANITIZE_ADDRESS__)
#define MAY_FORK_AMONG_THREADS false
#else
#define MAY_FORK_AMONG_THREADS true
#endif

/*
 * Are the daemons of this test, and the states of unit tests, to keep tensors in memfds? With
 * TL_TEST_STORAGE=memfd in the environment.
 */
bool test_on_memfds(void);
/* Do the tests use the machine's own GPU, not the fake one? With TL_TEST_GPU=real. */
bool test_gpu_is_real(void);
/* May this user make user namespaces, in which a daemon has few of inotify's watches? */
bool test_can_limit_watches(void);
/*
 * Are the daemons of this test to have no keepers? With TL_TEST_KEEPER=0 in the environment. A test
 * whose td_options say --keeper decides for itself.
 */
bool test_without_keepers(void);

unsigned count_fds(pid_t pid); /* 0 means our own */
int64_t now_ns(void);	       /* CLOCK_MONOTONIC */

/* ---- Daemons ---- */

struct td_options {
	uint64_t capacity;	      /* 0: 64 MiB; UINT64_MAX: the daemon's default */
	uint64_t uid_capacity, fsize; /* that is RLIMIT_FSIZE of the daemon, soft and hard */
	unsigned max_tensors, max_clients;
	unsigned nofile;   /* RLIMIT_NOFILE of the daemon, soft and hard */
	uint64_t shm_size; /* gives it a /dev/shm of its own of that size; needs root */
	unsigned watches;  /* how many inotify watches it can have; see test_can_limit_watches() */
	const char *group; /* the file cgroup.procs of the cgroup that it is to be in */
	const char *storage;	  /* NULL: as test_on_memfds() says */
	const char *socket;	  /* where it listens; NULL: in a new directory */
	const char *const *extra; /* more arguments, NULL at the end */
	/* if > 0: one handed over as systemd does, and stderr, of which td_log() knows nothing */
	int listen_fd_peek, stderr_fd_peek;
	bool expect_ready;     /* wait for READY=1 as systemd does, and for nothing else */
	bool expect_exit;      /* it will not start; td_exit_status() tells why */
	const char *no_keeper; /* why it must have none, whatever the environment says */
	bool for_others; /* put it where other users can reach it, since $TMPDIR may be private */
};

struct test_daemon {
	pid_t pid;    /* of the daemon proper that was the first one; 0 if there is none */
	pid_t keeper; /* its parent, which we started; 0 if it has none */
	uint64_t instance;
	bool own_shm, own_dir;
	char dir[64];
	char socket[108];
};

/* cleanup_td struct test_daemon d = td_start(.capacity = 1 << 20); */
#define td_start(...) td_start_options(&(const struct td_options){ __VA_ARGS__ })
#define cleanup_td __attribute__((cleanup(td_stop)))

struct test_daemon td_start_options(const struct td_options *options);
/* Sends SIGTERM. The daemon must exit with 0 and leave no shm object. May be called twice. */
void td_stop(struct test_daemon *d);
/*
 * Sends SIGKILL to the daemon, and to its keeper before that can start another one. The directory
 * stays, for another daemon on the same socket.
 */
void td_kill(struct test_daemon *d);
/* Sends SIGKILL to the keeper alone. The daemon goes on. */
void td_kill_keeper(struct test_daemon *d);
/* Waits for a daemon that ends by itself and returns its wait status, or its keeper's. */
int td_exit_status(struct test_daemon *d);
/* Waits until the daemon has nothing left to do. */
void td_sync(const struct test_daemon *d);
/* Its numbers once it is idle, without the connection that asks. */
struct tl_status td_status(const struct test_daemon *d);
/*
 * What tests/inspect exits with: 0 if all that the daemon has in shared memory is sound, 4 if not,
 * which it prints then unless @quiet. It may be serving, or have been killed.
 */
int td_check(const struct test_daemon *d, bool quiet);
const char *td_inspector(void); /* the path of that program, which takes a socket */
/* Nobody is connected, and no tensor, draft, segment or byte is left. */
void td_must_be_empty(const struct test_daemon *d);
/* Returns the text that it has written to stderr so far; the caller frees it. */
char *td_log(const struct test_daemon *d);
unsigned td_objects(const struct test_daemon *d); /* shm objects of this instance */
bool td_alive(const struct test_daemon *d);
/* Ends a daemon that somebody else started, and waits until it has ended. */
void end_daemon(pid_t pid);
/* When this returns the daemon proper stands still and answers nobody, until td_thaw(). */
void td_freeze(const struct test_daemon *d);
void td_thaw(const struct test_daemon *d);
/* A client of the library that waits WAIT_S for answers. If it cannot connect, must() fails. */
tl_client *td_connect(const struct test_daemon *d);
/*
 * From now on the client's calls wait that long for answers. A test of what happens without an
 * answer connects and prepares with all the time it needs, and only then has a short timeout.
 */
void client_set_timeout(tl_client *client, int64_t timeout_ns);

#include "tests/harness/child.h" /* these two need what is above */
#include "tests/harness/raw.h"
