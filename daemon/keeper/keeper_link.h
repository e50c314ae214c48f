/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's side of the keeper, which keeps descriptors by tag and gives them to the next
 * daemon. The keeper is our parent (keeper.h), or there is none.
 * To keep a descriptor takes one message without an answer: a message that is in the keeper's queue
 * when we die counts too. If that queue is full the keeper is told later, by keep_read() or before
 * anything else, and in the same order. Loop thread only.
 */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/keeper/keeper_protocol.h"

struct keep {
	bool here;		/* there is a keeper */
	int fd;			/* to it, -1 if there is none (any more) */
	struct kept_table list; /* the last daemon's descriptors, until they are taken */
	int activated_fd;	/* the socket of an activated service, or -1 */
	bool detached;		/* the keeper is in the background */
	bool served;		/* keep_served() was called */
	bool leaving;		/* we are to end at once, for another daemon */
	bool reloading;		/* only if the next daemon will take over */
	bool fresh;	     /* daemons that took over the kept state have died again and again */
	bool must_adopt;     /* another program can take over what we cannot */
	bool same_config;    /* a kept configuration counts, not the files as they are */
	bool former_program; /* we are of the program before the one at @program */
	bool in_directory;   /* the working directory is where the first of us was started */
	uint64_t restarts;   /* how often a daemon has served before us */
	int64_t ended_ns;    /* when the last of them ended; 0: there was none */
	int64_t restart_ns; /* from that time until we served; 0: no daemon before us, or not yet */
	char program[PATH_MAX];	     /* which is started if we leave; "": not known */
	char reason[KEEP_TEXT_SIZE]; /* why that daemon ended, and why we began without its tensors
				      */
	uint64_t forgets;	     /* how often the keeper was told to forget something */
	uint64_t forgotten_up_to;    /* how many of these it has done */
	void (*forgotten)(struct keep *k, uint64_t count); /* called with that number; NULL: not
							      needed */
	struct keep_unsent *unsent, *unsent_last; /* what it is to keep or forget, and was not told
						     yet */
	bool stuck; /* it reads nothing: none of that waits for it, until all is sent */
	void (*delayed)(struct keep *k); /* called when the first comes; NULL: not needed */
	void *context;			 /* for these functions */
};

/* Finds the keeper and its descriptors, or a service manager's socket, and clears their
 * environment. -ENOMEM; -EINVAL, with a text: several sockets. */
int keep_init(struct keep *k);
/* Closes the socket to the keeper, and descriptors that were not taken. They stay kept: we may be
 * ending before we could take them. */
void keep_deinit(struct keep *k);

/* Hands over the descriptor kept under @tag, which stays kept; -1 if there is none. */
int keep_take(struct keep *k, const char *tag);

/* Keeps @fd_peek under @tag, which begins with KEEP_TAG_PREFIX, in place of an earlier one of that
 * tag. Returns 0 also if there is no keeper, or a negative errno. If the keeper's queue is full it
 * waits a moment, and until that is worked off no more. */
int keep(struct keep *k, const char *tag, int fd_peek);
/*
 * Lets the keeper forget the descriptor under @tag. Closing the last descriptor of an object may
 * take long and must not delay the keeper. So ours stays open until the keeper has closed its own,
 * that is, until @forgotten is called with the number of this call, or with a higher one. The
 * number is the value of @forgets when this returns 0. It waits for nothing.
 */
int keep_forget(struct keep *k, const char *tag);
/* Waits until all that the keeper is to be told is in its queue, unless it does not listen. */
void keep_flush(struct keep *k);
/* How many calls of keep_forget() the keeper has carried out. UINT64_MAX: there is no keeper; @k
 * may be NULL then. */
uint64_t keep_forgotten(const struct keep *k);
/* The kept state cannot be taken over: when we end, the next daemon is told to start afresh. */
void keep_afresh(struct keep *k, const char *why);
/* False, with errno: the program that is to be started if we leave cannot be. */
bool keep_has_program(const struct keep *k);
/* Another daemon is to take over, for the reason @why: @leaving will be set, unless there is no
 * program to start. */
void keep_renew(struct keep *k, const char *why);
/* Tells the keeper that we do not leave. */
void keep_stay(struct keep *k);
/* Tells the keeper that we leave for a daemon that must take over. */
void keep_reload(struct keep *k);
/* Tells the keeper that we serve from now on. */
void keep_served(struct keep *k);
/* Tells the service manager. */
void keep_notify(struct keep *k, const char *text);

/* To be called when @fd is readable, or writable while there is something @unsent. False: the
 * keeper has ended, and @fd closed. */
bool keep_read(struct keep *k);
