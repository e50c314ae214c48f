/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Samples, results and processes, for all rows of the bench. main.c describes a run. A row that
 * cannot continue calls errx(), and the supervisor in main.c then cleans up.
 */
#pragma once

#include <regex.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <tensorlease/admin.h>
#include <tensorlease/tensorlease.h>

/* ---- Samples and results (result.c) ---- */

struct bench_samples {
	double *values;
	size_t n, capacity;
};

enum bench_aim {
	BENCH_AIM_NONE,
	BENCH_AIM_RATIO, /* the median of ours / floor must not exceed the limit */
	BENCH_AIM_VALUE, /* the median of ours must not exceed the limit */
	BENCH_AIM_MORE,	 /* the median of ours - floor must not exceed the limit */
};

/* A row of the table. Its samples are in ns if the unit is a time. */
struct bench_result {
	char id[48];	  /* matched by --only */
	char what[64];	  /* for people */
	const char *unit; /* "ns", "us" or "ms" scale the samples; "bytes", "MiB" and "" do not */
	const char *floor_what; /* the work of the floor; NULL: there is none */
	const char *target;	/* the promised limit, as text */
	enum bench_aim aim;
	double limit; /* in the unit of the samples */
	struct bench_samples floor, ours;
	char note[200];
};

struct bench {
	bool quick, json;
	bool has_only;
	regex_t only;
	const char *dir;      /* the temporary directory of the run */
	const char *daemon;   /* the path of tensorleased */
	const char *storage;  /* its --storage */
	const char *address;  /* of the run's daemon; NULL before bench_daemon() */
	pid_t daemon_started; /* its keeper */
	pid_t daemon_pid;     /* the daemon proper */
	tl_client *client;
	/* The address of the daemon with BENCH_MANY tensors; NULL before bench_many(). */
	const char *many_address;
	pid_t many_started, many_pid;
	tl_client *many_client; /* the producer of these tensors */
	struct bench_result *results[64];
	size_t nresults;
};

/* Returns a new row, which @b owns, or NULL if --only does not select it. */
struct bench_result *bench_result_new(struct bench *b, const char *id, const char *unit,
				      const char *what, ...) __attribute__((format(printf, 4, 5)));

/* Adds a sample of ours, and one of the floor that was measured just before. */
void bench_pair(struct bench_result *r, double floor, double ours);
void bench_value(struct bench_result *r, double ours);

/* Completes the row and prints it, unless everything is printed as JSON at the end. */
void bench_result_done(struct bench *b, struct bench_result *r);

/* Returns whether --only selects that row. Ask before an expensive preparation. */
bool bench_selected(struct bench *b, const char *id);

void bench_print_head(const struct bench *b);
void bench_print_json(const struct bench *b);
void bench_free_results(struct bench *b);

/* ---- Processes (process.c) ---- */

/* Another process of this program, in one of the roles of roles[]. It ends when this one does. */
struct bench_helper {
	pid_t pid;
	int socket; /* SEQPACKET; the helper has the other end */
};

/* A role that a helper can have. */
struct bench_role {
	const char *name;
	int (*run)(int socket, int shared_fd, const char *argument);
};

/*
 * Starts this program in the role @role. @shared_fd is a descriptor to lend, or -1. @argument may
 * be NULL.
 */
void bench_helper_start(struct bench_helper *h, const char *role, int shared_fd,
			const char *argument);
void bench_helper_stop(struct bench_helper *h); /* kills it and waits */

/* The main() of a helper: argv comes from bench_helper_start(). */
int bench_helper_main(int argc, char **argv, const struct bench_role *roles);

/* Starts a daemon that listens on @address, and waits until it accepts a client. @more has options
 * for it, separated by blanks, or is NULL. Returns the process to stop, which is its keeper. */
pid_t bench_daemon_start(const struct bench *b, const char *address, tl_client **client,
			 const char *more);
/* Returns the process that serves and uses the CPU. */
pid_t bench_daemon_proper(tl_client *client);
void bench_daemon_stop(pid_t pid);
int bench_role_daemon(int socket, int shared_fd, const char *argument);

/* Starts the daemon of the run at the first call. b->client is connected to it. */
void bench_daemon(struct bench *b);

/*
 * Starts, at the first call, a daemon that has BENCH_MANY tensors of bench_many_bytes(), called
 * bench_name(), and no others. Also measures how much memory they take (memory.c).
 */
enum { BENCH_MANY = 100000, BENCH_NAME_SIZE = 32 };
void bench_many(struct bench *b);
uint64_t bench_many_bytes(void);
void bench_name(char name[BENCH_NAME_SIZE], uint32_t i);

/* Stops the daemons and closes their clients. */
void bench_daemons_stop(struct bench *b);

/* ---- Small things (process.c) ---- */

/* Ends the bench if a call of the library, or a system call, has failed. */
void bench_check(int r, const char *what);
void bench_check_errno(int r, const char *what);

tl_client *bench_connect(const char *address);

/* Publishes @nbytes bytes as @name; their values do not matter. */
void bench_publish(tl_client *client, const char *name, uint64_t nbytes);

/* Waits until the daemon has handled everything that @client sent. */
void bench_sync(tl_client *client);

/*
 * Keeps a process (0: the calling thread) on CPU @n of those that we may use, or allows all of them
 * again. The cost of a wake-up depends on which processes share a CPU: an idle CPU of a virtual
 * machine may take 30 us to start. So rows with other processes pin them, and pin those of the
 * floor in the same way.
 */
void bench_pin(pid_t pid, unsigned n);
void bench_unpin(pid_t pid);

double bench_now(void); /* CLOCK_MONOTONIC in ns */
void bench_spin(double ns);
void bench_sleep(double ns);
uint64_t bench_shm_free(void);					  /* bytes */
const char *bench_bytes(char *text, size_t size, uint64_t bytes); /* such as "64 MiB" */

/* ---- The rows ---- */

void bench_get(struct bench *b);
void bench_first(struct bench *b);
void bench_publishing(struct bench *b);
void bench_put(struct bench *b);
void bench_wake(struct bench *b);
void bench_memory(struct bench *b);
void bench_kill(struct bench *b);
void bench_crowd(struct bench *b);
void bench_ring(struct bench *b);
void bench_streams(struct bench *b);

/* Puts 4 KiB under the name, so that it gets a ring. */
void bench_ring_put(tl_client *client, const char *as);
/* Spins until the name has a version above *@version, and gets it. */
void bench_ring_follow(tl_client *client, const char *as, uint64_t *version);

/* The roles of their helpers. */
int bench_role_sealed(int socket, int shared_fd, const char *argument);
int bench_role_echo(int socket, int shared_fd, const char *argument);
int bench_role_descriptors(int socket, int shared_fd, const char *argument);
int bench_role_waker(int socket, int shared_fd, const char *argument);
int bench_role_sleeper(int socket, int shared_fd, const char *argument);
int bench_role_consumer(int socket, int shared_fd, const char *argument);
int bench_role_holder(int socket, int shared_fd, const char *argument);
int bench_role_follower(int socket, int shared_fd, const char *argument);
int bench_role_ring_follower(int socket, int shared_fd, const char *argument);
int bench_role_answerer(int socket, int shared_fd, const char *argument);
int bench_role_ring_sealed(int socket, int shared_fd, const char *argument);
int bench_role_mute(int socket, int shared_fd, const char *argument);
int bench_role_ring_end(int socket, int shared_fd, const char *argument);
int bench_role_stream_taker(int socket, int shared_fd, const char *argument);
int bench_role_stream_answerer(int socket, int shared_fd, const char *argument);
