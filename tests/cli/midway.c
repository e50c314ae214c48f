/* SPDX-License-Identifier: Apache-2.0 */
/* Files change, or the command line is killed, while it reads and writes. */
#include <dirent.h>
#include <glob.h>
#include <poll.h>
#include <pty.h>
#include <sys/resource.h>

#include "tests/cli/files.h"

/* Returns what a descriptor is of, such as "socket:[123]", and "" if there is none. */
static struct path descriptor(const char *of, const char *number)
{
	struct path link = { "" };
	char path[300];

	snprintf(path, sizeof(path), "/proc/%s/fd/%s", of, number);
	(void)!readlink(path, link.text, sizeof(link.text) - 1);
	return link;
}

/*
 * Returns whether the process is connected or about to be. Before that it opens its file. A socket
 * that we have at the same number is one that it inherited, from whoever runs the tests.
 */
static bool has_socket(pid_t pid)
{
	struct path target, ours;
	char path[64], of[16];
	const struct dirent *e;
	bool found = false;
	DIR *dir;

	snprintf(of, sizeof(of), "%d", (int)pid);
	snprintf(path, sizeof(path), "/proc/%s/fd", of);
	dir = opendir(path);
	if (!dir)
		return false;
	while ((e = readdir(dir))) {
		target = descriptor(of, e->d_name);
		ours = descriptor("self", e->d_name);
		found |= !strncmp(target.text, "socket:", 7) && strcmp(target.text, ours.text) != 0;
	}
	closedir(dir);
	return found;
}

TEST(a_file_cut_off_before_it_is_read_is_refused)
{
	enum { SIZE = 1 << 20 };
	static const char *const commands[] = { "put", "load" };
	cleanup_td struct test_daemon d = td_start(0);
	struct path file = in(&d, "cut.npy");
	void *zeros = calloc(1, SIZE);

	must(zeros);
	for (int i = 0; i < 4; i++) {
		struct running running;

		write_npy(file.text, 1, "<f4", i & 1, "(256, 1024)", zeros, SIZE);
		td_freeze(&d);
		running = start(&d, commands[i / 2], "t", file.text);
		eventually(has_socket(running.pid));
		must_be(truncate(file.text, 128 + SIZE / 2), 0);
		td_thaw(&d);
		{
			cleanup_result struct result r = finish(&running);

			must_exit(&r, 1);
			must_contain(r.err, "cut.npy: truncated: the header promises 1048576 bytes "
					    "of data, there are 524288");
		}
		must_be(td_status(&d).tensors, 0);
		must_be(td_status(&d).drafts, 0);
	}
	free(zeros);
}

/* Publishes @size bytes of float32. */
static void put_zeros(const struct test_daemon *d, const char *name, size_t size)
{
	struct path file = in(d, "zeros.npy");
	void *zeros = calloc(1, size);
	char shape[32];

	must(zeros);
	snprintf(shape, sizeof(shape), "(%zu,)", size / 4);
	write_npy(file.text, 1, "<f4", false, shape, zeros, size);
	free(zeros);
	{
		cleanup_result struct result r = run(d, "put", name, file.text);

		must_exit(&r, 0);
	}
	unlink(file.text);
}

/* True if it has ended, or has written to a file where @directory is. */
static bool has_written(pid_t pid, const char *directory)
{
	siginfo_t info = { 0 };
	char path[64 + sizeof(((struct dirent *)0)->d_name)];
	const struct dirent *e;
	struct stat st, there;
	bool found = false;
	DIR *dir;

	must_be(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT), 0);
	must_be(stat(directory, &there), 0);
	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	while (dir && (e = readdir(dir))) {
		snprintf(path, sizeof(path), "/proc/%d/fd/%s", (int)pid, e->d_name);
		found |= !stat(path, &st) && S_ISREG(st.st_mode) && st.st_dev == there.st_dev &&
			 st.st_size > 0;
	}
	if (dir)
		closedir(dir);
	return found || info.si_pid;
}

