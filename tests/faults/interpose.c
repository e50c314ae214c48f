/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loaded with LD_PRELOAD into a released binary, this counts its calls of functions that can fail,
 * and makes one of them fail. It sees only calls through the dynamic linker, including those of
 * libuv and other libraries, but not what libc calls inside itself.
 *
 * TL_FAULT_REPORT	the file that is shared with the runner (report.h)
 * TL_FAULT_TARGET	the program's name; in other programs nothing happens
 * TL_FAULT_WITHIN	a part of a module's path; only calls made in or below that module count
 * TL_FAULT		what fails: FUNCTION:N/HOW is the N-th call in the process,
 *			FUNCTION@HASH:K/HOW the K-th call at that place. HOW is an errno or
 *			REPORT_CTRUNC. If it is not set, calls are only counted.
 *
 * A place is known by the return addresses that led to it, as offsets in their modules. Where
 * TL_FAULT_WITHIN names a library, addresses in the program itself do not count.
 */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/faults/interpose.h"

enum { BLOCKS = 1 << 17 };

static struct report *report;
/*
 * Nothing is counted in a process that clone() made without libc, as the daemon's helper. Another
 * thread may have held a lock of libc just then, for which our code would wait there for ever, with
 * the report's lock, and everybody with it.
 */
static pid_t self;
static char within[64];
static char target_function[24];
static uint64_t target_hash;
static unsigned target_nth;
static int target_how;
_Thread_local bool inside __attribute__((tls_model("initial-exec")));

/* glibc's own functions work before dlsym() can be called. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *p);

void *real_of(struct function *f)
{
	if (!f->real) {
		bool was = inside;

		inside = true;
		f->real = dlsym(RTLD_NEXT, f->name);
		inside = was;
		if (!f->real)
			abort();
	}
	return f->real;
}

/* ---- Places ---- */

static void lock(void)
{
	if (pthread_mutex_lock(&report->lock) == EOWNERDEAD) /* at most its own call is not counted
							      */
		pthread_mutex_consistent(&report->lock);
}

static void unlock(void)
{
	pthread_mutex_unlock(&report->lock);
}

static unsigned module_index(const char *path)
{
	const char *name = strrchr(path, '/') ? path : "?";

	for (unsigned i = 0; i < report->nmodules; i++)
		if (!strncmp(report->modules[i], name, sizeof(report->modules[i]) - 1))
			return i;
	if (report->nmodules == REPORT_MODULES) {
		report->overflow = 1;
		return 0;
	}
	strncpy(report->modules[report->nmodules], name, sizeof(report->modules[0]) - 1);
	return report->nmodules++;
}

static unsigned function_index(struct function *f)
{
	struct report_function *r;

	if (f->index)
		return f->index - 1;
	for (unsigned i = 0; i < report->nfunctions; i++) {
		/* listed by the program before exec() */
		if (!strcmp(report->functions[i].name, f->name)) {
			f->index = i + 1;
			return i;
		}
	}
	if (report->nfunctions == REPORT_FUNCTIONS) {
		report->overflow = 1;
		return 0;
	}
	r = &report->functions[report->nfunctions++];
	strncpy(r->name, f->name, sizeof(r->name) - 1);
	memcpy(r->hows, f->hows, sizeof(r->hows));
	f->index = report->nfunctions;
	return f->index - 1;
}

/*
 * Fills in the way that led here, without our own frames. Returns false if it does not lead through
 * TL_FAULT_WITHIN.
 */
static bool walk(struct report_site *site)
{
	void *frames[REPORT_FRAMES + 6];
	int n = backtrace(frames, REPORT_FRAMES + 6);
	bool through = !*within;
	Dl_info own, info;

	dladdr((void *)walk, &own);
	site->hash = 1469598103934665603ULL;
	for (int i = 0; i < n; i++) {
		struct report_frame *f = &site->frames[site->depth];

		if (!dladdr(frames[i], &info) || info.dli_fbase == own.dli_fbase ||
		    site->depth == REPORT_FRAMES)
			continue;
		if (*within && strstr(info.dli_fname, within))
			through = true;
		else if (*within && through)
			break; /* the library's caller */
		f->module = module_index(info.dli_fname);
		f->offset = (uint32_t)((char *)frames[i] - (char *)info.dli_fbase);
		for (const char *p = strrchr(info.dli_fname, '/'); p && *p; p++)
			site->hash = (site->hash ^ (unsigned char)*p) * 1099511628211ULL;
		site->hash = (site->hash ^ f->offset) * 1099511628211ULL;
		site->depth++;
	}
	return through;
}

