/* SPDX-License-Identifier: Apache-2.0 */
/* Sends and receives messages over a socket pair. Each test counts its descriptors before and
 * after. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "proto/conn.h"
#include "tests/harness/limit.h"
#include "tests/harness/messages.h"
#include "tests/harness/suite.h"

enum { TIMEOUT_S = 120, MANY_FDS = 200 };

static int ends[2];
static unsigned fds_before;
static struct samples all;

static unsigned count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static int setup(void **state)
{
	(void)state;
	alarm(test_limit(TIMEOUT_S));
	samples_make(&all);
	fds_before = count_fds();
	return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends);
}

static int teardown(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++)
		if (ends[i] >= 0)
			close(ends[i]);
	alarm(0);
	return count_fds() == fds_before ? 0 : -1;
}

static struct sample *find_sample(enum wire_type type)
{
	for (size_t i = 0; i < all.n; i++)
		if (all.list[i].header.type == type)
			return &all.list[i];
	fail_msg("no sample of %u", type);
	return NULL;
}

/* Sends bytes with any number of descriptors, as conn_send() never would. */
static void send_raw(int socket, const void *bytes, size_t length, const int *fds, size_t nfds)
{
	alignas(struct cmsghdr) char control[CMSG_SPACE(MANY_FDS * sizeof(int))] = { 0 };
	struct iovec iov = { .iov_base = (void *)bytes, .iov_len = length };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct cmsghdr *c = (struct cmsghdr *)(void *)control;

	if (nfds) {
		msg.msg_control = control;
		msg.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(nfds * sizeof(int));
		memcpy(CMSG_DATA(c), fds, nfds * sizeof(int));
	}
	assert_int_equal(sendmsg(socket, &msg, MSG_NOSIGNAL), length);
}

static void send_with_many_fds(const struct sample *s, size_t nfds)
{
	int fds[MANY_FDS];

	for (size_t i = 0; i < nfds; i++)
		fds[i] = ends[0];
	send_raw(ends[0], s->bytes, s->length, fds, nfds);
}

static void assert_refused(enum wire_side side)
{
	struct conn_message m;
	unsigned n = count_fds();

	assert_int_equal(conn_receive(ends[1], side, &m, MSG_DONTWAIT), -EBADMSG);
	assert_int_equal(m.fd, -1);
	assert_string_not_equal(m.why, "");
	assert_int_equal(count_fds(), n);
}

#define TEST(name) TEST_WITH(name, setup, teardown)

TEST(every_valid_message_arrives_as_it_was_sent)
{
	for (size_t i = 0; i < all.n; i++) {
		struct sample *s = &all.list[i];
		struct conn_message m;

		assert_int_equal(conn_send(ends[0], s->bytes, s->nfds ? ends[0] : -1, MSG_DONTWAIT),
				 0);
		assert_int_equal(conn_receive(ends[1], s->side, &m, MSG_DONTWAIT), 0);
		assert_int_equal(m.header.length, s->length);
		assert_memory_equal(m.bytes, s->bytes, s->length);
		assert_int_equal(m.fd >= 0, s->nfds);
		if (m.fd >= 0) {
			assert_true(fcntl(m.fd, F_GETFD) & FD_CLOEXEC);
			close(m.fd);
		}
	}
}

TEST(a_second_descriptor_is_refused_and_both_are_closed)
{
	for (size_t n = 2; n <= 6; n++) {
		send_with_many_fds(find_sample(WIRE_LEDGER), n);
		assert_refused(WIRE_TO_DAEMON);
	}
}

TEST(a_flood_of_descriptors_is_refused_and_closed)
{
	send_with_many_fds(find_sample(WIRE_LEDGER), MANY_FDS);
	assert_refused(WIRE_TO_DAEMON);
}

TEST(a_descriptor_where_none_belongs_is_closed)
{
	for (size_t i = 0; i < all.n; i++) {
		if (all.list[i].nfds)
			continue;
		send_with_many_fds(&all.list[i], 1);
		assert_refused(all.list[i].side);
	}
}

