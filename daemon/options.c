/* SPDX-License-Identifier: Apache-2.0 */
/* Options from the command line and the configuration file, completed and checked. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <ini.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "daemon/options.h"
#include "daemon/serve/http.h"
#include "daemon/store/memfd.h"
#include "daemon/store/shm.h"
#include "proto/wire.h"
#include "util/cleanup.h"
#include "util/clock.h"
#include "util/memory_limit.h"
#include "util/shm_space.h"

/* What this build has, if a library was there. */
#ifdef HAVE_SYSTEMD
#define SYSTEMD_FEATURE " systemd"
#else
#define SYSTEMD_FEATURE ""
#endif
#ifdef HAVE_MICROHTTPD
#define HTTP_FEATURE " http"
#else
#define HTTP_FEATURE ""
#endif

/* Options. A key in the configuration file is the name of a long option. */

static const char usage
	[] = "Usage: tensorleased [OPTION]...\n"
	     "Serve named tensors in shared memory to the processes of this machine.\n"
	     "\n"
	     "Socket and process:\n"
	     "  --socket PATH             listen on PATH (default: $TENSORLEASE_SOCKET; or as\n"
	     "                            root /run/tensorlease/socket; or as another user\n"
	     "                            $XDG_RUNTIME_DIR/tensorlease/socket or\n"
	     "                            /tmp/tensorlease-UID/socket)\n"
	     "  --foreground              do not detach; log to standard error\n"
	     "  --idle-exit[=SECONDS]     exit after SECONDS (default 60) without clients and\n"
	     "                            tensors, or without clients if the socket has been\n"
	     "                            removed (default: never exit)\n"
	     "  --keeper yes|no           yes (default): a second process starts the daemon again\n"
	     "                            when it dies, with the same tensors\n"
	     "  --metrics ADDRESS         serve metrics by HTTP at unix:/PATH, 127.0.0.1:PORT or\n"
	     "                            [::1]:PORT, as /metrics (default: not)\n"
	     "  --log-level LEVEL         log error, warn, info or debug (default: info)\n"
	     "  --config FILE             read options from FILE, one `name = value` a line;\n"
	     "                            the command line wins; -FILE: if there is that file\n"
	     "\n"
	     "Limits (BYTES may end in K, M, G or T; the first two may be N% of /dev/shm):\n"
	     "  --capacity BYTES          memory for all tensors (default: 50%, or half of the\n"
	     "                            cgroup's memory limit if that is less)\n"
	     "  --uid-capacity BYTES      memory for the tensors of one user (default: half)\n"
	     "  --storage KIND            shm: POSIX shared memory (default), or memfd: sealed\n"
	     "                            memory that nobody can change once it is published\n"
	     "  --gpu-capacity BYTES      memory for tensors on each GPU (default: no limit)\n"
	     "  --gpu-uid-capacity BYTES  memory on each GPU for one user (default: half)\n"
	     "  --max-tensors N           tensors at a time (default: 131072)\n"
	     "  --max-clients N           connections at a time (default: 1024)\n"
	     "  --warm-time SECONDS       keep freed memory this long for its producer's next\n"
	     "                            tensor (default: 30)\n"
	     "  --hello-timeout SECONDS   end connections that have not said who they are by\n"
	     "                            then (default: 5)\n"
	     "\n"
	     "  --help                    show this text and exit\n"
	     "  --version                 show the version and exit\n"
	     "\n"
	     "Exit status: 0 after a clean exit (detached: as soon as it listens), 1 after a\n"
	     "failure, 2 for wrong usage, 3 if another daemon serves the socket already.\n"
	     "See tensorleased(8).\n";

static int parse_bytes(const char *text, uint64_t *out)
{
	struct shm_space shm;
	int r = config_parse_size(text, out);

	if (r)
		return r;
	if (*out & SHARE_PERCENT) {
		if (shm_space_find(&shm))
			return -EINVAL;
		*out = shm.size / 100 * (*out & ~SHARE_PERCENT);
		return *out ? 0 : -EINVAL;
	}
	return *out >= 4096 ? 0 : -EINVAL;
}

/* A percentage stays one, since the capacity may be given later. */
static int parse_part(const char *text, uint64_t *out)
{
	uint64_t value;
	int r = config_parse_size(text, &value);

	if (r || (value & SHARE_PERCENT ? value == SHARE_PERCENT : value < 4096))
		return -EINVAL;
	*out = value;
	return 0;
}

