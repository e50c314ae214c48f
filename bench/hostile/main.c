/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensorlease-bench-hostile: the cost of a hostile user's connections to another user.
 *
 * Each row has a daemon and victims of its own, and four phases: the victims beside a process that
 * only spins, beside two of them, beside the attack, and beside one again. An attack may cost the
 * victims as much as any process costs them. It keeps two processes busy, the attacker and the
 * daemon that works for it. On a machine with two cores nothing is left then, and two spinning
 * processes cost the victims ten times as much as one, though the daemon has no part in that. So a
 * row is compared with both. The aim is a p99 of commits of at most twice that beside two, and no
 * refused victim.
 */
#include <err.h>
#include <fcntl.h>
#include <getopt.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include "bench/hostile/hostile.h"
#include "bench/hostile/report.h"

enum { START_S = 15, RECOVER_S = 10, BEGIN_S = 10 };

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
	interrupted = number;
}

static void usage(FILE *to)
{
	fputs("usage: tensorlease-bench-hostile [--quick] [--json] [--only TEXT] [--connections N]\n"
	      "Measures what a hostile user's connections cost another user of the tensorleased beside\n"
	      "this program. As root, the daemon, the victims and the attacker are different users.\n"
	      "  --quick          100 connections of the attacker instead of 1000, and shorter phases\n"
	      "  --json           print all numbers as JSON\n"
	      "  --only TEXT      only the rows whose names contain TEXT\n"
	      "  --connections N  connections of the attacker\n"
	      "  --help           print this\n",
	      to);
}

/* Returns 0 to continue, 1 if there is nothing to do, 2 for wrong usage. */
static int parse(struct setup *s, int argc, char **argv)
{
	static const struct option options[] = {
		{ "quick", no_argument, NULL, 'q' },
		{ "json", no_argument, NULL, 'j' },
		{ "only", required_argument, NULL, 'o' },
		{ "connections", required_argument, NULL, 'c' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case 'q':
			s->quick = true;
			break;
		case 'j':
			s->json = true;
			break;
		case 'o':
			s->only = optarg;
			break;
		case 'c':
			s->connections = (unsigned)strtoul(optarg, NULL, 10);
			break;
		case 'h':
			usage(stdout);
			return 1;
		default:
			usage(stderr);
			return 2;
		}
	}
	if (optind < argc) {
		usage(stderr);
		return 2;
	}
	if (!s->connections)
		s->connections = s->quick ? 100 : 1000;
	s->seconds = s->quick ? 1 : 3;
	return 0;
}

/* ---- a row ---- */

struct row {
	const struct setup *setup;
	const struct attack *attack;
	pid_t daemon, spinners[2], attacker, victims[VICTIMS];
	int log_fd, log_reader;
};

static void wait_for(double seconds)
{
	int64_t end = now_ns() + (int64_t)(seconds * 1e9);

	while (!interrupted && now_ns() < end)
		usleep(5000);
}

/* Waits until the counter has grown by @n. Returns whether it has within @seconds. */
static bool wait_growth(_Atomic uint32_t *counter, uint32_t n, double seconds)
{
	int64_t end = now_ns() + (int64_t)(seconds * 1e9);
	uint32_t before = atomic_load(counter);

	while (!interrupted && now_ns() < end) {
		if (atomic_load(counter) - before >= n)
			return true;
		usleep(5000);
	}
	return false;
}

static void wait_ready(const struct row *row)
{
	int64_t end = now_ns() + START_S * SECOND;

	while (!interrupted && now_ns() < end && !atomic_load(&row->setup->board->ready)) {
		if (waitpid(row->attacker, NULL, WNOHANG) == row->attacker)
			return;
		usleep(5000);
	}
}

/* The daemon writes its log into a small pipe, which is full from now on. Our end is opened anew,
 * since O_NONBLOCK would apply to the daemon's end too. */
static void stall_log(const struct row *row)
{
	char path[40], bytes[4096] = { 0 };
	int fd;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", row->log_fd);
	fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		err(1, "%s", path);
	while (write(fd, bytes, sizeof(bytes)) > 0)
		;
	while (write(fd, bytes, 1) > 0)
		;
	close(fd);
}

static void open_log(struct row *row)
{
	int ends[2];

	row->log_reader = -1;
	if (!row->attack->log_is_stalled) {
		row->log_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
		return;
	}
	if (pipe2(ends, O_CLOEXEC))
		err(1, "pipe");
	row->log_reader = ends[0];
	row->log_fd = ends[1];
}

