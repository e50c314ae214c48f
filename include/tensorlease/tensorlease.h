/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensorlease - share named tensors between processes without a copy
 *
 * OVERVIEW
 *
 * A producer publishes a tensor under a name. Any other process gets it by that name, as a DLPack
 * tensor that lies in the same memory, and gives it back by calling the tensor's deleter. The
 * daemon, tensorleased(8), knows which tensors there are and who still holds them; getting and
 * releasing a tensor whose memory is already mapped does not involve it.
 *
 *	tl_client *client;
 *	DLManagedTensorVersioned *tensor;
 *
 *	if (tl_connect(NULL, &client) || tl_get(client, "cam0/rgb", NULL, &tensor))
 *		errx(1, "%s", tl_last_error());
 *	... read tensor->dl_tensor.data ...
 *	tensor->deleter(tensor);
 *	tl_close(client);
 *
 * Compile and link with the output of `pkg-config --cflags --libs tensorlease`, or with the CMake
 * target tensorlease::tensorlease. Programs with tensors on GPUs also need <tensorlease/cuda.h>.
 *
 * NAMES AND VERSIONS
 *
 * A name is 1 to 255 bytes of UTF-8, such as cam0/rgb: components separated by slashes, none of
 * them empty, "." or "..", and no control characters. A published tensor never changes. Publishing
 * another one under its name gives that name a new meaning and the next version. Versions start at
 * 1 and never go back, even if the daemon is restarted. A lease is one hold on a tensor: its bytes
 * stay as they are until every lease on it is released, even if the name is replaced or deleted. A
 * draft is a tensor that its producer is still writing and that nobody else can get. Its bytes may
 * lie in pages that readers of the same producer's other tensors have mapped: TL_CREATE_OWN_PAGES.
 *
 * CONVENTIONS
 *
 * A function that can fail returns 0 or a negative errno value. tl_last_error() then describes the
 * failure in words, with the names and the numbers. Arguments for results come last, and are
 * untouched on failure.
 *
 * Every function may be called from any thread at any time, unless its description says otherwise.
 * All threads of a process may share one client.
 *
 * Times are in nanoseconds. As a timeout, 0 means "do not wait" and a negative number "for ever";
 * only tl_connect_options differs, where 0 means 10 seconds.
 *
 * A round trip takes at most the client's timeout (tl_connect_options.timeout_ns). If the
 * connection has ended, a call connects again first, even one that never blocks otherwise.
 * Connecting is a round trip too, and asking again counts against the time of the first one. So no
 * daemon can make a call last longer than its own timeout plus the client's for each of its round
 * trips. A round trip that asks for memory on the CPU may take a second more for each 100 MB, in
 * which the daemon's kernel allocates it.
 *
 * A member or an argument called `flags` holds bits that this header defines for that struct or
 * function (TL_CONNECT_*, TL_PUBLISH_*, TL_GET_*). Those that DLPack defines (DLPACK_FLAG_*) are in
 * members called `dlpack_flags`. An unknown bit is refused with -EINVAL.
 *
 * STRUCTS
 *
 * A struct grows only at its end, so programs and libraries of different age understand each other:
 *
 * Each struct starts with its size. In a struct that you pass, set `.size = sizeof(the struct)` and
 * leave the members that you do not use 0, which always means the default; TL_INIT() does both. The
 * library takes members beyond your `size` as 0, and refuses a longer struct only if a member that
 * it does not know is not 0. In a struct that a function fills, also set `size` first; the
 * library fills as much as it knows and sets the rest to 0. In a struct that is passed to a
 * callback, `size` is the part that the library has filled.
 *
 * Elements of arrays have no size. They have reserved members instead. A reserved member must be 0
 * in any struct.
 *
 * A pointer to options may be NULL. All options then have their defaults.
 *
 * COMMON ERRORS
 *
 * Any function that takes a client may return these. The descriptions of the functions do not
 * repeat them unless they mean something particular there.
 *
 *	-EINVAL		an argument is wrong; the text names it, its value and the limit
 *	-ENOTCONN	the daemon has ended or was restarted; a later call connects again by itself
 *	-ECONNABORTED	an administrator has disconnected this client (tl_kick()); it stays so until
 *			it is closed
 *	-ETIMEDOUT	the daemon did not answer within the client's request timeout
 *	-ENOMEM		this process, or the daemon, is out of memory
 *	-EMFILE		this process has too many open descriptors
 *	-ENFILE		the system has too many open descriptors
 *	-EPROTO		the daemon answered something that the protocol does not allow
 *
 * THE DAEMON
 *
 * If the daemon dies and has a keeper (tensorleased(8)), the next daemon has the same names,
 * versions and connections. Calls that need no request keep working meanwhile, and requests wait
 * for it.
 *
 * Otherwise the connection ends. A tensor whose memory is mapped can still be got. All other calls
 * connect again first, and fail with -ENOTCONN if no daemon is there: tl_stat(), tl_list() and
 * tl_get_status() do not show the tensors of a dead daemon. A call that waits notices the end
 * within milliseconds. It goes on with the next daemon, if that comes in time, and fails with
 * -ENOTCONN if not. The next daemon starts empty: names are published anew, with higher versions
 * than any before.
 *
 * The daemon may run as another user. The library checks its messages, descriptors and shared
 * memory before it uses them, and fails with -EPROTO if they are wrong. The daemon owns the memory,
 * however: if it truncates a segment, the next access raises SIGBUS, and the library cannot tell
 * whether the bytes are the ones that were published.
 *
 * FORK
 *
 * After fork() the child may keep reading and releasing every tensor that its parent held at that
 * moment, because it has leases of its own on them, and it may close all its descriptors, as
 * services do. Its other calls use a connection of their own, which is made when it is needed.
 * Drafts stay the parent's: only it commits them. The child may write to those that were exported
 * (tl_draft_to_dlpack()) until then, but its own children may not; other drafts it must not touch.
 */
#ifndef TENSORLEASE_H
#define TENSORLEASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tensorlease/dlpack.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The version of this header, from which the whole build takes it. tl_version() returns the version
 * of the library that a program runs with.
 */