/* An allocation beyond the memory limit would not fail but kill us, and then the next daemon. */
static int capacity_default(uint64_t *out)
{
	uint64_t limit = memory_limit() / 2;
	int r = parse_bytes("50%", out);

	*out = limit < *out ? limit : *out;
	return r;
}

static int parse_count(const char *text, uint32_t max, uint32_t *out)
{
	char *end;
	unsigned long value;

	errno = 0;
	value = strtoul(text, &end, 10);
	if (errno || end == text || *end || *text == '-' || value < 1 || value > max)
		return -EINVAL;
	*out = (uint32_t)value;
	return 0;
}

static int parse_seconds(const char *text, int64_t *out)
{
	char *end;
	double value;

	errno = 0;
	value = strtod(text, &end);
	if (errno || end == text || *end || !(value >= 0) || value > 1e9)
		return -EINVAL;
	*out = (int64_t)(value * (double)NS_PER_SEC);
	return 0;
}

/* Prints what is wrong, and keeps it for those who do not see what is printed. */
static __attribute__((format(printf, 2, 3))) int refuse(struct options *o, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(o->error, sizeof(o->error), format, args);
	va_end(args);
	log_plain("tensorleased: %s", o->error);
	return OPTIONS_E_USAGE;
}

/* Sets one option by its long name. *expected describes its values, for the error text. */
static int option_set(struct options *o, const char *name, const char *value, const char **expected)
{
	if (!strcmp(name, "socket")) {
		*expected = "a path";
		free(o->socket);
		o->socket = strdup(value);
		return !o->socket ? -ENOMEM : *value ? 0 : -EINVAL;
	}
	if (!strcmp(name, "capacity")) {
		*expected = "a number of bytes, 4096 or more (8G, say), or up to 100% of /dev/shm";
		return parse_bytes(value, &o->capacity);
	}
	if (!strcmp(name, "uid-capacity")) {
		*expected =
			"a number of bytes, 4096 or more (8G, say), or up to 100% of the capacity";
		return parse_part(value, &o->config.rules[0].max[SHARE_BYTES]);
	}
	if (!strcmp(name, "storage")) {
		*expected = "shm or memfd";
		o->storage = !strcmp(value, storage_shm.name)	  ? &storage_shm
			     : !strcmp(value, storage_memfd.name) ? &storage_memfd
								  : NULL;
		return o->storage ? 0 : -EINVAL;
	}
	if (!strcmp(name, "gpu-capacity") || !strcmp(name, "gpu-uid-capacity")) {
		*expected = "a number of bytes, 4096 or more (8G, say)";
		if (strchr(value, '%')) /* we do not know the sizes of GPUs */
			return -EINVAL;
		return parse_bytes(value, name[4] == 'c' ? &o->gpu_capacity
							 : &o->config.rules[0].max[SHARE_DEVICE]);
	}
	if (!strcmp(name, "max-tensors")) {
		*expected = "a number from 1 to 16777215";
		return parse_count(value, CATALOG_MAX_TENSORS - 1, &o->max_tensors);
	}
	if (!strcmp(name, "max-clients")) {
		*expected = "a number from 1 to 65536";
		return parse_count(value, WIRE_CLIENTS_MAX, &o->max_clients);
	}
	if (!strcmp(name, "idle-exit") || !strcmp(name, "warm-time")) {
		*expected = "a number of seconds";
		return parse_seconds(value, *name == 'i' ? &o->idle_exit_ns : &o->warm_ns);
	}
	if (!strcmp(name, "hello-timeout")) {
		*expected = "a number of seconds, more than 0";
		return parse_seconds(value, &o->hello_ns) || !o->hello_ns ? -EINVAL : 0;
	}
	if (!strcmp(name, "metrics")) {
		*expected = !http_is_there() ? "left out: this build has no libmicrohttpd"
					     : "unix:/PATH, 127.0.0.1:PORT or [::1]:PORT";
		free(o->metrics);
		o->metrics = strdup(value);
		return !o->metrics					? -ENOMEM
		       : http_is_there() && http_address_is_good(value) ? 0
									: -EINVAL;
	}
	if (!strcmp(name, "keeper")) {
		*expected = "yes or no";
		o->keeper = !strcmp(value, "yes");
		return o->keeper || !strcmp(value, "no") ? 0 : -EINVAL;
	}
	if (!strcmp(name, "log-level")) {
		*expected = "error, warn, info or debug";
		return log_parse_level(&o->log_level, value);
	}
	return -ENOENT;
}

