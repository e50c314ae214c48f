/* SPDX-License-Identifier: Apache-2.0 */
/* A connection to the daemon. A part of <tensorlease/tensorlease.h>. */
#ifndef TENSORLEASE_CLIENT_H
#define TENSORLEASE_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include <tensorlease/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Connecting ---------------------------------------------------------------------------- */

/* TL_CONNECT_* - flags of tl_connect_options */
enum {
	/* If no daemon listens at the address, start one for this user and wait for it. */
	TL_CONNECT_AUTOSTART = 1,
};

/* tl_connect_options - which daemon to use, and how */
typedef struct tl_connect_options {
	size_t size;	     /* sizeof(tl_connect_options) */
	const char *address; /* a path or tensorlease://...; NULL: where tl_connect() looks */
	uint32_t flags;	     /* TL_CONNECT_* */
	uint32_t reserved;   /* 0 */
	int64_t timeout_ns;  /* how long a request waits for its answer, one for memory also a
				second for each 100 MB; 0: 10 seconds */
	const char *namespace_name; /* NULL: what the address says, else $TENSORLEASE_NAMESPACE,
				       else the default one; "": the default one */
	const char *label; /* what others are shown this client as, at most 31 bytes without control
			      characters; NULL or "": $TENSORLEASE_LABEL, else the program's name */
} tl_connect_options;

/*
 * tl_connect - connect to the daemon
 *
 * The daemon's address is options->address if that is set, else $TENSORLEASE_SOCKET, else
 * /run/tensorlease/socket if it exists, else $XDG_RUNTIME_DIR/tensorlease/socket if that directory
 * is this user's, or without that variable /run/user/UID/tensorlease/socket if it exists, else
 * /tmp/tensorlease-UID/socket.
 *
 * An address is the path of a socket, or tensorlease://NAMESPACE/PATH, which also names a
 * namespace: tensorlease://robots/run/tensorlease/socket. Without a path, as in
 * tensorlease://robots/, it means the socket that would be looked for without an address; without a
 * namespace, as in tensorlease:///run/x, it names none. A relative path is made absolute at once,
 * unless the result is longer than the 107 bytes of a socket's path. A client sees the names and
 * tensors of its namespace only. The daemon's configuration defines the namespaces, and the users
 * who may get and publish in each. `user-UID` is a user's own namespace, if the configuration
 * allows it.
 *
 * At any address, the user that listens there must be trusted: our own effective user, root (as
 * systemd does when it listens for a service), the system user `tensorlease` of the packaged
 * service, or one of the users in $TENSORLEASE_TRUST_UID, a list of numbers separated by commas.
 * That variable is for a daemon that another user runs, such as an account that a group shares. The
 * user that runs the daemon can read every tensor and forge any.
 *
 * TL_CONNECT_AUTOSTART starts $TENSORLEASE_DAEMON if that is set. Otherwise it looks for
 * tensorleased beside the library, where it was installed, beside the program and in $PATH, and
 * starts the first one that only root and our user can write or replace. It starts none at
 * /run/tensorlease/socket, unless the socket there is our user's: that is the system service's.
 * A call whose time is over before that program listens leaves it starting, and later calls wait
 * for that one.
 *
 * Ownership: *out is yours; give it back with tl_close().
 * Blocking: for two round trips, or until a daemon that was started listens; at most
 * options->timeout_ns.
 * Threads: any.
 * Returns: 0, a common error, or
 *	-ENOENT		there is no socket at that address, or no daemon to start
 *	-ENOTDIR	a part of that path is no directory
 *	-ECONNREFUSED	no daemon listens there
 *	-EACCES		the socket is not for us, the daemon is not of a user that we trust, the
 *			directory of a daemon to be started at a default address is not ours
 *			alone, or there is no namespace of that name that we may read
 *	-EPROTONOSUPPORT	the daemon speaks no version of the protocol that we speak
 *	-EUSERS		the daemon has as many clients as it may have
 *	-EDQUOT		this user has as many connections as it may have
 *	-EFBIG		this process may make no file as large as its ledger, which has 12 bytes for
 *			each of the daemon's --max-tensors (RLIMIT_FSIZE)
 *	-EPROTOTYPE	the socket is of another type, and so another program's
 *	-EINVAL		also: $TENSORLEASE_TRUST_UID was needed and is no such list, or
 *			$TENSORLEASE_LABEL is not allowed as a label
 * With TL_CONNECT_AUTOSTART also an error of mkdir(), for the directory of a default address, or of
 * posix_spawn().
 * Since: 0.1; in this order of arguments since 0.2
 */
TL_API int tl_connect(const tl_connect_options *options, tl_client **out);

/*
 * tl_close - close a connection
 *
 * Tensors that were got through @client stay valid until their deleters are called. Drafts that
 * were not committed are aborted; their handles may only be given to tl_abort() then.
 *
 * A tensor on a GPU that can outlive this process does so only once the GPU has written it and the
 * daemon knows. tl_close() waits for that, at most the client's timeout. It waits neither for
 * memory that dies with this process, nor for a tensor whose publishing failed with -EINPROGRESS or
 * whose memory is free again. exit() and a return from main() wait in the same way, for all clients
 * that are still open, but cannot report the result, and a timeout of "for ever" is 10 seconds
 * there. After _exit(), after a signal that ends the process, or after exit() in a forked child,
 * unfinished tensors are lost: call tl_close() first.
 *
 * Ownership: consumes @client, also on failure; NULL is allowed and does nothing.
 * Blocking: with tensors on GPUs, for at most the client's timeout. With a watch whose descriptor
 * is in use, until its thread has the answer that it may be waiting for; see tl_watch_fd().
 * Otherwise it waits for nothing.
 * Threads: any, but no other thread may be in a call on @client, or on one of its watches.
 * Returns: 0, or an error about tensors on GPUs that were published through this connection:
 *	-ETIMEDOUT	the GPU has not written all of them yet, or the daemon did not answer; they
 *			stay if this process lives on until they are written, else they are lost
 *	-EIO		the GPU failed to write some, and those are lost
 *	-ENOTCONN	the daemon ended first
 * Since: 0.1
 */
TL_API int tl_close(tl_client *client);

#ifdef __cplusplus
}
#endif

#endif /* TENSORLEASE_CLIENT_H */
