/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tensorlease-bench: measures the promises of tensorlease, each row next to its floor.
 *
 * The floor of a row is the least work with the same effect that the machine allows. It is measured
 * in the same run: one sample of the floor, one of ours, and so on. Numbers are medians and 99th
 * percentiles of the samples; the ratio is the median of the ratios of the pairs. Slow numbers are
 * no failure: the exit status is 0 unless something is broken, or a row has no number.
 *
 * The first process supervises. It makes the temporary directory and starts the second process,
 * which measures. When that has ended in any way, the supervisor waits for the processes that it
 * left (daemons end when it does), and removes the directory.
 */
#include <dirent.h>
#include <err.h>
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/bench.h"

static const struct bench_role roles[] = {
	{ "daemon", bench_role_daemon },
	{ "sealed", bench_role_sealed },
	{ "echo", bench_role_echo },
	{ "descriptors", bench_role_descriptors },
	{ "waker", bench_role_waker },
	{ "sleeper", bench_role_sleeper },
	{ "consumer", bench_role_consumer },
	{ "holder", bench_role_holder },
	{ "mute", bench_role_mute },
	{ "follower", bench_role_follower },
	{ "ring-follower", bench_role_ring_follower },
	{ "answerer", bench_role_answerer },
	{ "ring-sealed", bench_role_ring_sealed },
	{ "ring-end", bench_role_ring_end },
	{ "stream-taker", bench_role_stream_taker },
	{ "stream-answerer", bench_role_stream_answerer },
	{ 0 },
};

/* The ids of all rows. */
static const char *const ids[] = {
	"get/1/4096",
	"get/1/4096/2-threads",
	"get/1/1048576",
	"get/1/1048576/2-threads",
	"get/1/67108864",
	"get/1/67108864/2-threads",
	"get/1000/4096",
	"get/1000/4096/2-threads",
	"get/100000/4096",
	"get/100000/4096/2-threads",
	"get/prefix",
	"get/system-calls",
	"first",
	"publish/version",
	"put/1048576",
	"put/1048576/ring",
	"put/16777216",
	"put/67108864",
	"put/268435456",
	"wake/sleep",
	"wake/spin",
	"ring/sleep/1",
	"ring/sleep/8",
	"ring/sleep/64",
	"ring/sleep/one-cpu",
	"stream/sleep",
	"stream/sleep/one-cpu",
	"ring/put/0",
	"ring/put/silent",
	"ring/put/1",
	"ring/put/8",
	"ring/put/64",
	"ring/put/flat-out",
	"ring/one-way",
	"ring/messages",
	"ring/get",
	"ring/get-other",
	"stream/item",
	"stream/ring",
	"stream/put/1",
	"stream/put/8",
	"stream/put/64",
	"stream/queue/1",
	"stream/queue/2",
	"stream/queue/8",
	"stream/parts",
	"stream/draft",
	"memory/catalog",
	"memory/daemon",
	"memory/idle",
	"kill",
	"crowd/clients",
	"crowd/watches",
	"crowd/watched",
	"crowd/ring",
	"crowd/names",
};

static void usage(FILE *to)
{
	fputs("usage: tensorlease-bench [--quick] [--json] [--storage KIND] [--only REGEX]\n"
	      "Measures the library and the tensorleased beside this program, each row next to its floor.\n"
	      "  --quick       fewer samples: 20 seconds at most\n"
	      "  --json        print all numbers as JSON\n"
	      "  --storage KIND  of the daemon: shm (default) or memfd\n"
	      "  --only REGEX  only the rows whose id matches\n"
	      "  --help        print this\n"
	      "The rows:\n",
	      to);
	for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++)
		fprintf(to, "  %s\n", ids[i]);
}

