/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Outcomes of calls into the state. A function returns 0, a negative errno (unexpected), or one of
 * these, on which its caller must act.
 */
#pragma once

enum state_outcome {
	STATE_E_FULL = 1, /* no room now; some may come when a lease ends */
	STATE_E_QUOTA,	  /* no room now in this user's quota */
	STATE_E_SOON,	  /* room is being made: try again when doomed segments are gone */
	STATE_E_BACKING,  /* call tensor_backed() when the segment's object has been made */
	STATE_E_NEVER,	  /* more than there will ever be */
	STATE_E_TENSORS,  /* the maximum of tensors is reached */
	STATE_E_DRAFTS,	  /* this client has too many drafts */
	STATE_E_BUCKET,	  /* too many names in one bucket */
	STATE_E_NOT_FOUND,
	STATE_E_DENIED,
	STATE_E_GONE,
	STATE_E_INVALID,
	STATE_E_CLIENTS,
	STATE_E_DEVICES, /* too many devices */
	STATE_E_FDS,	 /* too many descriptors that open memory */
	STATE_E_IMPORTS, /* this client has too many segments open */
	STATE_E_NOTICES, /* too many messages are queued for this client */
};
