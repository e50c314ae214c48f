/* SPDX-License-Identifier: Apache-2.0 */
/* Reading files. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "files/input.h"
#include "tests/harness/harness.h"

enum { BYTES = (9 << 20) + 5, MORE = 3 << 20 };

static const struct report nobody = { .path = "file" };

static void fill(unsigned char *bytes)
{
	uint32_t x = 1;

	for (int i = 0; i < BYTES; i++) {
		x = x * 1664525 + 1013904223;
		bytes[i] = (unsigned char)(x >> 24);
	}
}

/* As much of it as several threads share, beyond its end too. */
TEST(a_large_file_is_read_to_its_end)
{
	static const off_t offsets[] = { 0, 1, 4095, 1 << 20 };
	unsigned char *bytes = malloc(BYTES), *got = malloc(BYTES + MORE + 1);
	int fd = memfd_create("file", MFD_CLOEXEC);

	must(bytes && got && fd >= 0);
	fill(bytes);
	must_be(write(fd, bytes, BYTES), BYTES);
	for (size_t i = 0; i < sizeof(offsets) / sizeof(*offsets); i++) {
		const ssize_t left = BYTES - offsets[i];

		for (ssize_t more = -1; more <= MORE; more += MORE / 2) {
			memset(got, 0xa5, BYTES + MORE);
			must_be(read_full(fd, got, (size_t)(left + more), offsets[i], &nobody),
				more < 0 ? left + more : left);
			must(!memcmp(got, bytes + offsets[i],
				     (size_t)(more < 0 ? left + more : left)));
			must_be(got[left + more], 0xa5);
		}
	}
	must_be(read_full(fd, got, BYTES, BYTES + MORE, &nobody), 0);
	close(fd);
	free(bytes);
	free(got);
}

TEST(a_large_read_that_fails_says_why)
{
	unsigned char *got = malloc(BYTES);
	int fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	must(got && fd >= 0);
	must_be(read_full(fd, got, BYTES, 0, &nobody), -1);
	must_be(errno, EISDIR);
	close(fd);
	free(got);
}

int main(void)
{
	return suite_run();
}
