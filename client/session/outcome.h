/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Named outcomes of the library's own functions. Besides them a function returns 0, or a negative
 * errno whose text is there. call_run() acts on those of the first three groups.
 */
#pragma once

enum {
	/* ---- Of what needs the connection ---- */

	/* It is gone, and the daemon has not seen the message: try a new one. */
	SESSION_E_UNSENT = 1,
	SESSION_E_LOST, /* it went while we waited for the answer */
	/* Another daemon has taken the connection over, and does not know the request: send it
	 * again. session_call() does so itself. */
	SESSION_E_ADOPTED,

	/* ---- Why there is no lease, and why to look again ---- */

	LEASE_E_GONE,	  /* the tensor is not the name's any more */
	LEASE_E_UNSERVED, /* the daemon does not read our ledger: another session is needed */
	LEASE_E_FORKING,  /* fork() is at work: process_wait_fork() */

	/* ---- Of what was made with a daemon that is gone ---- */

	CALL_E_STALE, /* the draft is, and was not published: make it anew, once; its text is there
		       */

	/* ---- Why there is no lease, although all is well ---- */

	LEASE_E_NONE,	  /* no tensor has that name */
	LEASE_E_OLD,	  /* it is not newer than asked for */
	LEASE_E_TOO_MANY, /* the counter is at its maximum */
	LEASE_E_LOST,	  /* its memory is gone with the process that published it */
	LEASE_E_RING,	  /* the page of the name's ring is not mapped: ring_ask_page() */
	LEASE_E_UNMAPPED, /* taken and given back: its segment is not mapped yet */
	LEASE_E_SLOW,	  /* it takes more than memory that is mapped: lease_get() */
	LOOKUP_E_AGAIN,	  /* what the name means has just changed */

	/* ---- Of publishing ---- */

	PUBLISH_E_COPY, /* not ours, or not as it is: copy */
	RING_E_OVER,	/* the ring has ended: COMMIT, and hold on until that is answered */
	RING_E_NONE,	/* nothing was sent: commit it as others are */
};
