/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `inspect SOCKET`: checks that the shared memory of the daemon on that socket is as a daemon
 * leaves it. Daemons may be serving meanwhile, or may have died. It exits with 4 after printing
 * what is wrong, and with 1 if it could not look.
 *
 * A copy that was made while the daemon wrote may show halves of two changes. So a fault in one
 * copy is looked for in later ones, and counts only if they show the same fault in unchanged
 * entries. No change takes that long, and after it the entry has another generation or version.
 * Invariants of an idle daemon are checked if the daemon slept at each look and no row has changed.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/state/namespace.h"
#include "daemon/store/shm.h"
#include "proto/ledger_layout.h"
#include "tests/inspect/inspect.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/fd.h"

enum { FAULTS_MAX = 200, LOOKS = 5, FIRST_PAUSE_MS = 10, EXIT_WRONG = 4 };

struct fault_seen {
	uint64_t evidence;
	char text[160];
};

/* The faults found by one look. */
struct look {
	struct fault_seen faults[FAULTS_MAX];
	unsigned count;
};

/* One namespace, and the daemon that serves it. */
struct subject {
	uint64_t instance;
	int pid;	/* of the daemon; 0: it has none, or it is not known */
	int catalog_fd; /* -1: there is none any more */
	int facts_fd;	/* -1: there are none, or they cannot be reached */
	int *ledgers;	/* all ledgers that the daemon has */
	unsigned ledger_count;
	char name[TENSOR_NAMESPACE_MAX + 1]; /* empty: not known */
};

static void fault_add(struct look *look, uint64_t evidence, const char *text)
{
	struct fault_seen *f = &look->faults[look->count];

	if (look->count == FAULTS_MAX)
		return;
	f->evidence = evidence;
	snprintf(f->text, sizeof(f->text), "%s", text);
	look->count++;
}

static void on_found(struct check *check)
{
	fault_add(check->context, check->evidence, check->why);
}

/* Keeps only the faults in @look that are in @before too. */
static void faults_keep(struct look *look, const struct look *before)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < look->count; i++) {
		for (unsigned j = 0; j < before->count; j++) {
			if (look->faults[i].evidence != before->faults[j].evidence ||
			    strcmp(look->faults[i].text, before->faults[j].text) != 0)
				continue;
			look->faults[kept++] = look->faults[i];
			break;
		}
	}
	look->count = kept;
}

/* ---- the daemon's descriptors --------------------------------------------------------------- */

static bool is_ledger(int fd)
{
	struct ledger head;
	struct stat st;

	return pread(fd, &head, sizeof(head), 0) == sizeof(head) && head.magic == LEDGER_MAGIC &&
	       head.layout == LEDGER_LAYOUT && !fstat(fd, &st) &&
	       (uint64_t)st.st_size == ledger_size(head.slots);
}

/*
 * A client can give the daemon an object that looks like facts. But that belongs to the client's
 * user, and a daemon takes no memfd of a client that is not sealed against shrinking. Facts are
 * not; which other seals a memfd has from the beginning depends on vm.memfd_noexec.
 */
static bool is_facts(struct subject *s, const char *link, int fd)
{
	struct facts_header header;
	struct stat catalog, st;
	int seals = fcntl(fd, F_GET_SEALS);

	if (strcmp(link, "/memfd:tensorleased-facts (deleted)") != 0 || seals < 0 ||
	    seals & F_SEAL_SHRINK || fstat(fd, &st) || fstat(s->catalog_fd, &catalog) ||
	    st.st_uid != catalog.st_uid)
		return false;
	if (pread(fd, &header, sizeof(header), 0) != sizeof(header) ||
	    header.magic != FACTS_MAGIC || header.instance != s->instance)
		return false;
	memcpy(s->name, header.name, sizeof(s->name));
	s->name[sizeof(s->name) - 1] = '\0';
	return true;
}

static void memfd_sort(struct subject *s, const char *link, int *fd)
{
	int *more;

	if (s->facts_fd < 0 && is_facts(s, link, *fd)) {
		s->facts_fd = take_fd(fd);
	} else if (is_ledger(*fd)) {
		more = realloc(s->ledgers, (s->ledger_count + 1) * sizeof(*more));
		if (!more)
			return;
		s->ledgers = more;
		s->ledgers[s->ledger_count++] = take_fd(fd);
	}
}

