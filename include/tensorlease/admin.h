/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensorlease_admin - the state of a daemon, its clients and its users
 *
 * OVERVIEW
 *
 * Publishing and getting need none of this; see <tensorlease/tensorlease.h>. This header is for a
 * daemon that several people share. It shows the daemon's status, its clients and their leases, and
 * the use and limits of each user. It can disconnect a client or a user.
 *
 * A client sees the clients and the leases of its own namespace, and of the users only its own,
 * whose clients it may disconnect. Root and the daemon's own user see all users and may disconnect
 * all clients, but they too see those of their client's namespace only.
 */
#ifndef TENSORLEASE_ADMIN_H
#define TENSORLEASE_ADMIN_H

#include <tensorlease/tensorlease.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- The daemon ---------------------------------------------------------------------------- */

/* tl_keeper - the program that starts a daemon again when it dies, with the same tensors */
typedef enum tl_keeper {
	TL_KEEPER_NONE = 0,    /* none */
	TL_KEEPER_PROCESS = 1, /* its parent, unless tensorleased has --keeper no */
} tl_keeper;

/* tl_status - the state of a daemon */
typedef struct tl_status {
	size_t size;		  /* sizeof(tl_status) */
	char address[108];	  /* path of its socket */
	uint64_t started_ns;	  /* when it started, by CLOCK_REALTIME */
	uint64_t capacity;	  /* bytes of segments that it may make */
	uint64_t bytes_used;	  /* bytes of all segments, warm ones included */
	uint64_t bytes_warm;	  /* bytes that it keeps for the next tensor of the same size */
	uint64_t commits;	  /* tensors published since it started */
	uint32_t tensors;	  /* that a name means now */
	uint32_t retired;	  /* that no name means any more, but a client holds */
	uint32_t drafts;	  /* prefetched ones included */
	uint32_t segments;	  /* on the CPU and on GPUs */
	uint32_t clients;	  /* connections */
	uint32_t max_tensors;	  /* limit of tensors and drafts together */
	uint32_t max_clients;	  /* limit of connections */
	uint32_t daemon_pid;	  /* its process */
	uint64_t bytes_kept;	  /* of bytes_used, those that hold no tensor any more but that
				   * processes have mapped still; only with sealed memory. Since
				   * 0.2 */
	uint64_t longest_turn_ns; /* the longest time that one turn took since the daemon
				   * started: for that time one user's request kept all others
				   * waiting. In all namespaces. Since 0.2 */
	uint64_t restarts;	  /* how often another daemon has begun to serve where one had
				   * ended, under the same keeper. Since 0.2 */
	uint64_t restart_ns;	  /* how long no daemon served, at the last restart. Since 0.2 */
	char restart_reason[192]; /* why the last one ended, and why names were lost with it if
				   * they were; empty if there was none. Since 0.2 */
	uint32_t keeper;     /* tl_keeper: whether tensors survive the daemon's death. Since 0.2 */
	uint32_t rings;	     /* of names that are published without it. Since 0.2 */
	uint32_t ring_slots; /* that these rings have, held or not. Since 0.2 */
	uint32_t retyped;    /* how often a program gave a name another element type or shape than
			      * another program had given it within the last 60 seconds. Perhaps
			      * they use one name by chance. Since 0.2 */
	char retyped_name[TL_NAME_MAX + 1]; /* the last such name; empty if there is none, or if it
					     * has gone. Since 0.2 */
} tl_status;

/*
 * tl_get_status - get the state of the daemon
 *
 * Set status->size before the call. Once another daemon has come, started_ns is different. While it
 * takes over, daemon_pid and started_ns are its own already, and restarts changes when it serves.
 *
 * Ownership: *status is yours, and a copy.
 * Blocking: never, unless the connection has ended: then as tl_connect() does.
 * Threads: any.
 * Returns: 0, or a common error.
 * Since: 0.1
 */
TL_API int tl_get_status(tl_client *client, tl_status *status);

/*
 * tl_get_metrics - get the daemon's metrics as text
 *
 * Stores OpenMetrics 1.0 text, which Prometheus and others read, in *text: memory, tensors and
 * publishes by namespace, shares by user, errors, waits, turns and streams. They are of all
 * namespaces and users. Root and the daemon's user may get them.
 *
 * Ownership: *text is yours, ends in a zero byte, and goes with free().
 * Blocking: for one round trip.
 * Threads: any.
 * Returns: 0, a common error, or
 *	-EACCES		the client's user may not see other users
 * Since: 0.2
 */
TL_API int tl_get_metrics(tl_client *client, char **text);