/* A configuration file that is being read. The first error ends that. */
struct reading {
	struct options *options;
	FILE *file;
	char *line; /* the last one, and its number */
	size_t room;
	int number;
	struct config_section section; /* of that line */
	char error[512];	       /* about that line */
};

static const char forms[] = "wrong; each line is `name = value` or `[section]`";

static __attribute__((format(printf, 2, 3))) void complain(struct reading *reading,
							   const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(reading->error, sizeof(reading->error), format, args);
	va_end(args);
}

static void section_begin(struct reading *reading, char *text)
{
	char *end = strchr(text, ']');
	const char *rest = end ? end + 1 + strspn(end + 1, " \t\r\n") : "?";
	const char *expected = "out of memory";

	if (*rest && *rest != ';' && *rest != '#') {
		complain(reading, "%s", forms);
		return;
	}
	*end = '\0';
	if (config_section(&reading->options->config, text, &reading->section, &expected))
		complain(reading, "[%s]: %s", text, expected);
}

/*
 * Gives inih a line. inih does not tell of a section without keys, cuts the name of a section after
 * 49 bytes, makes several lines of a long one, and takes an indented line for more of the value
 * above it. So it gets no sections and no comments, and each line without its indentation.
 */
static char *next_line(char *to, int size, void *context)
{
	struct reading *reading = context;
	ssize_t length = -1;
	char *text;

	if (!*reading->error)
		length = getline(&reading->line, &reading->room, reading->file);
	if (length < 0)
		return NULL;
	text = reading->line;
	if (reading->number++ == 0 && !strncmp(text, "\xef\xbb\xbf", 3)) /* UTF-8, editors say */
		text += 3;
	text += strspn(text, " \t\r\n");
	if (strlen(reading->line) != (size_t)length)
		complain(reading, "the line has a byte that is 0");
	else if (*text == '[')
		section_begin(reading, text + 1);
	else if (*text != '#' && *text != ';' && strlen(text) >= (size_t)size)
		complain(reading, "the line is too long; it may have %d bytes", size - 2);
	else if (*text != '#' && *text != ';')
		return strcpy(to, text);
	return strcpy(to, "\n");
}

static int config_line(void *context, const char *cut, const char *name, const char *value)
{
	struct reading *reading = context;
	const struct config_section *section = &reading->section;
	bool within = section->rule || section->name_space;
	const char *expected = "it must be an option without its --; see tensorleased --help";
	int r = within ? config_set(section, name, value, &expected)
		       : option_set(reading->options, name, value, &expected);

	(void)cut;
	if (r == -ENOENT)
		complain(reading, "there is no option %s%s: %s", name,
			 within ? " in this section" : "", expected);
	else if (r == -ESRCH || r == -EIO)
		complain(reading, "%s = %s: %s", name, value, expected);
	else if (r)
		complain(reading, "%s = %s: it must be %s", name, value, expected);
	return r == 0;
}

enum { TEXT_STEP = 64 << 10, TEXTS_MAX = 16 << 20 }; /* bytes; config_read() names it */

/* Adds all that @file has to the texts. Sets errno, to EFBIG if they get too many. */
static int texts_add(struct options *o, FILE *file)
{
	char *bytes;
	size_t n;

	do {
		bytes = realloc(o->texts.bytes, o->texts.size + TEXT_STEP);
		if (!bytes)
			return -1;
		o->texts.bytes = bytes;
		n = fread(bytes + o->texts.size, 1, TEXT_STEP, file);
		o->texts.size += n;
		if (!o->texts.kept && o->texts.size > TEXTS_MAX) {
			errno = EFBIG;
			return -1;
		}
	} while (n);
	return ferror(file) ? -1 : 0;
}

static int texts_add_file(struct options *o, FILE *file_take)
{
	int r = file_take ? texts_add(o, file_take) : -1, e = errno;

	if (file_take)
		fclose(file_take);
	errno = e;
	return r;
}