/* Finds out whether that process serves the instance: only such a process has its catalog open. */
static void process_look(struct subject *s, int pid)
{
	char path[OBJECT_PATH_MAX], link[OBJECT_PATH_MAX + 16] = "";
	struct object object = shm_object_of_catalog(s->instance);
	struct dirent *e;
	DIR *dir;
	int fd;

	snprintf(link, sizeof(link), "/proc/%d/fd", pid);
	dir = opendir(link);
	if (!dir)
		return;
	shm_object_path(&object, path);
	while ((e = readdir(dir))) {
		ssize_t n = readlinkat(dirfd(dir), e->d_name, link, sizeof(link) - 1);

		link[n > 0 ? n : 0] = '\0';
		if (!strcmp(link, path))
			s->pid = pid;
		if (strncmp(link, "/memfd:tensorlease", strlen("/memfd:tensorlease")) != 0)
			continue;
		fd = openat(dirfd(dir), e->d_name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
		if (fd >= 0)
			memfd_sort(s, link, &fd);
		fd_close(fd);
	}
	closedir(dir);
}

static void subject_deinit(struct subject *s)
{
	fd_close(s->catalog_fd);
	fd_close(s->facts_fd);
	for (unsigned i = 0; i < s->ledger_count; i++)
		fd_close(s->ledgers[i]);
	free(s->ledgers);
}

static int subject_init(struct subject *s, uint64_t instance, int pid)
{
	struct object object = shm_object_of_catalog(instance);
	char path[OBJECT_PATH_MAX];

	shm_object_path(&object, path); /* root looks at the files of other users, too */
	*s = (struct subject){ .instance = instance, .facts_fd = -1 };
	s->catalog_fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
	if (s->catalog_fd < 0)
		return errno == ENOENT ? 0 : -errno;
	process_look(s, pid);
	return 0;
}

/* True if the daemon is waiting for events. */
static bool sleeps(int pid)
{
	char path[32], text[128];
	const char *state;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	fd = pid ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (fd < 0)
		return false;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[n > 0 ? n : 0] = '\0';
	state = strrchr(text, ')');
	return state && !strncmp(state, ") S", 3);
}

/* ---- ledgers -------------------------------------------------------------------------------- */

/* Reads touched pages only: reading a hole of a mapping would allocate its page. */
static int ledger_look(struct look *look, int fd, const struct catalog *cat, uint32_t *leases)
{
	uint32_t slots = cat->header->max_tensors, counts[LEDGER_PAGE_SLOTS], slot;
	uint32_t pages = (slots + LEDGER_PAGE_SLOTS - 1) / LEDGER_PAGE_SLOTS;
	unsigned char *touched = calloc(1, pages);
	char text[120];

	if (!touched)
		return -ENOMEM;
	if (pread(fd, touched, pages, sizeof(struct ledger)) != (ssize_t)pages)
		pages = 0;
	for (uint32_t page = 0; page < pages; page++) {
		if (!(touched[page] & LEDGER_HELD) ||
		    pread(fd, counts, sizeof(counts),
			  (off_t)(ledger_head_size(slots) + (size_t)page * LEDGER_PAGE)) !=
			    (ssize_t)sizeof(counts))
			continue;
		for (uint32_t i = 0; i < LEDGER_PAGE_SLOTS; i++) {
			slot = page * LEDGER_PAGE_SLOTS + i;
			if (!counts[i] || slot >= slots)
				continue;
			leases[slot] = 1;
			if (slot < cat->header->slots_high && counts[i] <= LEDGER_HELD_MAX)
				continue;
			snprintf(text, sizeof(text), "a ledger counts %u leases on row %u",
				 counts[i], slot);
			fault_add(look, slot, text);
		}
	}
	free(touched);
	return 0;
}

/* True if the tensor is handed on, as far as facts tell. */
static bool is_handed_on(const struct catalog *cat, uint32_t slot)
{
	for (uint32_t i = 0; cat->facts && i < cat->handovers.high; i++) {
		const struct handover_fact *fact = catalog_handover_fact(cat, i);

		if (fact->sum && ref_slot(fact->ref) == slot)
			return true;
	}
	return false;
}

/* A tensor that nobody holds does not stay RETIRED, unless it is handed on. On GPUs, tensors are
 * also held without a ledger. */
static void unheld_look(struct look *look, const struct check *check, const uint32_t *leases)
{
	const struct catalog *cat = check->cat;
	char text[80];

	for (uint32_t slot = 0; slot < cat->rows.high; slot++) {
		const struct catalog_row *row = catalog_row(cat, slot);

		if (row_word_state(row->word) != ROW_RETIRED || leases[slot] ||
		    row->flags & ROW_ON_DEVICE || is_handed_on(cat, slot))
			continue;
		snprintf(text, sizeof(text), "row %u is RETIRED, and no ledger holds it", slot);
		fault_add(look, check->evidence, text);
	}
}

/* Reads the ledgers of all namespaces with as many rows, since it cannot be told which client is in
 * which. */
static int ledgers_look(struct look *look, const struct subject *s, const struct catalog *cat,
			uint32_t *leases)
{
	struct ledger head;
	int r = 0;

	for (unsigned i = 0; !r && i < s->ledger_count; i++) {
		if (pread(s->ledgers[i], &head, sizeof(head), 0) == sizeof(head) &&
		    head.slots == cat->header->max_tensors)
			r = ledger_look(look, s->ledgers[i], cat, leases);
	}
	return r;
}

/* ---- the lock file -------------------------------------------------------------------------- */

/* What the lock file says of the last daemon on that socket. */
struct lock {
	int pid;
	uint64_t id;		/* of the first of its instances; 0: it has left none */
	uint64_t pid_namespace; /* in which its pid means something; 0: not known */
};

static int lock_read(const char *socket, struct lock *lock)
{
	char path[128], text[96] = "";
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "%s.lock", socket);
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
	n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	if (n < 0) {
		int r = -errno;

		fprintf(stderr, "inspect: cannot check what is served on %s: %s: %s%s\n", socket,
			path, strerror(-r),
			r == -ENOENT ? "; no daemon has left anything there" : "");
		fd_close(fd);
		return r;
	}
	close(fd);
	if (sscanf(text, "%d %" SCNx64 " %*u %" SCNu64, &lock->pid, &lock->id,
		   &lock->pid_namespace) >= 2)
		return 0;
	fprintf(stderr,
		"inspect: cannot check what is served on %s: %s does not name a "
		"daemon and its instance\n",
		socket, path);
	return -EINVAL;
}