static void row_start(struct row *row)
{
	const struct setup *s = row->setup;
	uint64_t nbytes = row->attack->victim_bytes ? row->attack->victim_bytes : 4 * KIB;

	open_log(row);
	row->daemon = daemon_start(s, row->log_fd);
	memset(s->board, 0, sizeof(*s->board));
	atomic_store(&s->board->phase, PHASE_NONE);
	for (unsigned i = 0; i < VICTIMS; i++) {
		row->victims[i] = process_start(s, VICTIM_UID);
		if (row->victims[i] == 0)
			victim_run(s, (enum victim)i, nbytes);
	}
	if (!wait_growth(&s->board->seen, 20, BEGIN_S) && !interrupted)
		warnx("%s: the victims do not get to work", row->attack->name);
}

/* Lets @n processes spin from now on. */
static void spin(struct row *row, unsigned n)
{
	for (unsigned i = 0; i < 2; i++) {
		process_kill(&row->spinners[i]);
		if (i >= n || row->attack == &attacks[0]) /* the victims are alone */
			continue;
		row->spinners[i] = process_start(row->setup, ATTACKER_UID);
		if (row->spinners[i] == 0)
			spinner_run();
	}
}

static void row_stop(struct row *row)
{
	spin(row, 0);
	process_kill(&row->attacker);
	for (unsigned i = 0; i < VICTIMS; i++)
		process_kill(&row->victims[i]);
	if (row->log_reader >= 0)
		close(row->log_reader); /* so that a daemon that waits for it continues */
	if (!daemon_stop(&row->daemon))
		fprintf(stderr, "%s: the daemon did not end and was killed\n", row->attack->name);
	close(row->log_fd);
}

static void phase_run(const struct row *row, enum phase phase)
{
	struct board *b = row->setup->board;

	atomic_store(&b->phase, phase);
	wait_for(row->setup->seconds);
	atomic_store(&b->phase, PHASE_NONE);
}

static void row_run(struct row *row)
{
	const struct setup *s = row->setup;

	row_start(row);
	spin(row, 1);
	phase_run(row, PHASE_BEFORE);
	spin(row, 2);
	phase_run(row, PHASE_BUSY);
	spin(row, 0);
	if (row->attack->log_is_stalled)
		stall_log(row);
	row->attacker = process_start(s, ATTACKER_UID);
	if (row->attacker == 0)
		attacker_run(s, row->attack);
	wait_ready(row);
	phase_run(row, PHASE_ATTACK);
	process_kill(&row->attacker);
	spin(row, 1);
	wait_growth(&s->board->commits, 50, RECOVER_S);
	phase_run(row, PHASE_AFTER);
	row_stop(row);
}

static bool is_selected(const struct setup *s, const struct attack *attack)
{
	return !s->only || strstr(attack->name, s->only);
}

/* Returns whether every selected row has numbers. */
static bool rows_run(const struct setup *s)
{
	struct report *report = report_new(s);

	report_head(report);
	for (const struct attack *attack = attacks; attack->name && !interrupted; attack++) {
		struct row row = { .setup = s, .attack = attack };

		if (!is_selected(s, attack))
			continue;
		row_run(&row);
		if (!interrupted)
			report_row(report, attack);
	}
	return report_end(report);
}

static void clean_up(const struct setup *s)
{
	char lock[80];
	pid_t daemon;
	int null;

	if (access(s->socket, F_OK) == 0) { /* a daemon was killed: another one cleans up after it
					     */
		null = open("/dev/null", O_WRONLY | O_CLOEXEC);
		daemon = daemon_start(s, null);
		daemon_stop(&daemon);
		close(null);
	}
	snprintf(lock, sizeof(lock), "%s.lock", s->socket); /* it tells the next daemon versions */
	if ((unlink(lock) && errno != ENOENT) || rmdir(s->dir))
		warn("%s", s->dir);
}

int main(int argc, char **argv)
{
	struct sigaction act = { .sa_handler = on_signal };
	char dir[] = "/tmp/tensorlease-hostile-XXXXXX", socket_path[64];
	struct setup s = { .dir = dir, .socket = socket_path, .is_root = geteuid() == 0 };
	bool complete;
	int r = parse(&s, argc, argv);

	if (r)
		return r == 1 ? 0 : 2;
	if (!s.is_root)
		warnx("without root the attacker is the same user as the victims, so shares of users "
		      "do not protect these: the numbers mean less");
	else if (!own_shm("mode=1777,size=1G"))
		warn("cannot have a /dev/shm of its own");
	if (!mkdtemp(dir) || chmod(dir, 0755) || (s.is_root && chown(dir, DAEMON_UID, (gid_t)-1)))
		err(1, "%s", dir);
	snprintf(socket_path, sizeof(socket_path), "%s/socket", dir);
	s.board = mmap(NULL, sizeof(*s.board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		       -1, 0);
	if (s.board == MAP_FAILED)
		err(1, "mmap");
	sigaction(SIGINT, &act, NULL);
	sigaction(SIGTERM, &act, NULL);
	sigaction(SIGHUP, &act, NULL);
	complete = rows_run(&s);
	clean_up(&s);
	return interrupted || !complete ? 1 : 0;
}
