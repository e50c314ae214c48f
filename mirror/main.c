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

#include "mirror/export.h"
#include "mirror/import.h"
#include "util/clock.h"
#include "util/log.h"

#define DEFAULT_CONFIG "/etc/tensorlease/mirror.conf"

enum { USAGE = 2, BEAT_S = 2 };

struct mirror {
	struct config config;
	struct bus *bus;
	struct serve *serve;
	struct export **exports; /* one for each rule, NULL for the others */
	struct import **imports;
};

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

/* Until a signal says to end. Returns 0, or -EIO: the server has refused this host. */
static int serve_until(struct mirror *m, const sigset_t *ends)
{
	const struct timespec pause = { .tv_sec = BEAT_S };
	int signal;

	while ((signal = sigtimedwait(ends, NULL, &pause)) < 0 || signal == SIGUSR1) {
		if (bus_is_closed(m->bus))
			return -EIO;
		if (signal == SIGUSR1)
			introduce(m);
		for (size_t n = 0; n < m->config.count; n++) {
			if (m->exports[n])
				export_beat(m->exports[n]);
		}
		if (m->serve) {
			feeds_tidy(serve_feeds(m->serve));
			tickets_tidy(serve_tickets(m->serve));
		}
	}
	return 0;
}

static int usage(FILE *to, int status)
{
	fputs("usage: tensorlease-mirror [--config FILE] [--check] [--log-level LEVEL]\n"
	      "\n"
	      "Makes names of other hosts appear on this one, and offers names of this one.\n"
	      "FILE is " DEFAULT_CONFIG " if it is not given. With --check it says whether the\n"
	      "file is good, and ends.\n",
	      to);
	return status;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "config", required_argument, NULL, 'c' },    { "check", no_argument, NULL, 'n' },
		{ "log-level", required_argument, NULL, 'l' }, { "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, 'V' },	       { 0 }
	};
	const char *path = DEFAULT_CONFIG;
	enum log_level level;
	struct mirror m = { 0 };
	bool check = false;
	sigset_t ends;
	int c, r;

	while ((c = getopt_long(argc, argv, "c:l:hV", options, NULL)) >= 0) {
		if (c == 'c')
			path = optarg;
		else if (c == 'n')
			check = true;
		else if (c == 'l' && !log_parse_level(&level, optarg))
			log_set_level(level);
		else if (c == 'V')
			return puts("tensorlease-mirror " TENSORLEASE_VERSION) < 0;
		else
			return c == 'h' ? usage(stdout, 0) : usage(stderr, USAGE);
	}
	if (optind < argc)
		return usage(stderr, USAGE);
	sigemptyset(&ends);
	sigaddset(&ends, SIGINT);
	sigaddset(&ends, SIGTERM);
	sigaddset(&ends, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &ends, NULL); /* threads inherit this */
	signal(SIGPIPE, SIG_IGN);
	srand((unsigned)now_real_ns());			   /* for jitter */
	OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL); /* libnats frees what that would free */
	curl_global_init(CURL_GLOBAL_DEFAULT);
	r = config_read(&m.config, path);
	if (!r && !check) {
		r = mirror_open(&m);
		if (!r)
			r = serve_until(&m, &ends);
		log_info("ending", "status=%d", r);
	}
	mirror_close(&m);
	curl_global_cleanup();
	return r ? 1 : 0;
}
