/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's side of what outlives it: descriptors that somebody else keeps by tag, and gives to
 * the next daemon. Who keeps them is our parent (keeper.h), or systemd's store of descriptors, or
 * nobody. Keeping is one message that is not answered: what is in the keeper's queue when we die is
 * kept too. Loop thread only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "daemon/keeper/table.h"

enum keep_kind { KEEP_NOBODY, KEEP_PARENT, KEEP_MANAGER };

struct keep {
	enum keep_kind kind;
	int fd;			 /* to the keeper, -1 if there is no such process (any more) */
	struct kept_table list;	 /* what the last daemon left, until it is taken */
	struct kept_table found; /* tags of all that a service manager had, without descriptors */
	int activated_fd;	 /* the socket of an activated service, or -1 */
	bool detached;		 /* the keeper runs in the background */
	bool served;		 /* keep_served() was called */
	bool leaving;		 /* we are to end at once, for another daemon */
	bool reloading;		 /* but only if that one will take over */
	bool fresh;	    /* daemons that took over what was kept have died again and again */
	uint64_t restarts;  /* how often a daemon has served before us */
	int64_t ended_ns;   /* when the last of them ended; 0: there was none */
	int64_t restart_ns; /* from then on until we served; 0: there was none, or not yet */
	char reason[KEEP_TEXT_SIZE]; /* why it ended, and that we began without what it had */
	uint64_t forgets;	     /* how often the keeper was told to forget something */
	uint64_t forgotten_up_to;    /* of these: as many as it has done */
	void (*forgotten)(struct keep *k, uint64_t count); /* of these; NULL: nobody asks */
	void *context;					   /* of who does */
};

/* Finds out who keeps, and what is kept. Neither is in the environment afterwards. -ENOMEM. */
int keep_init(struct keep *k);
/* Forgets what nobody has taken, and closes the socket to the keeper. */
void keep_deinit(struct keep *k);

/* Hands over what is kept under @tag, which stays kept; -1: nothing is. */
int keep_take(struct keep *k, const char *tag);

/*
 * Has @fd_peek kept under @tag, which begins with KEEP_TAG_PREFIX; it replaces what was kept under
 * that tag. 0 too if nobody keeps. A negative errno: the keeper does not listen.
 */
int keep(struct keep *k, const char *tag, int fd_peek);
/*
 * What is kept under @tag is kept no longer. Closing a descriptor may take long if nobody else has
 * it open, and must not hold the keeper up: so our own one stays open until the keeper has said
 * that it has closed its. It has when @forgotten is called with the number of this call, which is
 * @forgets when it returns 0, or with a higher one.
 */
int keep_forget(struct keep *k, const char *tag);
/* How many calls of keep_forget() the keeper is done with. UINT64_MAX: there is no keeper; @k may
 * be NULL then. */
uint64_t keep_forgotten(const struct keep *k);
/* Forgets and closes what nobody has taken. */
void keep_forget_rest(struct keep *k);
/* What was kept cannot be taken over. When we end the next one is told to start afresh. */
void keep_afresh(struct keep *k, const char *why);
/* Another daemon is to take over, for the reason @why: @leaving will be set. */
void keep_renew(struct keep *k, const char *why);
/* We do not leave. */
void keep_stay(struct keep *k);
/* We serve from now on. */
void keep_served(struct keep *k);
/* Tells the service manager. */
void keep_notify(struct keep *k, const char *text);

/* To be called when @fd is readable. False: the keeper is gone, and @fd closed. */
bool keep_read(struct keep *k);
