/* SPDX-License-Identifier: Apache-2.0 */
/* tests/inspect: it finds what is wrong in shared memory, and nothing else. */
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "daemon/state/facts.h"
#include "proto/catalog_layout.h"
#include "tests/harness/child.h"
#include "tests/harness/client.h"
#include "tests/harness/harness.h"
#include "tests/harness/own_shm.h"
#include "tests/harness/process.h"

enum { SOUND = 0, CANNOT = 1, WRONG = 4, STRANGER = 1111 };

/* The catalog as the daemon has it, writable. */
struct catalog_map {
	struct catalog_header *header;
	struct catalog_name *names;
	struct catalog_row *rows;
	struct catalog_segment *segments;
	size_t size;
};

static void catalog_path(const struct test_daemon *d, char path[80])
{
	snprintf(path, 80, "/dev/shm/tensorlease-%016llx-%016x", (unsigned long long)d->instance,
		 0);
}

static struct catalog_map catalog_map(const struct test_daemon *d)
{
	struct catalog_map m;
	struct stat st;
	char path[80];
	int fd;

	catalog_path(d, path);
	fd = open(path, O_RDWR | O_CLOEXEC);
	must(fd >= 0);
	must_be(fstat(fd, &st), 0);
	m.size = (size_t)st.st_size;
	m.header = mmap(NULL, m.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	must(m.header != MAP_FAILED);
	close(fd);
	m.names = (void *)((char *)m.header + m.header->off_names);
	m.rows = (void *)((char *)m.header + m.header->off_rows);
	m.segments = (void *)((char *)m.header + m.header->off_segments);
	return m;
}

/* What it says contains @text. */
static void check_must(const struct test_daemon *d, int status, const char *text)
{
	char path[128], said[4096] = "";
	FILE *f;

	must_be(td_check(d, true), status);
	snprintf(path, sizeof(path), "%s/check", d->dir);
	f = fopen(path, "re");
	must(f);
	(void)!fread(said, 1, sizeof(said) - 1, f);
	fclose(f);
	if (!strstr(said, text))
		print_error("it should say \"%s\", and says:\n%s", text, said);
	must(strstr(said, text));
}

static void must_say(const struct test_daemon *d, const char *text)
{
	check_must(d, WRONG, text);
}

/* @place is other than it should be, and then as before. */
#define MUST_SAY_IF(d, place, value, text)                                                         \
	do {                                                                                       \
		__typeof__(place) before_ = (place);                                               \
		(place) = (value);                                                                 \
		must_say(d, text);                                                                 \
		(place) = before_;                                                                 \
	} while (0)

/* One name is published, deleted or published with another, all the time. */
static void churn(const struct test_daemon *d, int n)
{
	struct raw rc = rc_open(d);
	char name[32], other[64];
	struct wire_draft draft;

	for (;;) {
		for (int i = 0; i < 20; i++) {
			snprintf(name, sizeof(name), "churn/%d/%d", n, i);
			snprintf(other, sizeof(other), "a name of thirty-three bytes %d%d", n, i);
			must_be(rc_put(&rc, name, i % 3 ? 100 : 20000, n, &draft), 0);
			must_be(rc_put(&rc, other, 100, n, &draft), 0);
			if (i % 4 == 0)
				must_be(rc_delete(&rc, other), 0);
			rc_let_go(&rc);
		}
	}
}

TEST(what_a_daemon_leaves_at_any_moment_is_sound)
{
	static const char *const with_keeper[] = { "--keeper", "yes", NULL };
	struct test_daemon d = td_start(.extra = with_keeper, .max_tensors = 2000);
	pid_t pids[2];

	for (int i = 0; i < 2; i++) {
		pids[i] = fork();
		must(pids[i] >= 0);
		if (pids[i] == 0) {
			process_is_child();
			churn(&d, i);
		}
		process_remember(pids[i]);
	}
	for (int i = 0; i < 40; i++)
		must_be(td_check(&d, false), SOUND);
	for (int i = 0; i < 2; i++) {
		int status;

		must_be(kill(pids[i], SIGKILL), 0);
		must_be(process_wait(pids[i], &status), 0);
		must(WIFSIGNALED(status));
	}
	must_be(td_check(&d, false), SOUND);
	td_stop(&d);
}

TEST(what_is_wrong_is_found)
{
	struct test_daemon d = td_start(.max_tensors = 100,
					.no_keeper = "facts would tell of most mistakes first");
	struct raw rc = rc_open(&d);
	struct catalog_map m = catalog_map(&d);
	struct wire_draft a, b;

	must_be(rc_put(&rc, "a", 100, 1, &a), 0);
	must_be(rc_put(&rc, "b", 100, 2, &b), 0);
	must_be(td_check(&d, false), SOUND);
	MUST_SAY_IF(&d, m.names[0].text[0], 'x', "name 0 has another hash than its text");
	MUST_SAY_IF(&d, m.names[0].next, 77, "a name that is not there");
	MUST_SAY_IF(&d, m.names[1].current, m.names[0].current, "means a row that is not its own");
	MUST_SAY_IF(&d, m.names[1].version, 9, "name 1 has another version than what it means");
	MUST_SAY_IF(&d, m.rows[1].offset, 1U << 30, "row 1 is not within a segment that lives");
	MUST_SAY_IF(&d, m.rows[1].offset, m.rows[1].offset + 1, "row 1 is not within a segment");
	MUST_SAY_IF(&d, m.rows[1].name, 50, "row 1 has a name that is not there");
	MUST_SAY_IF(&d, m.rows[0].word, m.rows[0].word + 1, "is not LIVE");
	MUST_SAY_IF(&d, m.segments[0].word, 0, "is not within a segment that lives");
	MUST_SAY_IF(&d, m.segments[0].size, 4097, "segment 0 has a size");
	MUST_SAY_IF(&d, m.header->tensors, 3, "the header says 3 tensors, and there are 2");
	MUST_SAY_IF(&d, m.header->bytes_used, 4096, "4096 bytes");
	MUST_SAY_IF(&d, m.header->off_rows, 64, "its header does not fit its limits");
	must_be(rc_delete(&rc, "b"), 0);
	rc_sync(&rc);
	must_be(td_check(&d, false), SOUND);
	munmap(m.header, m.size);
	rc_close(&rc);
	td_stop(&d);
}

/* The facts tell, which only the daemon and its keeper have. */
TEST(a_row_that_changed_since_it_was_published_is_found)
{
	static const char *const with_keeper[] = { "--keeper", "yes", NULL };
	struct test_daemon d = td_start(.extra = with_keeper);
	struct raw rc = rc_open(&d);
	struct catalog_map m = catalog_map(&d);
	struct wire_draft a, b;

	must_be(rc_put(&rc, "a", 100, 1, &a), 0);
	must_be(rc_put(&rc, "b", 100, 2, &b), 0);
	must_be(td_check(&d, false), SOUND);
	MUST_SAY_IF(&d, m.rows[1].offset, m.rows[0].offset, "row 1 has changed since");
	MUST_SAY_IF(&d, m.rows[1].dtype_code, 2, "row 1 has changed since");
	MUST_SAY_IF(&d, m.segments[0].flags, 8, "segment 0 has changed since");
	munmap(m.header, m.size);
	rc_close(&rc);
	td_stop(&d);
}

/* The kernel gives such a memfd other seals. The sysctl belongs to the PID namespace. */
TEST(facts_are_found_where_memfds_are_not_executable)
{
	enum { NO_SYSCTL = 77 };
	const char *binary = getenv("TL_TEST_DAEMON");
	char command[PATH_MAX + 768];
	int status;

	SKIP_UNLESS(!system("unshare -pf --mount-proc true 2>/dev/null"),
		    "may not make a PID namespace");
	SKIP_UNLESS(own_shm(), "may not have a /dev/shm of its own");
	struct test_daemon place = td_start(); /* only for its directory */

	snprintf(command, sizeof(command),
		 "s=%s/second d='%s' i='%s'; unshare -pf --mount-proc sh -c '"
		 "(echo 1 >/proc/sys/vm/memfd_noexec) 2>/dev/null || exit %d; "
		 "\"$2\" --socket $1 2>/dev/null && \"$3\" $1 | grep -q \", facts,\"; "
		 "r=$?; rm -f $1 $1.lock; exit $r' sh $s \"$d\" \"$i\"",
		 place.dir, binary ? binary : "build/bin/tensorleased", td_inspector(), NO_SYSCTL);
	status = system(command); /* the end of the first process ends the namespace's daemon */
	td_stop(&place);
	SKIP_UNLESS(status != NO_SYSCTL << 8, "the kernel has no vm.memfd_noexec");
	must_be(status, 0);
}

/* Of these it has a memfd as memory on a device. */
static void imitate_facts(struct raw *rc, const struct test_daemon *d, const char *name)
{
	struct facts_header header = { .magic = FACTS_MAGIC,
				       .layout = FACTS_LAYOUT,
				       .size = MIB,
				       .instance = d->instance,
				       .name = "liars" };
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	struct wire_segment_ref seg;

	must(fd >= 0);
	must_be(fchmod(fd, 0644) | ftruncate(fd, MIB), 0);
	must_be(pwrite(fd, &header, sizeof(header), 0), sizeof(header));
	must_be(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
	must_be(rc_export(rc, SEGMENT_CUDA_VMM, 1, MIB, MIB, 1, fd, &seg), 0);
	close(fd);
}

static int imitate(const struct test_daemon *d, void *name)
{
	struct raw rc = rc_open(d);

	imitate_facts(&rc, d, name);
	pause_at(1);
	rc_close(&rc);
	return 0;
}

TEST(what_a_client_has_called_facts_is_none)
{
	struct test_daemon d = td_start(.no_keeper = "it is to have no facts of its own");
	struct raw rc = rc_open(&d);

	imitate_facts(&rc, &d, "tensorleased-facts-of-mine");
	imitate_facts(&rc, &d, "tensorlease-facts");
	imitate_facts(&rc, &d, "tensorleased-facts");
	must_be(td_check(&d, false), SOUND);
	rc_close(&rc);
	td_stop(&d);
}

TEST(what_another_user_has_called_facts_is_none)
{
	static char name[] = "tensorleased-facts";
	struct test_child c;
	struct test_daemon d;

	SKIP_UNLESS(geteuid() == 0, "needs root, to be another user");
	d = td_start(.no_keeper = "it is to have no facts of its own", .for_others = true);
	c = child_start_as(STRANGER, &d, imitate, name);
	must_be(child_await(&c), 1);
	must_be(td_check(&d, false), SOUND);
	child_finish(&c);
	td_stop(&d);
}

/* Clients take it, and so the environment may have it. */
TEST(an_address_with_a_namespace_names_a_socket_for_the_daemon_too)
{
	enum { SERVED = 3 };
	struct test_daemon d = td_start();
	const char *binary = getenv("TL_TEST_DAEMON");
	char command[512];

	snprintf(command, sizeof(command), "TENSORLEASE_SOCKET=tensorlease://lab%s exec %s",
		 d.socket, binary ? binary : "build/bin/tensorleased");
	must_be(system(command), SERVED << 8);
	td_stop(&d);
}

TEST(without_a_daemon_there_is_nothing_to_check)
{
	struct test_daemon d = td_start();
	struct test_daemon gone = d;

	td_stop(&d);
	must_be(td_check(&gone, true), CANNOT);
}

/* As logind does when the last session of a user ends. */
TEST(a_check_of_shared_memory_that_was_removed_says_so)
{
	struct test_daemon d = td_start();
	char path[80];

	catalog_path(&d, path);
	must_be(unlink(path), 0);
	check_must(&d, CANNOT, "is not in /dev/shm here");
	must_be(kill(d.pid, SIGTERM), 0);
	must_be(td_exit_status(&d), 0);
}

/* A connection would start the service whose socket it is, which removes what is to be checked. */
static void must_not_connect(const struct test_daemon *d, uint64_t instance)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct test_daemon dead = *d;
	char lock[128];
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	FILE *file;

	must(fd >= 0);
	snprintf(dead.socket, sizeof(dead.socket), "%s/second", d->dir);
	snprintf(lock, sizeof(lock), "%s.lock", dead.socket);
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", dead.socket);
	must_be(bind(fd, (void *)&a, sizeof(a)), 0);
	must_be(listen(fd, 16), 0);
	file = fopen(lock, "we");
	must(file);
	fprintf(file, "1 %016llx\n", (unsigned long long)instance);
	fclose(file);
	must_be(td_check(&dead, false), SOUND);
	must_be(poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, 0), 0);
	close(fd);
	unlink(lock);
	unlink(dead.socket);
}

