/* SPDX-License-Identifier: Apache-2.0 */
/* Reading .npy files: malformed files are refused for the right reason. */
#include "tests/unit/npy_fixture.h"

static void put_file(const void *bytes, size_t size)
{
	int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, size), (ssize_t)size);
	close(fd);
}

/* Makes a file with that header, unpadded, and @data bytes 0, 1, 2, ... after it. */
static size_t make(unsigned char *to, unsigned version, const char *header, size_t data)
{
	size_t len = strlen(header), at = version == 1 ? 10 : 12;

	memcpy(to, "\x93NUMPY", 6);
	to[6] = (unsigned char)version;
	to[7] = 0;
	to[8] = (unsigned char)len;
	to[9] = (unsigned char)(len >> 8);
	if (version > 1)
		to[10] = to[11] = 0;
	memcpy(to + at, header, len);
	for (size_t i = 0; i < data; i++)
		to[at + len + i] = (unsigned char)i;
	return at + len + data;
}

/* The file must be refused with that text, and so must the same bytes through a pipe. */
static void assert_refused(const char *what, const void *bytes, size_t size, int error,
			   const char *reason)
{
	char err[FILE_ERROR_TEXT] = "", path[32];
	struct npy npy;
	int ends[2], r;

	put_file(bytes, size);
	r = npy_open(&npy, file, err, sizeof(err));
	if (r != error || !strstr(err, reason) || strncmp(err, file, strlen(file)) != 0)
		fail_msg("%s: %d, \"%s\"; should be %d, \"...%s...\"", what, r, err, error, reason);
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	assert_int_equal(write(ends[1], bytes, size), (ssize_t)size);
	close(ends[1]);
	snprintf(path, sizeof(path), "/dev/fd/%d", ends[0]);
	r = npy_open(&npy, path, err, sizeof(err));
	close(ends[0]);
	if (r != error)
		fail_msg("%s through a pipe: %d, \"%s\"; should be %d", what, r, err, error);
}

/* ---- what is refused ---- */