/* Returns the next text as a file: the kept one or, if there is none, what @path has. NULL sets
 * errno. */
static FILE *text_open(struct options *o, const char *path)
{
	size_t begin = o->texts.next, length;

	if (o->texts.kept) {
		length = begin < o->texts.size ? strlen(o->texts.bytes + begin) : 0;
	} else {
		if (texts_add_file(o, fopen(path, "re")))
			return NULL;
		length = o->texts.size - begin;
		o->texts.bytes[o->texts.size++] = '\0'; /* there is room: the last step read nothing
							 */
	}
	o->texts.next = begin + length + 1;
	return fmemopen(o->texts.bytes + begin, length, "r");
}

/* The keeper, each daemon and each reload read the file again. /dev/null is always empty. */
static bool can_be_read_again(const char *path)
{
	struct stat st;

	return stat(path, &st) || S_ISREG(st.st_mode) ||
	       (S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3));
}

static int config_read(struct options *o, const char *path)
{
	struct reading reading = { .options = o };
	int r;

	if (*path == '-') { /* as in systemd's units: the file may be missing */
		path++;
		if (access(path, F_OK) && errno == ENOENT)
			path = "/dev/null";
	}
	if (!o->texts.kept && !can_be_read_again(path))
		return refuse(o,
			      "cannot read the configuration %s: it is not a regular file, which "
			      "can be read again; write the configuration to one",
			      path);
	reading.file = text_open(o, path);
	r = reading.file ? ini_parse_stream(next_line, &reading, config_line, &reading) : -1;
	if (r < 0 || ferror(reading.file)) {
		r = refuse(o, "cannot read the configuration %s: %s", path,
			   errno == EFBIG
				   ? "it has too many bytes; all files may have 16 MiB together"
				   : strerror(errno));
	} else if (r || *reading.error) { /* inih may find something else wrong on an earlier line
					   */
		const char *error = r && r < reading.number ? "" : reading.error;

		r = refuse(o, "%s:%d: %s", path, r ? r : reading.number, *error ? error : forms);
	}
	free(reading.line);
	if (reading.file)
		fclose(reading.file);
	return r;
}

enum { OPT_CONFIG = 256, OPT_FOREGROUND, OPT_HELP, OPT_VERSION, OPT_VALUE };

static const struct option longs[] = {
	{ "socket", required_argument, NULL, OPT_VALUE },
	{ "capacity", required_argument, NULL, OPT_VALUE },
	{ "uid-capacity", required_argument, NULL, OPT_VALUE },
	{ "storage", required_argument, NULL, OPT_VALUE },
	{ "gpu-capacity", required_argument, NULL, OPT_VALUE },
	{ "gpu-uid-capacity", required_argument, NULL, OPT_VALUE },
	{ "max-tensors", required_argument, NULL, OPT_VALUE },
	{ "max-clients", required_argument, NULL, OPT_VALUE },
	{ "warm-time", required_argument, NULL, OPT_VALUE },
	{ "hello-timeout", required_argument, NULL, OPT_VALUE },
	{ "idle-exit", optional_argument, NULL, OPT_VALUE },
	{ "metrics", required_argument, NULL, OPT_VALUE },
	{ "keeper", required_argument, NULL, OPT_VALUE },
	{ "log-level", required_argument, NULL, OPT_VALUE },
	{ "config", required_argument, NULL, OPT_CONFIG },
	{ "foreground", no_argument, NULL, OPT_FOREGROUND },
	{ "help", no_argument, NULL, OPT_HELP },
	{ "version", no_argument, NULL, OPT_VERSION },
	{ NULL, 0, NULL, 0 },
};

static int option_handle(struct options *o, int code, int which, bool config_only)
{
	const char *expected = "", *value = optarg ? optarg : "60"; /* --idle-exit without one */
	int r;

	switch (code) {
	case OPT_HELP:
		fputs(usage, stdout);
		return OPTIONS_E_DONE;
	case OPT_VERSION:
		puts("tensorleased " TENSORLEASE_VERSION
		     "\nfeatures:" SYSTEMD_FEATURE HTTP_FEATURE);
		return OPTIONS_E_DONE;
	case OPT_CONFIG:
		return config_only && optarg ? config_read(o, optarg) : 0;
	case OPT_FOREGROUND:
		o->foreground = true;
		return 0;
	case OPT_VALUE:
		r = config_only ? 0 : option_set(o, longs[which].name, value, &expected);
		if (!r || r == -ENOMEM)
			return r;
		return refuse(o, "--%s %s: it must be %s", longs[which].name, value, expected);
	default:
		log_plain("See tensorleased --help");
		return OPTIONS_E_USAGE;
	}
}