TEST(a_check_starts_no_service)
{
	struct test_daemon d = td_start();

	must_not_connect(&d, d.instance); /* it finds remains, but no process */
	must_not_connect(&d, 0);	  /* it finds nothing */
	td_stop(&d);
}

/* Where the daemon's processes cannot be seen it is not known whether one serves. */
TEST(a_check_from_another_pid_namespace_says_that_it_cannot_tell)
{
	char command[PATH_MAX + 256], said[2048] = "";
	struct test_daemon d;
	FILE *pipe;

	SKIP_UNLESS(!system("unshare --pid --fork --mount-proc true 2>/dev/null"),
		    "may not make a PID namespace");
	d = td_start(.max_tensors = 100);
	snprintf(command, sizeof(command), "unshare --pid --fork --mount-proc %s %s 2>&1",
		 td_inspector(), d.socket);
	pipe = popen(command, "re");
	must(pipe);
	(void)!fread(said, 1, sizeof(said) - 1, pipe);
	must_be(WEXITSTATUS(pclose(pipe)), CANNOT);
	must(strstr(said, "another PID namespace"));
	must(!strstr(said, "not served"));
	td_stop(&d);
}

static bool has_begun_again(const struct test_daemon *d)
{
	tl_connect_options o = { .size = sizeof(o), .address = d->socket };
	bool again = false;
	tl_client *c;

	if (!tl_connect(&o, &c)) {
		again = client_status(c).restarts > 0;
		tl_close(c);
	}
	return again;
}

