/* SPDX-License-Identifier: Apache-2.0 */
/* Options. A key in the configuration file is the name of a long option. */
#include <errno.h>
#include <getopt.h>
#include <ini.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "daemon/options.h"
#include "proto/catalog_layout.h"
#include "util/clock.h"

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
	     "                            tensors (default: never exit)\n"
	     "  --log-level LEVEL         log error, warn, info or debug (default: info)\n"
	     "  --config FILE             read options from FILE, one `name = value` a line;\n"
	     "                            the command line wins\n"
	     "\n"
	     "Limits (BYTES may end in K, M, G or T; the first two may be N% of /dev/shm):\n"
	     "  --capacity BYTES          memory for all tensors (default: 50%)\n"
	     "  --uid-capacity BYTES      memory for the tensors of one user (default: all)\n"
	     "  --gpu-capacity BYTES      memory for tensors on each GPU (default: no limit)\n"
	     "  --gpu-uid-capacity BYTES  memory on each GPU for one user (default: no limit)\n"
	     "  --max-tensors N           tensors at a time (default: 131072)\n"
	     "  --max-clients N           connections at a time (default: 1024)\n"
	     "  --warm-time SECONDS       keep freed memory this long for its producer's next\n"
	     "                            tensor (default: 30)\n"
	     "\n"
	     "  --help                    show this text and exit\n"
	     "  --version                 show the version and exit\n"
	     "\n"
	     "Exit status: 0 after a clean exit (detached: as soon as it listens), 1 after a\n"
	     "failure, 2 for wrong usage, 3 if another daemon serves the socket already.\n"
	     "See tensorleased(8).\n";

static int parse_bytes(const char *text, uint64_t *out)
{
	struct statvfs shm;
	char *end;
	unsigned shift = 0;
	uint64_t value;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || end == text || *text == '-')
		return -EINVAL;
	if (!strcmp(end, "%")) {
		if (value > 100 || statvfs("/dev/shm", &shm))
			return -EINVAL;
		*out = (uint64_t)shm.f_blocks * shm.f_frsize / 100 * value;
		return 0;
	}
	if (*end)
		shift = *end == 'K'   ? 10
			: *end == 'M' ? 20
			: *end == 'G' ? 30
			: *end == 'T' ? 40
				      : 99;
	if (shift == 99 || (shift && end[1] && strcmp(end + 1, "iB")) ||
	    value > UINT64_MAX >> shift)
		return -EINVAL;
	*out = value << shift;
	return *out >= 4096 && *out <= INT64_MAX ? 0 : -EINVAL;
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

/* Sets one option by its long name. *wanted says what its value may be, for the error text. */
static int option_set(struct options *o, const char *name, const char *value, const char **wanted)
{
	if (!strcmp(name, "socket")) {
		*wanted = "a path";
		free(o->socket);
		o->socket = strdup(value);
		return o->socket && *value ? 0 : -EINVAL;
	}
	if (!strcmp(name, "capacity") || !strcmp(name, "uid-capacity")) {
		*wanted = "a number of bytes, 4096 or more (8G, say), or up to 100% of /dev/shm";
		return parse_bytes(value, *name == 'c' ? &o->capacity : &o->uid_capacity);
	}
	if (!strcmp(name, "gpu-capacity") || !strcmp(name, "gpu-uid-capacity")) {
		*wanted = "a number of bytes, 4096 or more (8G, say)";
		if (strchr(value, '%')) /* we do not know the sizes of GPUs */
			return -EINVAL;
		return parse_bytes(value, name[4] == 'c' ? &o->gpu_capacity : &o->gpu_uid_capacity);
	}
	if (!strcmp(name, "max-tensors")) {
		*wanted = "a number from 1 to 16777215";
		return parse_count(value, CATALOG_MAX_TENSORS - 1, &o->max_tensors);
	}
	if (!strcmp(name, "max-clients")) {
		*wanted = "a number from 1 to 65536";
		return parse_count(value, 65536, &o->max_clients);
	}
	if (!strcmp(name, "idle-exit") || !strcmp(name, "warm-time")) {
		*wanted = "a number of seconds";
		return parse_seconds(value, *name == 'i' ? &o->idle_exit_ns : &o->warm_ns);
	}
	if (!strcmp(name, "log-level")) {
		*wanted = "error, warn, info or debug";
		return log_parse_level(&o->log_level, value);
	}
	return -ENOENT;
}

