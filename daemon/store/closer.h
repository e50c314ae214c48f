/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Closes descriptors that clients sent. Closing one may take as long as its sender likes. A socket
 * waits for a peer that does not read (SO_LINGER), a file for a file system that the sender itself
 * serves (FUSE), and freeing a large memfd takes long, too. So another process closes them. It
 * shares our table of descriptors and nothing else, and it is killed when it makes no progress for
 * a while. That ends the wait for a socket. FUSE waits for its answer even then: such a process is
 * set aside, and another one goes on. When as many processes are stuck as one user may cause, the
 * other files of that user wait for them. A user has few places in the queue, so others soon have
 * their turn. Descriptors of honest clients are closed at once, and the process is started when it
 * is first needed.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct account;
struct closer_queue;

/* There is space for all descriptors that a user may have us keep. */
enum { CLOSER_MAX = 65536, CLOSER_LOOK_MS = 50, CLOSER_STUCK_MAX = 2, CLOSER_PLACES = 8 };

struct closer_entry {
	int fd;
	struct account *account; /* charged for it, and referred to; or NULL */
	uint64_t forgets;	 /* as closer_take_after() has it */
};

struct closer {
	struct closer_queue *queue; /* shared with the process; NULL before the first use */
	struct account *accounts[CLOSER_MAX]; /* of what is in the queue, as in closer_entry */
	uint32_t seen;			      /* how many we know to be closed */
	uint32_t begun;			      /* how many the process had begun at our last look */
	pid_t pid;			      /* 0: there is none */
	bool killed;			      /* it is going to end, unless it is stuck */
	uint64_t forgotten;		      /* as closer_forgotten() was told */
	struct closer_stuck *stuck;	      /* processes that were killed and are still there */
	struct closer_entry held[CLOSER_MAX]; /* not in the queue: too many of its user's are
						 there, or stuck, or there is no queue yet */
	unsigned held_count;
};

/* Closes the descriptor now if that cannot take long, and else later. account.closing counts it
 * until then, or until a process is stuck with it; @account may be NULL. If CLOSER_MAX wait
 * already it stays open, since it might keep us waiting. */
void closer_take(struct closer *c, int fd_take, struct account *account);
/* Does the same for a descriptor that the keeper has too, and was told to forget by
 * keeper_link_forget(): it is not closed before closer_forgotten() was told @forgets. Descriptors
 * that are taken later wait for it. */
void closer_take_after(struct closer *c, int fd_take, struct account *account, uint64_t forgets);
/* To be called when keeper_link_forgotten() is @forgotten. */
void closer_forgotten(struct closer *c, uint64_t forgotten);
/* Notes which descriptors have been closed by now, and puts held ones of their users in the
 * queue. */
void closer_note(struct closer *c);
/* True if any descriptor is about to be closed: those behind what is stuck do not count. */
bool closer_waits(const struct closer *c);
/* True if closer_note() is to be called soon, so that the process is not idle. */
bool closer_holds(const struct closer *c);
/* True if closer_look() is to be called in CLOSER_LOOK_MS. */
bool closer_looks(const struct closer *c);
/* Checks for progress. Without any since the last look the process is stuck, and is killed. */
void closer_look(struct closer *c);
/* Descriptors that are not closed yet are closed when the daemon has ended. */
void closer_deinit(struct closer *c);
