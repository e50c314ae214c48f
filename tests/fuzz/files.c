/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of tensors that nobody wrote on purpose, and files that change while they are read. Each is
 * either read or refused with a text, and the sanitizers watch. The test also runs changed samples
 * with a fixed seed ($TL_FUZZ_SEED, $TL_FUZZ_ROUNDS). The fuzzer's name says which format it reads.
 *
 * An input starts with two bytes: how many of the bytes behind them are the file at first, or 0 for
 * all. The bytes after those are what the file becomes.
 */
#include <errno.h>
#include <sys/mman.h>

#include "files/file.h"
#include "tests/fuzz/target.h"
#include "tests/harness/messages.h"

enum { READ_MAX = 1 << 20, SAMPLE_MAX = 1024 };

static int fd = -1; /* a file without a name that all inputs use */
static char path[32];

static void check(bool right)
{
	if (!right)
		abort();
}

static void become(const unsigned char *bytes, size_t n)
{
	check(ftruncate(fd, 0) == 0 && pwrite(fd, bytes, n, 0) == (ssize_t)n);
}

static void check_words(const char *err)
{
	check(!strncmp(err, path, strlen(path)) && strlen(err) > strlen(path) + 2);
	for (const char *c = err; *c; c++)
		check(*c >= ' ');
}

/*
 * Opens the file and reads all of its entries, after it has become @later if that is not NULL.
 * Returns whether all of it could be read.
 */
static bool feed(enum file_format format, const unsigned char *bytes, size_t n,
		 const unsigned char *later, size_t later_n)
{
	char err[FILE_ERROR_TEXT] = "";
	struct tensor_file f;
	int r;

	become(bytes, n);
	r = file_open(&f, path, format, err, sizeof(err));
	if (r) {
		check(r < 0);
		check_words(err);
		return false;
	}
	if (later)
		become(later, later_n);
	for (size_t i = 0; i < f.count && !r && f.nbytes < READ_MAX; i++) {
		/* exactly as many bytes, so that a sanitizer sees a write beyond them */
		void *data = malloc(f.entries[i].nbytes);

		r = file_read_entry(&f, i, data, NULL, NULL, err, sizeof(err));
		free(data);
	}
	if (r) {
		check(r < 0);
		check_words(err);
	}
	file_close(&f);
	return !r;
}

static void start(void)
{
	fd = memfd_create("file", MFD_CLOEXEC);
	check(fd >= 0);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
}

static enum file_format fuzzed;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input_bytes in = { data, size };
	size_t first;

	if (fd < 0)
		start();
	if (!fuzzed)
		fuzzed = file_format_by_name(program_invocation_short_name);
	check(fuzzed);
	first = take_u16(&in);
	if (first && first <= in.left)
		feed(fuzzed, in.at, first, in.at + first, in.left - first);
	else
		feed(fuzzed, in.at, in.left, NULL, 0);
	return 0;
}

#ifndef TL_LIBFUZZER
#define FILE_OF(format, text)                                                                      \
	{                                                                                          \
		format, sizeof(text) - 1, text                                                     \
	}

static const struct sample_file {
	enum file_format format;
	size_t n;
	const char *bytes;
} samples[] = {
	FILE_OF(FILE_NPY, "\x93NUMPY\x01\0\x33\0{'descr':'<i2','fortran_order':False,'shape':(2,)}"
			  "\n\1\2\3\4"),
	FILE_OF(FILE_NPY,
		"\x93NUMPY\x02\0\x33\0\0\0{'descr':'<i2','fortran_order':True,'shape':(2,2)}\n"
		"\1\2\3\4\5\6\7\b"),
	/* a.npy is stored, b.npy is deflated */
	FILE_OF(FILE_NPZ,
		"PK\x03\x04\x14\0\0\0\0\0\0\0!\0\xb8\x97\x66uA\0\0\0\x41\0\0\0\x05\0\0\0\x61.npy"
		"\x93NUMPY\x01\0\x33\0{'descr':'<i2','fortran_order':False,'shape':(2,)}\n\1\2\3\4"
		"PK\x03\x04\x14\0\0\0\x08\0\0\0!\0\x82\x1e\x82\x43\x46\0\0\0\x45\0\0\0\x05\0\0\0"
		"\x62.npy\x9b\xec\x17\xea\x1b\x10\xc9\xc8`\xccP\xad\x9e\x92Z\x9c\\\xa4n\xa5n\x93"
		"i\xa4\xae\xa3\x9e\x96_TR\x94\x98\x17\x9f_\x94\x92\n\x14\r)*M\xd5Q/\xceH,HU\xb7"
		"\xd2\x30\xd2\x31\xd2\xac\xe5\x62`dbfaec\x07\0"
		"PK\x01\x02\x14\x03\x14\0\0\0\0\0\0\0!\0\xb8\x97\x66uA\0\0\0\x41\0\0\0\x05\0\0\0"
		"\0\0\0\0\0\0\0\0\x80\x01\0\0\0\0\x61.npy"
		"PK\x01\x02\x14\x03\x14\0\0\0\x08\0\0\0!\0\x82\x1e\x82\x43\x46\0\0\0\x45\0\0\0\x05"
		"\0\0\0\0\0\0\0\0\0\0\0\x80\x01\x64\0\0\0\x62.npy"
		"PK\x05\x06\0\0\0\0\x02\0\x02\0\x66\0\0\0\xcd\0\0\0\0\0"),
	FILE_OF(FILE_SAFETENSORS,
		"\xc4\0\0\0\0\0\0\0{\"__metadata__\":{\"format\":\"\\u00e4\"},"
		"\"a.b\":{\"dtype\":\"F16\",\"shape\":[2,1],\"data_offsets\":[0,4]},"
		"\"c\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[4,6]},"
		"\"e\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[6,7]}}"
		"\1\2\3\4\5\6\7"),
	/* values as bytes, as a packed list, and one by one; and one value for all of them */
	FILE_OF(FILE_TENSORPROTO, "\x08\x03\x12\x08\x12\x02\x08\x01\x12\x02\x08\x02\x22\x08"
				  "\1\2\3\4\5\6\7\b"),
	FILE_OF(FILE_TENSORPROTO, "\x08\x03\x12\x04\x12\x02\x08\x03\x3a\x04\x01\xac\x02\x03"),
	FILE_OF(FILE_TENSORPROTO, "\x08\x08\x12\x04\x12\x02\x08\x02\x4d\0\0\x80\x3f\x4d\0\0\0\x40"),
	FILE_OF(FILE_TENSORPROTO, "\x08\x0a\x12\x04\x12\x02\x08\x28\x58\x01\xc2\x01\x03xyz"),
#ifdef HAVE_PNG
	/* a palette with a transparent colour */
	FILE_OF(FILE_PNG, "\211PNG\015\012\032\012\000\000\000\015IHDR\000\000\000\002"
			  "\000\000\000\001\002\003\000\000\000\211L\227\031\000\000\000\011PLT"
			  "E\001\002\003\004\005\006\007\010\011%\205V\360\000\000\000\001tR"
			  "NS\0119:`\302\000\000\000\012IDATx\332c\230\000"
			  "\000\000\222\000\221\277\252\201\366\000\000\000\000IEND\256B`"
			  "\202"),
#endif
};

