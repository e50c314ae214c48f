/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors whose close makes its caller wait: who is asked to close them does not. */
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "daemon/store/account.h"
#include "daemon/store/closer.h"
#include "tests/harness/harness.h"
#include "tests/harness/slow_fd.h"
#include "tests/harness/stuck_fd.h"
#include "util/fault.h"

static struct closer closer;

TEST(a_small_memfd_is_closed_at_once)
{
	int fd = memfd_create("small", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	must(fd >= 0);
	closer_take(&closer, fd, NULL);
	must_be(fcntl(fd, F_GETFD), -1);
	must(!closer_waits(&closer));
	must_be(closer.pid, 0); /* nobody was needed for that */
}

/* It may be the last of a file system with gigabytes, which ends with it. */
TEST(a_small_file_of_a_tmpfs_keeps_nobody_waiting)
{
	int fd = open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

	must(fcntl(fd, F_GET_SEALS) >= 0);
	closer_take(&closer, fd, NULL);
	must(closer.pid);
	eventually((closer_look(&closer), !closer_waits(&closer)));
	must_be(fcntl(fd, F_GETFD), -1);
	closer_deinit(&closer);
}

TEST(a_descriptor_that_is_slow_to_close_keeps_nobody_waiting)
{
	struct accounts accounts;
	struct account *account;
	struct slow_fd slow[3];

	accounts_init(&accounts, 0, NULL, 0);
	account = account_ref(&accounts, 7);
	for (int i = 0; i < 3; i++)
		slow[i] = slow_fd_make(3600);
	for (int i = 0; i < 3; i++)
		closer_take(&closer, slow[i].fd, account);
	must(closer_waits(&closer));
	must_be(account->closing, 3);
	account_unref(account);
	eventually((closer_look(&closer), !closer_looks(&closer)));
	for (int i = 0; i < 3; i++) {
		must_be(fcntl(slow[i].fd, F_GETFD), -1);
		close(slow[i].peer);
	}
	must_be(accounts.count, 0);
	accounts_deinit(&accounts);
	closer_deinit(&closer);
}

/* By something else than the closer, such as the OOM killer. */
TEST(a_process_that_was_killed_while_it_was_idle_is_replaced)
{
	struct accounts accounts;
	struct account *account;
	struct slow_fd slow[2] = { slow_fd_make(0), slow_fd_make(0) };
	siginfo_t info;

	accounts_init(&accounts, 0, NULL, 0);
	account = account_ref(&accounts, 7);
	closer_take(&closer, slow[0].fd, account);
	eventually((closer_note(&closer), !closer_waits(&closer)));
	must_be(kill(closer.pid, SIGKILL), 0);
	must_be(waitid(P_PID, (id_t)closer.pid, &info, WEXITED | WNOWAIT), 0);
	closer_take(&closer, slow[1].fd, account);
	must_be(account->closing, 1);
	account_unref(account);
	eventually((closer_look(&closer), !closer_looks(&closer)));
	must_be(fcntl(slow[1].fd, F_GETFD), -1);
	for (int i = 0; i < 2; i++)
		close(slow[i].peer);
	must_be(accounts.count, 0);
	accounts_deinit(&accounts);
	closer_deinit(&closer);
}

/* The keeper has them too, and must not be the last to close them. */
TEST(what_the_keeper_has_is_closed_after_it)
{
	int ends[2][2];

	for (int i = 0; i < 2; i++) {
		must_be(pipe2(ends[i], O_CLOEXEC), 0);
		closer_take_after(&closer, ends[i][1], NULL, 2 + (uint64_t)i);
	}
	closer_forgotten(&closer, 1);
	for (int i = 0; i < 2; i++) {
		struct pollfd p = { .fd = ends[i][0] };

		closer_look(&closer);
		must(closer_waits(&closer));
		must_be(poll(&p, 1, 0), 0);
		closer_forgotten(&closer, 2 + (uint64_t)i);
		must_be(poll(&p, 1, TEST_TIMEOUT_S * 1000), 1);
		must(p.revents & POLLHUP);
		close(ends[i][0]);
	}
	eventually((closer_look(&closer), !closer_waits(&closer)));
	closer_deinit(&closer);
}

TEST(descriptors_that_nobody_closed_are_forgotten_at_the_end)
{
	struct accounts accounts;
	struct account *account;
	struct slow_fd slow[2] = { slow_fd_make(3600), slow_fd_make(3600) };

	accounts_init(&accounts, 0, NULL, 0);
	account = account_ref(&accounts, 7);
	for (int i = 0; i < 2; i++)
		closer_take(&closer, slow[i].fd, account);
	account_unref(account);
	closer_deinit(&closer);
	must_be(accounts.count, 0);
	accounts_deinit(&accounts);
	for (int i = 0; i < 2; i++) {
		slow_fd_hurry(&slow[i]);
		close(slow[i].fd);
		close(slow[i].peer);
	}
}

TEST(what_no_signal_ends_keeps_only_its_sender_waiting)
{
	struct accounts accounts;
	struct account *alice, *bob;
	struct slow_fd slow[2];
	int fds[STUCK_FDS];
	pid_t server;

	NEEDS_FUSE;
	server = stuck_fds_make(fds, FUSE_FLUSH);
	slow[0] = slow_fd_make(3600);
	slow[1] = slow_fd_make(3600);
	accounts_init(&accounts, 0, NULL, 0);
	alice = account_ref(&accounts, 7);
	bob = account_ref(&accounts, 8);
	for (int i = 0; i < CLOSER_STUCK_MAX + 1; i++)
		closer_take(&closer, fds[i], alice);
	closer_take(&closer, slow[0].fd, bob);
	eventually((closer_look(&closer), !closer_waits(&closer)));
	must_be(bob->closing, 0);
	must_be(alice->closing, 1);
	/* her sockets are closed nevertheless, and nothing else */
	closer_take(&closer, slow[1].fd, alice);
	closer_take(&closer, fds[CLOSER_STUCK_MAX + 1], alice);
	must_be(alice->closing, 3);
	eventually((closer_look(&closer), !closer_waits(&closer)));
	must_be(alice->closing, 2);
	for (int i = 0; i < STUCK_FDS; i++) /* the numbers of those that are stuck are free */
		must_be(fcntl(fds[i], F_GETFD) < 0, i < CLOSER_STUCK_MAX);
	stuck_fds_free(server);
	eventually((closer_look(&closer), !closer_looks(&closer)));
	must_be(alice->closing, 0);
	for (int i = CLOSER_STUCK_MAX + 2; i < STUCK_FDS; i++)
		close(fds[i]);
	close(slow[0].peer);
	close(slow[1].peer);
	account_unref(alice);
	account_unref(bob);
	must_be(accounts.count, 0);
	accounts_deinit(&accounts);
	closer_deinit(&closer);
}

TEST(who_has_many_slow_ones_keeps_others_waiting_for_a_few_only)
{
	enum { SLOW = 40, LOOKS = 60 }; /* each of them takes two looks at least */
	struct account *alice, *bob;
	struct slow_fd slow[SLOW];
	struct accounts accounts;
	int ends[2];

	accounts_init(&accounts, 0, NULL, 0);
	alice = account_ref(&accounts, 7);
	bob = account_ref(&accounts, 8);
	for (int i = 0; i < SLOW; i++) {
		slow[i] = slow_fd_make(3600);
		closer_take(&closer, slow[i].fd, alice);
	}
	must_be(pipe2(ends, O_CLOEXEC), 0);
	closer_take(&closer, ends[1], bob);
	for (int i = 0; i < LOOKS && bob->closing; i++) {
		usleep(CLOSER_LOOK_MS * 1000);
		closer_look(&closer);
	}
	must_be(bob->closing, 0);
	must(alice->closing > 0);
	for (int i = 0; i < SLOW; i++)
		close(slow[i].peer);
	eventually((closer_look(&closer), !closer_looks(&closer)));
	must_be(alice->closing, 0);
	for (int i = 0; i < SLOW; i++)
		must_be(fcntl(slow[i].fd, F_GETFD), -1);
	close(ends[0]);
	account_unref(alice);
	account_unref(bob);
	must_be(accounts.count, 0);
	accounts_deinit(&accounts);
	closer_deinit(&closer);
}

TEST(without_a_process_nothing_is_closed_by_the_caller)
{
	struct slow_fd slow = slow_fd_make(3600);

	fault_arm(1);
	closer_take(&closer, slow.fd, NULL);
	assert_string_equal(fault_fired(), "helper");
	fault_disarm();
	must_be(closer.pid, 0);
	must(closer_waits(&closer));
	eventually((closer_look(&closer), !closer_waits(&closer)));
	close(slow.peer);
	closer_deinit(&closer);
}

int main(void)
{
	return suite_run();
}