#define TL_VERSION_MAJOR 0
#define TL_VERSION_MINOR 2
#define TL_VERSION_PATCH 0

/* Limits of the protocol. Larger values are refused with -EINVAL. */
#define TL_NAME_MAX 255	     /* bytes of UTF-8 in a name, without the final NUL */
#define TL_NDIM_MAX 64	     /* dimensions of a tensor */
#define TL_METADATA_MAX 1024 /* bytes of user metadata of a tensor */

/* The longest time to live of a tensor, in nanoseconds: 10^9 seconds. */
#define TL_TTL_MAX INT64_C(1000000000000000000)

/* The first byte of a tensor lies at a multiple of this, as DLPack asks for. */
#define TL_ALIGNMENT 256

/*
 * A struct that starts with its size, with the members given and all others 0:
 * tl_get_options o = TL_INIT(tl_get_options, .timeout_ns = -1);
 */
#define TL_INIT(...) TL_INIT_(__VA_ARGS__, )
#ifdef __cplusplus /* of C++20 */
#define TL_INIT_(type, ...) (type{ .size = sizeof(type), __VA_ARGS__ })
#else
#define TL_INIT_(type, ...) ((type){ .size = sizeof(type), __VA_ARGS__ })
#endif

#if defined(__GNUC__)
#define TL_API __attribute__((visibility("default")))
#else
#define TL_API
#endif

/* A connection to a daemon, shared by all threads of a process. */
typedef struct tl_client tl_client;

/* A tensor that its producer is still writing. */
typedef struct tl_draft tl_draft;

/* Several tensors that their producer is still writing and will publish in one step. */
typedef struct tl_group tl_group;

/* ---- The library --------------------------------------------------------------------------- */

/*
 * tl_version - get the version of the library
 *
 * The version is "0.2.0", say. It may differ from that of the header a program was compiled with,
 * which TL_VERSION_MAJOR, TL_VERSION_MINOR and TL_VERSION_PATCH have.
 *
 * Ownership: the text is the library's.
 * Blocking: never.
 * Threads: any.
 * Returns: the version; never NULL.
 * Since: 0.1
 */
TL_API const char *tl_version(void);

/*
 * tl_last_error - get the reason for the last failure in words
 *
 * Describes the last failed call of this thread: the attempt and the reason, with the names and the
 * numbers. The text is meant for people; programs look at the errno value.
 *
 * Ownership: the text is the library's and stays until the next call that fails on this thread.
 * Blocking: never.
 * Threads: any; each has a text of its own.
 * Returns: the text, which is "" if no call has failed; never NULL.
 * Since: 0.1
 */
TL_API const char *tl_last_error(void);

/* TL_CAUSE_* - what tl_last_cause() tells */
enum {
	TL_CAUSE_NONE = 0,	/* nothing beyond the errno value */
	TL_CAUSE_NAMESPACE = 1, /* -EACCES: no namespace of that name may be read by this user */
	TL_CAUSE_NOBODY = 2,	/* -EACCES: the daemon's user namespace lacks this user */
	TL_CAUSE_TENSORS = 3,	/* -ENOSPC, -EDQUOT: too many tensors or drafts, not bytes */
	TL_CAUSE_TOO_LARGE = 4, /* -ENOSPC, -EDQUOT: it would not fit into empty memory either */
	TL_CAUSE_GROUP = 5,	/* -EACCES: the socket is for a group; the id is its gid */
	TL_CAUSE_UNTRUSTED = 6, /* -EACCES: the daemon's user is not trusted; the id is its uid */
};

/*
 * tl_last_cause - get the reason for the last failure as a number
 *
 * Tells programs what they may have to know about the last failed call of this thread beyond its
 * errno value. Take a number that you do not know as TL_CAUSE_NONE.
 *
 * Ownership: nothing is handed over. @id may be NULL.
 * Blocking: never.
 * Threads: any; each has a cause of its own.
 * Returns: one of TL_CAUSE_*, and in *id the uid or gid that belongs to it, or 0.
 * Since: 0.2
 */
TL_API uint32_t tl_last_cause(uint32_t *id);

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
} tl_connect_options;

/*
 * tl_connect - connect to the daemon
 *
 * The daemon's address is options->address if that is set, else $TENSORLEASE_SOCKET, else
 * /run/tensorlease/socket if it exists, else $XDG_RUNTIME_DIR/tensorlease/socket, else
 * /tmp/tensorlease-UID/socket.
 *
 * An address is the path of a socket, or tensorlease://NAMESPACE/PATH, which also names a
 * namespace: tensorlease://robots/run/tensorlease/socket. Without a path, as in
 * tensorlease://robots/, it means the socket that would be looked for without an address. A client
 * sees the names and tensors of its namespace only. The daemon's configuration defines the
 * namespaces, and the users who may get and publish in each. `user-UID` is a user's own namespace,
 * if the configuration allows it.
 *
 * At any address, the user that listens there must be trusted: our own effective user, root (as
 * systemd does when it listens for a service), the system user `tensorlease` of the packaged
 * service, or one of the users in $TENSORLEASE_TRUST_UID, a list of numbers separated by commas.
 * That variable is for a daemon that another user runs, such as an account that a group shares. The
 * user that runs the daemon can read every tensor and forge any.
 *
 * TL_CONNECT_AUTOSTART starts $TENSORLEASE_DAEMON if that is set. Otherwise it looks for
 * tensorleased beside the library, where it was installed, beside the program and in $PATH, and
 * starts the first one that only root and our user can write or replace.
 *
 * Ownership: *out is yours; give it back with tl_close().
 * Blocking: for two round trips, or until a daemon that was started listens; at most
 * options->timeout_ns.
 * Threads: any.
 * Returns: 0, a common error, or
 *	-ENOENT		there is no socket at that address, or no daemon to start
 *	-ECONNREFUSED	no daemon listens there
 *	-EACCES		the socket is not for us, the daemon is not of a user that we trust, the
 *			directory of a daemon to be started is not ours alone, or there is no
 *			namespace of that name that we may read
 *	-EPROTONOSUPPORT	the daemon speaks no version of the protocol that we speak
 *	-EUSERS		the daemon has as many clients as it may have
 *	-EINVAL		also: $TENSORLEASE_TRUST_UID was needed and is no such list
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

/* ---- Publishing ---------------------------------------------------------------------------- */