/* Removes what is left of a file that was to take the place of another just then. */
static bool remove_temporary(const struct test_daemon *d)
{
	struct path pattern = in(d, "tensorlease-*.tmp");
	glob_t found;

	if (glob(pattern.text, 0, NULL, &found))
		return false;
	must_be(found.gl_pathc, 1);
	must_be(unlink(found.gl_pathv[0]), 0);
	globfree(&found);
	return true;
}

/* Kills `save p @file` while it writes. False: it had ended before, or nearly. */
static bool save_killed(const struct test_daemon *d, const char *file)
{
	struct running running = start(d, "save", "p", file);

	eventually(has_written(running.pid, d->dir));
	must_be(kill(running.pid, SIGKILL), 0);

	cleanup_result struct result r = finish(&running);

	if (r.code == 256 + SIGKILL)
		return !remove_temporary(d);
	must_exit(&r, 0);
	return false;
}

/* False: the file is new, and whole. */
static bool is_old(const char *file)
{
	struct stat st;

	must_be(stat(file, &st), 0);
	must(st.st_size == 3 || st.st_size >= 64 << 20);
	return st.st_size == 3;
}

static const char *const of_all_formats[] = { "a.npy", "a.npz", "a.safetensors", "a.pb" };

TEST(killed_while_it_writes_it_leaves_what_was_there)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 256 * MIB);
	unsigned before, ended = 0;
	bool killed;

	put_zeros(&d, "p", 64 << 20);
	put_zeros(&d, "p/x", 2 << 20);
	for (int i = 0; i < 4; i++) {
		struct path file = in(&d, of_all_formats[i]), old = in(&d, "old");

		write_file(old.text, "old", 3);
		do {
			must(ended < 100);
			write_file(file.text, "old", 3);
			before = entries_of(d.dir);
			killed = save_killed(&d, file.text);
			must_be(entries_of(d.dir), before);
		} while ((!killed || !is_old(file.text)) && ++ended);
		must_be_same_file(file.text, old.text);
	}
}

TEST(a_file_larger_than_it_may_be_is_an_error_that_leaves_what_was_there)
{
	struct rlimit limit, small;
	cleanup_td struct test_daemon d = td_start(.max_tensors = 1000); /* a small ledger */
	unsigned before;

	put_zeros(&d, "p", 2 << 20);
	put_zeros(&d, "p/x", 2 << 20);
	must_be(getrlimit(RLIMIT_FSIZE, &limit), 0);
	small = (struct rlimit){ 1 << 20, limit.rlim_max };
	for (int i = 0; i < 4; i++) {
		struct path file = in(&d, of_all_formats[i]), old = in(&d, "old");

		write_file(old.text, "old", 3);
		write_file(file.text, "old", 3);
		before = entries_of(d.dir);
		must_be(setrlimit(RLIMIT_FSIZE, &small), 0);
		{
			cleanup_result struct result r = run(&d, "save", "p", file.text);

			must_exit(&r, 1);
			must_contain(r.err, of_all_formats[i]);
			must_contain(r.err, "cannot write: this process may make files of at most "
					    "1048576 bytes; raise its RLIMIT_FSIZE");
		}
		must_be(setrlimit(RLIMIT_FSIZE, &limit), 0);
		must_be(entries_of(d.dir), before);
		must_be_same_file(file.text, old.text);
	}
}

/* The temporary file has a name of its own. */
TEST(a_name_may_be_as_long_as_the_file_system_has_it)
{
	cleanup_td struct test_daemon d = td_start(0);
	char name[NAME_MAX + 1], path[PATH_MAX];

	put_six(&d, "a");
	memset(name, 'n', NAME_MAX);
	strcpy(name + NAME_MAX - 4, ".npy");
	snprintf(path, sizeof(path), "%s/%s", d.dir, name);
	{
		cleanup_result struct result r = run(&d, "get", "a", "-o", path);

		must_exit(&r, 0);
	}
	must_be_same_file(path, in(&d, "six.npy").text);
	unlink(path);
}

