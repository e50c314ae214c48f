/* SPDX-License-Identifier: Apache-2.0 */
/* The end of the interpreter, the calls that are under way, and forks. */
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core.h"
#include "wait.h"

unsigned forks;

/* More are not noted: each is in a handler of a signal that came during the one before. */
enum { OWN_CALLS = 32 };

struct own_calls {
	const struct calls *of[OWN_CALLS];
	unsigned n;
};

/* The calls that this thread is in, of any client. */
static _Thread_local struct own_calls own;
/* In a child, those of the thread that forked: it goes on with them, and no other thread is there.
 * What is counted anew leaves the list. */
static struct own_calls inherited;

/* ---- The end of the interpreter ---- */

enum { IS_ENDING = 1U << 31 };

static _Atomic uint32_t within; /* how many threads are; IS_ENDING */
static _Thread_local uint32_t own_within;

bool interpreter_enter(void)
{
	uint32_t now = atomic_load(&within);

	do {
		/* Nothing says that it begins to end if atexit's functions are cleared, or run
		 * before we are imported. */
		if (now & IS_ENDING || !Py_IsInitialized())
			return false;
	} while (!atomic_compare_exchange_weak(&within, &now, now + 1));
	own_within++;
	return true;
}

void interpreter_leave(void)
{
	own_within--;
	if (atomic_fetch_sub(&within, 1) & IS_ENDING)
		syscall(SYS_futex, &within, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Gives the GIL up, which those who are within may need. A deleter of another library may block
 * for ever, which Ctrl-C ends. */
static PyObject *end_interpreter(PyObject *self, PyObject *unused)
{
	const struct timespec slice = { .tv_nsec = WAIT_SLICE_NS };
	uint32_t now = atomic_fetch_or(&within, IS_ENDING) | IS_ENDING;

	(void)self, (void)unused;
	for (; now != (IS_ENDING | own_within); now = atomic_load(&within)) {
		Py_BEGIN_ALLOW_THREADS;
		syscall(SYS_futex, &within, FUTEX_WAIT_PRIVATE, now, &slice, NULL, 0);
		Py_END_ALLOW_THREADS;
		if (PyErr_CheckSignals())
			return NULL;
	}
	Py_RETURN_NONE;
}

/* Functions of atexit run before the interpreter begins to end. A program may start another one
 * after that. */
int interpreter_await_end(void)
{
	static PyMethodDef method = { "end_interpreter", end_interpreter, METH_NOARGS, NULL };
	PyObject *atexit = PyImport_ImportModule("atexit");
	PyObject *function = atexit ? PyCFunction_New(&method, NULL) : NULL;
	PyObject *done = function ? PyObject_CallMethod(atexit, "register", "O", function) : NULL;

	Py_XDECREF(atexit);
	Py_XDECREF(function);
	Py_XDECREF(done);
	atomic_fetch_and(&within, ~(uint32_t)IS_ENDING);
	return done ? 0 : -1;
}

/* ---- Calls ---- */

static void count_fork(void)
{
	inherited = own;
	forks++;
	atomic_store(&within, (atomic_load(&within) & IS_ENDING) | own_within);
}

static void calls_look(struct calls *calls)
{
	if (calls->forks == forks)
		return;
	*calls = (struct calls){ .forks = forks };
	for (unsigned i = 0; i < inherited.n && i < OWN_CALLS; i++) {
		calls->count += inherited.of[i] == calls;
		if (inherited.of[i] == calls)
			inherited.of[i] = NULL;
	}
}

void calls_begin(struct calls *calls)
{
	calls_look(calls);
	calls->count++;
	if (own.n < OWN_CALLS)
		own.of[own.n] = calls;
	own.n++;
}

bool calls_end(struct calls *calls)
{
	calls_look(calls);
	own.n--;
	calls->count -= calls->count != 0;
	return calls->count == 0;
}

bool calls_any(struct calls *calls)
{
	calls_look(calls);
	return calls->count;
}

int interpreter_init(void)
{
	if (!pthread_atfork(NULL, NULL, count_fork))
		return 0;
	PyErr_NoMemory();
	return -1;
}