CASE(malformed_headers_are_refused_with_the_reason)
{
	static const struct {
		const char *header;
		int error;
		const char *reason;
	} cases[] = {
		{ "", -EINVAL, "ends where { should be" },
		{ "\n", -EINVAL, "ends where { should be" },
		{ "[]", -EINVAL, "no { at byte 0" },
		{ "{", -EINVAL, "ends where key should be" },
		{ "{}", -EINVAL, "descr is missing" },
		{ "{,}", -EINVAL, "no key at byte 1" },
		{ "{'descr'", -EINVAL, "ends where colon" },
		{ "{'descr' '<f4'}", -EINVAL, "no colon at byte 9" },
		{ "{'descr':", -EINVAL, "string for descr" },
		{ "{'descr': 4}", -EINVAL, "no string for descr" },
		{ "{'descr': '<f4", -EINVAL, "the end of a string" },
		{ "{'descr': '<f4\"}", -EINVAL, "the end of a string" },
		{ "{'descr': '<f\\x34'}", -EINVAL, "backslash" },
		{ "{'descr': '<f\n4'}", -EINVAL, "line break" },
		{ "{'descr': '<f4'}", -EINVAL, "fortran_order is missing" },
		{ "{'descr': '<f4', 'fortran_order': False}", -EINVAL, "shape is missing" },
		{ "{'descr': '<f4' 'shape': (1,)}", -EINVAL, "no comma or }" },
		{ "{'descr': '<f4',, 'shape': (1,)}", -EINVAL, "no key" },
		{ "{'descr': '<f4', 'descr': '<f4'}", -EINVAL, "descr occurs twice" },
		{ "{'descr': '<f4', 'colour': 1}", -EINVAL, "'colour' is not known" },
		{ "{'descr': '<f4', '': 1}", -EINVAL, "'' is not known" },
		{ "{'\x1b[31m': 1}", -EINVAL, "'?[31m' is not known" },
		{ "{'fortran_order': 0}", -EINVAL, "True or False" },
		{ "{'fortran_order': 'False'}", -EINVAL, "True or False" },
		{ "{'fortran_order': Falsely}", -EINVAL, "no comma or }" },
		{ "{'shape': 3}", -EINVAL, "no tuple for shape" },
		{ "{'shape': [3]}", -EINVAL, "no tuple for shape" },
		{ "{'shape': (3)}", -EINVAL, "a number, not a tuple" },
		{ "{'shape': (,)}", -EINVAL, "no size in shape" },
		{ "{'shape': (3,,4)}", -EINVAL, "no size in shape" },
		{ "{'shape': (3 4)}", -EINVAL, "comma or ) in shape" },
		{ "{'shape': (3,", -EINVAL, "size in shape" },
		{ "{'shape': (3", -EINVAL, "comma or ) in shape" },
		{ "{'shape': (-1,)}", -EINVAL, "size 0 in shape is negative" },
		{ "{'shape': (3, -1)}", -EINVAL, "size 1 in shape is negative" },
		{ "{'shape': (+1,)}", -EINVAL, "no size in shape" },
		{ "{'shape': (3L,)}", -EINVAL, "ends with L" },
		{ "{'shape': (3.0,)}", -EINVAL, "comma or ) in shape" },
		{ "{'shape': (1_000,)}", -EINVAL, "comma or ) in shape" },
		{ "{'shape': (03,)}", -EINVAL, "starts with 0" },
		{ "{'shape': (0x3,)}", -EINVAL, "comma or ) in shape" },
		{ "{'shape': (9223372036854775808,)}", -EINVAL, "larger than 9223372036854775807" },
		{ "{'shape': (99999999999999999999999,)}", -EINVAL,
		  "larger than 9223372036854775807" },
		{ "{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807,)}",
		  -EINVAL, "more than 9223372036854775807 bytes" },
		{ "{'descr': '|u1', 'fortran_order': False, 'shape': (4294967296, 4294967296)}",
		  -EINVAL, "more than 9223372036854775807 bytes" },
		{ "{'descr': '|u1', 'fortran_order': False, 'shape': (4294967296, 0, 4294967296)}",
		  -EINVAL, "more than 9223372036854775807 bytes" },
		{ "{'descr': '|u1', 'fortran_order': False, 'shape': ()} x", -EINVAL,
		  "follows the dictionary" },
		{ "{'descr': '|u1', 'fortran_order': False, 'shape': ()}{}", -EINVAL,
		  "follows the dictionary" },
	};
	unsigned char bytes[FILE_MAX];

	for (unsigned version = 1; version <= 3; version++) {
		for (size_t i = 0; i < COUNT(cases); i++)
			assert_refused(cases[i].header, bytes,
				       make(bytes, version, cases[i].header, 4), cases[i].error,
				       cases[i].reason);
	}
}

CASE(types_that_are_not_shared_are_refused_by_name)
{
	static const struct {
		const char *descr;
		int error;
		const char *reason;
	} cases[] = {
		{ "'|O'", -ENOTSUP, "Python objects" },
		{ "'|O8'", -ENOTSUP, "Python objects" },
		{ "'|V16'", -ENOTSUP, "void" },
		{ "'<V2'", -ENOTSUP, "bfloat16" },
		{ "'|S5'", -ENOTSUP, "byte strings" },
		{ "'<U5'", -ENOTSUP, "strings" },
		{ "'<M8[ns]'", -ENOTSUP, "datetime64" },
		{ "'<m8[s]'", -ENOTSUP, "timedelta64" },
		{ "'<f16'", -ENOTSUP, "long double" },
		{ "'<f12'", -ENOTSUP, "long double" },
		{ "'<c32'", -ENOTSUP, "complex long double" },
		{ "[('x', '<f4'), ('y', '<i4')]", -ENOTSUP, "structured" },
		{ "('<f4', (3,))", -ENOTSUP, "a shape of their own" },
		{ "''", -EINVAL, "not a type" },
		{ "'<'", -EINVAL, "not a type" },
		{ "'f'", -EINVAL, "not a type" },
		{ "'<f3'", -EINVAL, "not a type" },
		{ "'<f4 '", -EINVAL, "not a type" },
		{ "'<i16'", -EINVAL, "not a type" },
		{ "'<b4'", -EINVAL, "not a type" },
		{ "'!f4'", -EINVAL, "not a type" },
		{ "'<<f4'", -EINVAL, "not a type" },
		{ "'bfloat16'", -EINVAL, "not a type" },
		{ "'f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f4'", -EINVAL, "..." },
		{ "'\x1b[2J'", -EINVAL, "'?[2J'" },
	};
	unsigned char bytes[FILE_MAX];
	char header[256];

	for (size_t i = 0; i < COUNT(cases); i++) {
		snprintf(header, sizeof(header),
			 "{'descr': %s, 'fortran_order': False, 'shape': (1,), }\n",
			 cases[i].descr);
		assert_refused(header, bytes, make(bytes, 1, header, 16), cases[i].error,
			       cases[i].reason);
	}
}

