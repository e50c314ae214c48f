/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's side of the keeper, which keeps descriptors by tag and gives them to the next
 * daemon. The keeper is our parent (keeper.h), or there is none.
 *
 * To keep a descriptor takes one message without an answer: a message that is in the keeper's queue
 * when we die counts too. If that queue is full the keeper is told later, by keeper_link_read() or
 * before anything else, and in the same order. Loop thread only.
 */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/keeper/keeper_protocol.h"

/* This daemon: STARTS -- keeper_link_served() --> SERVES -- the keeper's answer to
 * keeper_link_renew() --> LEAVES or RELOADS -- keeper_link_stay() --> SERVES */
enum keeper_link_state {
	LINK_STARTS,
	LINK_SERVES,
	LINK_LEAVES,  /* it is to end at once, for another daemon */
	LINK_RELOADS, /* only if the next daemon will take over */
};

struct keeper_link {
	enum keeper_link_state state;
	bool here;		/* there is a keeper */
	int fd;			/* to it, -1 if there is none (any more) */
	struct kept_table list; /* the last daemon's descriptors, until they are taken */
	int activated_fd;	/* the socket of an activated service, or -1 */
	bool detached;		/* the keeper is in the background */
	bool fresh;	     /* daemons that took over the kept state have died again and again */
	bool must_adopt;     /* another program can take over what we cannot */
	bool same_config;    /* a kept configuration counts, not the files as they are */
	bool former_program; /* we are of the program before the one at @program */
	bool in_directory;   /* the working directory is where the first of us was started */
	uint64_t restarts;   /* how often a daemon has served before us */
	int64_t ended_ns;    /* when the last of them ended; 0: there was none */
	int64_t restart_ns; /* from that time until we served; 0: no daemon before us, or not yet */
	char program[PATH_MAX];	       /* which is started if we leave; "": not known */
	char reason[KEEPER_TEXT_SIZE]; /* why that daemon ended, and why we began afresh */
	uint64_t forgets;	       /* how often the keeper was told to forget something */
	uint64_t forgotten_up_to;      /* how many of these it has done */
	void (*forgotten)(struct keeper_link *k, uint64_t count); /* called with that number; NULL:
							      not needed */
	struct keeper_link_unsent *unsent, *unsent_last; /* what the keeper is to keep or forget,
							    and was not told yet */
	bool stuck; /* the keeper reads nothing: no call waits for it until all is sent */
	void (*delayed)(struct keeper_link *k); /* called when the first unsent message comes; NULL:
						   not needed */
	void *context;				/* for these functions */
};

static inline bool keeper_link_is_leaving(const struct keeper_link *k)
{
	return k->state >= LINK_LEAVES;
}

/* Finds the keeper and its descriptors, or a service manager's socket, and clears their
 * environment. -ENOMEM; -EINVAL, with a text: several sockets. */
int keeper_link_init(struct keeper_link *k);
/* Closes the socket to the keeper, and descriptors that were not taken. They stay kept: we may be
 * ending before we could take them. */
void keeper_link_deinit(struct keeper_link *k);

/* Hands over the descriptor kept under @tag, which stays kept; -1 if there is none. */
int keeper_link_take(struct keeper_link *k, const char *tag);

/* Keeps @fd_peek under @tag, which begins with KEEPER_TAG_PREFIX, in place of an earlier one of
 * that tag. Returns 0 also if there is no keeper, or a negative errno. If the keeper's queue is
 * full this waits a moment; later calls do not wait until all is sent. */
int keeper_link_keep(struct keeper_link *k, const char *tag, int fd_peek);
/*
 * Lets the keeper forget the descriptor under @tag. Closing the last descriptor of an object may
 * take long and must not delay the keeper. So ours stays open until the keeper has closed its own,
 * that is, until @forgotten is called with the number of this call, or with a higher one. The
 * number is the value of @forgets when this returns 0. It waits for nothing.
 */
int keeper_link_forget(struct keeper_link *k, const char *tag);
/* Waits until all that the keeper is to be told is in its queue, unless the keeper reads
 * nothing. */
void keeper_link_flush(struct keeper_link *k);
/* How many calls of keeper_link_forget() the keeper has carried out. UINT64_MAX: there is no
 * keeper; @k may be NULL then. */
uint64_t keeper_link_forgotten(const struct keeper_link *k);
/* The kept state cannot be taken over: when we end, the next daemon is to start afresh. */
void keeper_link_afresh(struct keeper_link *k, const char *why);
/* True if the program that is to be started if we leave can be started; else false, with errno. */
bool keeper_link_has_program(const struct keeper_link *k);
/* Asks for another daemon to take over, for the reason @why. Then keeper_link_is_leaving() will be
 * true, unless there is no program to start. */
void keeper_link_renew(struct keeper_link *k, const char *why);
/* Tells the keeper that we do not leave. */
void keeper_link_stay(struct keeper_link *k);
/* Tells the keeper that we leave for a daemon that must take over. */
void keeper_link_reload(struct keeper_link *k);
/* Tells the keeper that we serve from now on. */
void keeper_link_served(struct keeper_link *k);
/* Sends @text to the service manager. */
void keeper_link_notify(struct keeper_link *k, const char *text);

/* Reads the keeper's answers, and sends what is @unsent. To be called when @fd is readable, or
 * writable while there is something @unsent. False: the keeper has ended, and @fd is closed. */
bool keeper_link_read(struct keeper_link *k);
