/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Closes descriptors that clients sent. Closing one may take as long as its sender likes: a socket
 * waits for a peer that does not read (SO_LINGER), a file for a file system that the sender itself
 * serves (FUSE), and freeing a large memfd takes long, too. So another process closes them. It
 * shares our table of descriptors and nothing else, and it is killed when it has not come on for a
 * while, which ends such a wait. What honest clients send is closed at once, and the process is
 * started when it is first needed.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct account;
struct closer_queue;

/* There is room for all that a user may have us keep. */
enum { CLOSER_MAX = 65536, CLOSER_LOOK_MS = 50 };

struct closer {
	struct closer_queue *queue; /* shared with the process; NULL before the first use */
	struct account *accounts[CLOSER_MAX]; /* whose the descriptors in it are; we hold references
					       */
	uint32_t seen;			      /* how many we know to be closed */
	uint32_t begun; /* how many the process had begun when we looked last */
	pid_t pid;	/* 0: there is none */
	bool killed;	/* it is to end */
};

/* Closes it now if that cannot take long, and else later. account.closing counts it until then;
 * @account may be NULL. */
void closer_take(struct closer *c, int fd_take, struct account *account);
/* Takes note of what has been closed by now. */
void closer_note(struct closer *c);
/* Is anything still to be closed? Then call closer_look() in CLOSER_LOOK_MS. */
bool closer_waits(const struct closer *c);
/* Looks what has been closed. Nothing since the last look: the process is stuck, and is killed. */
void closer_look(struct closer *c);
/* Ends the process. What is not closed yet stays open until we end, too. */
void closer_deinit(struct closer *c);
