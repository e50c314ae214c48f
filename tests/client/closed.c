/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs that close descriptors: all that they do not know, as services do, and the standard
 * streams. Other files of theirs get the numbers.
 */
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <tensorlease/watch.h>

#include "tests/client/common.h"

enum { SIZE = 4096, OTHERS = 64 };

static void files_open(int fds[OTHERS])
{
	for (int i = 0; i < OTHERS; i++) {
		must((fds[i] = memfd_create("theirs", MFD_CLOEXEC)) >= 0);
		must_be(write(fds[i], "theirs", 6), 6);
	}
}

static void files_must_be_as_they_were(const int fds[OTHERS])
{
	char text[8];

	for (int i = 0; i < OTHERS; i++) {
		must_be(pread(fds[i], text, sizeof(text), 0), 6);
		must(!memcmp(text, "theirs", 6));
	}
}

enum others { NO_OTHERS, FILES, SOCKETS };

struct closing {
	bool slept;	    /* a thread waits for the end of the connection */
	enum others others; /* that get the numbers */
};

static const tl_get_options cow = { .size = sizeof(cow), .mode = TL_MODE_COPY_ON_WRITE };

/* A client that has a socket, and other descriptors. */
static tl_client *connect_and_use(const struct test_daemon *d, bool sleeps)
{
	const tl_get_options brief = { .size = sizeof(brief), .timeout_ns = MS };
	tl_client *client = td_connect(d);
	DLManagedTensorVersioned *t;

	put_alone(client, "old", 1, SIZE);
	must_be(tl_get(client, "old", &cow, &t), 0);
	drop(t);
	if (sleeps)
		must_be(tl_get(client, "none", &brief, &t), -ETIMEDOUT);
	return client;
}

static int goes_on_without_descriptors(const struct test_daemon *d, void *arg)
{
	const struct closing *c = arg;
	tl_client *client = connect_and_use(d, c->slept);
	DLManagedTensorVersioned *t;
	int fds[OTHERS];

	child_close_all();
	if (c->others == FILES)
		files_open(fds);
	for (int i = 0; c->others == SOCKETS && i < OTHERS; i++)
		must((fds[i] = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) >= 0);
	must_be(tl_get(client, "old", &cow, &t), 0);
	must(all_bytes(t, 1, SIZE));
	drop(t);
	for (int i = 0; i < 3; i++) {
		put_alone(client, "new", i, MIB);
		t = get(client, "new");
		must(all_bytes(t, i, MIB));
		drop(t);
	}
	must_be(tl_close(client), 0);
	if (c->others == FILES)
		files_must_be_as_they_were(fds);
	for (int i = 0; c->others == SOCKETS && i < OTHERS; i++)
		must_be(close(fds[i]), 0);
	return 0;
}

TEST(a_program_that_closes_its_descriptors_is_connected_anew)
{
	cleanup_td struct test_daemon d = td_start();

	for (int i = 0; i < 6; i++)
		must_be(td_run_client(&d, goes_on_without_descriptors,
				      &(struct closing){ .slept = i & 1, .others = i / 2 }),
			0);
	eventually(td_status(&d).clients == 0);
}

/* It holds a tensor, and has a watch that is readable. */
static int closes_without_descriptors(const struct test_daemon *d, void *arg)
{
	const struct closing *c = arg;
	tl_client *client = connect_and_use(d, c->slept);
	DLManagedTensorVersioned *held = get(client, "old");
	tl_watch_event event = { .size = sizeof(event) };
	tl_watch *watch;
	int fds[OTHERS], fd;

	must_be(tl_watch_open(client, "old", NULL, &watch), 0);
	must_be(tl_watch_fd(watch, &fd), 0);
	/* its thread has written: nobody can look what a number means and write at once */
	must_be(poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, WAIT_S * 1000), 1);
	must_be(tl_watch_next(watch, NULL, &event), 0);
	child_close_all();
	files_open(fds);
	must_be(tl_watch_close(watch), 0);
	must_be(tl_close(client), 0);
	must(all_bytes(held, 1, SIZE));
	drop(held);
	files_must_be_as_they_were(fds);
	return 0;
}

TEST(files_with_the_numbers_of_what_a_program_closed_are_left_alone)
{
	cleanup_td struct test_daemon d = td_start();

	for (int i = 0; i < 2; i++)
		must_be(td_run_client(&d, closes_without_descriptors,
				      &(struct closing){ .slept = i }),
			0);
	eventually(td_status(&d).clients == 0);
}

/* The first message goes to the program's socket, and no answer comes. The daemon stands still, so
 * that it does not say that it serves the client no more. */
