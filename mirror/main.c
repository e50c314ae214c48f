/* SPDX-License-Identifier: Apache-2.0 */
/* tensorlease-mirror: makes names of other hosts appear here, and offers those of this host. */
#include <curl/curl.h>
#include <errno.h>
#include <getopt.h>
#include <openssl/crypto.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "mirror/command.h"
#include "mirror/control.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/log.h"

#define DEFAULT_CONFIG "/etc/tensorlease/mirror.conf"

enum { USAGE = 2, BEAT_S = 2, GATHER_MS = 100 };

static void on_connected(void *context)
{
	(void)context;
	kill(getpid(), SIGUSR1); /* the main thread does the rest */
}

static void introduce(struct mirror *m)
{
	for (size_t n = 0; n < m->config.count; n++) {
		if (m->imports[n])
			import_compare(m->imports[n]);
		if (m->exports[n])
			export_renew(m->exports[n]);
	}
}

static int mirror_open(struct mirror *m)
{
	int r;

	m->exports = calloc(m->config.count, sizeof(struct export *));
	m->imports = calloc(m->config.count, sizeof(struct import *));
	r = m->exports && m->imports ? bus_open(&m->bus, &m->config, on_connected, m) : -ENOMEM;
	if (!r && m->config.listen)
		r = serve_open(&m->serve, &m->config);
	for (size_t n = 0; !r && n < m->config.count; n++) {
		const struct rule *rule = &m->config.rules[n];

		r = rule->is_export
			    ? export_open(&m->exports[n], &m->config, rule, m->bus, m->serve)
			    : import_open(&m->imports[n], &m->config, rule, m->bus, m->serve);
	}
	return r;
}

static void mirror_close(struct mirror *m)
{
	for (size_t n = 0; m->exports && m->imports && n < m->config.count; n++) {
		if (m->exports[n])
			export_stop(m->exports[n]);
		if (m->imports[n])
			import_stop(m->imports[n]);
	}
	bus_close(m->bus);
	serve_close(m->serve);
	for (size_t n = 0; m->exports && m->imports && n < m->config.count; n++) {
		export_close(m->exports[n]);
		import_close(m->imports[n]);
	}
	free(m->exports);
	free(m->imports);
	config_deinit(&m->config);
}

/* Runs until a signal ends it. Returns 0, or -EIO: the server has refused this host; -ECONNABORTED:
 * an administrator has ended a connection to the daemon, so this process must begin anew. */
static int serve_until(struct mirror *m, const sigset_t *ends)
{
	const struct timespec pause = { .tv_sec = BEAT_S };
	const struct timespec gather = { .tv_nsec = GATHER_MS * NS_PER_MS };
	int signal;

	while ((signal = sigtimedwait(ends, NULL, &pause)) < 0 || signal == SIGUSR1 ||
	       signal == EXPORT_ASKED) {
		if (bus_is_closed(m->bus))
			return -EIO;
		if (signal == SIGUSR1)
			introduce(m);
		for (size_t n = 0; n < m->config.count; n++) {
			if ((m->exports[n] && export_is_over(m->exports[n])) ||
			    (m->imports[n] && import_is_over(m->imports[n])))
				return -ECONNABORTED;
			if (m->exports[n])
				export_beat(m->exports[n]);
		}
		if (m->serve) {
			feeds_tidy(serve_feeds(m->serve));
			tickets_tidy(serve_tickets(m->serve));
		}
		if (signal == EXPORT_ASKED) /* hosts that ask meanwhile get one answer together */
			nanosleep(&gather, NULL);
	}
	return 0;
}

static int usage(FILE *to, int status)
{
	fputs("usage: tensorlease-mirror [--config FILE] [--log-level LEVEL] [run]\n"
	      "       tensorlease-mirror [--config FILE] check\n"
	      "       tensorlease-mirror [--config FILE] [--json] status|peers|tree NAME\n"
	      "       tensorlease-mirror [--config FILE] fetch NAME\n"
	      "\n"
	      "Makes names of other hosts appear on this one, and offers names of this one.\n"
	      "FILE is " DEFAULT_CONFIG " if it is not given.\n"
	      "\n"
	      "  run        does so until a signal ends it; one that finds another one waits\n"
	      "  check      says whether the file is good; --check is the same\n"
	      "  status     says what the mirror that runs does, a line for each rule\n"
	      "  peers      a line for each host that it gets names from, or gives bytes to\n"
	      "  tree NAME  from whom each host has the newest version of a name of this host\n"
	      "  fetch NAME asks for a name that comes only then, and waits for it\n",
	      to);
	return status;
}