/*
 * TL_LIFETIME_* - when a tensor goes although its name was neither replaced nor deleted
 *
 * These are bits of the members called `lifetime` of tl_spec, tl_put_options and tl_group_item,
 * which also have a time to live, `ttl_ns`, that begins when the tensor is published; 0 means that
 * it has none. They may be combined; the first one to be over ends the tensor. It then goes as if
 * by tl_delete(): processes that hold it keep it. The next tensor under its name has a lifetime of
 * its own.
 */
enum {
	/* It goes when the connection of the client that published it ends: by tl_close(), with the
	 * process, however that ends, or when the connection is lost. */
	TL_LIFETIME_OWNER_BOUND = 1,
	/* The daemon may give it up while nobody holds it, when there is no space for another
	 * tensor: the least recently used first, and first those of the user who needs the space.
	 * Its last use is its last get, or the last time that it was seen to be held. A member of a
	 * group is given up by itself, but the memory of a group comes back with its last member.
	 * Tensors on a GPU are given up when the daemon has refused to share one more allocation
	 * there. */
	TL_LIFETIME_EVICTABLE = 2,
};

/*
 * TL_RING_* - publishing the same again and again
 *
 * A producer that publishes tensors of one type and shape under one name again and again may have a
 * ring: a set of slots, in which it publishes without asking the daemon. Consumers see no
 * difference. A ring is for tensors on the CPU with bytes, without a lifetime, with at most 6
 * dimensions and 24 bytes of metadata. It ends when anything else is published under the name, or
 * its producer's connection ends. All its slots are charged to the producer's user.
 *
 * 0 lets the library decide: the name gets a ring at the third equal publish with less than 2
 * seconds between them. Since a ring begins with up to ten round trips, a tl_commit() that does not
 * ask for its version leaves that to a later publish. Such a ring has up to 64 slots, takes at most
 * a sixteenth of the daemon's capacity if 3 slots fit into that, and is given back before any
 * request for memory is refused. Nothing is given up for a ring, and there is none unless a quarter
 * of the capacity and of the user's quota stays free. A number up to TL_RING_MAX asks for a ring of
 * so many slots, at the first publish. If there is no space for them, the ring has fewer, or there
 * is none; then publishes of this client ask again 100 ms later.
 */
#define TL_RING_AUTO 0		/* as the library decides */
#define TL_RING_MAX 64		/* slots */
#define TL_RING_NONE UINT32_MAX /* never */

/* TL_CREATE_* - flags of tl_spec */
enum {
	/*
	 * On the CPU: the tensor has pages of its own. They are zero at first, nothing else ever
	 * lies in them, and they go back to the kernel with the tensor. So its readers see nothing
	 * else of this producer, however long they keep their mappings (SECURITY.md has the rules
	 * for other tensors). It takes whole pages of the capacity, and each create asks the
	 * daemon, which makes the pages. There is no ring: @ring must be 0 or TL_RING_NONE.
	 */
	TL_CREATE_OWN_PAGES = 1,
};

/* tl_spec - description of a tensor to be created */
typedef struct tl_spec {
	size_t size;	       /* sizeof(tl_spec) */
	const int64_t *shape;  /* @ndim sizes, each 0 or more; may be NULL if @ndim is 0 */
	int32_t ndim;	       /* 0 to TL_NDIM_MAX */
	DLDataType dtype;      /* any DLPack code from 0 to 17 in its widths, with 1 lane or more */
	uint64_t dlpack_flags; /* DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED, or 0 */
	int64_t timeout_ns;    /* how long to wait for space if there is none */
	DLDevice device;       /* all 0 or kDLCPU: the CPU; kDLCUDA: the GPU of that number */
	int64_t ttl_ns;	       /* time to live, at most TL_TTL_MAX; 0: none */
	uint32_t lifetime;     /* TL_LIFETIME_* */
	uint32_t ring;	       /* TL_RING_*, or how many slots; 0: as the library decides */
	uint32_t flags;	       /* TL_CREATE_* */
	uint32_t reserved;     /* 0 */
} tl_spec;

/*
 * tl_create - make a draft, memory for a tensor that will be published
 *
 * Write the tensor through tl_draft_tensor(), then call tl_commit() or tl_abort(). The memory may
 * hold old bytes of this user, unless spec->flags has TL_CREATE_OWN_PAGES. On the CPU no request is
 * made if the library has a prefetched draft, because a tensor of the same size was published
 * before.
 *
 * On a GPU, whose number is that of CUDA in this process, the memory is the library's own, made
 * with CUDA's virtual memory management in units of 2 MiB. Tensors published in it outlive this
 * process, and consumers map them read-only. The memory is recycled: a producer that publishes the
 * same size again and again settles into a fixed set of allocations. Say with tl_draft_set_stream()
 * (in <tensorlease/cuda.h>) on which stream the tensor is written before tl_commit().
 *
 * Ownership: *out is yours; tl_commit() and tl_abort() consume it. @spec may go afterwards.
 * Blocking: for one round trip at most if there is space, else for at most spec->timeout_ns. The
 * daemon may take tl_connect_options.timeout_ns, and a second for each 100 MB, for the answer. On a
 * GPU without space it is at least 0.2 s if the library has memory there to unmap, which takes
 * until the work on that GPU has ended.
 * Threads: any.
 * Returns: 0, a common error, or
 *	-ENOSPC		the tensor does not fit into the daemon's capacity, or /dev/shm is full,
 *also when the time to wait for space is over -EDQUOT		the same for this user's quota
 *	-EACCES		the name belongs to another user
 *	-ENOTSUP	spec->device is neither the CPU nor a GPU of CUDA, or this driver or GPU has
 *			no virtual memory that can be exported, or TL_CREATE_OWN_PAGES on a GPU
 *	-ENODEV		CUDA cannot be used here, or there is no such GPU
 *	-ENOMEM		also: the memory of the GPU is full
 * Since: 0.1; on GPUs since 0.2
 */