static int has_a_socket_there(const struct test_daemon *d, void *arg)
{
	tl_client *client = connect_and_use(d, false);
	int pairs[OTHERS][2];
	tl_info info = { .size = sizeof(info) };

	(void)arg;
	pause_at(1); /* from here on it stands still */
	child_close_all();
	for (int i = 0; i < OTHERS; i++)
		must_be(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pairs[i]), 0);
	client_set_timeout(client, 50 * MS);
	must_be(tl_delete(client, "old"), -ETIMEDOUT);
	pause_at(2); /* from here on it does not */
	client_set_timeout(client, WAIT_S * SECOND);
	must_be(tl_delete(client, "old"), 0);
	must_be(tl_stat(client, "old", &info), -ENOENT);
	must_be(tl_close(client), 0);
	for (int i = 0; i < OTHERS; i++)
		must_be(send(pairs[i][0], "theirs", 6, 0), 6);
	return 0;
}

TEST(a_socket_with_the_number_of_ours_costs_one_call)
{
	cleanup_td struct test_daemon d = td_start();
	struct test_child c = child_start_ready(&d, has_a_socket_there, NULL);

	td_freeze(&d);
	must_be(child_step(&c), 2);
	td_thaw(&d);
	child_finish(&c);
}

/* What is given up when nothing is asked goes to nobody. */
static int releases_to_nobody(const struct test_daemon *d, void *arg)
{
	tl_client *client = connect_and_use(d, false);
	DLManagedTensorVersioned *held = get(client, "old");
	int pairs[OTHERS][2];
	char text[8];

	(void)arg;
	put_alone(client, "old", 2, SIZE);
	child_close_all();
	for (int i = 0; i < OTHERS; i++) {
		must_be(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pairs[i]), 0);
		for (int end = 0; end < 2; end++)
			must_be(send(pairs[i][end], "theirs", 6, 0), 6);
	}
	drop(held); /* which was replaced: the daemon would hear of it */
	held = get(client, "old");
	must(all_bytes(held, 2, SIZE));
	drop(held);
	must_be(tl_close(client), 0);
	for (int i = 0; i < 2 * OTHERS; i++) {
		must_be(recv(pairs[i / 2][i % 2], text, sizeof(text), MSG_DONTWAIT), 6);
		must_be(recv(pairs[i / 2][i % 2], text, sizeof(text), MSG_DONTWAIT), -1);
		must_be(errno, EAGAIN);
	}
	return 0;
}

TEST(a_release_does_not_go_to_a_socket_with_the_number_of_ours)
{
	cleanup_td struct test_daemon d = td_start();

	must_be(td_run_client(&d, releases_to_nobody, NULL), 0);
}

/* A child closes what it does not need of its parent's. */
static int forks_without_descriptors(const struct test_daemon *d, void *arg)
{
	tl_client *client = connect_and_use(d, false);
	int fds[OTHERS], status;
	pid_t pid;

	(void)arg;
	child_close_all();
	files_open(fds);
	pid = fork();
	if (pid == 0) {
		files_must_be_as_they_were(fds);
		_exit(0);
	}
	must_be(waitpid(pid, &status, 0), pid);
	must_be(status, 0);
	must_be(tl_close(client), 0);
	files_must_be_as_they_were(fds);
	return 0;
}

TEST(a_child_leaves_them_alone_as_well)
{
	cleanup_td struct test_daemon d = td_start();

	must_be(td_run_client(&d, forks_without_descriptors, NULL), 0);
}

/* ---- The standard streams ---- */

static int writes_to_closed_streams(const struct test_daemon *d, void *arg)
{
	const tl_put_options bound = { .size = sizeof(bound), .lifetime = TL_LIFETIME_OWNER_BOUND };
	tl_client *client;
	tl_watch *watch;
	int fd;

	(void)arg;
	for (fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		close(fd);
	client = connect_and_use(d, true);
	put_as(client, "bound", 1, SIZE, &bound);
	must_be(tl_watch_open(client, "bound", NULL, &watch), 0);
	must_be(tl_watch_fd(watch, &fd), 0);
	for (fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
		must_be(write(fd, "x", 1), -1);
		must_be(errno, EBADF);
	}
	pause_at(1);
	must_be(tl_watch_close(watch), 0);
	must_be(tl_close(client), 0);
	return 0;
}

TEST(what_is_written_to_a_closed_stream_reaches_no_daemon)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	struct test_child c = child_start_ready(&d, writes_to_closed_streams, NULL);

	td_sync(&d);
	must(client_sees(client, "bound"));
	child_finish(&c);
	tl_close(client);
}

int main(void)
{
	return suite_run();
}