/* Runs once no other mirror has the control socket. Returns 0 or a negative errno. */
static int run(struct mirror *m)
{
	struct control *control = NULL;
	sigset_t ends;
	int r;

	sigemptyset(&ends);
	sigaddset(&ends, SIGINT);
	sigaddset(&ends, SIGTERM);
	sigaddset(&ends, SIGUSR1);
	sigaddset(&ends, EXPORT_ASKED);
	signal(SIGHUP, SIG_IGN); /* a terminal's end; or a reload, which is not supported */
	pthread_sigmask(SIG_BLOCK, &ends, NULL); /* threads inherit this */
	fd_raise_limit(); /* each host that names come from takes a connection to the daemon */
	r = control_wait(&control, &m->config, &ends);
	m->started_ns = now_real_ns();
	if (!r)
		r = mirror_open(m);
	if (!r)
		r = control_start(control, m);
	if (!r)
		r = serve_until(m, &ends);
	if (r == -ECONNABORTED)
		log_error(
			"a connection to the daemon was ended by tensorlease kick; start this program "
			"anew",
			"host=%s", m->config.host);
	log_info("ending", "why=%s", r < 0 ? strerror(-r) : "signal");
	control_stop(control);
	mirror_close(m);
	control_close(control);
	return r < 0 ? r : 0;
}

struct options {
	const char *config;
	bool check, json;
};

static int bad_level(const char *level)
{
	fprintf(stderr,
		"tensorlease-mirror: --log-level must be error, warn, info or debug, not '%s'\n",
		level);
	return usage(stderr, USAGE);
}

/* Returns -1 if all options were read, or an exit status. */
static int read_options(struct options *o, int argc, char **argv)
{
	static const struct option options[] = { { "config", required_argument, NULL, 'c' },
						 { "check", no_argument, NULL, 'n' },
						 { "log-level", required_argument, NULL, 'l' },
						 { "json", no_argument, NULL, 'j' },
						 { "help", no_argument, NULL, 'h' },
						 { "version", no_argument, NULL, 'V' },
						 { 0 } };
	enum log_level level;
	int c;

	while ((c = getopt_long(argc, argv, "c:l:jhV", options, NULL)) >= 0) {
		if (c == 'c')
			o->config = optarg;
		else if (c == 'n')
			o->check = true;
		else if (c == 'j')
			o->json = true;
		else if (c == 'l' && !log_parse_level(&level, optarg))
			log_set_level(level);
		else if (c == 'l')
			return bad_level(optarg);
		else if (c == 'V')
			return puts("tensorlease-mirror " TENSORLEASE_VERSION) < 0;
		else
			return c == 'h' ? usage(stdout, 0) : usage(stderr, USAGE);
	}
	return -1;
}

static int do_command(const struct options *o, const char *command, const char *name)
{
	struct mirror m = { 0 };
	int status = config_read(&m.config, o->config) ? 1 : 0;

	if (!status && !strcmp(command, "run"))
		return run(&m) ? 1 : 0;
	if (!status && !strcmp(command, "status"))
		status = command_status(&m.config, o->json);
	else if (!status && !strcmp(command, "peers"))
		status = command_peers(&m.config, o->json);
	else if (!status && !strcmp(command, "tree"))
		status = command_tree(&m.config, o->json, name);
	else if (!status && !strcmp(command, "fetch"))
		status = command_fetch(&m.config, name);
	config_deinit(&m.config);
	return status;
}

int main(int argc, char **argv)
{
	static const char *const commands[] = {
		"run", "check", "status", "peers", "tree", "fetch"
	};
	struct options o = { .config = DEFAULT_CONFIG };
	const char *command, *name;
	bool known = false, named;
	int status = read_options(&o, argc, argv);

	if (status >= 0)
		return status;
	command = o.check ? "check" : optind < argc ? argv[optind++] : "run";
	for (size_t n = 0; n < sizeof(commands) / sizeof(*commands); n++)
		known |= !strcmp(command, commands[n]);
	named = !strcmp(command, "tree") || !strcmp(command, "fetch");
	name = named && optind < argc ? argv[optind++] : NULL;
	if (!known)
		fprintf(stderr, "tensorlease-mirror: there is no command '%s'\n", command);
	else if (named && !name)
		fprintf(stderr, "tensorlease-mirror: %s needs a NAME\n", command);
	else if (optind < argc)
		fprintf(stderr, "tensorlease-mirror: %s does not take '%s'\n", command,
			argv[optind]);
	if (!known || optind < argc || (named && !name))
		return usage(stderr, USAGE);
	signal(SIGPIPE, SIG_IGN);
	srand((unsigned)now_real_ns());			   /* for jitter */
	OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL); /* libnats frees it itself */
	curl_global_init(CURL_GLOBAL_DEFAULT);
	status = do_command(&o, command, name);
	curl_global_cleanup();
	return status;
}