TL_API int tl_create(tl_client *client, const char *name, const tl_spec *spec, tl_draft **out);

/*
 * tl_draft_tensor - describe the memory of a draft
 *
 * The tensor is writable and C-contiguous, with explicit strides, a byte_offset of 0 and data at a
 * multiple of TL_ALIGNMENT, or NULL if it has no bytes. Only its bytes may be changed: a commit or
 * an export of a draft whose tensor was changed fails with -EINVAL.
 *
 * Ownership: the tensor belongs to the draft and goes with it.
 * Blocking: never.
 * Threads: any.
 * Returns: the tensor, or NULL if @draft is NULL.
 * Since: 0.1
 */
TL_API DLTensor *tl_draft_tensor(tl_draft *draft);

/*
 * tl_draft_set_metadata - attach metadata to a draft
 *
 * Attaches @size opaque bytes, such as a timestamp or a frame number, which tl_tensor_info() and
 * tl_stat() show to consumers. They replace earlier metadata; a @size of 0 removes it.
 *
 * Ownership: the bytes are copied.
 * Blocking: never.
 * Threads: any, but only one at a time on a draft.
 * Returns: 0, or
 *	-EINVAL		@size is above TL_METADATA_MAX, or @metadata or @draft is NULL
 *	-ENOMEM		this process is out of memory
 * Since: 0.1
 */
TL_API int tl_draft_set_metadata(tl_draft *draft, const void *metadata, size_t size);

/*
 * tl_commit - publish a draft
 *
 * From now on the draft's name means this tensor, the tensor that it meant before is retired, and
 * nobody may write to the bytes any more.
 *
 * If @version is not NULL, the call waits for the daemon and stores the version of the tensor. If
 * it is NULL, the call sends one message and returns at once; the tensor is visible as soon as the
 * daemon has read that. Should the daemon refuse it then, or end before it has answered anything
 * later, this thread's next create or commit on this client fails and says so, once. A client keeps
 * such reports for 64 threads; further threads share one, which goes to whichever thread calls
 * next. A create or commit in a ring (TL_RING_*) does not ask the daemon and may leave the report
 * to a later one.
 *
 * Tensors become visible in the order of their commits. So a commit in a ring waits for one round
 * trip if the daemon has answered nothing since an earlier commit of this client that did not ask,
 * or since another call of this client that timed out.
 *
 * Ownership: consumes @draft, also on failure.
 * Blocking: for one round trip if @version is not NULL, or in a ring as said above.
 * Threads: any, but only one at a time on a draft.
 * Returns: 0, a common error, or
 *	-EINVAL		the tensor of tl_draft_tensor() was changed; the text says how
 *	-EACCES		the name belongs to another user
 *	-EDQUOT		the name is new, and the user has as many as it may have
 *	-ENOSPC, -EDQUOT	there is no space for a copy: a draft that is a slot of a ring,
 *			and has more than 24 bytes of metadata, is published as one
 *	-ESTALE		the draft is another process's, its client is closed, or the daemon that
 *			granted it has ended
 * Since: 0.1
 */
TL_API int tl_commit(tl_draft *draft, uint64_t *version);

/*
 * tl_abort - give a draft back unpublished
 *
 * The memory may be used for another draft at once, so nobody may write to it any more.
 *
 * Ownership: consumes @draft; NULL is allowed and does nothing.
 * Blocking: never.
 * Threads: any, but only one at a time on a draft.
 * Returns: nothing; it cannot fail.
 * Since: 0.1
 */
TL_API void tl_abort(tl_draft *draft);

/*
 * tl_draft_to_dlpack - turn a draft into a tensor that its deleter aborts
 *
 * This is for libraries that fill tensors of their own kind. Give *out, or any DLPack tensor
 * over the same bytes, to tl_publish() on the same client, which commits the draft without a copy.
 * Calling the deleter without that aborts the draft.
 *
 * Ownership: *out is yours and owns the draft; the handle @draft may then only be used for
 * tl_draft_set_stream().
 * Blocking: never.
 * Threads: any, but only one at a time on a draft.
 * Returns: 0, or
 *	-EINVAL		@draft or @out is NULL, or as tl_commit()
 *	-ESTALE		as tl_commit()
 * Since: 0.1
 */
TL_API int tl_draft_to_dlpack(tl_draft *draft, DLManagedTensorVersioned **out);

/*
 * TL_STREAM_* - streams of a GPU, numbered as in DLPack's Python protocol
 *
 * Any other value is a CUstream or cudaStream_t of the device's primary context. Tensors on the CPU
 * have no stream.
 */
#define TL_STREAM_DEFAULT ((intptr_t)0)	   /* none was given: the legacy default stream */
#define TL_STREAM_LEGACY ((intptr_t)1)	   /* CUDA's legacy default stream */
#define TL_STREAM_PER_THREAD ((intptr_t)2) /* the default stream of the calling thread */
#define TL_STREAM_NONE ((intptr_t)-1)	   /* no order is wanted: the caller ensures it */

/* TL_PUBLISH_* - flags of tl_put_options */
enum {
	/* tl_publish() and tl_publish_many(): fail with -ENOTSUP if a tensor would have to be
	 * copied. Functions that always copy refuse it with -EINVAL. */
	TL_PUBLISH_NO_COPY = 1,
	/* On a GPU: wait here until the stream has written the tensor, so that no consumer has to
	 * wait. This is right for weights. */
	TL_PUBLISH_SEALED = 2,
	/* On a GPU: copy the tensor, on that GPU, if its memory cannot be shared as it is. */
	TL_PUBLISH_STAGING = 4,
};

/* tl_put_options - how to publish a tensor that exists already */
typedef struct tl_put_options {
	size_t size;	       /* sizeof(tl_put_options) */
	const void *metadata;  /* opaque bytes to attach, which are copied; may be NULL */
	size_t metadata_size;  /* how many bytes, at most TL_METADATA_MAX */
	uint64_t dlpack_flags; /* DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED if the source is so */
	int64_t timeout_ns;    /* how long to wait for space for a copy if there is none */
	uint32_t flags;	       /* TL_PUBLISH_* */
	uint32_t lifetime;     /* TL_LIFETIME_* */
	intptr_t stream;   /* on a GPU: TL_STREAM_*, or the stream on which the source is written */
	int64_t ttl_ns;	   /* time to live, at most TL_TTL_MAX; 0: none */
	uint32_t ring;	   /* TL_RING_*, or how many slots */
	uint32_t reserved; /* 0 */
} tl_put_options;

