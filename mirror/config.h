/* SPDX-License-Identifier: Apache-2.0 */
/* What tensorlease-mirror is told: an INI file. docs/ACROSS-HOSTS.md has the options. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Of what becomes part of a subject of NATS; a host is also part of a label of the daemon. */
enum { CONFIG_WORD_MAX = 63, CONFIG_HOST_MAX = 20 };

/* A rule offers names of this host, or makes those of other hosts appear here. */
struct rule {
	bool is_export;
	char name[CONFIG_WORD_MAX + 1]; /* that both ends have for it */
	char *name_space;		/* of the daemon here */
	char *prefix;	 /* of what is offered, or of the names here; "", or ends in a slash */
	char *from;	 /* the host whose names come; NULL: of all that offer some */
	bool deletes;	 /* the names of a host that is gone */
	char *requests;	 /* prefix of names, in the default namespace, by which one asks for those
			    that are to come; NULL: all come */
	bool streams;	 /* are carried, too */
	bool lossy;	 /* nobody waits for this host */
	unsigned rate;	 /* at which bytes come, in MiB/s; 0: any */
	bool is_set;	 /* the names are published as one */
	bool copies;	 /* tensors on GPUs, to the CPU; else they are left out */
	unsigned fanout; /* how many hosts get a version from one host; 0: all, from this one */
};

struct config {
	char host[CONFIG_HOST_MAX + 1]; /* this one's name among mirrors */
	char *nats;			/* URL of the server */
	char *listen;			/* ADDRESS:PORT at which bytes are served */
	char *url;			/* under which other hosts reach that; NULL: by @listen */
	char *socket;			/* of the daemon; NULL: the default one */
	char *control;			/* path of the control socket; NULL: beside @socket */
	char *metrics;			/* loopback ADDRESS:PORT; NULL: none */
	bool tls;
	char *ca, *certificate, *key; /* files, with tls */
	struct rule *rules;
	size_t count;
};

/* Whether @text has 1 to @most letters, digits, - and _. */
bool config_is_word(const char *text, size_t most);
/* Reads @path. Returns 0, or a negative errno after an error message. config_deinit() in either
 * case. */
int config_read(struct config *config, const char *path);
void config_deinit(struct config *config);
