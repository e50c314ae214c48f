/* SPDX-License-Identifier: Apache-2.0 */
/* .npy files that go through the command line and a daemon and come back. */
#include "tests/cli/files.h"
#include "tests/harness/own_shm.h"
#include "tests/harness/process.h"

/* ---- Round trips ---- */

/* Puts the file and gets it again: the result must be @expected to the last byte. */
static void round_trip(const struct test_daemon *d, const char *file, const char *expected)
{
	struct path back = in(d, "back.npy");
	cleanup_result struct result put = run(d, "put", "t", file);
	cleanup_result struct result get = run(d, "get", "t", "-o", back.text);

	must_exit(&put, 0);
	must_exit(&get, 0);
	must_be_same_file(back.text, expected);
	unlink(back.text);
}

TEST(a_file_comes_back_byte_for_byte)
{
	cleanup_td struct test_daemon d = td_start(0);
	struct path v1 = in(&d, "v1.npy"), v2 = in(&d, "v2.npy"), v3 = in(&d, "v3.npy");

	write_npy(v1.text, 1, "<f4", false, "(2, 3)", six, sizeof(six));
	write_npy(v2.text, 2, "<f4", false, "(2, 3)", six, sizeof(six));
	write_npy(v3.text, 3, "<f4", false, "(2, 3)", six, sizeof(six));
	round_trip(&d, v1.text, v1.text);
	round_trip(&d, v2.text, v1.text);
	round_trip(&d, v3.text, v1.text);
}

TEST(fortran_order_is_transposed)
{
	static const float columns[6] = { 0, 3, 1.5F, 4, -2, 1e9F };
	cleanup_td struct test_daemon d = td_start(0);
	struct path fortran = in(&d, "fortran.npy"), c = in(&d, "c.npy");

	write_npy(fortran.text, 1, "<f4", true, "(2, 3)", columns, sizeof(columns));
	write_npy(c.text, 1, "<f4", false, "(2, 3)", six, sizeof(six));
	round_trip(&d, fortran.text, c.text);
}

TEST(all_types_of_npy_come_back)
{
	static const struct {
		const char *descr;
		size_t size;
	} types[] = { { "|b1", 1 }, { "|i1", 1 }, { "<i2", 2 }, { "<i4", 4 },  { "<i8", 8 },
		      { "|u1", 1 }, { "<u2", 2 }, { "<u4", 4 }, { "<u8", 8 },  { "<f2", 2 },
		      { "<f4", 4 }, { "<f8", 8 }, { "<c8", 8 }, { "<c16", 16 } };
	cleanup_td struct test_daemon d = td_start(0);
	struct path file = in(&d, "type.npy");
	unsigned char bytes[3 * 16];

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = i & 1;
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		write_npy(file.text, 1, types[i].descr, false, "(3,)", bytes, 3 * types[i].size);
		round_trip(&d, file.text, file.text);
	}
}

TEST(scalars_and_empty_arrays_come_back)
{
	cleanup_td struct test_daemon d = td_start(0);
	struct path file = in(&d, "odd.npy");
	double one = 1;

	write_npy(file.text, 1, "<f8", false, "()", &one, sizeof(one));
	round_trip(&d, file.text, file.text);
	write_npy(file.text, 1, "<f8", false, "(0, 4)", NULL, 0);
	round_trip(&d, file.text, file.text);
}

TEST(a_large_file_comes_back)
{
	enum { SIZE = 20 << 20 };
	cleanup_td struct test_daemon d = td_start(0);
	struct path file = in(&d, "large.npy");
	uint32_t *numbers = malloc(SIZE);

	must(numbers);
	for (uint32_t i = 0; i < SIZE / 4; i++)
		numbers[i] = i * 2654435761U;
	write_npy(file.text, 1, "<u4", false, "(5, 1048576)", numbers, SIZE);
	free(numbers);
	round_trip(&d, file.text, file.text);
}

/* ---- Failures ---- */

TEST(broken_files_are_refused_and_publish_nothing)
{
	cleanup_td struct test_daemon d = td_start(0);
	struct path file = in(&d, "broken.npy");
	static const char not_npy[] = "this is no array, but a text that is longer than a header";

	for (int i = 0; i < 6; i++) {
		if (i == 0)
			write_file(file.text, "", 0);
		else if (i == 1)
			write_file(file.text, not_npy, sizeof(not_npy));
		else if (i == 2) /* shorter than its header says */
			write_npy(file.text, 1, "<f4", false, "(2, 4)", six, sizeof(six));
		else if (i == 3)
			write_npy(file.text, 1, "<f4", false, "(-1,)", six, sizeof(six));
		else if (i == 4) /* an array of objects */
			write_npy(file.text, 1, "|O", false, "(3,)", six, sizeof(six));
		else /* more than there is memory */
			write_npy(file.text, 1, "<f4", false, "(4611686018427387904, 4)", six,
				  sizeof(six));
		{
			cleanup_result struct result put = run(&d, "--json", "put", "broken",
							       file.text);
			cleanup_result struct result info = run(&d, "info", "broken");
			cJSON *json = json_of(&put);

			must_exit(&put, 1);
			must_contain(put.err, "broken.npy");
			must(cJSON_IsString(cJSON_GetObjectItem(json, "error")));
			must_be(cJSON_GetObjectItem(json, "code")->valueint, 1);
			cJSON_Delete(json);
			must_exit(&info, 3);
		}
	}
	must_be(td_status(&d).drafts, 0);
	must_be(td_status(&d).tensors, 0);
}