/*
 * tl_put - publish a copy of a tensor
 *
 * Creates a draft, copies @source into it and commits it. The copy is C-contiguous. On the CPU the
 * source may have any strides, negative ones and 0 included, and any byte_offset. On a GPU it must
 * be C-contiguous; the copy lies on the same GPU, in memory as tl_create() makes it there, and is
 * queued on options->stream, on which the caller's next writes to the source must be queued too.
 *
 * Ownership: @source stays yours.
 * Blocking: as tl_create() does with options->timeout_ns, and as tl_commit() does with @version;
 * once more when a ring begins (TL_RING_*).
 * Threads: any.
 * Returns: 0, an error of tl_create() or tl_commit(), or
 *	-EINVAL		also: @source breaks a rule of DLPack, and the text says which
 *	-ENOTSUP	@source is neither on the CPU nor on a GPU of CUDA, or it is on a GPU and
 *			not C-contiguous
 *	-EBUSY		the stream is being captured into a graph
 * Since: 0.1
 */
TL_API int tl_put(tl_client *client, const char *name, const DLTensor *source,
		  const tl_put_options *options, uint64_t *version);

/*
 * tl_publish - publish a tensor by handing it over
 *
 * On the CPU no byte is copied if the tensor lies in memory that @client handed out: it is
 * contiguous and begins where an exported draft does, which is then committed, or is a tensor that
 * was got read-only, in its whole extent. Another one is copied once, and *copied says so; so is
 * one of another client. DLPack flags in @options are ignored, since the tensor has its own. A
 * lifetime in @options takes the place of that which the draft was created with; the draft's ring
 * is as it was created with.
 *
 * On a GPU nothing is copied unless options->flags has TL_PUBLISH_STAGING: the allocation in which
 * the tensor lies is exported. It keeps its strides, up to 16 dimensions, as long as they are above
 * 0 and no two elements overlap or interleave. Consumers wait, on their own streams, for the work
 * that was queued on options->stream when this was called. The library calls the tensor's deleter
 * when no lease is left on the publication and no process has the memory mapped; until then the
 * memory must stay as it is. Memory that was not made with CUDA's virtual memory management dies
 * with this process, and the publication with it: a later get fails with -ENODATA.
 *
 * A tensor on a GPU that was got has a second name then, as it has on the CPU, and its producer
 * keeps the memory until nobody uses it under either. If the GPU has not finished it, the call
 *waits for that.
 *
 * Deleters are called one after the other on one thread of the library, so a slow one delays the
 * others. If the daemon dies, the holders of a tensor are no longer known; the deleters are then
 * called by tl_close().
 *
 * Ownership: on success @tensor is consumed. On the CPU its deleter has been called; on a GPU the
 * library owns it until it calls the deleter, on any thread. On failure @tensor is still yours,
 * except after -EINPROGRESS.
 * Blocking: for one round trip if @version is not NULL, and as tl_put() does if it copies; with
 * TL_PUBLISH_SEALED until the GPU has written the tensor.
 * Threads: any.
 * Returns: 0, an error of tl_put(), or
 *	-ENOTSUP	a copy is needed and not allowed, or this memory of a GPU cannot be shared;
 *			the text gives the reason and the remedy
 *	-ENODATA	a tensor on a GPU that was got: its memory went with its producer
 *	-ENODEV		CUDA cannot be used here; the text names the missing part
 *	-ENOSPC		also: over the daemon's limit for that GPU, for all users together
 *	-EDQUOT		also: over the daemon's limit for that GPU, for one user
 *	-EINPROGRESS	on a GPU only: the daemon did not answer in time, or ended the connection
 *			first, so the tensor may have been published or still be. @tensor is the
 *			library's, as on success, and its deleter is called when nobody can hold it
 * Since: 0.1
 */
TL_API int tl_publish(tl_client *client, const char *name, DLManagedTensorVersioned *tensor,
		      const tl_put_options *options, bool *copied, uint64_t *version);

/* ---- Groups -------------------------------------------------------------------------------- */

/* TL_GROUP_* - flags of tl_group_item */
enum {
	/* The name is deleted in the same step, if it is there. Of the other members only @name is
	 * used; the rest must be 0. */
	TL_GROUP_DELETE = 1,
};

/* tl_group_item - one tensor of a group, or a name that the group deletes */
typedef struct tl_group_item {
	const char *name;      /* under which it will be published */
	const int64_t *shape;  /* @ndim sizes, each 0 or more; may be NULL if @ndim is 0 */
	int32_t ndim;	       /* 0 to TL_NDIM_MAX */
	DLDataType dtype;      /* as in tl_spec */
	uint64_t dlpack_flags; /* as in tl_spec */
	const void *metadata;  /* opaque bytes to attach, which are copied; may be NULL */
	size_t metadata_size;  /* how many bytes, at most TL_METADATA_MAX */
	int64_t ttl_ns;	       /* as in tl_spec */
	uint32_t lifetime;     /* as in tl_spec */
	uint32_t flags;	       /* TL_GROUP_* */
} tl_group_item;

/* tl_group_options - how to make a group */
typedef struct tl_group_options {
	size_t size;		 /* sizeof(tl_group_options) */
	int64_t timeout_ns;	 /* how long to wait for space if there is none */
	const DLDevice *devices; /* for each tensor the CPU or a GPU of CUDA; NULL: all on the CPU
				  */
} tl_group_options;