/* Returns 0 to continue, 1 if there is nothing to do, 2 for wrong usage. */
static int parse(struct bench *b, int argc, char **argv)
{
	static const struct option options[] = {
		{ "quick", no_argument, NULL, 'q' },
		{ "json", no_argument, NULL, 'j' },
		{ "storage", required_argument, NULL, 's' },
		{ "only", required_argument, NULL, 'o' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case 'q':
			b->quick = true;
			break;
		case 'j':
			b->json = true;
			break;
		case 's':
			b->storage = optarg;
			break;
		case 'o':
			if (b->has_only ||
			    regcomp(&b->only, optarg, REG_EXTENDED | REG_ICASE | REG_NOSUB)) {
				warnx("--only %s: not a regular expression, or a second one",
				      optarg);
				return 2;
			}
			b->has_only = true;
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
	return 0;
}

/* Finds the tensorleased beside this program. */
static void find_daemon(struct bench *b)
{
	static char path[4096];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - sizeof("tensorleased"));
	char *slash;

	if (n < 0)
		err(1, "/proc/self/exe");
	path[n] = '\0';
	slash = strrchr(path, '/');
	memcpy(slash + 1, "tensorleased", sizeof("tensorleased"));
	if (access(path, X_OK))
		err(1, "%s", path);
	b->daemon = path;
}

static const struct bench_result *row_of(const struct bench *b, const char *id)
{
	for (size_t i = 0; i < b->nresults; i++)
		if (!strcmp(b->results[i]->id, id))
			return b->results[i];
	return NULL;
}

/* Returns whether the selected rows of the list, and no others, have been measured; names those
 * that were not. */
static bool is_complete(struct bench *b)
{
	size_t found = 0, numbers = 0, selected = 0;

	for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
		const struct bench_result *row = row_of(b, ids[i]);

		if (!bench_selected(b, ids[i]))
			continue;
		selected++;
		found += row != NULL;
		if (row && row->ours.n)
			numbers++;
		else
			warnx("%s has no number", ids[i]);
	}
	if (found < b->nresults)
		warnx("%zu rows are not in the list of ids", b->nresults - found);
	return numbers == selected && found == b->nresults;
}

static int measure(struct bench *b)
{
	int r = 0;

	static void (*const rows[])(struct bench *) = {
		bench_get,  bench_first,   bench_publishing, bench_put,	 bench_wake,
		bench_ring, bench_streams, bench_memory,     bench_kill, bench_crowd,
	};

	prctl(PR_SET_PDEATHSIG, SIGTERM);
	bench_print_head(b);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		rows[i](b);
	if (!b->nresults) {
		warnx("--only matches no row");
		r = 2;
	} else {
		if (b->json)
			bench_print_json(b);
		r = is_complete(b) ? 0 : 1;
	}
	bench_daemons_stop(b);
	bench_free_results(b);
	return fflush(stdout) ? 1 : r;
}

static volatile sig_atomic_t worker;

static void pass_on(int number)
{
	if (worker > 0)
		kill(worker, number);
}

/* Waits for the worker, and for daemons that it left. Returns the exit code. */
static int supervise(void)
{
	int result = 1, status;
	pid_t pid;

	for (;;) {
		pid = waitpid(-1, &status, 0);
		if (pid < 0 && errno == EINTR)
			continue;
		if (pid < 0)
			return result;
		if (pid != worker)
			continue;
		worker = 0;
		if (WIFEXITED(status))
			result = WEXITSTATUS(status);
		else
			warnx("ended by signal %d", WTERMSIG(status));
	}
}

/* Removes the directory with the sockets and locks in it, which killed daemons leave behind. */
static void directory_remove(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *entry;

	while (dir && (entry = readdir(dir)))
		if (entry->d_name[0] != '.')
			unlinkat(dirfd(dir), entry->d_name, 0);
	if (dir)
		closedir(dir);
	if (rmdir(path))
		warn("%s", path);
}

int main(int argc, char **argv)
{
	struct bench b = { .storage = "shm" };
	char dir[] = "/tmp/tensorlease-bench-XXXXXX";
	struct sigaction act = { .sa_handler = pass_on };
	int r;

	if (argc > 1 && !strcmp(argv[1], "--as"))
		return bench_helper_main(argc, argv, roles);
	r = parse(&b, argc, argv);
	if (r)
		return r == 1 ? 0 : 2;
	find_daemon(&b);
	if (!mkdtemp(dir))
		err(1, "%s", dir);
	b.dir = dir;
	prctl(PR_SET_CHILD_SUBREAPER, 1); /* so that we can wait for the daemons of a dead worker */
	sigaction(SIGINT, &act, NULL);
	sigaction(SIGTERM, &act, NULL);
	sigaction(SIGHUP, &act, NULL);
	worker = fork();
	if (worker == 0) {
		signal(SIGINT, SIG_DFL);
		signal(SIGTERM, SIG_DFL);
		signal(SIGHUP, SIG_DFL);
		exit(measure(&b));
	}
	r = worker < 0 ? 1 : supervise();
	directory_remove(dir);
	if (b.has_only)
		regfree(&b.only);
	return r;
}