static struct report_site *site_find(struct function *f)
{
	struct report_site here = { .function = function_index(f) };
	struct report_site *s;

	if (!walk(&here))
		return NULL;
	for (const char *p = f->name; *p; p++)
		here.hash = (here.hash ^ (unsigned char)*p) * 1099511628211ULL;
	for (unsigned i = 0; i < report->nsites; i++)
		if (report->sites[i].hash == here.hash)
			return &report->sites[i];
	if (report->nsites == REPORT_SITES) {
		report->overflow = 1;
		return NULL;
	}
	s = &report->sites[report->nsites];
	*s = here;
	s->first = report->functions[here.function].calls + 1;
	report->nsites++;
	return s;
}

/* ---- Which call fails ---- */

static bool is_target(const struct function *f, const struct report_site *s, unsigned calls,
		      unsigned hows)
{
	if (strcmp(f->name, target_function) != 0)
		return false;
	if (target_hash ? s->hash != target_hash || s->hits < target_nth : calls < target_nth)
		return false;
	for (unsigned i = 0; i < REPORT_HOWS; i++)
		if (f->hows[i] == target_how)
			return hows >> i & 1;
	return false;
}

/*
 * Counts the call and returns what it must fail with, or 0. *@site is where it was made, or NULL if
 * it is not counted.
 */
static int fails_at(struct function *f, unsigned hows, struct report_site **site)
{
	struct report_site *s = NULL;
	unsigned calls = 0;
	int r = 0;

	*site = NULL;
	if (!report || inside || !atomic_load(&report->armed) || getpid() != self)
		return 0;
	inside = true;
	lock();
	s = site_find(f);
	if (s) {
		calls = ++report->functions[s->function].calls;
		s->hits++;
		s->hows |= hows;
		if (target_nth && !atomic_load(&report->fired) && is_target(f, s, calls, hows)) {
			report->fired_call = calls;
			report->fired_how = target_how;
			atomic_store(&report->fired, (uint32_t)(s - report->sites) + 1);
			r = target_how;
		}
	}
	unlock();
	inside = false;
	*site = s;
	return r;
}

int fails_if(struct function *f, unsigned hows)
{
	int saved = errno;
	struct report_site *site;
	int r = fails_at(f, hows, &site);

	errno = r ? r : saved;
	return r;
}

int fails(struct function *f)
{
	return fails_if(f, ALL_HOWS);
}

/* ---- Memory ---- */

static struct block {
	const void *p;
	struct report_site *site;
} blocks[BLOCKS];
static const char gone[1]; /* marks a slot whose block is gone */
static bool forked;	   /* a child does not count its parent's blocks */

static unsigned block_slot(const void *p)
{
	return (unsigned)(((uintptr_t)p >> 4) * 2654435761U) % BLOCKS;
}

static void *block_new(void *p, struct report_site *site)
{
	unsigned i = block_slot(p), n = 0;

	if (!p || !site || forked)
		return p;
	inside = true; /* a signal handler may come here */
	lock();
	while (blocks[i].p && blocks[i].p != gone && n++ < BLOCKS)
		i = (i + 1) % BLOCKS;
	if (n < BLOCKS) {
		blocks[i] = (struct block){ p, site };
		site->live++;
	} else {
		report->overflow = 1;
	}
	unlock();
	inside = false;
	return p;
}

static void block_free(const void *p)
{
	unsigned i = block_slot(p);

	if (!p || !report || forked || inside || getpid() != self)
		return;
	inside = true;
	lock();
	for (unsigned n = 0; blocks[i].p && n < BLOCKS; n++, i = (i + 1) % BLOCKS) {
		if (blocks[i].p == p) {
			blocks[i].site->live--;
			blocks[i].p = gone;
			break;
		}
	}
	unlock();
	inside = false;
}

#define ALLOCATE(f, call, failed)                                                                  \
	do {                                                                                       \
		struct report_site *site_;                                                         \
		int saved_ = errno;                                                                \
		if (fails_at(f, ALL_HOWS, &site_)) {                                               \
			errno = ENOMEM;                                                            \
			return failed;                                                             \
		}                                                                                  \
		errno = saved_;                                                                    \
		return block_new(call, site_);                                                     \
	} while (0)

