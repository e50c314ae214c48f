/* SPDX-License-Identifier: Apache-2.0 */
/* Names: what there is, deleting, claims. A part of <tensorlease/tensorlease.h>. */
#ifndef TENSORLEASE_NAMES_H
#define TENSORLEASE_NAMES_H

#include <stddef.h>
#include <stdint.h>

#include <tensorlease/get.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Looking around ------------------------------------------------------------------------ */

/*
 * tl_stat - describe the tensor that a name means now
 *
 * Set info->size before the call.
 *
 * Ownership: *info is yours, and a copy.
 * Blocking: never, unless the connection has ended: then as tl_connect() does; or the name has a
 * ring that is new to this client: then for a round trip.
 * Threads: any.
 * Returns: 0, a common error, or
 *	-ENOENT		no tensor has that name
 * Since: 0.1
 */
TL_API int tl_stat(tl_client *client, const char *name, tl_info *info);

/*
 * tl_list - visit all tensors that have a name
 *
 * Calls @visit for each tensor below @prefix, in no order. A prefix is a path: "cam0" and "cam0/"
 * both mean cam0/rgb and cam0/left/rgb, but neither cam0 itself nor cam01/rgb. "" and NULL mean all
 * tensors. A tensor that is published or deleted meanwhile may be visited or not. @visit may call
 * any function of the library but tl_close() on this client.
 *
 * It looks through all names in use. From the third use of a prefix on, the daemon notes for the
 * client which names below it change, and the client looks at those only. That holds for the 8
 * prefixes that it used last.
 *
 * Ownership: *info is valid during the call of @visit only.
 * Blocking: never by itself, but as tl_connect() does if the connection has ended, and for a round
 * trip for each ring that is new to this client. If the daemon stands still when it is asked to
 * note changes, the call waits for it once, for 0.1 s.
 * Threads: any; @visit runs on the calling thread.
 * Returns: 0 when all were visited; the result of @visit if that was not 0, which ends the listing;
 * or a common error.
 * Since: 0.1
 */
TL_API int tl_list(tl_client *client, const char *prefix,
		   int (*visit)(const tl_info *info, void *context), void *context);

/* ---- Deleting ------------------------------------------------------------------------------ */

/*
 * tl_delete - forget a name and retire its tensor
 *
 * Processes that hold the tensor keep it. If the name is published again, its versions go on from
 * where they were.
 *
 * Ownership: nothing is handed over.
 * Blocking: for one round trip, or for two if the daemon has answered nothing since an earlier
 * commit of this client that did not ask, or since another call of this client that timed out.
 * Threads: any.
 * Returns: 0, a common error, or
 *	-ENOENT		no tensor has that name
 *	-EACCES		the name belongs to another user, or this user may not publish here
 * Since: 0.1
 */
TL_API int tl_delete(tl_client *client, const char *name);

/*
 * tl_delete_version - forget a name if it still means that version
 *
 * As tl_delete(), unless the name has been published again meanwhile. So a consumer that has used a
 * version can delete that one and no later one.
 *
 * Ownership: nothing is handed over.
 * Blocking: for one round trip, or for two if the daemon has answered nothing since an earlier
 * commit of this client that did not ask, or since another call of this client that timed out.
 * Threads: any.
 * Returns: 0, a common error, or
 *	-ENOENT		no tensor has that name
 *	-ESTALE		the name means another version by now
 *	-EACCES		the name belongs to another user, or this user may not publish here
 * Since: 0.2
 */
TL_API int tl_delete_version(tl_client *client, const char *name, uint64_t version);

/* ---- Claims -------------------------------------------------------------------------------- */

/* tl_claim_options - how to claim a name */
typedef struct tl_claim_options {
	size_t size;	    /* sizeof(tl_claim_options) */
	int64_t timeout_ns; /* how long to wait while another client has it; < 0: for ever */
} tl_claim_options;

/*
 * tl_claim - say that this client is going to publish a name
 *
 * A claim is for work that is to be done only once on the machine. The first client to claim a name
 * that means nothing has the claim, makes the tensor and publishes it. Others wait. When the name
 * is published, by any client, the calls of all that wait return -EEXIST. If the claim ends
 * earlier, by tl_unclaim(), tl_close() or the death of the process, the client that has waited
 * longest gets it.
 *
 * Publishing needs no claim, and a claim keeps nobody from publishing. A claim belongs to the
 * client, whose other threads wait as strangers do; a forked child does not have it. It outlives
 * the daemon if that has a keeper.
 *
 * Ownership: nothing is handed over.
 * Blocking: for a round trip and at most @options->timeout_ns, also if connections end meanwhile;
 * NULL: it does not wait.
 * Threads: any.
 * Returns: 0 if the claim is this client's, a common error, or
 *	-EEXIST		the name is published: get it
 *	-EBUSY		another client has the claim, and the timeout is 0
 *	-ETIMEDOUT	another client still had the claim when the time was over
 *	-EACCES		the user may not publish here
 *	-ENOSPC		this client, or all users, have as many claims and waiting requests as they
 *			may
 *	-EDQUOT		the same of this user
 * Since: 0.2
 */
TL_API int tl_claim(tl_client *client, const char *name, const tl_claim_options *options);

/*
 * tl_claim_many - say that this client is going to publish several names
 *
 * tl_claim() for each name, without waiting for other clients. If it fails, this client has none
 * of the claims. A name that comes twice is claimed once; the second outcome is -EBUSY, or 0 if
 * another daemon took over meanwhile.
 *
 * @names: @n names; @n may be 0.
 * @outcomes: gets what tl_claim() would return for each name: 0, -EEXIST, -EBUSY, -EACCES, -ENOSPC
 *	or -EDQUOT; tl_last_error() has the text of the last that was not 0.
 *
 * Ownership: nothing is handed over.
 * Blocking: for a round trip for each 64 names, or fewer if they are long, and for one more for
 * each name that may not be claimed.
 * Threads: any.
 * Returns: 0, or a common error
 * Since: 0.2
 */
TL_API int tl_claim_many(tl_client *client, const char *const *names, size_t n, int *outcomes);

/*
 * tl_unclaim - give up the claim on a name
 *
 * Does nothing if this client has no claim on it, as after it has published the name.
 *
 * Ownership: nothing is handed over.
 * Blocking: never, unless the connection has ended: then as tl_connect() does.
 * Threads: any.
 * Returns: 0 or a common error
 * Since: 0.2
 */
TL_API int tl_unclaim(tl_client *client, const char *name);

/*
 * tl_unclaim_many - give up the claims on several names
 *
 * tl_unclaim() for each name, by one message for as many as go into it.
 *
 * @names: @n names; @n may be 0. All are checked before the first claim is given up.
 *
 * Ownership: nothing is handed over.
 * Blocking: never, unless the connection has ended: then as tl_connect() does.
 * Threads: any.
 * Returns: 0 or a common error
 * Since: 0.2
 */
TL_API int tl_unclaim_many(tl_client *client, const char *const *names, size_t n);

#ifdef __cplusplus
}
#endif

#endif /* TENSORLEASE_NAMES_H */
