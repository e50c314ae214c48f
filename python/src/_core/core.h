/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C half of the Python package: connecting, getting, putting, and everything that needs DLPack
 * structs or the buffer protocol. Of the project it uses the public C API and transfer/transfer.h
 * only, and of CPython the stable ABI of 3.10. All functions need the GIL unless they say
 * otherwise; lock.h has the lock that replaces it where there is none. Deleters may be called on
 * any thread at any time.
 */
#pragma once

#define PY_SSIZE_T_CLEAN
#include <pyconfig.h>
#ifndef Py_GIL_DISABLED /* a free-threaded interpreter has no stable ABI */
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <tensorlease/admin.h>
#include <tensorlease/tensorlease.h>

#ifdef Py_LIMITED_API
#include "buffer_abi.h"
#endif

/*
 * The Py_RETURN_NONE of 3.12's headers assumes that None is immortal. It is not when the extension
 * runs on 3.11.
 */
#undef Py_RETURN_NONE
#define Py_RETURN_NONE return Py_NewRef(Py_None)

#define FASTCALL(function) ((PyCFunction)(void (*)(void))(function))

#define NS_PER_SEC INT64_C(1000000000)
#define CLIENT_TIMEOUT_NS (10 * NS_PER_SEC) /* of a client that was given none */

/* ---- Objects ---- */

extern unsigned forks; /* forks between the process that loaded us and this one */

/*
 * Calls that are under way on other threads. A forked child has none of its parent's, which would
 * never end there. The exception is a child that was forked by a signal handler within a call.
 */
struct calls {
	unsigned count;
	unsigned forks; /* when they were counted */
};

void calls_begin(struct calls *calls);
bool calls_end(struct calls *calls); /* true: it was the last */
bool calls_any(struct calls *calls);

/*
 * May this thread take the GIL, or call deleters of other libraries, which may take it? From the
 * time when the interpreter begins to end, which waits for those that are within, it may not:
 * Python ends a thread that then takes the GIL, wherever it is. Needs no GIL; leave if it returns
 * true. What would have been given up stays, as the process is about to end.
 */
bool interpreter_enter(void);
void interpreter_leave(void);
int interpreter_init(void);
int interpreter_await_end(void); /* it waits for those that are within, from now on */

struct draft;
struct ended_watch;

struct client {
	PyObject_HEAD tl_client *client; /* NULL: closed */
	int64_t timeout_ns;		 /* < 0: no limit */
	struct draft *drafts;
	struct calls calls;	   /* in the library now */
	bool closing;		   /* the last call closes it */
	struct calls ends;	   /* tl_close() is under way */
	struct ended_watch *ended; /* watches that ended meanwhile */
	uint32_t over;		   /* changes when the client closes, to interrupt waiting gets */
	uint32_t rescan;	   /* changes to interrupt wait_many() */
};

extern PyTypeObject *tensor_base, *draft_base, *client_base;
extern PyTypeObject *tensor_type; /* the Python class, which gets return */
extern PyTypeObject *draft_type;
extern PyObject *interface_reader; /* tensorlease._arrays.read_interface */
extern PyObject *values_reader;	   /* tensorlease._arrays.read_values */
extern PyObject *metadata_writer;  /* tensorlease._arrays.write_metadata */

int tensor_init(PyObject *module);
int draft_init(PyObject *module);
int client_init(PyObject *module);

bool is_tensor(PyObject *o);
bool is_draft(PyObject *o);

/* ---- Errors (errors.c) ---- */

int errors_init(PyObject *module);
/* Raise the exception for the library's @r, with the library's text or another. Return NULL. */
PyObject *raise_error(int r);
PyObject *raise_connect_error(int r);
PyObject *raise_text(int r, const char *format, ...);
/* Clears the exception that is set, if any, but keeps KeyboardInterrupt and its like. Returns
 * whether none is set now. */
bool clear_error(void);
/* Raises @class with the reason why a Tensor or Draft has no hold. */
void raise_ended(PyObject *self, PyObject *class);
/* Puts @name in front of the text of the exception that is set. */
void raise_again_with_name(PyObject *name);
PyObject *package_modules(PyObject *module, PyObject *unused);
PyObject *register_types(PyObject *module, PyObject *args);

/* ---- Arguments (arguments.c) ---- */

/*
 * Return the UTF-8 of a name, or of another @argument that must be a str without NUL. It is valid
 * as long as @o.
 */
const char *name_utf8(PyObject *o);
const char *text_utf8(const char *argument, PyObject *o);
/*
 * Converts a str, bytes or os.PathLike to new bytes. Returns NULL with an exception that names
 * @argument.
 */
PyObject *parse_path(const char *argument, PyObject *o);
/*
 * Converts seconds to nanoseconds; None is 0, inf is -1. Returns 0, or -1 with an exception that
 * names @argument.
 */
/* The sizes of a shape, a tuple of ints. @sizes has TL_NDIM_MAX places. */
int parse_sizes(PyObject *tuple, int64_t *sizes, int32_t *ndim);
int parse_seconds(const char *argument, PyObject *o, int64_t *ns);
/* check_seconds(argument, timeout): does the same for Python code. */
PyObject *check_seconds(PyObject *module, PyObject *args);
/* lacks_tensors() -> bool: whether the last error of this thread was about how many tensors or
 * drafts there may be, and not about bytes. */
PyObject *lacks_tensors(PyObject *module, PyObject *unused);
/* Converts @o, a ttl: seconds or None, which is 0. Returns -1 with an exception. */
int parse_ttl(PyObject *o, int64_t *ns);
/*
 * Converts the arguments ttl (seconds, or None), owner_bound and evictable, each of which may be
 * NULL. Returns 0, or -1 with an exception.
 */
int parse_lifetime(PyObject *ttl, PyObject *owner_bound, PyObject *evictable, int64_t *ttl_ns,
		   uint32_t *lifetime);
/*
 * Converts the argument ring: None (or NULL), "auto" or True is TL_RING_AUTO, False TL_RING_NONE,
 * and an int is how many slots. Returns 0, or -1 with an exception.
 */
int parse_ring(PyObject *o, uint32_t *ring);
/* Converts an unsigned int of 64 bits; NULL is 0. */
int parse_uint64(const char *argument, PyObject *o, uint64_t *number);
/* check_uint64(argument, number) -> int: does the same for Python code. */
PyObject *check_uint64(PyObject *module, PyObject *args);
int parse_mode(PyObject *o, enum tl_mode *mode);
/*
 * Takes a bytes-like object, a str or a dict; or None, which is a view without an object. Returns
 * 0, or -1 with an exception: one is that there are more than @limit bytes.
 */
int parse_metadata(PyObject *o, Py_ssize_t limit, Py_buffer *view);

/* A keyword of a call: its name, and where its value, which is borrowed, goes. */
struct keyword {
	const char *name;
	PyObject **value;
};

/*
 * Stores up to @positional arguments, and those by keyword, in @keywords, which ends with a NULL
 * name. Returns 0 or -1.
 */
int parse_arguments(const char *function, PyObject *const *args, Py_ssize_t nargs, PyObject *names,
		    Py_ssize_t positional, const struct keyword *keywords);

/*
 * Enclose a call of the library, during which the GIL may be given up. client_begin() returns false
 * with an exception if the client is closed.
 */
bool client_begin(struct client *c);
void client_end(struct client *c);
