/* SPDX-License-Identifier: Apache-2.0 */
/* Writing .npy files: they come back unchanged, and a failure leaves the old file. */
#include <linux/capability.h>
#include <sys/syscall.h>

#include "tests/harness/harness.h"
#include "tests/unit/npy_fixture.h"
#include "util/fault.h"

/* Replaces libc's. What was synced, while the name meant which file; and how it is to fail. */
static struct {
	unsigned calls;
	ino_t file[2], named[2];
	int error;
} synced;

int fsync(int fd)
{
	unsigned i = synced.calls++ & 1;
	struct stat st;

	synced.file[i] = fstat(fd, &st) ? 0 : st.st_ino;
	synced.named[i] = stat(file, &st) ? 0 : st.st_ino;
	if (synced.error && i == 0) {
		errno = synced.error;
		return -1;
	}
	return (int)syscall(SYS_fsync, fd);
}

static size_t get_file(void *bytes)
{
	int fd = open(file, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	assert_true(fd >= 0);
	n = read(fd, bytes, FILE_MAX);
	assert_true(n >= 0);
	close(fd);
	return (size_t)n;
}

static int write_ints(const char *path, int64_t n, const int32_t *values, char *err)
{
	return npy_write(path, (DLDataType){ kDLInt, 32, 1 }, 1, &n, values, NULL, NULL, err,
			 FILE_ERROR_TEXT);
}

CASE(what_is_written_is_what_numpy_writes)
{
	static const char expected[] = "{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }";
	unsigned char bytes[FILE_MAX];
	int32_t values[3] = { 1, -2, 3 };
	char err[FILE_ERROR_TEXT];

	assert_int_equal(write_ints(file, 3, values, err), 0);
	assert_int_equal(get_file(bytes), 128 + 12);
	assert_memory_equal(bytes, "\x93NUMPY\x01\x00\x76\x00", 10);
	assert_memory_equal(bytes + 10, expected, sizeof(expected) - 1);
	for (size_t i = 10 + sizeof(expected) - 1; i < 127; i++)
		assert_int_equal(bytes[i], ' ');
	assert_int_equal(bytes[127], '\n');
	assert_memory_equal(bytes + 128, values, 12);
}

CASE(all_types_and_shapes_come_back)
{
	static const struct {
		int32_t ndim;
		int64_t shape[4];
		size_t numel;
	} shapes[] = { { 0, { 0 }, 1 },	    { 1, { 7 }, 7 },	       { 1, { 0 }, 0 },
		       { 2, { 3, 4 }, 12 }, { 4, { 2, 1, 3, 2 }, 12 }, { 3, { 4, 0, 9 }, 0 } };
	unsigned char data[256], back[256];

	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (unsigned char)(i * 37);
	for (size_t i = 0; i < COUNT(shared); i++) {
		for (size_t j = 0; j < COUNT(shapes); j++) {
			char err[FILE_ERROR_TEXT];
			struct npy npy;

			assert_int_equal(npy_write(file, shared[i].t, shapes[j].ndim,
						   shapes[j].shape, data, NULL, NULL, err,
						   sizeof(err)),
					 0);
			if (npy_open(&npy, file, err, sizeof(err)))
				fail_msg("%s: %s", shared[i].descr, err);
			assert_memory_equal(&npy.dtype, &shared[i].t, sizeof(DLDataType));
			assert_int_equal(npy.ndim, shapes[j].ndim);
			assert_memory_equal(npy.shape, shapes[j].shape, 8 * (size_t)npy.ndim);
			assert_int_equal(npy.nbytes, shapes[j].numel * shared[i].t.bits / 8);
			assert_int_equal(npy.offset % 64, 0);
			assert_int_equal(npy_read(&npy, back, NULL, NULL, err, sizeof(err)), 0);
			assert_memory_equal(back, data, npy.nbytes);
			npy_close(&npy);
		}
	}
}

CASE(sixty_four_of_the_longest_sizes_fit_into_a_header)
{
	int64_t shape[64];
	char err[FILE_ERROR_TEXT];
	unsigned char byte = 9;
	struct npy npy;

	for (int i = 0; i < 64; i++)
		shape[i] = 1;
	shape[0] = 0;
	shape[63] = INT64_MAX;
	assert_int_equal(npy_write(file, (DLDataType){ kDLUInt, 8, 1 }, 64, shape, &byte, NULL,
				   NULL, err, sizeof(err)),
			 0);
	assert_int_equal(npy_open(&npy, file, err, sizeof(err)), 0);
	assert_memory_equal(npy.shape, shape, sizeof(shape));
	npy_close(&npy);
}

CASE(types_that_numpy_has_not_are_not_written)
{
	static const struct {
		DLDataType t;
		const char *reason;
	} cases[] = {
		{ { kDLBfloat, 16, 1 }, "bfloat16" },
		{ { kDLFloat8_e4m3fn, 8, 1 }, "float8" },
		{ { kDLFloat6_e2m3fn, 6, 1 }, "float6" },
		{ { kDLFloat4_e2m1fn, 4, 1 }, "float4" },
		{ { kDLInt, 4, 1 }, "int4" },
		{ { kDLUInt, 1, 1 }, "uint1" },
		{ { kDLComplex, 32, 1 }, "complex32" },
		{ { kDLOpaqueHandle, 64, 1 }, "opaque64" },
		{ { kDLFloat, 32, 4 }, "4 lanes" },
		{ { 99, 8, 1 }, "type 99" },
		{ { kDLFloat, 128, 1 }, "float128" },
	};
	char err[FILE_ERROR_TEXT];

	for (size_t i = 0; i < COUNT(cases); i++) {
		assert_int_equal(
			npy_write(file, cases[i].t, 1, I64(1), err, NULL, NULL, err, sizeof(err)),
			-ENOTSUP);
		if (!strstr(err, cases[i].reason))
			fail_msg("\"%s\" is not in: %s", cases[i].reason, err);
		assert_int_equal(count_entries(directory), 0);
	}
	assert_int_equal(npy_write(file, shared[0].t, -1, NULL, err, NULL, NULL, err, sizeof(err)),
			 -EINVAL);
	assert_int_equal(npy_write(file, shared[0].t, 65, NULL, err, NULL, NULL, err, sizeof(err)),
			 -EINVAL);
	assert_int_equal(
		npy_write(file, shared[0].t, 1, I64(-1), err, NULL, NULL, err, sizeof(err)),
		-EINVAL);
	assert_int_equal(
		npy_write(file, shared[3].t, 1, I64(INT64_MAX), err, NULL, NULL, err, sizeof(err)),
		-EOVERFLOW);
}

static int stop_at_once(void *context, uint64_t done, uint64_t total)
{
	unsigned *calls = context;

	(void)done;
	(void)total;
	++*calls;
	return -ECANCELED;
}

CASE(a_failed_write_leaves_the_old_file_and_nothing_else)
{
	unsigned char before[FILE_MAX], after[FILE_MAX];
	int32_t values[3] = { 1, 2, 3 };
	char err[FILE_ERROR_TEXT];
	unsigned calls = 0;
	int64_t n = 3;

	assert_int_equal(write_ints(file, 2, values, err), 0);
	assert_int_equal(get_file(before), 136);
	assert_int_equal(npy_write(file, (DLDataType){ kDLInt, 32, 1 }, 1, &n, values, stop_at_once,
				   &calls, err, sizeof(err)),
			 -ECANCELED);
	assert_int_equal(calls, 1);
	assert_non_null(strstr(err, "stopped"));
	assert_int_equal(get_file(after), 136);
	assert_memory_equal(before, after, 136);
	assert_int_equal(count_entries(directory), 1);
}

/* Whatever fails, the old file stays. Writing works without O_TMPFILE too. */
CASE(every_failure_of_a_write_leaves_one_whole_file)
{
	int32_t old[2] = { 1, 2 }, new[3] = { 3, 4, 5 };
	unsigned char bytes[FILE_MAX];
	char err[FILE_ERROR_TEXT];
	unsigned n = 1;
	bool fired;

	do {
		int r;

		assert_int_equal(write_ints(file, 2, old, err), 0);
		r = fault_nth(n, write_ints(file, 3, new, err));
		fired = fault_fired();
		assert_true(r == 0 || (fired && r == -ENOSPC));
		assert_int_equal(count_entries(directory), 1);
		assert_int_equal(get_file(bytes), 128 + (r ? 8 : 12));
		assert_memory_equal(bytes + 128, r ? old : new, r ? 8 : 12);
		n++;
	} while (fired);
	assert_true(n > 4);
}

static ino_t inode_of(const char *path)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	return st.st_ino;
}

