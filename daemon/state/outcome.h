/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Outcomes of calls into the state. A function returns 0, a negative errno (unexpected), one of
 * these, which its caller must handle, or the outcome of account_take(): the share that is used up.
 */
#pragma once

#include "daemon/store/account.h"

enum state_outcome {
	STATE_E_FULL = CHARGE_E_FULL | SHARE_BYTES,  /* no space now; the end of a lease may free it
						      */
	STATE_E_QUOTA = CHARGE_E_USER | SHARE_BYTES, /* no space now in this user's share */
	STATE_E_TENSORS = CHARGE_E_FULL | SHARE_TENSORS, /* the catalog is full */
	STATE_E_SOON = 1, /* space is being freed: try again when segments are destroyed */
	STATE_E_BACKING,  /* call tensor_backed() when the segment's object has been made */
	STATE_E_NEVER,	  /* more than there can ever be */
	STATE_E_DRAFTS,	  /* this client has too many drafts */
	STATE_E_CLAIMS,	  /* this client has too many claims */
	STATE_E_WATCHES,  /* this client has too many watches */
	STATE_E_BUCKET,	  /* this user has too many names in one bucket */
	STATE_E_NOT_FOUND,
	STATE_E_DENIED,
	STATE_E_STALE,
	STATE_E_INVALID,
	STATE_E_CLIENTS,
	STATE_E_DEVICES,    /* too many devices */
	STATE_E_IMPORTS,    /* this client has too many segments open */
	STATE_E_NAMESPACES, /* all namespaces are taken */
	STATE_E_NOTICES,    /* too many messages are queued for this client */
};