enum { SAMPLES = sizeof(samples) / sizeof(samples[0]) };

static uint64_t number_from(const char *variable, uint64_t otherwise)
{
	const char *text = getenv(variable);

	return text ? strtoull(text, NULL, 0) : otherwise;
}

/* Changes some bytes, copies some to another place, or cuts the end off. */
static size_t mutate(unsigned char bytes[SAMPLE_MAX], size_t n, uint64_t *seed)
{
	static const unsigned char edges[] = { 0, 1, 2, 0x7f, 0x80, 0xfe, 0xff, '0', '9', '"' };
	unsigned changes = (unsigned)(samples_random(seed) % 4);
	uint64_t r = samples_random(seed);
	size_t from = r % n, to = (r >> 16) % n, len = (r >> 32) % 16;

	for (unsigned i = 0; i < changes; i++) {
		uint64_t c = samples_random(seed);

		bytes[(c >> 8) % n] = c & 1 ? edges[(c >> 40) % sizeof(edges)]
					    : (unsigned char)(c >> 48);
	}
	if (r >> 60 == 0)
		return from + 1;
	if (r >> 60 > 3 || from + len > n || n + len > SAMPLE_MAX)
		return n;
	memmove(bytes + to + len, bytes + to, n - to); /* makes space for @len bytes at @to */
	memmove(bytes + to, bytes + from, len);
	return n + len;
}

/* A changed sample in memory of exactly its size. */
static unsigned char *make(const struct sample_file *s, uint64_t *seed, size_t *n)
{
	unsigned char bytes[SAMPLE_MAX], *copy;

	memcpy(bytes, s->bytes, s->n);
	*n = mutate(bytes, s->n, seed);
	copy = malloc(*n);
	assert_non_null(copy);
	memcpy(copy, bytes, *n);
	return copy;
}

PLAIN_TEST(samples_are_read)
{
	for (int i = 0; i < SAMPLES; i++)
		assert_true(feed(samples[i].format, (const unsigned char *)samples[i].bytes,
				 samples[i].n, NULL, 0));
}

PLAIN_TEST(changed_files_never_break_the_reader)
{
	uint64_t seed = number_from("TL_FUZZ_SEED", 0x9e3779b97f4a7c15);
	uint64_t rounds = number_from("TL_FUZZ_ROUNDS", 30000), passed = 0;

	for (uint64_t i = 0; i < rounds; i++) {
		const struct sample_file *s = &samples[samples_random(&seed) % SAMPLES];
		size_t n;
		unsigned char *bytes = make(s, &seed, &n);

		passed += feed(s->format, bytes, n, NULL, 0);
		free(bytes);
	}
	assert_true(passed > rounds / 100); /* otherwise nothing would get beyond the first check */
	assert_true(passed < rounds);
}

PLAIN_TEST(files_that_change_while_they_are_read_never_break_the_reader)
{
	uint64_t seed = number_from("TL_FUZZ_SEED", 0x2545f4914f6cdd1d);
	uint64_t rounds = number_from("TL_FUZZ_ROUNDS", 30000);

	for (uint64_t i = 0; i < rounds; i++) {
		const struct sample_file *first = &samples[samples_random(&seed) % SAMPLES];
		const struct sample_file *then = &samples[samples_random(&seed) % SAMPLES];
		size_t n;
		unsigned char *bytes = make(then, &seed, &n);

		feed(first->format, (const unsigned char *)first->bytes, first->n, bytes, n);
		free(bytes);
	}
}

PLAIN_TEST(files_of_the_corpus_never_break_the_reader)
{
	for (fuzzed = FILE_FORMAT_UNKNOWN + 1; fuzzed < FILE_FORMATS; fuzzed++)
		assert_true(replay(file_format_name(fuzzed)) > 0);
}

int main(void)
{
	int r;

	start();
	r = suite_run();
	close(fd);
	return r;
}
#endif