#define GOOD "{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }\n"

CASE(a_file_cut_off_anywhere_is_refused)
{
	unsigned char bytes[FILE_MAX];

	for (unsigned version = 1; version <= 3; version++) {
		size_t size = make(bytes, version, GOOD, 12);

		for (size_t n = 0; n < size; n++)
			assert_refused("cut off", bytes, n, -EINVAL, "truncated");
	}
}

CASE(a_file_with_other_sizes_than_promised_is_refused_with_both)
{
	unsigned char bytes[FILE_MAX];

	assert_refused("short", bytes, make(bytes, 1, GOOD, 7), -EINVAL,
		       "promises 12 bytes of data, there are 7");
	assert_refused("long", bytes, make(bytes, 1, GOOD, 13), -EINVAL, "there are 13");
	assert_refused("long", bytes, make(bytes, 1, GOOD, 1000), -EINVAL, "988 bytes too many");
	assert_refused("huge", bytes,
		       make(bytes, 1,
			    "{'descr':'|u1','fortran_order':False,'shape':(9223372036854775807,)}",
			    3),
		       -EINVAL, "promises 9223372036854775807 bytes of data, there are 3");
}

CASE(a_header_that_is_none_is_refused)
{
	unsigned char bytes[FILE_MAX];
	size_t size = make(bytes, 1, GOOD, 12);

	assert_refused("text", "hello, this is text", 19, -EINVAL, "not a .npy file");
	assert_refused("zip", "PK\x03\x04", 4, -EINVAL, "not a .npy file");
	assert_refused("ASCII", "\x93numpy\x01\x00", 8, -EINVAL, "not a .npy file");
	bytes[6] = 0;
	assert_refused("version 0", bytes, size, -EINVAL, "version 0.0");
	bytes[6] = 4;
	assert_refused("version 4", bytes, size, -EINVAL, "version 4.0");
	bytes[6] = 1;
	bytes[7] = 1;
	assert_refused("version 1.1", bytes, size, -EINVAL, "version 1.1");
	size = make(bytes, 2, GOOD, 12);
	bytes[10] = 0x10; /* more than 1 MiB */
	assert_refused("long header", bytes, size, -EINVAL, "at most 1048576");
	bytes[11] = 0xff;
	assert_refused("very long header", bytes, size, -EINVAL, "at most 1048576");
	size = make(bytes, 1, GOOD, 12);
	bytes[10] = '\0';
	assert_refused("a NUL", bytes, size, -EINVAL, "no { at byte 0");
	bytes[10] = '{';
	bytes[10 + sizeof(GOOD) - 2] = '\0'; /* instead of the line break */
	assert_refused("a NUL at the end", bytes, size, -EINVAL, "follows the dictionary");
}

CASE(more_than_64_dimensions_are_refused)
{
	unsigned char bytes[FILE_MAX];
	char header[512] = "{'descr': '|u1', 'fortran_order': False, 'shape': (";
	char err[FILE_ERROR_TEXT];
	struct npy npy;

	for (int i = 0; i < 64; i++)
		strcat(header, "1,");
	strcat(header, ")}");
	put_file(bytes, make(bytes, 1, header, 1));
	assert_int_equal(npy_open(&npy, file, err, sizeof(err)), 0);
	assert_int_equal(npy.ndim, 64);
	npy_close(&npy);
	strcpy(strrchr(header, ')'), "1)}");
	assert_refused("65 dimensions", bytes, make(bytes, 1, header, 1), -EINVAL, "more than 64");
}