/*
 * tl_group_create - make a draft for several tensors
 *
 * All tensors of a group that are on the CPU lie in one segment, and those on a GPU in one
 * allocation of that GPU. Their memory comes back when the last of them has ended. Write each of
 * them through tl_group_tensor(), then call tl_group_commit() or tl_group_abort(). The names must
 * differ.
 *
 * Ownership: *out is yours; tl_group_commit() and tl_group_abort() consume it. @items and @options
 * may go afterwards.
 * Blocking: for one round trip if there is space, else for at most options->timeout_ns.
 * Threads: any.
 * Returns: 0, a common error, or an error whose text names the item:
 *	-EINVAL		@count is not 1 to 65,536, a name is there twice, or an item is wrong
 *	-ENOSPC		as tl_create()
 *	-EDQUOT		as tl_create()
 *	-ENODEV		as tl_create()
 *	-ENOTSUP	a device is neither the CPU nor one of CUDA
 * Since: 0.1
 */
TL_API int tl_group_create(tl_client *client, const tl_group_item *items, size_t count,
			   const tl_group_options *options, tl_group **out);

/*
 * tl_group_tensor - describe the memory of one tensor of a group
 *
 * The tensor is writable and laid out as that of tl_draft_tensor().
 *
 * Ownership: the tensor belongs to the group and goes with it.
 * Blocking: never.
 * Threads: any.
 * Returns: the tensor at @index, counted from 0; NULL if there is none, or a name to be deleted.
 * Since: 0.1
 */
TL_API DLTensor *tl_group_tensor(tl_group *group, size_t index);

/*
 * tl_group_commit - publish all tensors of a group in one step
 *
 * A consumer that gets one of the tensors in its new version, and then another of them, gets that
 * in its new version too. On failure none is published.
 *
 * Ownership: consumes @group, also on failure.
 * Blocking: for one round trip for all of them.
 * Threads: any, but only one at a time on a group.
 * Returns: 0, a common error, or
 *	-EINVAL		a tensor of tl_group_tensor() was changed; the text says how
 *	-EACCES		one of the names belongs to another user
 *	-ESTALE		as tl_commit()
 * Since: 0.1
 */
TL_API int tl_group_commit(tl_group *group);

/*
 * tl_group_abort - give a group back unpublished
 *
 * The memory may be used for another draft at once, so nobody may write to it any more.
 *
 * Ownership: consumes @group; NULL is allowed and does nothing.
 * Blocking: never.
 * Threads: any, but only one at a time on a group.
 * Returns: nothing; it cannot fail.
 * Since: 0.1
 */
TL_API void tl_group_abort(tl_group *group);

/*
 * tl_put_many - publish copies of several tensors in one step
 *
 * Makes a group, copies sources[i] into its tensor names[i] and commits it. @options hold for each
 * of the tensors, which may be on several devices, with strides and offsets as for tl_put().
 *
 * Ownership: @sources stay yours.
 * Blocking: as tl_group_create() does with options->timeout_ns, and as tl_group_commit() does.
 * Threads: any.
 * Returns: 0, or an error of tl_put(), tl_group_create() or tl_group_commit(), whose text names the
 * tensor. On failure none is published.
 * Since: 0.1
 */
TL_API int tl_put_many(tl_client *client, const char *const *names, const DLTensor *const *sources,
		       size_t count, const tl_put_options *options);

/*
 * tl_publish_many - publish several tensors in one step, those on GPUs where they lie
 *
 * Publishes tensors[i] under names[i]. Tensors on a GPU are not copied, those on the CPU are.
 * @options hold for each tensor, but TL_PUBLISH_STAGING is ignored; options->stream is the stream
 * of the tensors on GPUs. Unless @copied is NULL, *copied is the number of copied tensors. One on a
 * GPU that was got from another process is refused with -ENOTSUP: give it a second name with
 * tl_publish(), or copy it with tl_put_many().
 *
 * Ownership: takes @tensors over on success, and after -EINPROGRESS: their deleters are called, on
 * any thread, once nobody uses the tensors any more. On any other failure they stay yours.
 * Blocking: as tl_group_create() does with options->timeout_ns, and as tl_group_commit() does.
 * Threads: any.
 * Returns: 0, or an error of tl_publish(), tl_group_create() or tl_group_commit(). On failure none
 * is published.
 * Since: 0.2
 */
TL_API int tl_publish_many(tl_client *client, const char *const *names,
			   DLManagedTensorVersioned *const *tensors, size_t count,
			   const tl_put_options *options, size_t *copied);

/* ---- Getting ------------------------------------------------------------------------------- */

/* enum tl_mode - access to a tensor that was got */
enum tl_mode {
	/* The memory is shared and read-only: a write raises SIGSEGV. DLPack's READ_ONLY flag is
	 * set. */
	TL_MODE_READ = 0,
	/* The memory may be written. The changes are visible through this tensor alone: the kernel
	 * copies a page at the first write to it. */
	TL_MODE_COPY_ON_WRITE,
};

/* TL_GET_* - flags of tl_get_options */
enum {
	/* Succeed only if that takes no request, no wait and no system call, else fail with
	 * -EDEADLK. This is for a caller that holds a lock under which it must not block. */
	TL_GET_LOCAL = 1,
	/* The tensor is wanted on options->device. If it is on another one it is copied, and its
	 * DLPack flags have IS_COPIED. */
	TL_GET_DEVICE = 2,
};

/* tl_get_options - how to get a tensor */
typedef struct tl_get_options {
	size_t size;	     /* sizeof(tl_get_options) */
	int64_t timeout_ns;  /* how long to wait for the name, or for a version that is newer */
	uint64_t newer_than; /* accept only a version above this one; 0: any */
	int64_t spin_ns;     /* for how much of that time to spin before sleeping */
	enum tl_mode mode;   /* access to the tensor */
	uint32_t flags;	     /* TL_GET_* */
	intptr_t stream; /* on a GPU: TL_STREAM_*, or the stream on which the tensor will be used */
	DLDevice device; /* with TL_GET_DEVICE: where it is wanted, the CPU or a GPU of CUDA */
} tl_get_options;

