/* SPDX-License-Identifier: Apache-2.0 */
/* The version, limits, errors. A part of <tensorlease/tensorlease.h>. */
#ifndef TENSORLEASE_BASE_H
#define TENSORLEASE_BASE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The version of the headers, from which the whole build takes it. tl_version() returns the version
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
 * Ownership: the text is the library's and stays until the next call that fails on this thread, or
 * the thread's end.
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

#ifdef __cplusplus
}
#endif

#endif /* TENSORLEASE_BASE_H */