/*
 * If get -o cannot write what was asked for, it leaves no partial file and does not touch an
 * existing one.
 */
TEST(a_type_that_npy_does_not_know_is_refused)
{
	cleanup_td struct test_daemon d = td_start(0);
	struct path file = in(&d, "bf16.npy");
	tl_client *client = td_connect(&d);
	int64_t shape = 2;
	tl_spec spec = {
		.size = sizeof(spec), .shape = &shape, .ndim = 1, .dtype = { kDLBfloat, 16, 1 }
	};
	uint64_t version;
	tl_draft *draft;

	must_be(tl_create(client, "b", &spec, &draft), 0);
	memset(tl_draft_tensor(draft)->data, 0, 4);
	must_be(tl_commit(draft, &version), 0);
	tl_close(client);
	{
		cleanup_result struct result r = run(&d, "get", "b", "-o", file.text);

		must_exit(&r, 1);
		must_contain(r.err, "bfloat16");
		must(access(file.text, F_OK) != 0);
	}
}

TEST(what_cannot_be_written_is_a_failure)
{
	SKIP_UNLESS(!access("/dev/full", W_OK), "no /dev/full");
	cleanup_td struct test_daemon d = td_start(0);

	put_six(&d, "a");
	{
		cleanup_result struct result r = run(&d, "get", "a", "-o", "/dev/full");

		must_exit(&r, 1);
	}
}

TEST(a_link_to_nothing_is_not_replaced)
{
	cleanup_td struct test_daemon d = td_start(0);
	struct path link = in(&d, "link.npy");
	struct stat st;

	put_six(&d, "a");
	must_be(symlink("nowhere/x.npy", link.text), 0);
	{
		cleanup_result struct result r = run(&d, "get", "a", "-o", link.text);

		must_exit(&r, 1);
		must_contain(r.err, "symbolic link");
		must(!lstat(link.text, &st) && S_ISLNK(st.st_mode));
	}
}

TEST(a_long_path_does_not_hide_the_reason)
{
	cleanup_td struct test_daemon d = td_start(0);
	char path[1000];

	memset(path, '/', sizeof(path));
	for (size_t at = 1; at + 200 < sizeof(path); at += 200)
		memset(path + at, 'd', 199);
	strcpy(path + sizeof(path) - 8, "/x.npy");
	{
		cleanup_result struct result r = run(&d, "put", "a", path);

		must_exit(&r, 1);
		must_contain(r.err, "/x.npy: cannot open: No such file or directory");
	}
}

/* A .safetensors file of @count tensors of a byte each. */
static struct path many_tensors(const struct test_daemon *d, unsigned count)
{
	const struct path path = in(d, "many.safetensors");
	size_t size = 64 * (size_t)count + 16, n = 8;
	char *file = calloc(1, size + count);

	must(file);
	for (unsigned i = 0; i < count; i++)
		n += (size_t)snprintf(
			file + n, size - n,
			"%s\"%u\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%u,%u]}",
			i ? "," : "{", i, i, i + 1);
	file[n++] = '}';
	for (int i = 0; i < 8; i++)
		file[i] = (char)((n - 8) >> (8 * i));
	write_file(path.text, file, n + count);
	free(file);
	return path;
}

/* It does not wait for that, however long the daemon takes to answer. */
TEST(what_never_fits_is_no_timeout)
{
	cleanup_td struct test_daemon d = td_start(.max_tensors = 160);
	const struct path path = many_tensors(&d, 400);
	cleanup_result struct result r = run(&d, "load", "m", path.text, "--timeout", "0.001");

	must_exit(&r, 1);
	must_contain(r.err, "160 of the daemon's 160 tensors are in use");
	must(!strstr(r.err, "no space came"));
}

/* ---- Interrupted ---- */

enum { LARGE = 48 << 20, NO_MOUNT = 125 };

/* Starts a command where no file can be given a name later, so that it has one from the start. */
static pid_t start_without_proc(const struct test_daemon *d, const char *const *args)
{
	const char *build = getenv("TL_TEST_BUILD"), *argv[8] = { cli_path() };
	char lib[512];
	pid_t pid = fork();

	if (pid)
		return pid;
	for (int i = 0; args[i]; i++)
		argv[i + 1] = args[i];
	snprintf(lib, sizeof(lib), "%s/lib", build ? build : "build");
	setenv("LD_LIBRARY_PATH", lib, 1); /* the loader finds $ORIGIN in /proc */
	setenv("TENSORLEASE_SOCKET", d->socket, 1);
	if (!own_mount("/proc", "mode=0755"))
		_exit(NO_MOUNT);
	execv(argv[0], (char **)(uintptr_t)argv);
	_exit(126);
}