/*
 * tl_restart - have another daemon take over
 *
 * The daemon ends between two messages, and its keeper starts another one, of the program that is
 * at its path by now, which takes over all tensors. This returns when the new daemon serves, and
 * tl_get_status() shows how long none did. Root and the daemon's user may do this.
 *
 * Ownership: nothing is handed over.
 * Blocking: until the other daemon serves.
 * Threads: any.
 * Returns: 0, a common error, or
 *	-ENOENT		the daemon has no keeper, or its program is not at its path any more, so
 *			nothing would start another one
 *	-EINVAL		the options or the configuration are wrong by now, or change what only a
 *			start can; the daemon goes on
 *	-ENOEXEC	the program at that path does not serve. Another daemon of the former one
 *			has taken over all tensors
 *	-EACCES		the daemon is another user's
 *	-ETIMEDOUT	no other daemon has come within the client's request timeout. A program that
 *			hangs is given up after 30 seconds
 * Since: 0.2
 */
TL_API int tl_restart(tl_client *client);

/*
 * LISTS
 *
 * A hostile daemon could list one entry after the other, for as long as the client's timeout
 * allows. So each list has a maximum length, beyond which a call fails with -EPROTO: four times as
 * many clients as the daemon serves at a time (tl_status.max_clients; others may come and go
 * meanwhile), 65,536 users, 64 GPUs, and as many tensors held as it has space for
 * (tl_status.max_tensors).
 */

/* ---- Clients ------------------------------------------------------------------------------- */

/* tl_client_info - one client of a daemon */
typedef struct tl_client_info {
	size_t size;	       /* what the library has filled */
	uint64_t id;	       /* never used twice by one daemon */
	uint32_t pid;	       /* the process that connected; 0 if in another PID namespace */
	uint32_t uid;	       /* its user */
	uint32_t gid;	       /* its group */
	uint32_t drafts;       /* that it is writing, prefetched ones included */
	uint64_t leases;       /* sum of its ledger */
	uint64_t tensors_held; /* tensors on which it has a lease */
	uint64_t bytes_held;   /* bytes of those */
	char label[32];	       /* its own name for itself: label of tl_connect_options */
	uint64_t since_ns;     /* when it connected, by CLOCK_REALTIME. Since 0.2 */
} tl_client_info;

/*
 * tl_list_clients - visit all clients of the namespace
 *
 * Calls @visit for each client, this one included.
 *
 * Ownership: *info is valid during the call of @visit only.
 * Blocking: for one round trip for each client; for the client's request timeout in all.
 * Threads: any; @visit runs on the calling thread.
 * Returns: as tl_list().
 * Since: 0.1
 */
TL_API int tl_list_clients(tl_client *client,
			   int (*visit)(const tl_client_info *info, void *context), void *context);

/* ---- Users --------------------------------------------------------------------------------- */

/* TL_SHARE_* - resources that users share, with a limit for each user */
enum {
	TL_SHARE_BYTES,	      /* of shared memory, in the whole daemon; the caller's own in its
			       * namespace, if that leaves it less */
	TL_SHARE_TENSORS,     /* drafts included, in the client's namespace, as those that follow */
	TL_SHARE_NAMES,	      /* names of tensors */
	TL_SHARE_SEGMENTS,    /* pieces of memory */
	TL_SHARE_DRAFTS,      /* tensors that are being written */
	TL_SHARE_CHUNKS,      /* pieces of long names, shapes and metadata */
	TL_SHARE_WATCHES,     /* names and prefixes that are watched */
	TL_SHARE_CONNECTIONS, /* in the whole daemon, as those that follow */
	TL_SHARE_PARTIAL,     /* connections that have said nothing yet */
	TL_SHARE_DESCRIPTORS, /* that the daemon keeps open */
	TL_SHARE_WAITS,	      /* requests that wait */
	TL_SHARE_MAPPINGS,    /* pieces of memory that a client has mapped, for each client */
	TL_SHARE_IN_FLIGHT,   /* descriptors sent to a client that it has not received yet */
	TL_SHARE_GPU_BYTES,   /* on the GPU of which the user has most */
	TL_SHARES,	      /* how many there are */
};

/* tl_share - a user's part of one resource */
typedef struct tl_share {
	uint64_t used;	      /* by the user */
	uint64_t max;	      /* that the user may have; UINT64_MAX: no limit */
	uint64_t used_by_all; /* users; UINT64_MAX: it counts in the whole daemon, where only root
			       * and the daemon's user see it */
	uint64_t capacity;    /* for all; UINT64_MAX: no limit */
} tl_share;

/* tl_user_info - a user's part of all resources */
typedef struct tl_user_info {
	size_t size;		    /* what the library has filled */
	uint32_t uid;		    /* the user */
	uint32_t reserved;	    /* 0 */
	uint64_t busy_ns;	    /* time that the daemon spent on requests of the user */
	tl_share shares[TL_SHARES]; /* by TL_SHARE_* */
} tl_user_info;

/*
 * tl_list_users - visit all users of the daemon
 *
 * Calls @visit for each user that has anything. Root and the daemon's own user see all users, and
 * others only themselves.
 *
 * Ownership: *info is valid during the call of @visit only.
 * Blocking: for one round trip for each user; for the client's request timeout in all.
 * Threads: any; @visit runs on the calling thread.
 * Returns: as tl_list().
 * Since: 0.2
 */