static uint64_t our_pid_namespace(void)
{
	struct stat st;

	return stat("/proc/self/ns/pid", &st) ? 0 : st.st_ino;
}

/*
 * True if the daemon may serve where we cannot see it. Its number means nothing here then, and
 * neither its descriptors nor its facts can be found. Nobody is asked by a connection: that may
 * start a service, which would remove what is to be checked.
 */
static bool is_elsewhere(const struct lock *lock)
{
	uint64_t ours = our_pid_namespace();

	return lock->id && lock->pid_namespace && ours && lock->pid_namespace != ours;
}

/* ---- looks ---------------------------------------------------------------------------------- */

static int catalog_look(struct look *look, const struct subject *s, const struct catalog *cat)
{
	uint32_t *leases = calloc((size_t)cat->header->max_tensors + 1, sizeof(*leases));
	struct check check;
	int r = check_init_all(&check, cat, on_found, look);

	if (!leases)
		r = -ENOMEM;
	if (!r)
		r = ledgers_look(look, s, cat, leases);
	if (!r && sleeps(s->pid)) {
		at_rest_check(&check);
		if (s->ledger_count)
			unheld_look(look, &check, leases);
	}
	check_deinit(&check);
	free(leases);
	return r;
}

static int look_once(struct look *look, uint64_t instance, int pid, struct subject *s)
{
	struct snapshot snapshot;
	const char *why = NULL;
	int r = subject_init(s, instance, pid);

	look->count = 0;
	if (r || s->catalog_fd < 0)
		return r; /* the daemon has ended, and removed it */
	r = snapshot_take(&snapshot, s->catalog_fd, s->facts_fd, &why);
	if (r == CATALOG_E_STRANGE) {
		fault_add(look, 0, why);
		return 0;
	}
	if (r)
		return r;
	r = catalog_look(look, s, &snapshot.catalog);
	snapshot_free(&snapshot);
	return r;
}

static void pause_ms(unsigned ms)
{
	const struct timespec t = { .tv_sec = ms / 1000,
				    .tv_nsec = (long)(ms % 1000) * (long)NS_PER_MS };

	nanosleep(&t, NULL);
}

