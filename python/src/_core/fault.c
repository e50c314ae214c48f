/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A write to a read-only mapping ends the process with SIGSEGV. The handler says on stderr which
 * tensor it was for, and what to do instead, and passes the signal on.
 *
 * The table is static, so that the handler never reads memory that another thread frees. An entry
 * is taken by the change of `begin` from FREE to TAKEN, and is valid once that is an address. If it
 * changes while the handler reads it, the line has a wrong name.
 */
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fault.h"

enum { ENTRIES = 4096, PROBES = 16 };
enum { FREE, TAKEN }; /* no addresses */

static struct entry {
	_Atomic uintptr_t begin, end;
	char name[TL_NAME_MAX + 1];
} entries[ENTRIES];
static _Atomic uint32_t next_entry;
atomic_bool faults_explained;
static struct sigaction former;

int fault_note_now(DLManagedTensorVersioned *managed, uint64_t nbytes)
{
	tl_info info = { .size = sizeof(info) };
	const DLTensor *t = &managed->dl_tensor;
	uintptr_t begin = (uintptr_t)t->data + t->byte_offset;

	if (!nbytes || t->device.device_type != kDLCPU ||
	    !(managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY) || tl_tensor_info(managed, &info))
		return -1;
	for (int i = 0; i < PROBES; i++) {
		uint32_t n = atomic_fetch_add(&next_entry, 1) % ENTRIES;
		uintptr_t was = FREE;

		if (!atomic_compare_exchange_strong(&entries[n].begin, &was, TAKEN))
			continue;
		memcpy(entries[n].name, info.name, sizeof(info.name));
		atomic_store(&entries[n].end, begin + nbytes);
		atomic_store(&entries[n].begin, begin);
		return (int)n;
	}
	return -1;
}

void fault_forget(int number)
{
	if (number >= 0)
		atomic_store(&entries[number].begin, FREE);
}

static size_t append(char *line, size_t at, const char *text)
{
	while (*text)
		line[at++] = *text++;
	return at;
}

/* Only calls functions that are safe in a handler. */
static void explain(uintptr_t address)
{
	char line[TL_NAME_MAX + 256];
	size_t at = 0;

	for (int i = 0; i < ENTRIES && !at; i++) {
		uintptr_t begin = atomic_load(&entries[i].begin);

		if (begin <= TAKEN || address < begin || address >= atomic_load(&entries[i].end))
			continue;
		at = append(line, at, "tensorlease: a write to tensor '");
		at = append(line, at, entries[i].name);
		at = append(line, at,
			    "' ends this process, since its memory is shared and read-only: "
			    "use its torch(), or get it with mode=\"c\"");
		line[at++] = '\n';
	}
	if (at && write(STDERR_FILENO, line, at) < 0)
		return;
}

static bool is_default(const struct sigaction *action)
{
	return !(action->sa_flags & SA_SIGINFO) &&
	       (action->sa_handler == SIG_DFL || action->sa_handler == SIG_IGN);
}

/* The former handler may raise the signal again for us: faulthandler does if it was enabled after
 * us. That must come at once, hence SA_NODEFER, and ends the process. */
static void on_fault(int number, siginfo_t *info, void *context)
{
	static const struct sigaction ends = { .sa_handler = SIG_DFL };
	static _Atomic pid_t passing; /* the thread that is in the former handler */
	pid_t self = (pid_t)syscall(SYS_gettid);
	bool again = atomic_exchange(&passing, self) == self;

	if (info->si_code == SEGV_ACCERR && !again)
		explain((uintptr_t)info->si_addr);
	if (again || is_default(&former)) {
		sigaction(number, &ends, NULL);
		if (info->si_code <= 0) /* sent by a process; else it comes again by itself */
			raise(number);
	} else if (former.sa_flags & SA_SIGINFO) {
		former.sa_sigaction(number, info, context);
	} else {
		former.sa_handler(number);
	}
	atomic_store(&passing, 0);
}

const char explain_faults_doc[] =
	"explain_faults()\n--\n\n"
	"From now on say on stderr which tensor it was, if a write to the read-only memory of a Tensor ends the process.\n\n"
	"Such a write is a SIGSEGV. It comes from libraries that ignore that an array is read-only, such as\n"
	"torch.from_numpy(tensor.numpy()). Tensors are known by name if they are got after this call, and of more than\n"
	"4,096 at once some are not. The signal is then passed on to the handler that was there before. If another handler\n"
	"has been installed since, as by faulthandler.enable() or in a worker of PyTorch's DataLoader, call it again: there\n"
	"in worker_init_fn. $TENSORLEASE_EXPLAIN_FAULTS=1 calls it at the import.";

PyObject *explain_faults(PyObject *module, PyObject *unused)
{
	struct sigaction action = { .sa_sigaction = on_fault,
				    .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER };
	struct sigaction now;

	(void)module, (void)unused;
	sigemptyset(&action.sa_mask);
	if (sigaction(SIGSEGV, NULL, &now))
		return PyErr_SetFromErrno(PyExc_OSError);
	if (!(now.sa_flags & SA_SIGINFO) || now.sa_sigaction != on_fault) {
		former = now;
		if (sigaction(SIGSEGV, &action, NULL))
			return PyErr_SetFromErrno(PyExc_OSError);
	}
	atomic_store(&faults_explained, true);
	Py_RETURN_NONE;
}
