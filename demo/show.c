/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The show starts a camera and three viewers, kills one viewer halfway while it holds frames, and
 * prints the results. It asks the daemon, reads the tensors that the others publish, and looks at
 * /dev/shm; it has no other source. demo/run calls it, with a daemon of its own at
 * $TENSORLEASE_SOCKET.
 *
 * Usage: show BUILD FRAMES INSTANCE
 *
 * INSTANCE is the beginning of the names of that daemon's objects in /dev/shm.
 */
#include <dirent.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "demo/demo.h"

enum { VICTIM = DEMO_VIEWERS - 1 };

struct show {
	tl_client *client;
	const char *build;
	const char *instance;
	int64_t frames;
	pid_t camera;
	pid_t viewers[DEMO_VIEWERS];
	uint64_t shm_start, shm_most, shm_end;
	/* about the viewer that was killed: */
	tl_client_info before;
	int64_t ended_ns;
	uint64_t leases_after;
	/* reports of the others: */
	int64_t progress[DEMO_VIEWERS][PROGRESS_COUNT];
	double reports[DEMO_VIEWERS][REPORT_COUNT];
	int64_t filmed[CAMERA_COUNT];
	tl_status end;
	int failures;
};

/* ---- Processes ---- */

static pid_t start(const struct show *show, const char *program, const char *a, const char *b)
{
	char path[4096];
	pid_t pid;
	int r;

	snprintf(path, sizeof(path), "%s/demo/%s", show->build, program);
	r = posix_spawn(&pid, path, NULL, NULL,
			(char *[]){ (char *)(uintptr_t)program, (char *)(uintptr_t)a,
				    (char *)(uintptr_t)b, NULL },
			environ);
	if (r) {
		fprintf(stderr, "show: cannot run %s: %s\n", path, strerror(r));
		exit(1);
	}
	return pid;
}

static struct show *the_show; /* for cleaning up at exit */

static void kill_children(void)
{
	if (the_show->camera > 0)
		kill(the_show->camera, SIGKILL);
	for (int k = 0; k < DEMO_VIEWERS; k++) {
		if (the_show->viewers[k] > 0)
			kill(the_show->viewers[k], SIGKILL);
	}
}

static void on_signal(int number)
{
	(void)number;
	kill_children();
	_exit(1);
}

/* ---- /dev/shm ---- */

static uint64_t shm_bytes(struct show *show)
{
	uint64_t bytes = 0;
	struct dirent *entry;
	struct stat st;
	DIR *dir = opendir("/dev/shm");

	while (dir && (entry = readdir(dir))) {
		if (!strncmp(entry->d_name, show->instance, strlen(show->instance)) &&
		    !fstatat(dirfd(dir), entry->d_name, &st, 0))
			bytes += (uint64_t)st.st_blocks * 512;
	}
	if (dir)
		closedir(dir);
	if (bytes > show->shm_most)
		show->shm_most = bytes;
	return bytes;
}

/* ---- The killing ---- */

struct search {
	uint32_t pid;
	tl_client_info found;
};

static int visit_client(const tl_client_info *info, void *context)
{
	struct search *search = context;

	if (info->pid != search->pid)
		return 0;
	search->found = *info;
	return 1;
}

/* Returns the daemon's description of the client with that pid, or all zero if there is none. */
static tl_client_info client_of(const struct show *show, pid_t pid)
{
	struct search search = { .pid = (uint32_t)pid };

	if (tl_list_clients(show->client, visit_client, &search) < 0)
		demo_die("cannot list clients");
	return search.found;
}

