/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests with a real daemon share: daemons on sockets of their own, child processes, raw protocol
 * connections for those who misbehave, and counts of what must not be left behind.
 * must() works in a test and in its children; cmocka's asserts only in the test itself.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/conn.h"
#include "proto/shm_layout.h"
#include "tensorlease/tensorlease.h"

#define KIB (1ULL << 10)
#define MIB (1ULL << 20)
#define SECOND 1000000000LL

/* ---- Checks ---- */

#define must(condition)                                                                                 \
	((condition) ? (void)0 : must_failed(__FILE__, __LINE__, #condition, 0, 0))
/* Two numbers are equal; says both, and the library's last error. */
#define must_be(value, expected)                                                                        \
	do {                                                                                            \
		long long v_ = (long long)(value), e_ = (long long)(expected);                          \
		if (v_ != e_)                                                                           \
			must_failed(__FILE__, __LINE__, #value, v_, e_);                                \
	} while (0)

_Noreturn void must_failed(const char *file, int line, const char *what, long long value, long long expected);

/* ---- Tests ---- */

/* A test with a timeout, after which nothing is left: no process, descriptor, directory or shm object. */
#define TEST(function) cmocka_unit_test_setup_teardown(function, test_setup, test_teardown)
#define RUN(tests) (test_init(), cmocka_run_group_tests(tests, NULL, NULL))

enum { TEST_TIMEOUT_S = 60 };

void test_init(void);
int test_setup(void **state);
int test_teardown(void **state);
void test_timeout(unsigned seconds); /* for a test that needs longer */
#define SKIP_UNLESS(condition, reason)                                                                  \
	do {                                                                                            \
		if (!(condition)) {                                                                     \
			print_message("SKIP: %s\n", reason);                                            \
			skip();                                                                         \
		}                                                                                       \
	} while (0)

unsigned count_fds(pid_t pid); /* 0: our own */
int64_t now_ns(void);	       /* CLOCK_MONOTONIC */

/* ---- Daemons ---- */

struct td_options {
	uint64_t capacity; /* 0: 64 MiB */
	uint64_t uid_capacity;
	unsigned max_tensors;
	unsigned max_clients;
	unsigned nofile;	   /* RLIMIT_NOFILE of the daemon, soft and hard */
	uint64_t shm_size;	   /* a /dev/shm of its own of that size; needs root */
	const char *socket;	   /* where it listens; NULL: in a new directory */
	const char *const *extra;  /* more arguments, NULL at the end */
	int listen_fd_peek;	   /* > 0: handed over as systemd does */
	bool want_ready;	   /* wait for READY=1 as systemd does, for nothing else */
	bool expect_exit;	   /* it will not start: td_exit_status() */
};

struct test_daemon {
	pid_t pid; /* 0: none */
	uint64_t instance;
	bool own_shm;
	bool own_dir;
	char dir[64];
	char socket[108];
};

/* cleanup_td struct test_daemon d = td_start(.capacity = 1 << 20); */
#define td_start(...) td_start_options(&(const struct td_options){ __VA_ARGS__ })
#define cleanup_td __attribute__((cleanup(td_stop)))

struct test_daemon td_start_options(const struct td_options *options);
/* SIGTERM: must exit with 0 and leave no shm object. Twice is harmless. */
void td_stop(struct test_daemon *d);
/* SIGKILL; the directory stays, for another daemon on the same socket. */
void td_kill(struct test_daemon *d);
/* Waits for a daemon that ends by itself; its wait status. */
int td_exit_status(struct test_daemon *d);
/* Until the daemon has nothing left to do. */
void td_settle(const struct test_daemon *d);
/* Its numbers once it has settled, the asking connection not counted. */
struct tl_status td_status(const struct test_daemon *d);
/* What it wrote to stderr so far; the caller frees it. */
char *td_log(const struct test_daemon *d);
unsigned td_objects(const struct test_daemon *d); /* shm objects of this instance */
bool td_alive(const struct test_daemon *d);
/* A client of the library, or must() fails. */
tl_client *td_connect(const struct test_daemon *d);

/* ---- Children ---- */

struct test_child {
	pid_t pid;
	int to;
	int from;
};

typedef int child_fn(const struct test_daemon *d, void *arg); /* its exit code */

/* Runs @fn in a child; its wait status. */
int td_run_client(const struct test_daemon *d, child_fn *fn, void *arg);
struct test_child child_start(const struct test_daemon *d, child_fn *fn, void *arg);
/* The same with another uid, but a group that may use the socket; needs root. */
struct test_child child_start_as(uid_t uid, const struct test_daemon *d, child_fn *fn, void *arg);
uint64_t child_await(struct test_child *c); /* what it told; must() fails if it ends instead */
void child_go(struct test_child *c);
int child_wait(struct test_child *c);	 /* its wait status */
int child_wait_open(struct test_child *c); /* the same, but what it forked can still be talked to: child_hang_up() */
void child_hang_up(struct test_child *c);
void child_kill(struct test_child *c);
void child_must_succeed(struct test_child *c);
/* in the child: */
void parent_tell(uint64_t value);
void parent_await(void);

/* ---- Raw connections ---- */

enum { RAW_SEGMENTS_MAX = 64 };

struct raw {
	int fd;
	uint32_t serial;
	struct wire_welcome welcome;
	int catalog_fd;
	const struct catalog_header *catalog;
	int ledger_fd;
	struct ledger *ledger;
	size_t ledger_size;
	unsigned writable_n;
	struct raw_segment {
		uint32_t segment;
		uint32_t generation;
		int fd;
	} writable[RAW_SEGMENTS_MAX]; /* descriptors that came with drafts */
};

struct raw rc_connect(const struct test_daemon *d);
void rc_hello(struct raw *rc);	/* until WELCOME, the catalog mapped */
void rc_ledger(struct raw *rc); /* until READY */
struct raw rc_open(const struct test_daemon *d); /* all three */
void rc_goodbye(struct raw *rc); /* says it, and waits for the end */
void rc_close(struct raw *rc);	 /* without a word */

/* Fills in type, length and, if it is 0, the serial; sends it. 0 or a negative errno. */
int rc_send(struct raw *rc, enum wire_type type, void *message, size_t length, int fd_peek);
/* Whatever bytes, with any number of copies of a descriptor. 0 or a negative errno. */
int rc_send_bytes(struct raw *rc, const void *bytes, size_t length, int fd_peek, unsigned nfds);
/* The next message; -ETIMEDOUT after ten seconds, -ECONNRESET at the end. */
int rc_receive(struct raw *rc, struct conn_message *m);
/* Sends, then receives until the answer to that. */
int rc_call(struct raw *rc, enum wire_type type, void *message, size_t length, struct conn_message *answer);
/* Nothing more comes but perhaps ERROR PROTOCOL, then the end. */
void rc_must_end(struct raw *rc);
/* The next message is that error, of a text without the name of a shm object. */
void rc_must_fail(const struct conn_message *m, enum wire_error code);

void rc_settle(struct raw *rc);
/* 0 with the draft, or the positive wire error. A descriptor that comes with it is kept in rc->writable. */
int rc_create(struct raw *rc, const char *name, uint64_t nbytes, int64_t timeout_ns, struct wire_draft *draft);
/* The descriptor to write that draft with. */
int rc_writable(const struct raw *rc, const struct wire_draft *draft);
/* What an answer means: 0 if it is of that type, else the wire error. */
int rc_judge(const struct conn_message *m, enum wire_type expected);
/* A tensor of @nbytes uint8 under @name; 0 or the wire error. */
int rc_commit(struct raw *rc, uint64_t ref, const char *name, uint64_t nbytes);
int rc_ref(struct raw *rc, enum wire_type type, uint64_t ref); /* ABORT or RELEASED */
int rc_map(struct raw *rc, uint32_t segment, uint32_t generation, int *fd);
int rc_delete(struct raw *rc, const char *name);
int rc_link(struct raw *rc, uint64_t ref, const char *name);

/* Create, fill with @byte, commit; 0 or the wire error. */
int rc_put(struct raw *rc, const char *name, uint64_t nbytes, int byte, struct wire_draft *draft);
/* Takes a lease by the protocol: false if the tensor is not live. */
bool rc_hold(struct raw *rc, uint64_t ref);
void rc_drop(struct raw *rc, uint64_t ref);
/* Maps the tensor's segment read-only; its payload. The mapping stays until the process ends. */
const unsigned char *rc_view(struct raw *rc, const struct wire_draft *draft);
void bytes_must_be(const unsigned char *bytes, int byte, size_t n);

static inline const struct catalog_row *rc_row(const struct raw *rc, uint64_t ref)
{
	const unsigned char *base = (const unsigned char *)rc->catalog + rc->catalog->off_rows;

	return (const struct catalog_row *)(const void *)base + ref_slot(ref);
}

/* A memfd ready to be a ledger of that many slots, but not sealed. */
int ledger_new(uint32_t slots, uint64_t magic);
int ledger_seal(int fd);
