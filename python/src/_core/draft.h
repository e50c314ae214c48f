/* SPDX-License-Identifier: Apache-2.0 */
/* The Draft, and its functions for publishing. */
#pragma once

#include "array.h"

struct draft {
	struct array array;    /* has no hold once it has ended, or may have been committed */
	struct hold *doubted;  /* the hold of one that may have been committed, else NULL */
	struct client *client; /* a reference */
	PyObject *name;	       /* a str */
	PyObject *numpy;       /* a weak reference to the array that numpy() made, or NULL */
#ifdef Py_GIL_DISABLED
	PyObject *weak; /* to find out whether the draft is going away */
#endif
	struct draft *next, **link; /* in the client's list of open drafts, borrowed */
	unsigned long long version; /* set when it is committed */
	unsigned forks;		    /* forks between the process that loaded us and its maker */
	tl_draft *handle;	    /* on a GPU: for tl_draft_set_stream(), while there is a hold */
	struct stream stream;	    /* the stream that writes it, as far as known */
	bool stream_said;	    /* the user named it, so that no other stream counts */
	bool many_streams;	    /* consumers asked for several */
	bool closed;		    /* the end of its client aborted it */
	enum draft_state { DRAFT_OPEN, DRAFT_COMMITTED, DRAFT_ABORTED, DRAFT_UNKNOWN } state;
};

/* False with an exception: a grandchild of its process may not touch its memory. */
bool draft_is_here(PyObject *self);

/* tl_abort(), which may wait for space on a stream. Gives the GIL up meanwhile. */
void abort_py(tl_draft *draft);
PyObject *draft_from(struct client *c, PyObject *name, tl_draft *draft);

/*
 * Commits the draft under @name. @stream is the object that the stream of @options was read from,
 * or NULL. Sets *version if asked for, and *copied (may be NULL). Returns 0, or -1 with an
 * exception.
 */
int draft_publish(struct draft *d, PyObject *name, const tl_put_options *options, PyObject *stream,
		  uint64_t *version, bool *copied);

/* Aborts the client's drafts, whose memory ends with their last view. */
void drafts_abort(struct client *c);

/* Notes that the draft was published under @name, as @version if that is not 0. It has no memory
 * any more, and the array that numpy() made is read-only. */
void draft_committed(struct draft *d, PyObject *name, uint64_t version);

/* Makes an array of NumPy read-only, because others may read its bytes. It runs no Python code, so
 * that no signal handler can raise before that is done. */
void numpy_seal(PyObject *array);

/*
 * To be called after publishing its memory has failed with @r, whose exception is set. If @r leaves
 * open whether it was published, the state becomes unknown, and nobody can write to it any more.
 */
void draft_failed(struct draft *d, int r);

/* On a GPU: notes that a consumer will work on that stream. */
void draft_used_on(struct draft *d, intptr_t stream);
/* On a GPU: notes the stream that the user names; TL_STREAM_DEFAULT if none. Its views mark their
 * end there, so their hold keeps @owner, the object of that stream, or NULL. May run code. */
void draft_say_stream(struct draft *d, intptr_t stream, PyObject *owner);
/* On a GPU: the library may have noted another stream, for a publish of the memory that failed. */
void draft_keep_stream(struct draft *d);
/* False with an exception: consumers have asked for several streams, and the user named none. */
bool draft_stream_known(const struct draft *d);
bool stream_known(bool many);

/* Returns what an error about a missing name adds if the client has an open draft of that name, or
 * "". */
const char *draft_hint(const struct client *c, const char *name);
/* raise_error() for a call that looked for that name. */
void raise_missing(const struct client *c, const char *name, int r);
/* Returns a reference to the draft, open or unknown, whose bytes begin at that address, or NULL. */
struct draft *draft_with_bytes_at(struct client *c, const void *data);