/* The process that made the kept socket a listener has ended. */
TEST(a_check_from_outside_of_a_container_says_that_it_cannot_tell)
{
	const char *binary = getenv("TL_TEST_DAEMON");
	struct test_daemon place, inner;
	char command[768];
	FILE *pipe;

	SKIP_UNLESS(!system("unshare --pid --fork --mount-proc true 2>/dev/null"),
		    "may not make a PID namespace");
	SKIP_UNLESS(own_shm(), "may not have a /dev/shm of its own");
	place = inner = td_start(); /* only for its directory */
	snprintf(inner.socket, sizeof(inner.socket), "%s/second", place.dir);
	snprintf(command, sizeof(command),
		 "exec unshare --pid --fork --mount-proc sh -c '"
		 "\"$2\" --keeper yes --socket $1 && kill -9 $(cut -d\" \" -f1 $1.lock) && "
		 "read x; rm -f $1 $1.lock' sh %s '%s'",
		 inner.socket, binary ? binary : "build/bin/tensorleased");
	pipe = popen(command, "we");
	must(pipe);
	eventually(has_begun_again(&inner));
	must_be(td_check(&inner, true), CANNOT);
	fputs("\n", pipe);
	pclose(pipe); /* the end of the first process ends the namespace's daemon */
	td_stop(&place);
}

int main(void)
{
	return suite_run();
}