EXPORT void *malloc(size_t size)
{
	static struct function f = { "malloc", { ENOMEM } };

	ALLOCATE(&f, __libc_malloc(size), NULL);
}

EXPORT void *calloc(size_t n, size_t size)
{
	static struct function f = { "calloc", { ENOMEM } };

	ALLOCATE(&f, __libc_calloc(n, size), NULL);
}

static void *resize(void *p, size_t size, struct report_site *site)
{
	void *q;

	block_free(p);
	q = __libc_realloc(p, size);
	return block_new(q, site);
}

EXPORT void *realloc(void *p, size_t size)
{
	static struct function f = { "realloc", { ENOMEM } };
	struct report_site *site;
	int saved = errno;

	if (fails_at(&f, ALL_HOWS, &site)) {
		errno = ENOMEM;
		return NULL;
	}
	errno = saved;
	return resize(p, size, site);
}

EXPORT void *reallocarray(void *p, size_t n, size_t size)
{
	static struct function f = { "reallocarray", { ENOMEM } };
	struct report_site *site;
	int saved = errno;
	size_t bytes;

	if (__builtin_mul_overflow(n, size, &bytes) || fails_at(&f, ALL_HOWS, &site)) {
		errno = ENOMEM;
		return NULL;
	}
	errno = saved;
	return resize(p, bytes, site);
}

EXPORT void *aligned_alloc(size_t alignment, size_t size)
{
	static struct function f = { "aligned_alloc", { ENOMEM } };

	ALLOCATE(&f, __libc_memalign(alignment, size), NULL);
}

EXPORT int posix_memalign(void **out, size_t alignment, size_t size)
{
	static struct function f = { "posix_memalign", { ENOMEM } };
	struct report_site *site;
	void *p;

	if (fails_at(&f, ALL_HOWS, &site))
		return ENOMEM;
	p = block_new(__libc_memalign(alignment, size), site);
	if (!p)
		return ENOMEM;
	*out = p;
	return 0;
}

/* A strdup() of our own, so that the block counts for the caller's place. */
EXPORT char *strdup(const char *text)
{
	static struct function f = { "strdup", { ENOMEM } };
	size_t size = strlen(text) + 1;
	struct report_site *site;
	int saved = errno;
	char *copy;

	if (fails_at(&f, ALL_HOWS, &site)) {
		errno = ENOMEM;
		return NULL;
	}
	errno = saved;
	copy = __libc_malloc(size);
	if (copy)
		memcpy(copy, text, size);
	return block_new(copy, site);
}

EXPORT void free(void *p)
{
	int saved = errno;

	block_free(p);
	__libc_free(p);
	errno = saved;
}

/* ---- The beginning ---- */

static void in_child(void)
{
	forked = true;
	self = getpid();
}

/* Parses FUNCTION:N/HOW or FUNCTION@HASH:K/HOW. */
static void parse_wish(const char *wish)
{
	size_t n;

	if (!wish)
		return;
	n = strcspn(wish, ":@");
	if (n >= sizeof(target_function) || !wish[n])
		abort();
	memcpy(target_function, wish, n);
	if (wish[n] == '@') {
		target_hash = strtoull(wish + n + 1, NULL, 16);
		wish = strchr(wish, ':') ? strchr(wish, ':') - n : NULL;
	}
	if (!wish || sscanf(wish + n, ":%u/%d", &target_nth, &target_how) != 2 || !target_nth)
		abort();
}

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("TL_FAULT_REPORT"), *target = getenv("TL_FAULT_TARGET");
	const char *library = getenv("TL_FAULT_WITHIN");
	void *frames[4];
	struct report *r;
	int fd;

	if (!path || !target || strcmp(program_invocation_short_name, target) != 0)
		return;
	inside = true;
	if (library)
		strncpy(within, library, sizeof(within) - 1);
	parse_wish(getenv("TL_FAULT"));
	backtrace(frames, 4); /* loads what it needs now, rather than inside a malloc() */
	fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
	if (fd < 0)
		abort();
	r = (void *)syscall(SYS_mmap, NULL, sizeof(*r), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	syscall(SYS_close, fd);
	if (r == MAP_FAILED)
		abort();
	self = getpid();
	pthread_atfork(NULL, NULL, in_child);
	report = r;
	inside = false;
}