TEST(a_missing_descriptor_is_refused)
{
	send_with_many_fds(find_sample(WIRE_LEDGER), 0);
	assert_refused(WIRE_TO_DAEMON);
}

TEST(the_descriptor_of_a_malformed_message_is_closed)
{
	struct sample s = *find_sample(WIRE_LEDGER);

	s.header.reserved = 1;
	send_with_many_fds(&s, 1);
	assert_refused(WIRE_TO_DAEMON);
}

TEST(a_message_too_long_is_refused_and_the_next_is_not)
{
	static unsigned char big[WIRE_MAX + 1];
	struct wire_header h = { .type = WIRE_SYNC, .length = sizeof(big), .serial = 1 };
	struct sample *sync = find_sample(WIRE_SYNC);
	struct conn_message m;

	memcpy(big, &h, sizeof(h));
	send_raw(ends[0], big, sizeof(big), NULL, 0);
	h.length = WIRE_MAX; /* agrees with the bytes that will be received of it */
	memcpy(big, &h, sizeof(h));
	send_raw(ends[0], big, sizeof(big), ends, 1);
	send_raw(ends[0], sync->bytes, sync->length, NULL, 0);
	assert_refused(WIRE_TO_DAEMON);
	assert_refused(WIRE_TO_DAEMON);
	assert_int_equal(conn_receive(ends[1], WIRE_TO_DAEMON, &m, MSG_DONTWAIT), 0);
}

TEST(the_end_of_the_connection_is_told)
{
	struct conn_message m;

	assert_int_equal(conn_receive(ends[1], WIRE_TO_DAEMON, &m, MSG_DONTWAIT), -EAGAIN);
	close(ends[0]);
	ends[0] = -1;
	assert_int_equal(conn_receive(ends[1], WIRE_TO_DAEMON, &m, MSG_DONTWAIT), -ECONNRESET);
	assert_int_equal(m.fd, -1);
	assert_int_equal(conn_send(ends[1], find_sample(WIRE_DONE)->bytes, -1, 0), -EPIPE);
}

TEST(the_last_words_are_heard_though_nothing_was_read)
{
	struct sample *last = find_sample(WIRE_ERROR), *unread = find_sample(WIRE_SYNC);
	struct conn_message m;

	assert_int_equal(conn_send(ends[1], unread->bytes, -1, 0), 0);
	assert_int_equal(conn_send(ends[0], last->bytes, -1, 0), 0);
	close(ends[0]);
	ends[0] = -1;
	assert_int_equal(conn_receive(ends[1], WIRE_TO_CLIENT, &m, MSG_DONTWAIT), 0);
	assert_int_equal(m.header.type, WIRE_ERROR);
	assert_int_equal(conn_receive(ends[1], WIRE_TO_CLIENT, &m, MSG_DONTWAIT), -ECONNRESET);
}

TEST(an_empty_datagram_ends_it_and_its_descriptor_is_closed)
{
	struct conn_message m;
	unsigned n = count_fds();

	send_raw(ends[0], "", 0, ends, 1);
	assert_int_equal(conn_receive(ends[1], WIRE_TO_DAEMON, &m, MSG_DONTWAIT), -ECONNRESET);
	assert_int_equal(m.fd, -1);
	assert_int_equal(count_fds(), n);
}

TEST(a_process_out_of_descriptors_refuses_and_recovers)
{
	struct sample *s = find_sample(WIRE_LEDGER);
	struct rlimit old, low;
	struct conn_message m;
	int probe = dup(0), r;

	assert_true(probe >= 0); /* the lowest number that is free */
	close(probe);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	low = (struct rlimit){ .rlim_cur = (rlim_t)probe, .rlim_max = old.rlim_max };
	send_with_many_fds(s, 1);
	send_with_many_fds(s, 1);

	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	r = conn_receive(ends[1], WIRE_TO_DAEMON, &m, MSG_DONTWAIT);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
	assert_int_equal(r, -EBADMSG);
	assert_int_equal(m.fd, -1);
	assert_non_null(strstr(m.why, "descriptors were lost"));

	assert_int_equal(conn_receive(ends[1], WIRE_TO_DAEMON, &m, MSG_DONTWAIT), 0);
	close(m.fd);
}