static void kill_one(struct show *show)
{
	int64_t progress[PROGRESS_COUNT] = { 0 }, killed, deadline = demo_now() + 60 * DEMO_SECOND;
	tl_client_info client;
	char name[32];

	snprintf(name, sizeof(name), "demo/viewer/%d", VICTIM);
	while (progress[PROGRESS_VERIFIED] < show->frames / 2) {
		if (!demo_read(show->client, name, progress, PROGRESS_COUNT, 20 * DEMO_SECOND) ||
		    demo_now() > deadline)
			demo_die("%s makes no progress", name);
		shm_bytes(show);
		usleep(5000);
	}
	show->before = client_of(show, show->viewers[VICTIM]);
	kill(show->viewers[VICTIM], SIGKILL);
	killed = demo_now();
	do {
		client = client_of(show, show->viewers[VICTIM]);
	} while (client.pid && demo_now() - killed < 10 * DEMO_SECOND);
	show->ended_ns = demo_now() - killed;
	show->leases_after = client.leases;
	waitpid(show->viewers[VICTIM], NULL, 0);
	show->viewers[VICTIM] = 0;
	fprintf(stderr, "show: killed viewer %d, which held %u leases\n", VICTIM,
		(unsigned)show->before.leases);
}

/* ---- Running ---- */

static void start_all(struct show *show)
{
	tl_get_options options = { .size = sizeof(options), .timeout_ns = 20 * DEMO_SECOND };
	DLManagedTensorVersioned *tensor;
	char frames[24], number[24], last[32];
	int64_t filled = show->frames < DEMO_RING ? show->frames : DEMO_RING;

	snprintf(frames, sizeof(frames), "%lld", (long long)show->frames);
	snprintf(number, sizeof(number), "%d", DEMO_VIEWERS);
	show->camera = start(show, "camera", frames, number);
	/*
	 * The ring is full before the viewers start, so that their first gets only wait for the
	 * mapping.
	 */
	snprintf(last, sizeof(last), "cam0/frame/%d", (int)filled - 1);
	if (tl_get(show->client, last, &options, &tensor))
		demo_die("the camera has published nothing");
	tensor->deleter(tensor);
	for (int k = 0; k < DEMO_VIEWERS; k++) {
		snprintf(number, sizeof(number), "%d", k);
		show->viewers[k] = start(show, "viewer", number, frames);
	}
}

static void check(struct show *show, bool holds, const char *what)
{
	if (holds)
		return;
	show->failures++;
	printf("FAILED: %s\n", what);
}

/* Waits for one process, and looks at /dev/shm meanwhile. */
static void finish(struct show *show, pid_t *pid, const char *what)
{
	int status = -1;

	while (waitpid(*pid, &status, WNOHANG) == 0) {
		shm_bytes(show);
		usleep(20000);
	}
	*pid = 0;
	check(show, WIFEXITED(status) && WEXITSTATUS(status) == 0, what);
}

static void collect(struct show *show)
{
	int64_t deadline = demo_now() + 5 * DEMO_SECOND;
	char name[32];

	for (int k = 0; k < DEMO_VIEWERS; k++) {
		snprintf(name, sizeof(name), "demo/viewer/%d", k);
		check(show, demo_read(show->client, name, show->progress[k], PROGRESS_COUNT, 0),
		      name);
		snprintf(name, sizeof(name), "demo/report/%d", k);
		if (k != VICTIM)
			check(show,
			      demo_read(show->client, name, show->reports[k], REPORT_COUNT, 0),
			      name);
	}
	check(show, demo_read(show->client, "demo/report/camera", show->filmed, CAMERA_COUNT, 0),
	      "the camera's report");
	do { /* the others have ended, but the daemon may not have read their last messages */
		show->end = (tl_status){ .size = sizeof(show->end) };
		if (tl_get_status(show->client, &show->end))
			demo_die("cannot ask for the status");
		usleep(1000);
	} while ((show->end.retired || show->end.clients > 1) && demo_now() < deadline);
	show->shm_end = shm_bytes(show);
}

/* ---- The table ---- */

static const char *span(double ns, char text[16])
{
	if (ns < 1000)
		snprintf(text, 16, "%.0f ns", ns);
	else if (ns < 1e6)
		snprintf(text, 16, "%.1f us", ns / 1e3);
	else
		snprintf(text, 16, "%.1f ms", ns / 1e6);
	return text;
}