/*
 * tl_get - take a lease on the tensor that a name means now
 *
 * The tensor is C-contiguous, unless it is on a GPU and was published with strides of its own. It
 * has explicit strides, a byte_offset of 0 and data, on the CPU at a multiple of TL_ALIGNMENT, or
 * NULL if it has no bytes. It stays as it is until its deleter is called, even if the name is
 * replaced or deleted, and after tl_close().
 *
 * The device of a tensor on a GPU has the number by which this process knows that GPU. Every get
 * makes options->stream wait for the producer's work; the caller does not wait. The deleter does
 * not wait either. It notes the work that is queued on that stream by then, and a thread of the
 * library gives up the lease when that work is done. So use the tensor on that stream, or order
 * other streams with it, and destroy that stream only after the deleter has returned. The GPU
 * enforces that memory which tl_create() made is only read. Other memory of a GPU is writable for
 * consumers, who must not write to it.
 *
 * With TL_GET_DEVICE a tensor on another device is copied, and only then: the copy is this
 * process's alone and writable. It is made on options->stream if it is on a GPU, and the lease on
 * the original is given up when it is made. With TL_STREAM_NONE, or on the CPU, the call waits
 * until it is. A copy on a GPU lies in memory as tl_create() makes it there and counts as that; one
 * on the CPU is C-contiguous and lies in memory of this process.
 *
 * Ownership: *out is yours; give it back by calling its deleter, on any thread.
 * Blocking: the first get of a segment is one round trip; later ones make no system call. If there
 * is no such name, or no version that is newer than options->newer_than, the call waits for at most
 * options->timeout_ns without asking the daemon. If the connection ends or has ended, it goes on
 * trying to connect until that time is over. A client that has waited once has a thread, which
 * sleeps until the connection ends. Where CUDA cannot open the event of a GPU tensor's producer, as
 * in some containers, the call also waits for the producer's work: for what is left of
 * options->timeout_ns, or at most the client's timeout if that is 0.
 * Threads: any.
 * Returns: 0, a common error, or
 *	-ENOENT		no tensor has that name, and the timeout is 0
 *	-EAGAIN		the tensor is not newer than options->newer_than, and the timeout is 0
 *	-EDEADLK	TL_GET_LOCAL was given, and the call would have to do more
 *	-ETIMEDOUT	also: no tensor came in time, or none that is newer, or its producer has not
 *			finished it
 *	-ENOTCONN	also: the time is over, and there is no daemon; the text says since when
 *	-EOVERFLOW	this process holds the tensor too often
 *	-ENODATA	the process that published the tensor has ended, and its memory on the GPU
 *			with it; no newer version came in time
 *	-ENODEV		CUDA cannot be used here, or the tensor is on a GPU that this process does
 *			not see; the text names its UUID
 *	-ENOTSUP	the tensor is on a GPU, where there is no copy-on-write, or it was published
 *			by a handle with an event that CUDA cannot open here
 *	-EBUSY		the stream is being captured into a graph, or a copy from a GPU is wanted
 *			while a blocking stream is captured there
 * Since: 0.1
 */
TL_API int tl_get(tl_client *client, const char *name, const tl_get_options *options,
		  DLManagedTensorVersioned **out);

/*
 * tl_get_many - take leases on several tensors as they were at one moment
 *
 * Stores the tensors in out[0] to out[@count - 1]. They are never partly from before and
 * partly from after a tl_group_commit(). Each of them has its own lease and its own deleter. The
 * options are those of tl_get(), but newer_than must be 0, and of the flags only TL_GET_DEVICE is
 * known. The call waits until all of the names are there.
 *
 * Ownership: each of them is yours; give it back by calling its deleter, on any thread.
 * Blocking: as tl_get() does.
 * Threads: any.
 * Returns: 0, or an error of tl_get(), whose text names the tensor; then @out is unchanged.
 * Since: 0.1
 */
TL_API int tl_get_many(tl_client *client, const char *const *names, size_t count,
		       const tl_get_options *options, DLManagedTensorVersioned **out);

/*
 * tl_remap - take another lease on a tensor that is held
 *
 * The new lease is on the same version, even if the name means another one by now, in the same mode
 * as @held or in another one. Once the daemon has ended, a copy-on-write tensor may be a copy from
 * the beginning; its DLPack flags have IS_COPIED then.
 *
 * Ownership: *out is yours and is released on its own; @held stays as it is.
 * Blocking: never for read-only; a copy-on-write mapping takes one round trip for the first of a
 * segment.
 * Threads: any.
 * Returns: 0, a common error, or
 *	-EINVAL		@held did not come from this library, or there is no such mode
 *	-ENOTCONN	the daemon that knows the tensor has ended, and the tensor cannot be mapped
 *			anew
 *	-EOVERFLOW	this process holds the tensor too often
 *	-ENODATA	as tl_get()
 *	-ENOTSUP	as tl_get()
 * Since: 0.1
 */
TL_API int tl_remap(const DLManagedTensorVersioned *held, enum tl_mode mode,
		    DLManagedTensorVersioned **out);

/*
 * TL_WAIT_PREFIX: `name` is a prefix, "" for all names: wait until there is a tensor whose name
 * starts with it. newer_than must be 0.
 */
#define TL_WAIT_PREFIX 1

/* tl_wait_item - one name to wait for */
typedef struct tl_wait_item {
	const char *name;    /* to wait for */
	uint64_t newer_than; /* accept only a version above this one; 0: any */
	uint64_t flags;	     /* TL_WAIT_PREFIX */
} tl_wait_item;

/* tl_wait_options - how to wait for names */
typedef struct tl_wait_options {
	size_t size;		   /* sizeof(tl_wait_options) */
	int64_t timeout_ns;	   /* for how long; 0: only look; < 0: for ever */
	const uint32_t *interrupt; /* a word that ends the wait, or NULL */
	uint32_t interrupt_value;  /* its value while the wait is to go on */
	uint32_t reserved;	   /* 0 */
} tl_wait_options;