CASE(a_file_is_on_the_disk_before_it_replaces_another)
{
	char err[FILE_ERROR_TEXT];
	int32_t values[2] = { 1, 2 };
	ino_t old;

	assert_int_equal(write_ints(file, 1, values, err), 0);
	old = inode_of(file);
	memset(&synced, 0, sizeof(synced));
	assert_int_equal(write_ints(file, 2, values, err), 0);
	assert_int_equal(synced.calls, 2);
	assert_int_equal(synced.file[0], inode_of(file));
	assert_int_equal(synced.named[0], old);
	assert_int_equal(synced.file[1], inode_of(directory));
	assert_int_equal(synced.named[1], inode_of(file));
}

CASE(what_the_disk_does_not_take_is_a_failed_write)
{
	char err[FILE_ERROR_TEXT];
	int32_t values[2] = { 1, 2 };
	ino_t old;

	assert_int_equal(write_ints(file, 1, values, err), 0);
	old = inode_of(file);
	memset(&synced, 0, sizeof(synced));
	synced.error = EIO;
	assert_int_equal(write_ints(file, 2, values, err), -EIO);
	assert_non_null(strstr(err, "cannot write: Input/output error"));
	assert_int_equal(inode_of(file), old);
	assert_int_equal(count_entries(directory), 1);
	synced.calls = 0;
	synced.error = EINVAL; /* this file system has no fsync() */
	assert_int_equal(write_ints(file, 2, values, err), 0);
}