static int config_line(void *context, const char *section, const char *name, const char *value)
{
	const char *wanted;
	int r = *section ? -ENOENT : option_set(context, name, value, &wanted);

	if (r == -ENOENT)
		fprintf(stderr,
			"tensorleased: there is no option %s%s%s; see tensorleased --help\n",
			section, *section ? "." : "", name);
	else if (r)
		fprintf(stderr, "tensorleased: %s = %s: it must be %s\n", name, value, wanted);
	return r == 0;
}

static int config_read(struct options *o, const char *path)
{
	struct stat st;
	int r = stat(path, &st) ? -1 : ini_parse(path, config_line, o);

	if (r == 0 && S_ISDIR(st.st_mode)) {
		errno = EISDIR;
		r = -1;
	}
	if (r == 0)
		return 0;
	if (r < 0)
		fprintf(stderr, "tensorleased: cannot read the configuration %s: %s\n", path,
			strerror(errno));
	else
		fprintf(stderr, "tensorleased: %s:%d: wrong; each line is `name = value`\n", path,
			r);
	return OPTIONS_E_USAGE;
}

enum { OPT_CONFIG = 256, OPT_FOREGROUND, OPT_HELP, OPT_VERSION, OPT_VALUE };

static const struct option longs[] = {
	{ "socket", required_argument, NULL, OPT_VALUE },
	{ "capacity", required_argument, NULL, OPT_VALUE },
	{ "uid-capacity", required_argument, NULL, OPT_VALUE },
	{ "gpu-capacity", required_argument, NULL, OPT_VALUE },
	{ "gpu-uid-capacity", required_argument, NULL, OPT_VALUE },
	{ "max-tensors", required_argument, NULL, OPT_VALUE },
	{ "max-clients", required_argument, NULL, OPT_VALUE },
	{ "warm-time", required_argument, NULL, OPT_VALUE },
	{ "idle-exit", optional_argument, NULL, OPT_VALUE },
	{ "log-level", required_argument, NULL, OPT_VALUE },
	{ "config", required_argument, NULL, OPT_CONFIG },
	{ "foreground", no_argument, NULL, OPT_FOREGROUND },
	{ "help", no_argument, NULL, OPT_HELP },
	{ "version", no_argument, NULL, OPT_VERSION },
	{ NULL, 0, NULL, 0 },
};

static int option_handle(struct options *o, int code, int which, bool config_only)
{
	const char *wanted = "", *value = optarg ? optarg : "60"; /* --idle-exit without one */

	switch (code) {
	case OPT_HELP:
		fputs(usage, stdout);
		return OPTIONS_E_DONE;
	case OPT_VERSION:
		puts("tensorleased " TENSORLEASE_VERSION);
		return OPTIONS_E_DONE;
	case OPT_CONFIG:
		return config_only && optarg ? config_read(o, optarg) : 0;
	case OPT_FOREGROUND:
		o->foreground = true;
		return 0;
	case OPT_VALUE:
		if (config_only || !option_set(o, longs[which].name, value, &wanted))
			return 0;
		fprintf(stderr, "tensorleased: --%s %s: it must be %s\n", longs[which].name, value,
			wanted);
		return OPTIONS_E_USAGE;
	default:
		fputs("See tensorleased --help\n", stderr);
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
	if (!r && optind < argc) {
		fprintf(stderr, "tensorleased: unexpected argument %s; see tensorleased --help\n",
			argv[optind]);
		r = OPTIONS_E_USAGE;
	}
	return r;
}

int options_init(struct options *o, int argc, char **argv)
{
	int r;

	*o = (struct options){ .gpu_capacity = UINT64_MAX,
			       .gpu_uid_capacity = UINT64_MAX,
			       .max_tensors = 131072,
			       .max_clients = 1024,
			       .idle_exit_ns = -1,
			       .warm_ns = 30 * NS_PER_SEC,
			       .log_level = LOG_LEVEL_INFO };
	r = options_scan(o, argc, argv, true);
	if (!r)
		r = options_scan(o, argc, argv, false);
	if (!r && !o->capacity && parse_bytes("50%", &o->capacity)) {
		fputs("tensorleased: cannot find the size of /dev/shm; mount a tmpfs there, or give "
		      "--capacity in bytes\n",
		      stderr);
		r = OPTIONS_E_USAGE;
	}
	if (!o->uid_capacity)
		o->uid_capacity = o->capacity;
	return r;
}

void options_deinit(struct options *o)
{
	free(o->socket);
	o->socket = NULL;
}