CASE(what_cannot_be_opened_says_so)
{
	char err[FILE_ERROR_TEXT], small[8];
	struct npy npy;

	assert_int_equal(npy_open(&npy, file, err, sizeof(err)), -ENOENT);
	assert_non_null(strstr(err, "cannot open: No such file"));
	assert_int_equal(npy_open(&npy, directory, err, sizeof(err)), -EISDIR);
	assert_non_null(strstr(err, "cannot read"));
	assert_int_equal(npy_open(&npy, file, small, sizeof(small)), -ENOENT);
	assert_int_equal(strlen(small), 7);
	assert_int_equal(npy_open(&npy, file, NULL, 0), -ENOENT);
}

/* ---- what is read ---- */

CASE(headers_that_python_would_read_are_read)
{
	static const char *const headers[] = {
		"{'descr': '<u2', 'fortran_order': False, 'shape': (2, 3), }\n",
		"{'descr':'<u2','fortran_order':False,'shape':(2,3)}",
		"{\"shape\": (2, 3,), \"descr\": \"<u2\", \"fortran_order\": False}   \n",
		" \t\r\n{ 'fortran_order' : False , 'shape' : ( 2 , 3 , ) ,\n 'descr' : '=u2' , } \n\n",
		"{'descr': 'u2', 'fortran_order': False, 'shape': (2, 3)}\f",
		"{'descr': '|u2', 'shape': (2,\n3), 'fortran_order': False, }",
	};
	unsigned char bytes[FILE_MAX];

	for (unsigned version = 1; version <= 3; version++) {
		for (size_t i = 0; i < COUNT(headers); i++) {
			char err[FILE_ERROR_TEXT];
			unsigned char data[12];
			struct npy npy;

			put_file(bytes, make(bytes, version, headers[i], 12));
			if (npy_open(&npy, file, err, sizeof(err)))
				fail_msg("header %zu: %s", i, err);
			assert_int_equal(npy.dtype.code, kDLUInt);
			assert_int_equal(npy.dtype.bits, 16);
			assert_int_equal(npy.dtype.lanes, 1);
			assert_int_equal(npy.ndim, 2);
			assert_memory_equal(npy.shape, I64(2, 3), 16);
			assert_int_equal(npy.nbytes, 12);
			assert_false(npy.fortran_order);
			assert_int_equal(npy_read(&npy, data, NULL, NULL, err, sizeof(err)), 0);
			for (unsigned char j = 0; j < 12; j++)
				assert_int_equal(data[j], j);
			npy_close(&npy);
		}
	}
}

CASE(every_shared_type_is_read_whatever_its_order_mark)
{
	static const char marks[] = "<=|>";
	unsigned char bytes[FILE_MAX];

	for (size_t i = 0; i < COUNT(shared); i++) {
		for (const char *mark = marks; *mark; mark++) {
			char header[128], err[FILE_ERROR_TEXT];
			struct npy npy;

			if (*mark == '>' && shared[i].t.bits > 8)
				continue;
			snprintf(header, sizeof(header),
				 "{'descr': '%c%s', 'fortran_order': False, 'shape': ()}", *mark,
				 shared[i].descr + 1);
			put_file(bytes, make(bytes, 1, header, shared[i].t.bits / 8));
			if (npy_open(&npy, file, err, sizeof(err)))
				fail_msg("%s: %s", header, err);
			assert_memory_equal(&npy.dtype, &shared[i].t, sizeof(DLDataType));
			assert_int_equal(npy.ndim, 0);
			assert_int_equal(npy.nbytes, shared[i].t.bits / 8);
			npy_close(&npy);
		}
	}
}

