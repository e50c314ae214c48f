/* SPDX-License-Identifier: Apache-2.0 */
/* What keeper and daemon share: messages, tags, and tables of descriptors. */
#pragma once

#include <limits.h>
#include <stdint.h>

/* Messages between the daemon and its keeper, and the keeper's texts to a daemon that it starts. */

/*
 * A variable in the environment of a daemon that a keeper starts. It has the keeper's pid, the
 * socket to the keeper, and a file with the lines below. A daemon skips lines that it does not
 * know, since it may be of another build than its keeper:
 *
 *	kept FD TAG	a kept descriptor, which is inherited as FD
 *	detached 1	the keeper runs in the background
 *	fresh 1		the daemon is to take nothing over
 *	restarts N	how often a daemon has served, and another one was started
 *	ended NS	when the last one of them ended (CLOCK_MONOTONIC)
 *	reason TEXT	why that ended
 *	directory PATH	in which the keeper was started
 *	program PATH	of the program that it starts when another daemon is asked for
 *	must-adopt 1	the daemon ends and gives up nothing if it cannot take over
 *	same-config 1	nobody asked for another configuration than the kept one
 *	former-program 1	the daemon is of the program before the one at that path
 */
#define KEEPER_ENVIRONMENT "TENSORLEASE_KEEPER"

/* The store of systemd may also hold descriptors that are not ours. */
#define KEEPER_TAG_PREFIX "tl-"

/* The configuration files of the last daemon that served, as they were when it read them. */
#define KEEPER_TAG_CONFIG KEEPER_TAG_PREFIX "config"

enum { KEEPER_EXIT_LEFT = 75 };

enum {
	KEEPER_TAG_SIZE = 64,
	KEEPER_TEXT_SIZE = 192, /* of reasons; at least the size of tags */
};

/* Why another daemon is to take over, in the daemon's request and in the keeper's answer. */
#define KEEPER_BY_SIGHUP "asked for by SIGHUP"
#define KEEPER_BY_SIGUSR2 "asked for by SIGUSR2"

enum keeper_op {
	KEEPER_KEEP = 1, /* with a descriptor, which replaces one of the same tag */
	KEEPER_FORGET,
	KEEPER_NOTIFY, /* text for the service manager */
	KEEPER_AFRESH, /* the daemon ends, and the next one takes nothing over; has the reason */
	KEEPER_RENEW,  /* another daemon is wanted; has the reason */
	KEEPER_STAY,   /* the daemon does not leave, and has logged why */
	/* answers: */
	KEEPER_FORGOTTEN, /* how many FORGETs of this daemon were carried out, in decimal */
	KEEPER_REFUSED,	  /* the descriptor could not be kept */
	KEEPER_LEAVE,	  /* the daemon is to end, for another one, with KEEPER_EXIT_LEFT */
	KEEPER_RELOAD,	  /* as LEAVE, but only if the next one will take over with its options */
	/* a message again: */
	KEEPER_RELOADING, /* the daemon ends for one that must take over */
};

/* SOCK_SEQPACKET; one message each. */
struct keeper_message {
	uint32_t op;
	char text[KEEPER_TEXT_SIZE]; /* a tag or a reason, with a zero at its end */
};

/* Descriptors by tag. */

struct kept {
	char tag[KEEPER_TAG_SIZE];
	int fd;
};

struct kept_table {
	void *tree; /* of struct kept, by tag; tsearch(3) */
	unsigned count;
};

/* Takes @fd_take, also on failure, and closes an earlier descriptor of that tag. -ENOMEM. */
int kept_add(struct kept_table *table, const char *tag, int fd_take);
/* Hands the descriptor over. Returns -1 if there is none. */
int kept_take(struct kept_table *table, const char *tag);
/* Calls @each for all descriptors, in the order of tags. */
void kept_each(const struct kept_table *table, void (*each)(const struct kept *kept, void *context),
	       void *context);
/* Any descriptor of the table, or NULL if there are none. */
const struct kept *kept_any(const struct kept_table *table);
/* Closes all descriptors. */
void kept_deinit(struct kept_table *table);

/* The path of our own program. */

/*
 * Finds the path by which we were started, as @name, in @directory: a link in it may lead to
 * another program by the time of a restart. If @name is something else, finds where the program
 * is. A negative errno if neither can be told.
 */
int program_find(char path[PATH_MAX], const char *name, const char *directory);