/*
 * tl_wait_many - wait until one of several names means a tensor that is new enough
 *
 * Stores the index of that name in *which; the first one, if there are several. No lease is taken,
 * so the name may mean another tensor by the time of a tl_get().
 *
 * The wait can be ended from outside: it ends early if *options->interrupt is not, or no longer,
 * options->interrupt_value. Store another value there and wake it with FUTEX_WAKE_PRIVATE.
 *
 * Ownership: @items, the names in them and the word stay yours and must stay during the call.
 * Blocking: for at most options->timeout_ns. It sleeps as tl_get() does, and connects again as that
 * does. A prefix that the client uses again and again is watched for it, as tl_list() says; with
 * another prefix it looks through all names whenever a new one appears. With more than 125 names,
 * or on a kernel before 5.16, it looks every 5 ms instead. @count may be 0: then the call only
 * waits for options->interrupt.
 * Threads: any.
 * Returns: 0, a common error, or
 *	-ETIMEDOUT	also: none came in time
 *	-ECANCELED	*options->interrupt is not options->interrupt_value
 *	-EINTR		a signal handler ran
 * Since: 0.1
 */
TL_API int tl_wait_many(tl_client *client, const tl_wait_item *items, size_t count,
			const tl_wait_options *options, size_t *which);

/* tl_info - a description of a tensor */
typedef struct tl_info {
	size_t size;		       /* sizeof(tl_info) */
	char name[TL_NAME_MAX + 1];    /* under which it was published */
	uint64_t version;	       /* under that name, from 1 */
	uint64_t nbytes;	       /* bytes of the tensor itself, without metadata */
	uint64_t committed_ns;	       /* when it was published, by CLOCK_REALTIME */
	uint64_t dlpack_flags;	       /* of the tensor; without one, those that a get would show */
	DLDataType dtype;	       /* of its elements */
	uint32_t uid;		       /* the user who published it */
	DLDevice device;	       /* a GPU that this process has not used has the number -1 */
	unsigned char device_uuid[16]; /* of the GPU; 0 on the CPU */
	int32_t ndim;		       /* how many dimensions, and sizes in @shape */
	uint32_t metadata_size;	       /* how many bytes of @metadata */
	int64_t shape[TL_NDIM_MAX];    /* sizes of the dimensions */
	unsigned char metadata[TL_METADATA_MAX]; /* the bytes that its producer attached */
	bool lost;		   /* its memory is lost with the process that published it */
	unsigned char reserved[3]; /* 0 */
	uint32_t lifetime;	   /* TL_LIFETIME_* */
	int64_t ttl_ns;		   /* the rest of its time to live, at least 1; 0: it has none */
	uint32_t ring;	    /* how many slots the name's ring has; 0: none (TL_RING_*). Since 0.2 */
	uint32_t reserved2; /* 0 */
	int64_t strides[TL_NDIM_MAX]; /* in elements; those of C order unless it is on a GPU */
} tl_info;

/*
 * tl_tensor_info - describe a tensor that is held
 *
 * Shows the metadata too, which DLPack has no place for. Set info->size before the call.
 *
 * Ownership: *info is yours, and a copy; @tensor must not have been released.
 * Blocking: never.
 * Threads: any.
 * Returns: 0, or
 *	-EINVAL		@tensor did not come from tl_get(), or info->size is too small
 *	-ENOTCONN	the daemon that knows the tensor ended the connection; the tensor stays
 *			readable
 * Since: 0.1
 */
TL_API int tl_tensor_info(const DLManagedTensorVersioned *tensor, tl_info *info);

/*
 * tl_tensor_version - get the version of a tensor that is held
 *
 * As tl_tensor_info(), for the version alone.
 *
 * Ownership: *version is yours; @tensor must not have been released.
 * Blocking: never.
 * Threads: any.
 * Returns: 0, or
 *	-EINVAL		@tensor did not come from tl_get(), or @version is NULL
 *	-ENOTCONN	as tl_tensor_info()
 * Since: 0.2
 */
TL_API int tl_tensor_version(const DLManagedTensorVersioned *tensor, uint64_t *version);

/*
 * tl_tensor_check - check that the memory of a tensor is still there
 *
 * A tensor on a GPU may lie in its producer's memory, which goes with the producer. A tensor on the
 * CPU is always there.
 *
 * Ownership: @tensor must not have been released.
 * Blocking: never.
 * Threads: any.
 * Returns: 0, or
 *	-ENODATA	the memory is lost with its producer: do not use it
 *	-EINVAL		@tensor did not come from tl_get()
 * Since: 0.1
 */
TL_API int tl_tensor_check(const DLManagedTensorVersioned *tensor);

/* ---- Looking around ------------------------------------------------------------------------ */

/*
 * tl_stat - describe the tensor that a name means now
 *
 * Set info->size before the call.
 *
 * Ownership: *info is yours, and a copy.
 * Blocking: never, unless the connection has ended: then as tl_connect() does.
 * Threads: any.
 * Returns: 0, a common error, or
 *	-ENOENT		no tensor has that name
 * Since: 0.1
 */
TL_API int tl_stat(tl_client *client, const char *name, tl_info *info);

/*
 * tl_list - visit all tensors that have a name
 *
 * Calls @visit for each tensor whose name starts with @prefix ("" or NULL: for all), in no order. A
 * tensor that is published or deleted meanwhile may be visited or not. @visit may call any function
 * of the library but tl_close() on this client.
 *
 * It looks through all names in use. From the third use of a prefix on, the daemon notes for the
 * client which names below it change, and the client looks at those only. That holds for the 8
 * prefixes that it used last.
 *
 * Ownership: *info is valid during the call of @visit only.
 * Blocking: never by itself, but as tl_connect() does if the connection has ended. If the daemon
 * stands still when it is asked to note changes, the call waits for it once, for 0.1 s.
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
 * Blocking: for one round trip.
 * Threads: any.
 * Returns: 0, a common error, or
 *	-ENOENT		no tensor has that name
 *	-EACCES		the name belongs to another user
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
 * Blocking: for one round trip.
 * Threads: any.
 * Returns: 0, a common error, or
 *	-ENOENT		no tensor has that name
 *	-ESTALE		the name means another version by now
 *	-EACCES		the name belongs to another user
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
 *	-ENOSPC		this client, its user or all users have as many claims as they may
 * Since: 0.2
 */
TL_API int tl_claim(tl_client *client, const char *name, const tl_claim_options *options);

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

#ifdef __cplusplus
}
#endif

#endif /* TENSORLEASE_H */