CASE(fortran_order_is_read_into_c_order)
{
	unsigned char bytes[FILE_MAX], data[24];
	char err[FILE_ERROR_TEXT];
	struct tensor_file f;

	put_file(bytes,
		 make(bytes, 1, "{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3, 4)}", 24));
	assert_int_equal(file_open(&f, file, FILE_NPY, err, sizeof(err)), 0);
	assert_int_equal(f.entries[0].ndim, 3);
	assert_memory_equal(f.entries[0].shape, I64(2, 3, 4), 24);
	assert_int_equal(file_read_entry(&f, 0, data, NULL, NULL, err, sizeof(err)), 0);
	for (int i = 0; i < 24; i++)
		assert_int_equal(data[i], i / 12 + i / 4 % 3 * 2 + i % 4 * 6);
	file_close(&f);
}

CASE(fortran_order_of_one_dimension_is_c_order)
{
	static const char *const shapes[] = { "()", "(6,)", "(1, 6)", "(6, 1, 1)", "(0, 5, 5)" };
	static const size_t sizes[] = { 1, 6, 6, 6, 0 };
	unsigned char bytes[FILE_MAX];

	for (size_t i = 0; i < COUNT(shapes); i++) {
		char header[128], err[FILE_ERROR_TEXT];
		struct npy npy;

		snprintf(header, sizeof(header),
			 "{'descr': '|u1', 'fortran_order': True, 'shape': %s}", shapes[i]);
		put_file(bytes, make(bytes, 1, header, sizes[i]));
		assert_int_equal(npy_open(&npy, file, err, sizeof(err)), 0);
		assert_false(npy.fortran_order);
		assert_int_equal(npy_read(&npy, bytes, NULL, NULL, err, sizeof(err)), 0);
		npy_close(&npy);
	}
}

CASE(a_pipe_is_read_to_its_end)
{
	unsigned char bytes[FILE_MAX], data[12];
	char err[FILE_ERROR_TEXT], path[32];
	size_t size = make(bytes, 1, "{'descr': '<u2', 'fortran_order': True, 'shape': (2, 3)}",
			   12);
	struct npy npy;
	int ends[2];

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	assert_int_equal(write(ends[1], bytes, size), (ssize_t)size);
	close(ends[1]);
	snprintf(path, sizeof(path), "/dev/fd/%d", ends[0]);
	assert_int_equal(npy_open(&npy, path, err, sizeof(err)), 0);
	close(ends[0]);
	assert_int_equal(npy_read(&npy, data, NULL, NULL, err, sizeof(err)), 0);
	assert_memory_equal(data, bytes + size - 12, 12);
	npy_close(&npy);
}

CASE(standard_input_is_read_from_where_it_stands)
{
	unsigned char bytes[FILE_MAX], data[12];
	size_t size = make(bytes + 5, 1, GOOD, 12);
	int saved = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0), fd;
	char err[FILE_ERROR_TEXT];
	struct npy npy;

	memset(bytes, '#', 5);
	put_file(bytes, size + 5);
	fd = open(file, O_RDONLY | O_CLOEXEC);
	assert_true(saved >= 0 && fd >= 0);
	assert_int_equal(lseek(fd, 5, SEEK_SET), 5);
	assert_int_equal(dup2(fd, STDIN_FILENO), STDIN_FILENO);
	close(fd);
	assert_int_equal(npy_open(&npy, "-", err, sizeof(err)), 0);
	dup2(saved, STDIN_FILENO);
	close(saved);
	assert_int_equal(npy_read(&npy, data, NULL, NULL, err, sizeof(err)), 0);
	assert_int_equal(data[11], 11);
	npy_close(&npy);
}

CASE(a_file_that_shrinks_after_it_was_opened_is_noticed)
{
	unsigned char bytes[FILE_MAX], data[12];
	size_t size = make(bytes, 1, GOOD, 12);
	char err[FILE_ERROR_TEXT];
	struct npy npy;

	put_file(bytes, size);
	assert_int_equal(npy_open(&npy, file, err, sizeof(err)), 0);
	assert_int_equal(truncate(file, (off_t)size - 5), 0);
	assert_int_equal(npy_read(&npy, data, NULL, NULL, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "there are 7"));
	npy_close(&npy);
}

int main(void)
{
	alarm(test_limit(TIMEOUT_S));
	return suite_run();
}