TL_API int tl_list_users(tl_client *client, int (*visit)(const tl_user_info *info, void *context),
			 void *context);

/*
 * tl_get_user - get the use and the limits of a user
 *
 * Fills *info, whose size the caller sets, for the user @uid, or for the client's own user if that
 * is UINT32_MAX. The daemon may know a user of a user namespace by another number. Root and the
 * daemon's own user may ask for any user, also for one that has nothing, and others for themselves.
 * The daemon learns a user's groups when the user connects: without a connection since it began,
 * limits that the configuration gives to groups are left out.
 *
 * Ownership: *info is yours, and a copy.
 * Blocking: for one round trip.
 * Threads: any.
 * Returns: 0, a common error, or
 *	-EACCES		the client's user may not see other users
 * Since: 0.2
 */
TL_API int tl_get_user(tl_client *client, uint32_t uid, tl_user_info *info);

/* ---- Who holds what ------------------------------------------------------------------------ */

/* tl_holding - a tensor that a client holds */
typedef struct tl_holding {
	size_t size;		    /* what the library has filled */
	char name[TL_NAME_MAX + 1]; /* under which it was published */
	uint64_t version;	    /* under that name; 0: it is memory for an item of the stream
				       of that name */
	uint64_t nbytes;	    /* bytes of the tensor */
	uint64_t leases;	    /* how many the client has on it */
	bool retired;		    /* the name means another tensor by now, or none */
	unsigned char reserved[7];  /* 0 */
} tl_holding;

/*
 * tl_list_holdings - visit all tensors that a client holds
 *
 * Calls @visit for each tensor on which the client with the id @client_id has a lease.
 *
 * Ownership: *holding is valid during the call of @visit only.
 * Blocking: for one round trip for each tensor; for the client's request timeout in all.
 * Threads: any; @visit runs on the calling thread.
 * Returns: as tl_list(), or
 *	-ENOENT		the daemon has no client with that id
 * Since: 0.1
 */
TL_API int tl_list_holdings(tl_client *client, uint64_t client_id,
			    int (*visit)(const tl_holding *holding, void *context), void *context);

/* tl_reader - a client that holds a tensor */
typedef struct tl_reader {
	size_t size;		    /* what the library has filled */
	char name[TL_NAME_MAX + 1]; /* under which the tensor was published */
	tl_identity client;	    /* who holds it */
	uint64_t leases;	    /* how many it has on this tensor */
} tl_reader;

/*
 * tl_list_readers - visit who holds the tensors of a name
 *
 * Calls @visit for each tensor that was published under @name, also for a retired one, and each
 * client of the namespace that has a lease on it; with NULL for those of all names. A client that
 * reads the newest tensor and gives it back holds it for that moment only. The tensors of one
 * client come one after the other. This takes a round trip for 28 of them, unlike
 * tl_list_holdings(). Names that mean nothing any more, and items of streams, are left out.
 *
 * Ownership: *reader is valid during the call of @visit only.
 * Blocking: for these round trips; for the client's request timeout in all.
 * Threads: any; @visit runs on the calling thread.
 * Returns: as tl_list(). It is no error if no tensor is called @name.
 * Since: 0.2
 */
TL_API int tl_list_readers(tl_client *client, const char *name,
			   int (*visit)(const tl_reader *reader, void *context), void *context);

/* ---- Disconnecting ------------------------------------------------------------------------- */

/*
 * tl_kick - disconnect a client
 *
 * Ends the connection of the client with the id @client_id, which tl_list_clients() tells. Its
 * calls fail with -ECONNABORTED from then on: the library does not connect again before the client
 * is closed. The tensors that it holds stay readable to it and are released as at any end of a
 * connection. Root, the daemon's user and the client's own user may do this.
 *
 * Ownership: nothing is handed over.
 * Blocking: for one round trip.
 * Threads: any.
 * Returns: 0, a common error, or
 *	-ENOENT		no other client with that id is connected
 *	-EACCES		the client is another user's
 * Since: 0.2
 */
TL_API int tl_kick(tl_client *client, uint64_t client_id);

/*
 * tl_kick_user - disconnect all clients of a user
 *
 * Ends, as tl_kick() does, the connections that the user has when this is called, other than that
 * of @client, and stores how many in *count.
 *
 * Ownership: nothing is handed over.
 * Blocking: for one round trip for each of them; for the client's request timeout in all.
 * Threads: any.
 * Returns: 0, a common error, or
 *	-ENOENT		the user has no other client
 *	-EACCES		@uid is another user
 * Since: 0.2
 */
TL_API int tl_kick_user(tl_client *client, uint32_t uid, uint32_t *count);

#ifdef __cplusplus
}
#endif

#endif /* TENSORLEASE_ADMIN_H */
