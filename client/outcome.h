/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Named outcomes of the library's own functions. Besides them a function returns 0, or a negative
 * errno whose text is there. call_run() acts on those of the first three groups.
 */
#pragma once

enum {
	/* ---- The connection ---- */

	/* The connection has ended, and the daemon has not seen the message: try a new one. */
	SESSION_E_UNSENT = 1,
	SESSION_E_ENDED, /* the connection ended while we waited for the answer */
	/* Another daemon has taken the connection over, and does not know the request: send it
	 * again. session_call() does so itself. */
	SESSION_E_ADOPTED,

	/* ---- Why there is no lease, and why to look again ---- */

	LEASE_E_STALE,	  /* the name does not mean the tensor any more */
	LEASE_E_UNSERVED, /* the daemon does not read our ledger: another session is needed */
	LEASE_E_FORKING,  /* fork() is under way: process_wait_fork() */

	/* ---- Drafts of a daemon that has ended ---- */

	CALL_E_STALE, /* the draft is stale and was not published: make it anew, once; the text is
			 set */

	/* ---- Why there is no lease, although all is well ---- */

	LEASE_E_NONE,	  /* no tensor has that name */
	LEASE_E_OLD,	  /* it is not newer than requested */
	LEASE_E_TOO_MANY, /* the counter is at its maximum */
	LEASE_E_LOST,	  /* its memory went with the process that published it */
	LEASE_E_RING,	  /* the page of the name's ring is not mapped: ring_ask_page() */
	LEASE_E_UNMAPPED, /* taken and given back: its segment is not mapped yet */
	LEASE_E_SLOW,	  /* a mapping is not enough: lease_get() */
	LOOKUP_E_AGAIN,	  /* the name's meaning has just changed */

	/* ---- Of publishing ---- */

	PUBLISH_E_COPY, /* not in our memory, or not publishable as it is: copy */
	RING_E_OVER,	/* the ring has ended: COMMIT, and keep the hold until that is answered */
	RING_E_NONE,	/* nothing was sent: commit without a ring */
};