TEST(a_full_socket_says_so_and_keeps_the_descriptor)
{
	struct sample *s = find_sample(WIRE_SEGMENT);
	struct conn_message m;
	unsigned sent = 0;
	int r;

	while ((r = conn_send(ends[0], s->bytes, ends[0], MSG_DONTWAIT)) == 0)
		sent++;
	assert_int_equal(r, -EAGAIN);
	assert_true(fcntl(ends[0], F_GETFD) >= 0);
	for (unsigned i = 0; i < sent; i++) {
		assert_int_equal(conn_receive(ends[1], WIRE_TO_CLIENT, &m, MSG_DONTWAIT), 0);
		close(m.fd);
	}
	assert_int_equal(conn_receive(ends[1], WIRE_TO_CLIENT, &m, MSG_DONTWAIT), -EAGAIN);
}

static struct wire_plain from_handler = {
	.header = { .type = WIRE_SYNC, .length = 16, .serial = 1 },
};

static void on_timer(int signal)
{
	(void)signal;
	if (send(ends[0], &from_handler, sizeof(from_handler), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		_exit(99);
}

TEST(an_interrupted_receive_goes_on)
{
	struct sigaction act = { .sa_handler = on_timer }; /* without SA_RESTART */
	struct itimerval in_a_moment = { .it_value = { .tv_usec = 20000 } };
	struct conn_message m;

	alarm(0); /* the timer takes its place */
	assert_int_equal(sigaction(SIGALRM, &act, NULL), 0);
	assert_int_equal(setitimer(ITIMER_REAL, &in_a_moment, NULL), 0);
	assert_int_equal(conn_receive(ends[1], WIRE_TO_DAEMON, &m, 0), 0);
	assert_int_equal(m.header.type, WIRE_SYNC);
	signal(SIGALRM, SIG_DFL);
}

TEST(messages_are_shown_when_asked_for)
{
	struct sample *s = find_sample(WIRE_SEGMENT);
	int out = memfd_create("stderr", MFD_CLOEXEC), saved = dup(STDERR_FILENO);
	char text[4096] = { 0 };
	struct conn_message m = { .fd = -1 };
	int r, bad;

	assert_true(out >= 0 && saved >= 0);
	fflush(stderr);
	dup2(out, STDERR_FILENO);
	setenv("TENSORLEASE_DEBUG", "wire", 1);
	conn_debug_init("one");
	r = conn_send(ends[0], s->bytes, ends[0], 0);
	if (r == 0)
		r = conn_receive(ends[1], WIRE_TO_CLIENT, &m, 0);
	send_raw(ends[0], "x", 1, NULL, 0);
	bad = conn_receive(ends[1], WIRE_TO_CLIENT, &(struct conn_message){ .fd = -1 }, 0);
	unsetenv("TENSORLEASE_DEBUG");
	conn_debug_init("one");
	conn_send(ends[0], s->bytes, -1, 0);
	fflush(stderr);
	dup2(saved, STDERR_FILENO);
	close(saved);

	assert_int_equal(r, 0);
	assert_int_equal(bad, -EBADMSG);
	close(m.fd);
	assert_true(pread(out, text, sizeof(text) - 1, 0) > 0);
	close(out);
	assert_non_null(strstr(text, "one -> SEGMENT #"));
	assert_non_null(strstr(text, "one <- SEGMENT #"));
	assert_non_null(strstr(text, "size=4096 segment=3 segment_generation=2 +fd\n"));
	assert_non_null(strstr(text, "one <- its length is 1, shorter than a header\n"));
	assert_ptr_equal(strstr(strstr(text, "shorter"), "SEGMENT"), NULL);
}

int main(void)
{
	return suite_run();
}
