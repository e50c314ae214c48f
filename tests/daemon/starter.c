/* SPDX-License-Identifier: Apache-2.0 */
/* What a daemon in the background keeps of who started it. */
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/mempolicy.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "tests/harness/client.h"
#include "tests/harness/process.h"

/* True if the process has memory that is bound to a node. */
static bool is_bound(pid_t pid)
{
	char path[64], line[512];
	bool bound = false;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/numa_maps", (int)pid);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f))
		bound |= strstr(line, " bind:") != NULL;
	if (f)
		fclose(f);
	return bound;
}

static void bind_to_one(const cpu_set_t *from)
{
	unsigned long node = 1; /* the first one */
	cpu_set_t one;
	size_t cpu = 0;

	while (!CPU_ISSET(cpu, from))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	must_be(sched_setaffinity(0, sizeof(one), &one), 0);
	if (syscall(SYS_set_mempolicy, MPOL_BIND, &node, 8 * sizeof(node)))
		must(errno == ENOSYS || errno == EPERM);
}

/* All programs of the user share it, and stay longer than the thread that came first. */
TEST(a_daemon_does_not_stay_where_its_starter_was_bound)
{
	const char *binary = getenv("TL_TEST_DAEMON");
	char dir[] = "/tmp/tl-auto-XXXXXX", socket[64], lock[80];
	struct test_daemon own;
	cpu_set_t before, its, both;
	pid_t pid;

	must_be(sched_getaffinity(0, sizeof(before), &before), 0);
	SKIP_UNLESS(CPU_COUNT(&before) > 1, "there is one processor");
	must(mkdtemp(dir));
	snprintf(socket, sizeof(socket), "%s/socket", dir);
	setenv("TENSORLEASE_DAEMON", binary ? binary : "build/bin/tensorleased", 1);
	bind_to_one(&before);
	pid = daemon_autostart(socket);
	own = td_start();
	must_be(sched_setaffinity(0, sizeof(before), &before), 0);
	syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0);
	must_be(sched_getaffinity(pid, sizeof(its), &its), 0);
	CPU_AND(&both, &its, &before);
	must_be(CPU_COUNT(&both), CPU_COUNT(&before));
	must(!is_bound(pid));
	must_be(sched_getaffinity(own.pid, sizeof(its), &its), 0);
	must_be(CPU_COUNT(&its), 1); /* who starts one by hand decides */
	td_stop(&own);
	end_daemon(pid);
	unsetenv("TENSORLEASE_DAEMON");
	snprintf(lock, sizeof(lock), "%s.lock", socket);
	unlink(lock);
	must_be(rmdir(dir), 0);
}

/* As on Linux before 5.9, or by an old filter of a container. */
static void refuse_close_range(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { .len = sizeof(filter) / sizeof(filter[0]), .filter = filter };

	must_be(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	must_be(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

TEST(a_daemon_in_the_background_keeps_no_descriptor_of_its_starter)
{
	const char *binary = getenv("TL_TEST_DAEMON");
	cleanup_td struct test_daemon d = td_start();
	struct pollfd end = { .events = POLLIN };
	int ends[2], exit_status;
	tl_client *client;
	pid_t pid;

	td_stop(&d);
	for (int refused = 0; refused < 2; refused++) {
		must_be(pipe2(ends, O_CLOEXEC), 0);
		pid = fork();
		must(pid >= 0);
		if (pid == 0) {
			process_is_child();
			fcntl(ends[1], F_SETFD, 0);
			if (refused)
				refuse_close_range();
			execl(binary ? binary : "build/bin/tensorleased", "tensorleased",
			      "--socket", d.socket, NULL);
			_exit(127);
		}
		close(ends[1]);
		must_be(process_wait(pid, &exit_status), 0);
		must_be(exit_status, 0);
		client = td_connect(&d);
		pid = daemon_of(client);
		end.fd = ends[0];
		must_be(poll(&end, 1, WAIT_MS), 1);
		must_be(end.revents, POLLHUP);
		close(ends[0]);
		tl_close(client);
		end_daemon(pid);
	}
}

int main(void)
{
	return suite_run();
}
