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
 * All threads of a process may share one client. No function is a cancellation point of
 * pthread_cancel(), and none may be called by a signal handler.
 *
 * Functions that you pass, such as @visit or a deleter, have to return. They must not throw an
 * exception, call longjmp(), or end their thread.
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
 *	-ENOMEM		this process is out of memory or threads, or the daemon of memory or
 *			descriptors
 *	-EMFILE		this process has too many open descriptors
 *	-ENFILE		the system has too many open descriptors
 *	-EPROTO		the daemon answered something that the protocol does not allow
 *	-EIO		of a tensor on a GPU: CUDA's driver failed, which the text has the error of
 *
 * THE DAEMON
 *
 * If the daemon dies and has a keeper (tensorleased(8)), the next daemon has the same names,
 * versions and connections. Calls that need no request keep working meanwhile, and requests wait
 * for it.
 *
 * Otherwise the connection ends. A tensor whose memory is mapped can still be got. All other calls
 * connect again first, and fail with -ENOTCONN if no daemon is there: tl_stat(), tl_list() and
 * tl_get_status() do not show the tensors of a dead daemon. Connecting again may fail as
 * tl_connect() does, with -EACCES, -EPROTONOSUPPORT, -EUSERS or -EDQUOT, when another daemon has
 * other limits, users or versions. A call that waits notices the end
 * within milliseconds. It goes on with the next daemon, if that comes in time, and fails with
 * -ENOTCONN if not. The next daemon starts empty: names are published anew, with higher versions
 * than any before.
 *
 * The daemon may run as another user. The library checks its messages, descriptors and shared
 * memory before it uses them, and fails with -EPROTO if they are wrong. The daemon owns the memory,
 * however: if it truncates a segment, the next access raises SIGBUS, and the library cannot tell
 * whether the bytes are the ones that were published.
 *
 * CORE DUMPS
 *
 * Tensors in shared memory are left out of core dumps, unless TENSORLEASE_DUMP is 1 in the
 * environment when a client connects.
 *
 * FORK
 *
 * After fork() the child may keep reading and releasing every tensor that its parent held at that
 * moment, because it has leases of its own on them, and it may close all its descriptors, as
 * services do. Its other calls use a connection of their own, which is made when it is needed.
 * Drafts stay the parent's: only it commits them. The child may write to those that were exported
 * (tl_draft_to_dlpack()) until then, but its own children may not; other drafts it must not touch.
 *
 * A child that was made without the handlers of pthread_atfork(), by _Fork() or clone(), has no
 * leases of its own. What it releases, aborts or closes of its parent's is left as it is, and its
 * other calls with it fail with -ECHILD. It may call tl_connect(), where POSIX lets such a child
 * call anything.
 *
 * A program's own handlers may call the library if they were registered after it was loaded. In
 * others, within fork(), calls that need more than a mapped tensor fail with -EDEADLK.
 */
#ifndef TENSORLEASE_H
#define TENSORLEASE_H

#include <tensorlease/base.h>
#include <tensorlease/client.h>
#include <tensorlease/dlpack.h>
#include <tensorlease/get.h>
#include <tensorlease/group.h>
#include <tensorlease/names.h>
#include <tensorlease/publish.h>

#endif /* TENSORLEASE_H */