/* Called twice: for the configuration file first, so that the command line has the last word. */
static int options_scan(struct options *o, int argc, char **argv, bool config_only)
{
	int code, which = 0, r = 0;

	optind = 1;
	while (!r && (code = getopt_long(argc, argv, "", longs, &which)) != -1)
		r = option_handle(o, code, which, config_only);
	if (!r && optind < argc)
		r = refuse(o, "unexpected argument %s; see tensorleased --help", argv[optind]);
	return r;
}

/* 25% of no limit would be no limit. */
static int gpu_percents_check(struct options *o)
{
	for (unsigned i = 0; o->gpu_capacity == UINT64_MAX && i < o->config.rule_count; i++) {
		const struct share_rule *rule = &o->config.rules[i];
		uint64_t max = rule->max[SHARE_DEVICE];
		char id[16] = "*";

		if (max == SHARE_UNSET || !(max & SHARE_PERCENT))
			continue;
		if (rule->whose != RULE_ANY)
			snprintf(id, sizeof(id), "%" PRIu32, rule->id);
		return refuse(o,
			      "[%s %s] gpu-bytes = %" PRIu64 "%%: it must be a number of bytes, or "
			      "gpu-capacity must be set, of which it is a percentage",
			      rule->whose == RULE_GROUP ? "group" : "user", id,
			      max & ~SHARE_PERCENT);
	}
	return 0;
}

static int texts_take_over(struct options *o, int texts_fd_peek)
{
	int fd = fcntl(texts_fd_peek, F_DUPFD_CLOEXEC, 3);
	FILE *file = fd < 0 || lseek(fd, 0, SEEK_SET) ? NULL : fdopen(fd, "r");
	const char *end;

	if (!file)
		fd_close(fd);
	o->texts.kept = true;
	if (texts_add_file(o, file) || !o->texts.size || o->texts.bytes[o->texts.size - 1])
		return -1;
	end = memrchr(o->texts.bytes, '\0', o->texts.size - 1);
	if (end)
		o->config.names = strdup(end + 1);
	return 0;
}

int options_init(struct options *o, int argc, char **argv)
{
	return options_init_again(o, argc, argv, -1);
}

int options_init_again(struct options *o, int argc, char **argv, int texts_fd_peek)
{
	int r;

	*o = (struct options){ .storage = &storage_shm,
			       .gpu_capacity = UINT64_MAX,
			       .max_tensors = 131072,
			       .max_clients = 1024,
			       .idle_exit_ns = -1,
			       .warm_ns = 30 * NS_PER_SEC,
			       .hello_ns = 5 * NS_PER_SEC,
			       .keeper = true,
			       .log_level = LOG_LEVEL_INFO };
	r = config_init(&o->config);
	if (!r && texts_fd_peek >= 0 && texts_take_over(o, texts_fd_peek))
		return refuse(o, "cannot read the configuration that the keeper has");
	if (!r)
		r = options_scan(o, argc, argv, true);
	if (!r)
		r = options_scan(o, argc, argv, false);
	if (!r)
		r = gpu_percents_check(o);
	if (!r && !o->capacity && capacity_default(&o->capacity))
		r = refuse(o, "cannot find the size of /dev/shm; mount a tmpfs there");
	if (r == -ENOMEM)
		refuse(o, "out of memory");
	return r;
}

void options_deinit(struct options *o)
{
	free(o->socket);
	o->socket = NULL;
	free(o->metrics);
	o->metrics = NULL;
	free(o->texts.bytes);
	o->texts.bytes = NULL;
	config_deinit(&o->config);
}

int options_texts(const struct options *o)
{
	cleanup_(fd_closep) int fd = -1;
	ssize_t n;

	if (!o->texts.size)
		return -ENOENT;
	fd = memfd_create("tensorleased-config", MFD_CLOEXEC);
	if (fd < 0)
		return -errno;
	for (size_t at = 0; at < o->texts.size; at += (size_t)n) {
		n = write(fd, o->texts.bytes + at, o->texts.size - at);
		if (n < 0)
			return -errno;
	}
	if (dprintf(fd, "%s%c", o->config.names ? o->config.names : "", '\0') < 0)
		return -errno;
	return take_fd(&fd);
}

