/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files/input.h"
#include "util/cleanup.h"
#include "util/parallel.h"

enum { FIRST_BUFFER = 1 << 20 };

/* A pipe that nobody writes to yet must not keep a caller who wants to be asked meanwhile. */
int input_open_fd(const char *path, const struct report *to)
{
	const int flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | (to->interrupted ? O_NONBLOCK : 0);
	int fd = strcmp(path, "-") ? open(path, flags) : fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);

	return fd < 0 ? report_errno(to, "open") : fd;
}

/* What several threads read. */
struct reading {
	int fd;
	char *to;
	off_t offset;
	const struct report *tell;
	pthread_t caller;      /* signals come to it alone */
	_Atomic uint64_t size; /* as many bytes there are from the offset on, as far as is known */
	_Atomic int failure;   /* an errno */
};

static void read_part(const void *context, uint64_t begin, uint64_t end)
{
	struct reading *r = (struct reading *)(uintptr_t)context;

	while (begin < end && !r->failure) {
		ssize_t n = pread(r->fd, r->to + begin, end - begin, r->offset + (off_t)begin);
		uint64_t size = r->size;

		if (n > 0)
			begin += (uint64_t)n;
		else if (n < 0 && !(errno == EINTR && (!pthread_equal(pthread_self(), r->caller) ||
						       report_goes_on(r->tell))))
			r->failure = errno;
		if (n != 0)
			continue;
		while (begin < size && !atomic_compare_exchange_weak(&r->size, &size, begin))
			;
		return;
	}
}

static ssize_t read_parts(int fd, void *to, size_t size, off_t offset, unsigned threads,
			  const struct report *tell)
{
	struct reading r = { .fd = fd,
			     .to = to,
			     .offset = offset,
			     .tell = tell,
			     .caller = pthread_self(),
			     .size = size };

	parallel_run(threads, size, PARALLEL_BLOCK, read_part, &r);
	errno = r.failure;
	return r.failure ? -1 : (ssize_t)r.size;
}

ssize_t read_full(int fd, void *to, size_t size, off_t offset, const struct report *tell)
{
	const unsigned threads = offset < 0 ? 1 : parallel_threads(size, 0);
	size_t done = 0;

	if (threads > 1)
		return read_parts(fd, to, size, offset, threads, tell);
	while (done < size) {
		ssize_t n;

		if (offset < 0 && tell->interrupted && !report_await(tell, fd, POLLIN))
			return -1;
		if (offset < 0)
			n = read(fd, (char *)to + done, size - done);
		else
			n = pread(fd, (char *)to + done, size - done, offset + (off_t)done);
		if (n < 0 && errno == EINTR && report_goes_on(tell))
			continue;
		if (n < 0 && errno == EAGAIN && offset < 0 && tell->interrupted)
			continue; /* another process has read it */
		if (n < 0)
			return -1;
		if (n == 0)
			break;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

uint64_t input_memory_max(void)
{
	return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

int input_report_memory(const struct report *to)
{
	return report(to, -ENOMEM,
		      "the stream has more bytes than this machine has memory, %" PRIu64
		      ": write it to a file first",
		      input_memory_max());
}

static int report_endless(uint64_t limit, const struct report *to)
{
	if (limit == input_memory_max())
		return input_report_memory(to);
	return report(to, -EINVAL,
		      "the stream has more than %" PRIu64
		      " bytes, and no file of this format is that large",
		      limit);
}

/* A stream of @limit bytes is read with one byte more, to see that it ends there. */
static int read_stream(struct input *in, int fd, input_check *check, uint64_t limit,
		       const struct report *to)
{
	size_t done = 0, capacity = INPUT_HEAD;
	cleanup_(freep) char *buffer = NULL;
	int r;

	for (;;) {
		char *larger = realloc(buffer, capacity);
		ssize_t n;

		if (!larger)
			return report(to, -ENOMEM, "out of memory for %zu bytes", capacity);
		buffer = larger;
		n = read_full(fd, buffer + done, capacity - done, -1, to);
		if (n < 0)
			return report_errno(to, "read");
		r = check && !done ? check((unsigned char *)buffer, (size_t)n, to) : 0;
		if (r)
			return r;
		done += (size_t)n;
		if (done < capacity)
			break;
		if (done > limit)
			return report_endless(limit, to);
		capacity = capacity < FIRST_BUFFER ? FIRST_BUFFER : capacity * 2;
		if (capacity > limit)
			capacity = limit + 1;
	}
	in->size = done;
	in->buffer = take_ptr(buffer);
	return 0;
}

int input_open(struct input *in, const char *path, input_check *check, uint64_t limit,
	       const struct report *to)
{
	const uint64_t memory = input_memory_max();
	cleanup_(fd_closep) int fd = -1;
	struct stat st;
	off_t at;

	*in = (struct input){ .fd = -1 };
	fd = input_open_fd(path, to);
	if (fd < 0)
		return fd;
	if (fstat(fd, &st) < 0)
		return report_errno(to, "examine");
	if (!S_ISREG(st.st_mode))
		return read_stream(in, fd, check, limit < memory ? limit : memory, to);
	at = lseek(fd, 0, SEEK_CUR);
	if (at < 0)
		return report_errno(to, "examine");
	in->base = (uint64_t)at;
	in->size = st.st_size > at ? (uint64_t)(st.st_size - at) : 0;
	in->fd = take_fd(&fd);
	return 0;
}

void input_close(struct input *in)
{
	in->fd = fd_close(in->fd);
	free(in->buffer);
	in->buffer = NULL;
}

int input_read(const struct input *in, void *dst, size_t size, uint64_t offset,
	       const struct report *to)
{
	ssize_t n;

	if (offset > in->size || size > in->size - offset)
		return report(to, -EINVAL,
			      "truncated: %zu bytes are needed at byte %" PRIu64
			      ", the file has %" PRIu64,
			      size, offset, in->size);
	if (in->fd < 0) {
		if (size)
			memcpy(dst, in->buffer + offset, size);
		return 0;
	}
	n = read_full(in->fd, dst, size, (off_t)(in->base + offset), to);
	if (n < 0)
		return report_errno(to, "read");
	if ((size_t)n < size)
		return report(to, -EINVAL, "truncated: it became shorter while it was read");
	return 0;
}
