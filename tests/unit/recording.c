/* SPDX-License-Identifier: Apache-2.0 */
/* Recordings that are damaged, with checksums that are right. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <zlib.h>

#include "files/bytes.h"
#include "files/recording.h"
#include "tests/harness/harness.h"

enum { ROUNDS = 20000, FILE_MAX = 4096 };

struct memory {
	int fd;
	char path[32], why[FILE_ERROR_TEXT];
	struct report to;
	unsigned char bytes[FILE_MAX];
	size_t size;
};

/* An item of two tensors with metadata, and a tensor. */
static void record_some(struct memory *m)
{
	int64_t shape[2] = { 2, 3 };
	char data[24] = "abc";
	struct record_part parts[2] = { { .name = "obs" }, { .name = "reward" } };
	struct record record = { .kind = RECORD_ITEM,
				 .name = "a/b",
				 .time_ns = 1,
				 .metadata = "xyz",
				 .metadata_size = 3,
				 .parts = parts,
				 .count = 2 };
	struct recorder r;

	for (int i = 0; i < 2; i++)
		parts[i].tensor = (DLTensor){ .data = data,
					      .device = { kDLCPU, 0 },
					      .ndim = i ? 0 : 2,
					      .dtype = { kDLFloat, 32, 1 },
					      .shape = i ? NULL : shape };
	m->fd = memfd_create("recording", MFD_CLOEXEC);
	must(m->fd >= 0);
	snprintf(m->path, sizeof(m->path), "/proc/self/fd/%d", m->fd);
	m->to = (struct report){ .path = m->path, .text = m->why, .size = sizeof(m->why) };
	must_be(recorder_init(&r, m->path, 7, &m->to), 0);
	must_be(recorder_write(&r, &record), 0);
	record.kind = RECORD_TENSOR;
	record.count = 1;
	parts[0].name = NULL;
	must_be(recorder_write(&r, &record), 0);
	must_be(r.records, 2);
	m->size = r.size;
	must(m->size < FILE_MAX && pread(m->fd, m->bytes, m->size, 0) == (ssize_t)m->size);
	recorder_deinit(&r);
}

/* Reads all of it, and returns how many records there were, or an error. */
static int read_through(struct memory *m)
{
	struct recording file;
	struct record record;
	int r = recording_open(&file, m->path, &m->to), count = 0;

	while (!r && (r = recording_next(&file, &record)) > 0) {
		count++;
		r = strlen(record.name) ? 0 : -1;
		for (size_t i = 0; i < record.count && !r; i++) {
			const struct record_part *part = &record.parts[i];
			/* exactly as many bytes, so that a sanitizer sees a write beyond them */
			void *data = malloc(part->nbytes);

			must(part->nbytes < FILE_MAX && (data || !part->nbytes));
			r = recording_read(&file, part, data);
			must_be(r, 0);
			free(data);
		}
	}
	recording_close(&file);
	return r ? r : count;
}

/* Changes a few bytes of the first record's header, and makes its checksums right. */
static void damage(const struct memory *m, unsigned *seed)
{
	unsigned char b[FILE_MAX], *head = b + 64;
	uint32_t size;

	memcpy(b, m->bytes, m->size);
	for (int n = 1 + rand_r(seed) % 3; n; n--)
		head[8 + rand_r(seed) % 184] = (unsigned char)(rand_r(seed) % 4 ? rand_r(seed) % 16
										: rand_r(seed));
	size = get32(head + 40);
	if (size > 64 && size <= m->size - 64)
		put_number(head + 60, crc32(0, head + 64, size - 64), 4);
	put_number(head + 4, crc32(0, head + 8, 56), 4);
	must(pwrite(m->fd, b, m->size, 0) == (ssize_t)m->size);
}

TEST(what_is_damaged_is_refused_or_read_within_its_bounds)
{
	struct memory m = { 0 };
	unsigned seed = 1, refused = 0, whole = 0;

	record_some(&m);
	must_be(read_through(&m), 2);
	for (int i = 0; i < ROUNDS; i++) {
		int r;

		*m.why = '\0';
		damage(&m, &seed);
		r = read_through(&m);
		must(r >= 0 || strstr(m.why, "is damaged: "));
		refused += r < 0;
		whole += r == 2;
	}
	must(refused > ROUNDS / 10 && whole > ROUNDS / 100);
	close(m.fd);
}

/* Wherever it is cut, the records before are read. */
TEST(a_recording_may_end_anywhere)
{
	struct memory m = { 0 };

	record_some(&m);
	for (size_t size = m.size; size >= 64; size--) {
		int r;

		must_be(ftruncate(m.fd, (off_t)size), 0);
		r = read_through(&m);
		must_be(r, size == m.size ? 2 : size >= 64 + get64(m.bytes + 72));
	}
	must_be(ftruncate(m.fd, 63), 0);
	must_be(read_through(&m), -EINVAL);
	close(m.fd);
}

int main(void)
{
	return suite_run();
}