static void row_of_counts(const struct show *show, const char *what, long long camera, int which)
{
	if (camera < 0)
		printf("%-34s %11s", what, "");
	else
		printf("%-34s %11lld", what, camera);
	for (int k = 0; k < DEMO_VIEWERS; k++)
		printf(" %17lld", (long long)show->progress[k][which]);
	putchar('\n');
}

static void row_of_times(const struct show *show, const char *what, int count)
{
	char a[16], b[16], both[40];

	printf("%-34s %11s", what, "");
	for (int k = 0; k < DEMO_VIEWERS; k++) {
		const double *r = show->reports[k];

		if (k == VICTIM || !r[count])
			snprintf(both, sizeof(both), "-");
		else
			snprintf(both, sizeof(both), "%s / %s", span(r[count + 1], a),
				 span(r[count + 2], b));
		printf(" %17s", both);
	}
	putchar('\n');
}

static void print_table(const struct show *show)
{
	double seconds = (double)show->filmed[CAMERA_NS] / 1e9;

	printf("\n%d frames of %dx%dx%d uint8, %.1f s, %.0f frames/s, %.2f GB checked\n\n",
	       (int)show->frames, DEMO_WIDTH, DEMO_HEIGHT, DEMO_CHANNELS, seconds,
	       (double)show->frames / seconds,
	       (double)(show->progress[0][PROGRESS_VERIFIED] +
			show->progress[1][PROGRESS_VERIFIED] +
			show->progress[2][PROGRESS_VERIFIED]) *
		       DEMO_BYTES / 1e9);
	printf("%-34s %11s %17s %17s %17s\n", "", "camera", "viewer 0", "viewer 1",
	       "viewer 2, killed");
	printf("%-34s %11lld\n", "frames published", (long long)show->filmed[CAMERA_PUBLISHED]);
	row_of_counts(show, "frames verified, every byte", -1, PROGRESS_VERIFIED);
	row_of_counts(show, "frames wrong or missed", -1, PROGRESS_WRONG);
	row_of_counts(show, "frames used in shared memory (1)",
		      (long long)show->filmed[CAMERA_IN_PLACE], PROGRESS_IN_PLACE);
	printf("%-34s %11lld", "frames copied",
	       (long long)(show->filmed[CAMERA_PUBLISHED] - show->filmed[CAMERA_IN_PLACE]));
	for (int k = 0; k < DEMO_VIEWERS; k++)
		printf(" %17lld", (long long)(show->progress[k][PROGRESS_VERIFIED] +
					      show->progress[k][PROGRESS_WRONG] -
					      show->progress[k][PROGRESS_IN_PLACE]));
	printf("\n%-34s %11s", "private memory gained (2)", "");
	for (int k = 0; k < VICTIM; k++)
		printf(" %13.2f MiB", show->reports[k][REPORT_ANONYMOUS] / (1 << 20));
	printf(" %17s\n%-34s %11s", "-", "memory mappings used for frames", "");
	for (int k = 0; k < VICTIM; k++)
		printf(" %17.0f", show->reports[k][REPORT_MAPPINGS]);
	printf(" %17s\n", "-");
	row_of_times(show, "get that maps, median / p99 (3)", REPORT_FIRST_COUNT);
	row_of_times(show, "get, mapped, median / p99 (4)", REPORT_LATER_COUNT);
	row_of_times(show, "get + release in a row (5)", REPORT_WARM_COUNT);
	row_of_times(show, "commit to woken reader, med. / p99", REPORT_AWAKE_COUNT);
}

/* Returns the cost of reading the clock, in nanoseconds. */
static double clock_cost(void)
{
	enum { LOOKS = 1000 };
	int64_t start = demo_now();

	for (int i = 1; i < LOOKS; i++)
		demo_now();
	return (double)(demo_now() - start) / LOOKS;
}

