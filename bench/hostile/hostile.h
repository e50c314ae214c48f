/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensorlease-bench-hostile: the harm that one user can do to others. main.c describes a run.
 * Victims and the attacker are processes of different users. They share a board with the main
 * process, which sets the phase there and collects the measurements.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "tests/harness/harness.h"

enum { DAEMON_UID = 12344, VICTIM_UID = 12345, ATTACKER_UID = 12346 };

/* ---- The board ---- */

/* The victims run beside one process that spins, two of them, the attack, and one again. */
enum phase { PHASE_BEFORE, PHASE_BUSY, PHASE_ATTACK, PHASE_AFTER, PHASES, PHASE_NONE };

enum measure {
	MEASURE_COMMIT,	 /* from tl_create() to the answer to tl_commit() */
	MEASURE_GET,	 /* from that tl_create() until a waiting consumer has the tensor */
	MEASURE_CONNECT, /* tl_connect() and the first commit under a new name */
	MEASURES
};

enum { TRACK_MAX = 1 << 16, WHY_SIZE = 160 };

/* One process writes it. Samples beyond its size are counted only. */
struct track {
	_Atomic uint32_t count;
	_Atomic uint32_t failed;
	char why[WHY_SIZE]; /* the reason of the first failure */
	float ns[TRACK_MAX];
};

struct board {
	_Atomic unsigned phase;		/* enum phase */
	_Atomic uint32_t commits, seen; /* commits so far, and how many of them the consumer got */
	_Atomic bool ready;		/* the attacker has made all its preparations */
	_Atomic uint32_t connections;	/* connections of the attacker */
	_Atomic uint32_t wanted;	/* connections that it tried to have */
	_Atomic uint32_t things; /* number of things that its start() makes: tensors, waits, ... */
	_Atomic uint64_t answers, errors; /* answers and errors that it received */
	_Atomic uint64_t ended;		  /* number of its connections that the daemon has ended */
	_Atomic uint64_t longest_turn_ns; /* the daemon's longest turn until the attack ended */
	char why[WHY_SIZE];		  /* the reason of its first refusal */
	struct track tracks[PHASES][MEASURES];
};

struct setup {
	const char *dir; /* the temporary directory */
	const char *socket;
	const char *only; /* a part of the names of rows, or NULL */
	bool quick, json, is_root;
	unsigned connections;
	double seconds; /* of a phase */
	struct board *board;
};

/* ---- Processes (process.c) ---- */

/* Forks. The child has @uid if we are root, and ends when we do. Returns 0 in the child. */
pid_t process_start(const struct setup *setup, uid_t uid);
void process_kill(pid_t *pid); /* kills it, waits, and sets *pid to 0 */
/* @log_fd is its standard error. */
pid_t daemon_start(const struct setup *setup, int log_fd);
/* Returns false if it did not end by itself and was killed. The next daemon on the same socket then
 * removes its remains. */
bool daemon_stop(pid_t *pid);
/* Gives this process and its children a /dev/shm of their own, which goes with them. */
bool own_shm(const char *options);

/* ---- Victims (victim.c); none of them returns ---- */

enum victim { VICTIM_PRODUCER, VICTIM_CONSUMER, VICTIM_NEWCOMER, VICTIMS };

_Noreturn void victim_run(const struct setup *setup, enum victim which, uint64_t nbytes);
_Noreturn void spinner_run(void);

extern const char victim_name[]; /* of the tensor */

/* Makes the name of the newcomer's @n-th tensor in @phase. */
void newcomer_name(char *text, size_t size, unsigned phase, unsigned n);

/* ---- The attacker (attacker.c) ---- */

struct attacker {
	const struct setup *setup;
	struct board *board;
	unsigned n;	     /* connections, from the first on; a dead one has fd -1 */
	unsigned next;	     /* the next one to use, for steps that use one */
	struct raw *raws;    /* space for setup->connections and a few more */
	uint64_t numbers[4]; /* the attack's own */
	uint64_t *refs;	     /* one for each connection, the attack's own */
};

struct attack {
	const char *name;
	const char *what;
	void (*start)(struct attacker *a);
	void (*step)(struct attacker *a); /* again and again until the attacker is killed */
	unsigned connections;		  /* their number, if not that of --connections */
	uint64_t victim_bytes;		  /* size of the victim's tensors, if not 4 KiB */
	bool log_is_stalled;		  /* the daemon's standard error is not read */
};

extern const struct attack attacks[];

_Noreturn void attacker_run(const struct setup *setup, const struct attack *attack);

enum { ATTACKER_WAIT_MS = 1000, ATTACKER_SPARE = 16 };

/* Opens connections until there are @n, or until several in a row were refused. */
void attacker_open(struct attacker *a, unsigned n, enum raw_stage stage);
/* Opens connection @i anew if it has ended. Returns whether it is open. */
bool attacker_reopen(struct attacker *a, unsigned i, enum raw_stage stage);
/* Sends without waiting. Returns 0 or a negative errno; an ended connection is closed. */
int attacker_send(struct attacker *a, unsigned i, enum wire_type type, void *message, size_t length,
		  int fd_peek);
/* Takes the next message if there is one and closes its descriptor. */
bool attacker_take(struct attacker *a, unsigned i, struct conn_message *m);
void attacker_drain(struct attacker *a, unsigned i); /* takes all */
/* Notes the reason of a refusal: the first one counts. */
void attacker_note(struct attacker *a, int r, const struct conn_message *m);
/* The next connection that is open, in turn; a->n if there is none. */
unsigned attacker_turn(struct attacker *a);

/* Publishes up to @n empty tensors through connection @i, and returns the number published. Each
 * has a name of its own, or all have one. If they are held, its ledger counts a lease on each. */
unsigned attacker_publish(struct attacker *a, unsigned i, unsigned n, bool one_name, bool held);

/* The steps and starts of several attacks. */
void start_ready(struct attacker *a);
void step_drain(struct attacker *a);

/* ---- Attacks ---- */

#define ATTACK(name)                                                                               \
	void start_##name(struct attacker *a);                                                     \
	void step_##name(struct attacker *a)

ATTACK(waits);
ATTACK(rescan);
ATTACK(retired);
ATTACK(lists);
ATTACK(churn);
ATTACK(silent);
ATTACK(tensors);
ATTACK(exports);
ATTACK(descriptors);
ATTACK(sleepers);
ATTACK(holes);
ATTACK(groups);
ATTACK(pins);
ATTACK(malformed);
ATTACK(large);
ATTACK(unfit);
ATTACK(bucket);
ATTACK(unread);
ATTACK(floods);
ATTACK(truncate);
ATTACK(storm);
ATTACK(kills);
ATTACK(syncs);
ATTACK(linger);
ATTACK(orphans);
ATTACK(hoard);
ATTACK(members);
ATTACK(placed);
ATTACK(watches);
