/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the rows of the bench share: samples, results, processes. main.c says how a run goes. A row
 * that cannot go on calls errx(): the supervisor in main.c then cleans up.
 */
#pragma once

#include <regex.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <tensorlease/tensorlease.h>

/* ---- Samples and results (result.c) ---------------------------------------------------------- */

struct bench_samples {
	double *values;
	size_t n, room;
};

enum bench_aim {
	BENCH_AIM_NONE,
	BENCH_AIM_RATIO, /* the median of ours / floor is at most the limit */
	BENCH_AIM_VALUE, /* the median of ours is at most the limit */
};

/* One row of the table. Samples are in ns where the unit is a time. */
struct bench_result {
	char id[48];	  /* what --only matches */
	char what[64];	  /* for people */
	const char *unit; /* "ns", "us", "ms": how to show times; "bytes", "MiB", "": as they are */
	const char *floor_what; /* what the floor does; NULL: no floor */
	const char *target;	/* as design section 12 has it */
	enum bench_aim aim;
	double limit; /* in the samples' unit */
	struct bench_samples floor, ours;
	char note[200];
};

struct bench {
	bool quick, json;
	bool has_only;
	regex_t only;
	const char *dir;     /* the run's own temporary directory */
	const char *daemon;  /* path of tensorleased */
	const char *address; /* of the run's daemon; NULL until bench_daemon() started it */
	pid_t daemon_pid;
	tl_client *client;
	const char *many_address; /* of the daemon with BENCH_MANY tensors; NULL until bench_many()
				   */
	pid_t many_pid;
	tl_client *many_client; /* their producer */
	struct bench_result *results[64];
	size_t nresults;
};

/* A new row of @b, which owns it; NULL if --only does not want it. */
struct bench_result *bench_result_new(struct bench *b, const char *id, const char *unit,
				      const char *what, ...) __attribute__((format(printf, 4, 5)));

/* One sample of ours, and of the floor that was measured just before. */
void bench_pair(struct bench_result *r, double floor, double ours);
void bench_value(struct bench_result *r, double ours);

/* The row is complete: prints it, unless all is printed as JSON at the end. */
void bench_result_done(struct bench *b, struct bench_result *r);

/* Does --only want the row of that id? For what has to be set up before. */
bool bench_wants(struct bench *b, const char *id);

void bench_print_head(const struct bench *b);
void bench_print_json(const struct bench *b);
void bench_free_results(struct bench *b);

/* ---- Processes (process.c) ------------------------------------------------------------------- */

/* Another process of this program, in one of the roles of roles[]; it dies with us. */
struct bench_helper {
	pid_t pid;
	int socket; /* SEQPACKET, its other end is the helper's */
};

/* What a helper starts with. */
struct bench_role {
	const char *name;
	int (*run)(int socket, int shared_fd, const char *argument);
};

/* Starts this program as role @role. @shared_fd: -1, or a descriptor to lend; @argument may be
 * NULL. */
void bench_helper_start(struct bench_helper *h, const char *role, int shared_fd,
			const char *argument);
void bench_helper_stop(struct bench_helper *h); /* kills and waits */

/* The main() of a helper: argv is what bench_helper_start() made. */
int bench_helper_main(int argc, char **argv, const struct bench_role *roles);

/* Starts a daemon that listens on @address, and waits until a client is connected to it. */
pid_t bench_daemon_start(const struct bench *b, const char *address, tl_client **client);
void bench_daemon_stop(pid_t pid);
int bench_role_daemon(int socket, int shared_fd, const char *argument);

/* The run's own daemon, started at the first call; b->client is connected to it. */
void bench_daemon(struct bench *b);

/*
 * The daemon with BENCH_MANY tensors of bench_many_bytes() called bench_name(), and no other;
 * started at the first call, which also reads what memory they take (memory.c).
 */
enum { BENCH_MANY = 100000, BENCH_NAME_SIZE = 24 };
void bench_many(struct bench *b);
uint64_t bench_many_bytes(void);
void bench_name(char name[BENCH_NAME_SIZE], uint32_t i);

/* Stops the daemons and closes the clients. */
void bench_daemons_stop(struct bench *b);

/* ---- Small things (process.c) ---------------------------------------------------------------- */

/* What ends the bench if it fails: a call of the library, or a system call. */
void bench_check(int r, const char *what);
void bench_check_errno(int r, const char *what);

tl_client *bench_connect(const char *address);

/* Publishes @nbytes bytes, contents unimportant, as @name. */
void bench_publish(tl_client *client, const char *name, uint64_t nbytes);

/* Until the daemon has done what @client sent it. */
void bench_settle(tl_client *client);

/*
 * Keeps a process (0: the calling thread) on the @n-th of the CPUs that we may use, or on all
 * again. Who shares a CPU with whom decides what a wake-up costs (an idle CPU of a virtual machine
 * may take 30 us to come up), so rows with other processes place them, those of the floor where
 * ours are.
 */
void bench_place(pid_t pid, unsigned n);
void bench_unplace(pid_t pid);

double bench_now(void); /* CLOCK_MONOTONIC in ns */
void bench_spin(double ns);
void bench_sleep(double ns);
uint64_t bench_shm_free(void);					  /* bytes */
const char *bench_bytes(char *text, size_t size, uint64_t bytes); /* "64 MiB" */

/* ---- The rows -------------------------------------------------------------------------------- */

void bench_get(struct bench *b);
void bench_first(struct bench *b);
void bench_publishing(struct bench *b);
void bench_put(struct bench *b);
void bench_wake(struct bench *b);
void bench_memory(struct bench *b);
void bench_kill(struct bench *b);

/* Their helpers' roles. */
int bench_role_sealed(int socket, int shared_fd, const char *argument);
int bench_role_echo(int socket, int shared_fd, const char *argument);
int bench_role_descriptors(int socket, int shared_fd, const char *argument);
int bench_role_waker(int socket, int shared_fd, const char *argument);
int bench_role_sleeper(int socket, int shared_fd, const char *argument);
int bench_role_consumer(int socket, int shared_fd, const char *argument);
int bench_role_holder(int socket, int shared_fd, const char *argument);
int bench_role_mute(int socket, int shared_fd, const char *argument);