static void print_memory(const struct show *show)
{
	double mib = 1 << 20;

	printf("\nviewer %d held %llu leases on %.1f MiB when it was killed; "
	       "%.2f ms later the daemon had dropped it: %llu leases\n",
	       VICTIM, (unsigned long long)show->before.leases,
	       (double)show->before.bytes_held / mib, (double)show->ended_ns / 1e6,
	       (unsigned long long)show->leases_after);
	printf("/dev/shm: %.1f MiB with an idle daemon, %.1f MiB at most, %.1f MiB at the end\n"
	       "          (%u tensors, %u retired, %.1f MiB kept warm)\n",
	       (double)show->shm_start / mib, (double)show->shm_most / mib,
	       (double)show->shm_end / mib, show->end.tensors, show->end.retired,
	       (double)show->end.bytes_warm / mib);
	printf("\n(1) the frame's pointer lies in a shared mapping of /dev/shm, looked up in\n"
	       "    /proc/self/maps for every frame; read-only in the viewers.\n"
	       "(2) of RssAnon, from the first frame to the last; a frame is %.2f MiB.\n"
	       "(3) of the first %d frames, which were there already.\n"
	       "(4) just after %.1f MiB were read, caches are cold; the clock's own %.0f ns included.\n"
	       "(5) the mean of 64, once for each frame.\n",
	       (double)DEMO_BYTES / mib, DEMO_RING, (double)DEMO_BYTES / mib, clock_cost());
}

static void check_all(struct show *show)
{
	int64_t n = show->frames;

	check(show, show->filmed[CAMERA_PUBLISHED] == n, "the camera published all frames");
	check(show, show->filmed[CAMERA_IN_PLACE] == n,
	      "the camera drew all frames in shared memory");
	check(show, show->filmed[CAMERA_VIEWERS_ENDED] == 1,
	      "the camera noticed that one viewer has ended");
	for (int k = 0; k < DEMO_VIEWERS; k++) {
		const int64_t *p = show->progress[k];

		check(show, p[PROGRESS_WRONG] == 0, "a viewer saw no wrong frame");
		check(show, p[PROGRESS_IN_PLACE] == p[PROGRESS_VERIFIED],
		      "a viewer read all frames in place");
		check(show, k == VICTIM || p[PROGRESS_VERIFIED] == n,
		      "a viewer verified all frames");
		check(show, k == VICTIM || show->reports[k][REPORT_ANONYMOUS] < DEMO_BYTES,
		      "a viewer gained less private memory than a frame");
	}
	check(show, show->progress[VICTIM][PROGRESS_VERIFIED] < n,
	      "the killed viewer was killed before the end");
	check(show, show->before.leases > 0, "the killed viewer held leases");
	check(show, show->leases_after == 0, "the killed viewer's leases have ended");
	check(show, show->end.retired == 0, "no tensor without a name is held by anybody");
	check(show, show->end.drafts == 0, "no draft is left");
	check(show, show->end.clients == 1, "nobody but the show is connected");
}

int main(int argc, char **argv)
{
	struct show show = { .build = argc > 1 ? argv[1] : "build",
			     .frames = argc > 2 ? atoll(argv[2]) : 1000,
			     .instance = argc > 3 ? argv[3] : "tensorlease-" };

	if (show.frames < 2 * DEMO_RING)
		demo_die("usage: show BUILD FRAMES INSTANCE, at least %d frames", 2 * DEMO_RING);
	the_show = &show;
	signal(SIGINT, on_signal);
	signal(SIGTERM, on_signal);
	atexit(kill_children);
	if (tl_connect(NULL, &show.client))
		demo_die("cannot connect");
	show.shm_start = shm_bytes(&show);
	start_all(&show);
	kill_one(&show);
	finish(&show, &show.viewers[0], "viewer 0 ended well");
	finish(&show, &show.viewers[1], "viewer 1 ended well");
	finish(&show, &show.camera, "the camera ended well");
	collect(&show);
	print_table(&show);
	print_memory(&show);
	check_all(&show);
	tl_close(show.client);
	return show.failures ? 1 : 0;
}
