/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Child processes of tests. harness.h includes this. Most children pause where the parent is to do
 * something in between:
 *
 *	the parent					the child
 *	c = child_start_ready(&d, reader, NULL);	pause_at(1);
 *	put_bytes(client, "a", 2, 100);
 *	child_step(&c);					pause_at(2);
 *	must_be(td_status(&d).retired, 0);
 *	child_finish(&c);				return 0;
 */
#pragma once

#include <stdint.h>

#include <sys/types.h>

struct test_daemon;

struct test_child {
	pid_t pid;
	int to;
	int from;
};

typedef int child_fn(const struct test_daemon *d, void *arg); /* returns its exit code */

/* Runs @fn in a child and returns its wait status. */
int td_run_client(const struct test_daemon *d, child_fn *fn, void *arg);
struct test_child child_start(const struct test_daemon *d, child_fn *fn, void *arg);
/* The same with another uid, but a group that may use the socket. Needs root. */
struct test_child child_start_as(uid_t uid, const struct test_daemon *d, child_fn *fn, void *arg);
/* Returns the value that the child tells next. If the child ends instead, must() fails. */
uint64_t child_await(struct test_child *c);
void child_go(struct test_child *c);
int child_wait(struct test_child *c); /* its wait status */
/* The same, but a process that the child forked can still be talked to, until child_hang_up(). */
int child_wait_open(struct test_child *c);
void child_hang_up(struct test_child *c);
void child_kill(struct test_child *c); /* which must not have ended before */
void child_must_succeed(struct test_child *c);

/* Starts a child and waits until it tells something, as pause_at() does. */
struct test_child child_start_ready(const struct test_daemon *d, child_fn *fn, void *arg);
uint64_t child_step(struct test_child *c); /* from one pause to the next; what it told there */
void child_finish(struct test_child *c);   /* from the last pause to its end, which must be 0 */

/* In the child: */
void parent_tell(uint64_t value);
void parent_await(void);
void pause_at(uint64_t value); /* tells the parent this, and waits until it may go on */
void child_close_all(void);    /* all descriptors but the standard streams and those of the above */