CASE(what_has_no_place_on_a_disk_is_not_synced)
{
	char err[FILE_ERROR_TEXT];
	int32_t value = 1;

	memset(&synced, 0, sizeof(synced));
	assert_int_equal(write_ints("/dev/null", 1, &value, err), 0);
	assert_int_equal(synced.calls, 0);
}

/* The same for a file that has a name from the start. */
CASE(a_named_temporary_file_goes_too)
{
	char err[FILE_ERROR_TEXT];
	unsigned calls = 0;
	int32_t value = 1;
	int64_t n = 1;
	int r;

	r = fault_nth(1, npy_write(file, (DLDataType){ kDLInt, 32, 1 }, 1, &n, &value, stop_at_once,
				   &calls, err, sizeof(err)));
	assert_string_equal(fault_fired(), "file: O_TMPFILE");
	assert_int_equal(r, -ECANCELED);
	assert_int_equal(count_entries(directory), 0);
}

CASE(a_full_disk_leaves_no_file)
{
	enum { LIMIT = 100000, SIZE = 4 * LIMIT };
	struct rlimit saved, limit;
	char *data = calloc(1, SIZE);
	char err[FILE_ERROR_TEXT];
	int r;

	assert_non_null(data);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &saved), 0);
	limit = (struct rlimit){ .rlim_cur = LIMIT, .rlim_max = saved.rlim_max };
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
	r = write_ints(file, SIZE / 4, (int32_t *)data, err);
	setrlimit(RLIMIT_FSIZE, &saved);
	signal(SIGXFSZ, SIG_DFL);
	free(data);
	assert_int_equal(r, -EFBIG);
	assert_non_null(strstr(err, "cannot write"));
	assert_int_equal(count_entries(directory), 0);
}

CASE(a_device_is_written_directly)
{
	int32_t values[3] = { 1, 2, 3 };
	char err[FILE_ERROR_TEXT];

	assert_int_equal(write_ints("/dev/null", 3, values, err), 0);
	assert_int_equal(write_ints("/dev/full", 3, values, err), -ENOSPC);
	assert_string_equal(err, "/dev/full: cannot write: No space left on device");
}

CASE(a_place_where_no_file_can_be_says_so)
{
	char path[DIRECTORY_MAX + 32], err[FILE_ERROR_TEXT];
	int32_t value = 1;

	snprintf(path, sizeof(path), "%s/no/such.npy", directory);
	assert_int_equal(write_ints(path, 1, &value, err), -ENOENT);
	assert_non_null(strstr(err, "No such file"));
	assert_int_equal(write_ints(directory, 1, &value, err), -EISDIR);
}

CASE(a_replaced_file_keeps_its_mode_and_links_lead_on)
{
	char link[DIRECTORY_MAX + 16], err[FILE_ERROR_TEXT];
	int32_t values[3] = { 1, 2, 3 };
	struct stat st;

	snprintf(link, sizeof(link), "%s/link", directory);
	assert_int_equal(symlink("a.npy", link), 0);
	assert_int_equal(write_ints(file, 3, values, err), 0);
	assert_int_equal(chmod(file, 0640), 0);
	assert_int_equal(write_ints(link, 2, values, err), 0);
	assert_int_equal(lstat(link, &st), 0);
	assert_true(S_ISLNK(st.st_mode));
	assert_int_equal(stat(file, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0640);
	assert_int_equal(st.st_size, 136);
	unlink(link);
	assert_int_equal(count_entries(directory), 1);
}

static struct __user_cap_data_struct all_capabilities[_LINUX_CAPABILITY_U32S_3];

static void drop_capability(int capability)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct less[_LINUX_CAPABILITY_U32S_3];

	assert_int_equal(syscall(SYS_capget, &header, all_capabilities), 0);
	memcpy(less, all_capabilities, sizeof(less));
	less[CAP_TO_INDEX(capability)].effective &= ~CAP_TO_MASK(capability);
	assert_int_equal(syscall(SYS_capset, &header, less), 0);
}

