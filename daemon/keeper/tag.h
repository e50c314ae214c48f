/* SPDX-License-Identifier: Apache-2.0 */
/* What the daemon and its keeper say to each other, and what a keeper tells a daemon that it
 * starts. */
#pragma once

#include <stdint.h>

/*
 * In the environment of a daemon that a keeper starts: the keeper's pid, the socket to it, and a
 * file with a line for each thing that it says. A daemon skips lines that it does not know, since
 * it may be of another build than its keeper:
 *
 *	kept FD TAG	what is kept, which is inherited as FD
 *	detached 1	the keeper runs in the background
 *	fresh 1		nothing is to be taken over
 *	restarts N	how often a daemon has served, and another one was started
 *	ended NS	when the last one of them ended (CLOCK_MONOTONIC)
 *	reason TEXT	why it did
 *	directory PATH	in which the keeper was started
 */
#define KEEPER_ENVIRONMENT "TENSORLEASE_KEEPER"

/* In the store of systemd there may be descriptors that are not ours. */
#define KEEP_TAG_PREFIX "tl-"

enum { KEEPER_EXIT_LEFT = 75 }; /* a service manager that keeps takes it for a failure */

enum {
	KEEP_TAG_SIZE = 64,
	KEEP_TEXT_SIZE = 192, /* of reasons; no less than that of tags */
};

enum keeper_op {
	KEEPER_KEEP = 1, /* with a descriptor, which replaces one of the same tag */
	KEEPER_FORGET,
	KEEPER_NOTIFY, /* text for the service manager */
	KEEPER_AFRESH, /* the daemon ends, and the next one is not to take anything over; says why
			*/
	KEEPER_RENEW,  /* another daemon is wanted; says why */
	KEEPER_STAY,   /* the daemon does not leave, and has logged why */
	/* answers: */
	KEEPER_FORGOTTEN, /* how many of this daemon's, in all, as a decimal number */
	KEEPER_REFUSED,	  /* the descriptor could not be kept */
	KEEPER_LEAVE,	  /* the daemon is to end, for another one, with KEEPER_EXIT_LEFT */
	KEEPER_RELOAD,	  /* the same, if the next one will take over with its options */
};

/* SOCK_SEQPACKET; one message each. */
struct keeper_message {
	uint32_t op;
	char text[KEEP_TEXT_SIZE]; /* a tag or a reason, with a zero at its end */
};