TEST(a_closed_stream_is_no_place_for_what_is_opened_next)
{
	static const unsigned char picture[128 * 128]; /* more, when drawn, than a buffer holds */
	cleanup_td struct test_daemon d = td_start(0);
	struct path file = in(&d, "picture.npy");
	int status;
	char *log;
	pid_t pid;

	write_npy(file.text, 1, "|u1", false, "(128, 128)", picture, sizeof(picture));
	{
		cleanup_result struct result r = run(&d, "put", "p", file.text);

		must_exit(&r, 0);
	}
	pid = fork();
	must(pid >= 0);
	if (!pid) {
		close(STDOUT_FILENO);
		setenv("COLUMNS", "128", 1);
		setenv("LINES", "128", 1);
		execl(cli_path(), "tensorlease", "-s", d.socket, "show", "p", NULL);
		_exit(126);
	}
	must(waitpid(pid, &status, 0) == pid);
	must_be(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 1);
	td_sync(&d);
	log = td_log(&d);
	must(!strstr(log, "bad message")); /* it was not sent to the daemon */
	free(log);
}

/* ---- Progress ---- */

/*
 * Runs `get @name -o @fifo`, with stderr at @err. It reads what get writes only a second after the
 * first bytes, so that get notices that it takes long, however fast this machine is.
 */
static void get_slowly(const struct test_daemon *d, const char *name, const char *fifo, int err)
{
	static char bytes[1 << 16];
	struct pollfd p = { .events = POLLIN };
	int64_t begun;
	int fd, status;
	pid_t pid = fork();

	must(pid >= 0);
	if (!pid) {
		setenv("TENSORLEASE_SOCKET", d->socket, 1);
		dup2(err, STDERR_FILENO);
		execl(cli_path(), "tensorlease", "get", name, "-o", fifo, NULL);
		_exit(126);
	}
	fd = p.fd = open(fifo, O_RDONLY | O_CLOEXEC);
	must(fd >= 0);
	must_be(poll(&p, 1, (int)WAIT_S * 1000), 1);
	begun = now_ns();
	eventually(now_ns() > begun + SECOND);
	while (read(fd, bytes, sizeof(bytes)) > 0)
		;
	close(fd);
	must(waitpid(pid, &status, 0) == pid);
	must_be(status, 0);
}

/* Reads everything that ended processes have written, which may be more than one piece. */
static void read_terminal(int pty, int terminal_take, char *text, size_t size)
{
	size_t used = 0;
	ssize_t n;

	close(terminal_take); /* after the last piece the read fails with EIO */
	while ((n = read(pty, text + used, size - 1 - used)) > 0)
		used += (size_t)n;
	must(n < 0 && errno == EIO);
	text[used] = '\0';
}

/*
 * Progress is one line, whatever the width of the terminal and the length of the name, and only
 * appears on a terminal.
 */
TEST(what_takes_long_is_shown_on_a_terminal)
{
	enum { COLUMNS = 60 };
	const struct winsize size = { .ws_col = COLUMNS, .ws_row = 24 };
	cleanup_td struct test_daemon d = td_start(0);
	struct path fifo = in(&d, "a-rather-long-name-of-a-file-with-an-\xc3\xa4-in-it.npy");
	int err = memory_file(), pty, terminal;
	char text[4096], *line;

	put_zeros(&d, "t", 16 << 20);
	must_be(mkfifo(fifo.text, 0600), 0);
	must_be(openpty(&pty, &terminal, NULL, NULL, &size), 0);
	get_slowly(&d, "t", fifo.text, terminal);
	read_terminal(pty, terminal, text, sizeof(text));
	must(!strncmp(text, "\rwriting ...", 12));
	must_contain(text, "it.npy: 8.0 MiB of 16.0 MiB (50 %), ");
	must_be(strcspn(text + 1, "\033"), COLUMNS - 1);
	line = strrchr(text, '\r');
	assert_string_equal(line, "\r\033[K"); /* cleared at the end */
	close(pty);
	get_slowly(&d, "t", fifo.text, err);
	line = read_back(err);
	assert_string_equal(line, "");
	free(line);
	unlink(fifo.text);
}

int main(void)
{
	return suite_run();
}
