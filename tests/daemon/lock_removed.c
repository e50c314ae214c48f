/* SPDX-License-Identifier: Apache-2.0 */
/* Files beside the socket that somebody removes while the daemon serves. */
#include <fcntl.h>
#include <sys/stat.h>

#include "tests/daemon/keeper_common.h"

/* As cleaners of old files remove it, which leave the socket alone. */
static void lock_remove(const struct test_daemon *d)
{
	char lock[128];

	snprintf(lock, sizeof(lock), "%s.lock", d->socket);
	must_be(unlink(lock), 0);
}

TEST(a_lock_file_that_was_removed_loses_nothing)
{
	struct test_daemon d = start(with_keeper);
	tl_client *c = td_connect(&d);
	uint64_t version;
	pid_t pid, next;

	must_be(put_value(c, "a", 1, &version), 0);
	lock_remove(&d);
	pid = kill_proper(&d);
	lock_remove(&d);
	must_be(kill(d.keeper, SIGHUP), 0);
	eventually((next = proper(&d)) && next != pid);
	must_be(td_full_status(&d).tensors, 1);
	must_be(exit_status_beside(&d), 3); /* the lock is there again */
	eventually(!put_value(c, "a", 2, &version));
	must_be(version, 2);
	lock_remove(&d);
	must_be(kill(d.keeper, SIGTERM), 0);
	must_be(td_exit_status(&d), 0);
	d = td_start(.socket = d.socket);
	eventually(!put_value(c, "a", 3, &version));
	must(version > 2); /* clients may be waiting for those */
	tl_close(c);
	td_stop(&d);
}

/* It makes a lock file, and then finds the socket in use. */
TEST(a_second_daemon_after_the_lock_was_removed_harms_nothing)
{
	struct test_daemon d = start(with_keeper);
	tl_client *c = td_connect(&d);
	uint64_t version;
	char lock[128];

	snprintf(lock, sizeof(lock), "%s.lock", d.socket);
	must_be(put_value(c, "a", 1, &version), 0);
	lock_remove(&d);
	must_be(exit_status_beside(&d), 3);
	must_be(access(lock, F_OK), -1); /* with another's, the first would count as unreachable */
	must_be(close(open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600)), 0);
	kill_proper(&d); /* even if it was killed too early for that */
	must_be(td_full_status(&d).tensors, 1);
	tl_close(c);
	td_stop(&d);
}

/* Clients that are connected go on. */
TEST(the_directory_of_the_socket_may_be_removed)
{
	struct test_daemon place = start(with_keeper), d;
	char dir[100], socket[108];
	DLManagedTensorVersioned *t;
	struct tl_status s;
	uint64_t version;
	tl_client *c;

	snprintf(dir, sizeof(dir), "%s/gone", place.dir);
	snprintf(socket, sizeof(socket), "%s/socket", dir);
	must_be(mkdir(dir, 0700), 0);
	d = td_start(.extra = with_keeper, .expect_ready = true, .socket = socket);
	c = td_connect(&d);
	must_be(put_value(c, "a", 1, &version), 0);
	lock_remove(&d);
	must_be(unlink(socket) | rmdir(dir), 0);
	s = client_status(c);
	must_be(kill((pid_t)s.daemon_pid, SIGKILL), 0);
	eventually(!tl_get(c, "a", NULL, &t) && client_status(c).restarts == 1);
	must_be(*(uint8_t *)t->dl_tensor.data, 1);
	t->deleter(t);
	tl_close(c);
	must_be(kill(d.keeper, SIGTERM), 0);
	must_be(td_exit_status(&d), 0);
	td_stop(&place);
}

int main(void)
{
	return suite_run();
}