static void regain_capabilities(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };

	if (all_capabilities->permitted)
		assert_int_equal(syscall(SYS_capset, &header, all_capabilities), 0);
}

static void must_replace_as(uid_t uid, gid_t gid, mode_t before, mode_t after)
{
	char err[FILE_ERROR_TEXT];
	int32_t value = 1;
	struct stat st;

	unlink(file);
	assert_int_equal(write_ints(file, 1, &value, err), 0);
	assert_int_equal(chown(file, 60123, 60124), 0);
	assert_int_equal(chmod(file, before), 0);
	if (uid != 60123) /* as a user may whom the group does not have */
		drop_capability(CAP_CHOWN);
	assert_int_equal(write_ints(file, 1, &value, err), 0);
	regain_capabilities();
	assert_int_equal(stat(file, &st), 0);
	assert_int_equal(st.st_uid, uid);
	assert_int_equal(st.st_gid, gid);
	assert_int_equal(st.st_mode & 07777, after);
}

CASE(a_replaced_file_keeps_its_owner_and_group)
{
	SKIP_UNLESS(geteuid() == 0, "needs root, to have files of others");
	must_replace_as(60123, 60124, 0640, 0640);
	must_replace_as(60123, 60124, 0604, 0604);
}

/* The bits of the former group are not for another one, nor those of others for the former group.
 */
CASE(a_replaced_file_opens_to_nobody_if_its_group_cannot_be_kept)
{
	SKIP_UNLESS(geteuid() == 0, "needs root, to have files of others");
	must_replace_as(getuid(), getgid(), 0640, 0600);
	must_replace_as(getuid(), getgid(), 0664, 0644);
	must_replace_as(getuid(), getgid(), 0604, 0600);
}

CASE(a_new_file_has_the_mode_of_the_umask)
{
	mode_t saved = umask(027);
	char err[FILE_ERROR_TEXT];
	int32_t value = 1;
	struct stat st;
	int r = write_ints(file, 1, &value, err);

	umask(saved);
	assert_int_equal(r, 0);
	assert_int_equal(stat(file, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0640);
}

/* ---- progress ---- */

struct heard {
	unsigned calls;
	uint64_t last, total;
};

static int hear(void *context, uint64_t done, uint64_t total)
{
	struct heard *heard = context;

	assert_true(done > heard->last || total == 0);
	heard->calls++;
	heard->last = done;
	heard->total = total;
	return 0;
}

CASE(progress_is_told_chunk_by_chunk_to_the_end)
{
	enum { SIZE = 2 * FILE_CHUNK + 4 };
	char *data = calloc(1, SIZE), *back = malloc(SIZE);
	char err[FILE_ERROR_TEXT];
	struct heard heard = { 0 };
	int64_t n = SIZE;
	struct npy npy;

	assert_true(data && back);
	data[SIZE - 1] = 7;
	assert_int_equal(npy_write(file, (DLDataType){ kDLInt, 8, 1 }, 1, &n, data, hear, &heard,
				   err, sizeof(err)),
			 0);
	assert_int_equal(heard.calls, 3);
	assert_int_equal(heard.last, SIZE);
	assert_int_equal(npy_open(&npy, file, err, sizeof(err)), 0);
	heard = (struct heard){ 0 };
	assert_int_equal(npy_read(&npy, back, hear, &heard, err, sizeof(err)), 0);
	assert_int_equal(heard.calls, 3);
	assert_int_equal(heard.total, SIZE);
	assert_memory_equal(data, back, SIZE);
	heard.calls = 0;
	assert_int_equal(npy_read(&npy, back, stop_at_once, &heard.calls, err, sizeof(err)),
			 -ECANCELED);
	assert_int_equal(heard.calls, 1);
	npy_close(&npy);
	n = 0;
	heard = (struct heard){ 0 };
	assert_int_equal(npy_write(file, (DLDataType){ kDLInt, 8, 1 }, 1, &n, NULL, hear, &heard,
				   err, sizeof(err)),
			 0);
	assert_int_equal(heard.calls, 1);
	free(data);
	free(back);
}

int main(void)
{
	alarm(test_limit(TIMEOUT_S));
	return suite_run();
}