/* Returns the number of faults, or a negative errno. */
static int instance_inspect(uint64_t instance, const struct lock *lock)
{
	struct look *looks = calloc(2, sizeof(*looks));
	struct subject s = { .catalog_fd = -1, .facts_fd = -1 };
	unsigned ms = FIRST_PAUSE_MS, n = 0, count;
	int r = looks ? look_once(&looks[0], instance, lock->pid, &s) : -ENOMEM;

	while (!r && ++n < LOOKS && looks[(n - 1) % 2].count) {
		subject_deinit(&s);
		pause_ms(ms);
		ms *= 3;
		r = look_once(&looks[n % 2], instance, lock->pid, &s);
		faults_keep(&looks[n % 2], &looks[(n - 1) % 2]);
	}
	if (!r && !s.pid && is_elsewhere(lock))
		r = -ESRCH;
	if (r) {
		subject_deinit(&s);
		free(looks);
		return r;
	}
	count = looks[(n - 1) % 2].count;
	printf("instance %016" PRIx64 "%s%s: %s, %s, %u ledgers: %u wrong\n", instance,
	       *s.name ? ", namespace " : "", s.name, s.pid ? "served" : "not served",
	       s.facts_fd < 0 ? "no facts" : "facts", s.ledger_count, count);
	for (unsigned i = 0; i < count; i++)
		printf("  %s\n", looks[(n - 1) % 2].faults[i].text);
	subject_deinit(&s);
	free(looks);
	return (int)count;
}

/* ---- a whole daemon ------------------------------------------------------------------------- */

/* Checks what the lock file names, and counts in *@found what there is. */
static int instances_inspect(const char *socket, struct lock *lock, unsigned *found,
			     unsigned *wrong)
{
	uint64_t instance, key;
	struct dirent *e;
	int r = lock_read(socket, lock);
	DIR *dir;

	if (r)
		return r;
	dir = opendir("/dev/shm");
	if (!dir) {
		r = -errno;
		fprintf(stderr, "inspect: cannot open /dev/shm: %s\n", strerror(-r));
		return r;
	}
	while (!r && (e = readdir(dir))) {
		if (sscanf(e->d_name, "tensorlease-%16" SCNx64 "-%16" SCNx64, &instance, &key) !=
			    2 ||
		    key || instance - lock->id >= NAMESPACES_MAX)
			continue;
		r = instance_inspect(instance, lock);
		if (r < 0 && r != -ESRCH)
			fprintf(stderr, "inspect: cannot check %s: %s%s\n", e->d_name, strerror(-r),
				r == -EACCES ? "; ask as the user of the daemon, or as root" : "");
		*wrong += r > 0 ? (unsigned)r : 0;
		r = r < 0 ? r : 0;
		++*found;
	}
	closedir(dir);
	return r;
}

int main(int argc, char **argv)
{
	const char *socket = argv[argc - 1];
	unsigned found = 0, wrong = 0, ms = FIRST_PAUSE_MS;
	struct lock lock = { 0 };
	int r;

	if (argc != 2) {
		fprintf(stderr, "usage: inspect SOCKET\n");
		return EXIT_FAILURE;
	}
	r = instances_inspect(socket, &lock, &found, &wrong);
	/* a daemon that begins anew has named its instance, and makes it soon */
	for (unsigned n = 0; !r && !found && lock.id && n < LOOKS; n++) {
		pause_ms(ms);
		ms *= 3;
		r = instances_inspect(socket, &lock, &found, &wrong);
	}
	if (!r && !found && is_elsewhere(&lock)) {
		r = -ESRCH; /* its /dev/shm may be another one, too */
	} else if (!r && !found && lock.id) {
		r = -ENOENT;
		fprintf(stderr,
			"inspect: cannot check what is served on %s: the shared memory of "
			"instance %016" PRIx64
			" is not in /dev/shm here; it was removed, by logind "
			"perhaps (RemoveIPC), or the daemon has another /dev/shm\n",
			socket, lock.id);
	}
	if (r == -ESRCH)
		fprintf(stderr,
			"inspect: cannot check what is served on %s: its daemon is in "
			"another PID namespace, where it may serve or not; ask there\n",
			socket);
	return r ? EXIT_FAILURE : wrong ? EXIT_WRONG : EXIT_SUCCESS;
}