/* Completed options; see options.h. */

enum {
	FD_USUAL_LIMIT = 1024, /* of open files, if ours cannot be told */
	FD_RESERVE = 32, /* descriptors for ourselves: the loop, the catalog, those being sent */
	FD_CACHE_MAX = 4096, /* descriptors of segments, kept for the next client that maps them */
	FD_DEVICE_MAX = 16384,	/* descriptors that open memory on devices */
	FD_FLIGHT_MAX = 4096,	/* descriptors in flight to clients, beyond one for each */
	FD_OBJECTS_MAX = 65536, /* descriptors of segments, if each needs one */
};

rlim_t options_files(void)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_NOFILE, &limit) ? FD_USUAL_LIMIT : limit.rlim_cur;
}

/*
 * Divides the limit of open files. Clients come first, so that we never run out, and a client too
 * many is told the reason. Each has a socket, a ledger and one descriptor in flight. There are more
 * of the latter, since few clients have just one. Half of the rest is for descriptors that open
 * memory on devices, the other half for caching. If each segment needs a descriptor, half of all is
 * for segments.
 */
static void descriptors_plan(struct options *o, bool named)
{
	const unsigned reserve = FD_RESERVE + (o->metrics ? HTTP_DESCRIPTORS : 0);
	rlim_t files = options_files(), left, objects;

	left = files > reserve ? files - reserve : 1;
	objects = named ? 0 : left / 2 < FD_OBJECTS_MAX ? left / 2 : FD_OBJECTS_MAX;
	left -= objects;
	o->descriptors.in_flight = left / 8 < FD_FLIGHT_MAX ? (unsigned)(left / 8) : FD_FLIGHT_MAX;
	left -= o->descriptors.in_flight;
	if (left / 3 < o->max_clients)
		o->max_clients = (uint32_t)left / 3;
	left -= 3 * (rlim_t)o->max_clients;
	o->descriptors.in_flight += o->max_clients;
	o->descriptors.opening = left / 2 < FD_DEVICE_MAX ? (unsigned)(left / 2) : FD_DEVICE_MAX;
	left -= o->descriptors.opening;
	o->descriptors.opening += (unsigned)objects;
	o->descriptors.cached = left < FD_CACHE_MAX ? (unsigned)left : FD_CACHE_MAX;
	o->descriptors.all = reserve + 2 * o->max_clients + o->descriptors.in_flight +
			     o->descriptors.opening + o->descriptors.cached;
}

/* True if the objects of all namespaces have names, so that their descriptors need not be kept. */
static bool all_named(const struct options *o)
{
	bool named = o->storage->named;

	for (unsigned i = 0; i < o->config.namespace_count; i++)
		named &= !o->config.namespaces[i].limits.storage ||
			 o->config.namespaces[i].limits.storage->named;
	return named && (!o->config.users.limits.storage || o->config.users.limits.storage->named);
}

static void namespace_complete(struct state_limits *l, const struct options *o)
{
	if (l->capacity & SHARE_PERCENT)
		l->capacity = o->capacity / 100 * (l->capacity & ~SHARE_PERCENT);
	if (!l->capacity || l->capacity > o->capacity)
		l->capacity = o->capacity;
	if (!l->storage)
		l->storage = o->storage;
	l->own_tensors = l->max_tensors;
	if (!l->max_tensors)
		l->max_tensors = o->max_tensors;
	l->max_clients = o->max_clients;
}

uint32_t options_most_tensors(const struct options *o)
{
	uint32_t most = o->max_tensors, max;

	for (unsigned i = 0; i <= o->config.namespace_count; i++) {
		max = i < o->config.namespace_count ? o->config.namespaces[i].limits.max_tensors
						    : o->config.users.limits.max_tensors;
		most = max > most ? max : most;
	}
	return most;
}

void options_complete(struct options *o)
{
	descriptors_plan(o, all_named(o));
	for (unsigned i = 0; i < o->config.namespace_count; i++)
		namespace_complete(&o->config.namespaces[i].limits, o);
	namespace_complete(&o->config.users.limits, o);
}
