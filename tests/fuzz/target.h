/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each program of tests/fuzz/ is built in two ways. With TL_LIBFUZZER (`make fuzz`), libFuzzer
 * calls the target with inputs that it invents. Otherwise (`make test`) a cmocka program calls it
 * with the inputs in tests/fuzz/corpus/.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/harness/suite.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Checks what must be true whatever the input is. */
#define fuzz_check(condition)                                                                      \
	((condition) ? (void)0                                                                     \
		     : (fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition),  \
			abort()))

enum { FUZZ_INPUT_MAX = 16 << 10 };

/* The rest of an input. Reading beyond its end gives zeros. */
struct input_bytes {
	const uint8_t *at;
	size_t left;
};

static inline const uint8_t *take_bytes(struct input_bytes *in, size_t n)
{
	const uint8_t *p = in->at;

	if (in->left < n)
		return NULL;
	in->at += n;
	in->left -= n;
	return p;
}

static inline uint32_t take_u8(struct input_bytes *in)
{
	const uint8_t *p = take_bytes(in, 1);

	return p ? *p : 0;
}

static inline uint32_t take_u16(struct input_bytes *in)
{
	uint32_t low = take_u8(in);

	return low | take_u8(in) << 8;
}

#ifndef TL_LIBFUZZER
static inline void replay_file(int directory, const char *name)
{
	unsigned char *bytes = malloc(FUZZ_INPUT_MAX);
	int fd = openat(directory, name, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, bytes, FUZZ_INPUT_MAX);
	/* exactly as many bytes, so that a sanitizer sees a read beyond them */
	unsigned char *exact = malloc(n > 0 ? (size_t)n : 1);

	fuzz_check(bytes && exact && n >= 0);
	memcpy(exact, bytes, (size_t)n);
	close(fd);
	LLVMFuzzerTestOneInput(exact, (size_t)n);
	free(exact);
	free(bytes);
}

/* Runs every input of the corpus of that name and returns how many there are. */
static inline unsigned replay(const char *corpus)
{
	const char *all = getenv("TL_TEST_CORPUS");
	char path[4096];
	struct dirent *e;
	unsigned n = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "%s/%s", all ? all : "tests/fuzz/corpus", corpus);
	dir = opendir(path);
	fuzz_check(dir);
	while ((e = readdir(dir))) {
		if (e->d_name[0] == '.')
			continue;
		replay_file(dirfd(dir), e->d_name);
		n++;
	}
	closedir(dir);
	return n;
}
#endif