static bool has_temporary(const struct path *dir)
{
	DIR *entries = opendir(dir->text);
	struct dirent *e;
	bool has = false;

	must(entries);
	while ((e = readdir(entries)))
		has |= strstr(e->d_name, ".tmp") != NULL;
	closedir(entries);
	return has;
}

/* Sends SIGINT while there is the temporary file. False: the command was too fast for that. */
static bool interrupted(const struct test_daemon *d, const struct path *dir,
			const char *const *args, bool *can)
{
	pid_t pid = start_without_proc(d, args);
	bool seen = false;
	int status = 0;
	siginfo_t info;

	do {
		info.si_pid = 0;
		must_be(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT), 0);
		if (has_temporary(dir) && !info.si_pid) {
			process_stop(pid);
			seen = has_temporary(dir);
			kill(pid, SIGINT);
			kill(pid, SIGCONT);
			break;
		}
	} while (!info.si_pid);
	must(waitpid(pid, &status, 0) == pid);
	*can = !WIFEXITED(status) || WEXITSTATUS(status) != NO_MOUNT;
	must(!seen || (WIFSIGNALED(status) && WTERMSIG(status) == SIGINT));
	return seen;
}

static void must_leave_nothing(const char *const *args, const struct test_daemon *d,
			       const struct path *dir, bool *can)
{
	unsigned tries = 0;

	while (*can && !interrupted(d, dir, args, can))
		must(++tries < 100);
	must(!has_temporary(dir));
}

static bool may_interrupt(void)
{
	static const char zeros[LARGE];
	bool can = true;

	cleanup_td struct test_daemon d = td_start(0);
	const struct path file = in(&d, "in.npy"), dir = in(&d, "out"), saved = in(&d, "out/a.npz"),
			  got = in(&d, "out/a.npy"), drawn = in(&d, "out/a.png");

	write_npy(file.text, 1, "|u1", false, "(6144, 8192)", zeros, LARGE);
	must_be(mkdir(dir.text, 0700), 0);
	{
		cleanup_result struct result put = run(&d, "put", "a/b", file.text);

		must_exit(&put, 0);
	}
	must_leave_nothing((const char *const[]){ "save", "a", saved.text, NULL }, &d, &dir, &can);
	must_leave_nothing((const char *const[]){ "get", "a/b", "-o", got.text, NULL }, &d, &dir,
			   &can);
	must_leave_nothing((const char *const[]){ "show", "a/b", "-o", drawn.text, NULL }, &d, &dir,
			   &can);
	unlink(drawn.text);
	unlink(saved.text); /* it may have been complete */
	unlink(got.text);
	must_be(rmdir(dir.text), 0);
	unlink(file.text);
	return can;
}

TEST(what_is_interrupted_leaves_no_temporary_file)
{
	SKIP_UNLESS(may_interrupt(), "may not mount anything");
}

/* Reads a page at a time, always soon, until nobody writes any more. */
static size_t read_pages(int fd)
{
	char page[4096];
	size_t size = 0;
	ssize_t n;

	while ((n = read(fd, page, sizeof(page))) > 0)
		size += (size_t)n;
	must_be(n, 0);
	return size;
}

static void must_end_soon(const struct test_daemon *d, const char *const *args, int number)
{
	struct running writer;
	int fds[2];
	char c;

	must_be(pipe2(fds, O_CLOEXEC), 0);
	must(fcntl(fds[0], F_SETPIPE_SZ, 4096) >= 0);
	writer = start_printing_to(fds[1], d->socket, args);
	close(fds[1]);
	must_be(read(fds[0], &c, 1), 1);
	must_be(kill(writer.pid, number), 0);
	must(read_pages(fds[0]) < LARGE / 16);
	close(fds[0]);
	{
		cleanup_result struct result r = finish(&writer);

		must_exit(&r, 256 + number);
	}
}

/* It can go on writing at any time, but only a little. */
TEST(a_signal_ends_the_writing_of_a_pipe_that_is_read_slowly)
{
	static const char zeros[LARGE];
	cleanup_td struct test_daemon d = td_start(0);
	const struct path file = in(&d, "in.npy");

	write_npy(file.text, 1, "|u1", false, "(50331648,)", zeros, LARGE);
	{
		cleanup_result struct result put = run(&d, "put", "a/b", file.text);

		must_exit(&put, 0);
	}
	unlink(file.text);
	must_end_soon(&d, (const char *const[]){ "get", "a/b", "-o", "-", NULL }, SIGTERM);
	must_end_soon(&d,
		      (const char *const[]){ "save", "a", "-", "--format", "safetensors", NULL },
		      SIGINT);
}

int main(void)
{
	return suite_run();
}
