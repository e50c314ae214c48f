/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration of tensorlease-mirror: an INI file. docs/ACROSS-HOSTS.md has the options. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Limits of words in subjects of NATS. A host's name is also part of a label at the daemon. */
enum { CONFIG_WORD_MAX = 63, CONFIG_HOST_MAX = 20 };

/* A rule offers names of this host, or makes those of other hosts appear here. */
struct rule {
	bool is_export;
	char name[CONFIG_WORD_MAX + 1]; /* the rule's name, the same on both ends */
	char *name_space;		/* the local daemon's */
	char *prefix;	 /* of the names offered, or of those made here; "", or ends in a slash */
	char *from;	 /* the host whose names come; NULL: all hosts that offer names */
	bool deletes;	 /* delete the names of a host that is gone */
	char *requests;	 /* prefix of names, in the default namespace, that request names from
			    other hosts; NULL: all names come */
	bool streams;	 /* mirror streams, too */
	bool lossy;	 /* producers of streams do not wait for this host */
	unsigned rate;	 /* limit for incoming bytes, in MiB/s; 0: none */
	bool is_set;	 /* the names are published together, as a set */
	bool copies;	 /* copy tensors on GPUs to the CPU; otherwise leave them out */
	unsigned fanout; /* how many hosts get a version from one host; 0: all get it from here */
};

struct config {
	char host[CONFIG_HOST_MAX + 1]; /* this one's name among mirrors */
	char *nats;			/* URL of the server */
	char *listen;			/* ADDRESS:PORT where bytes are served */
	char *url;     /* the URL by which other hosts reach `listen`; NULL: its address */
	char *socket;  /* the daemon's socket; NULL: the default one */
	char *control; /* path of the control socket; NULL: beside `socket` */
	char *metrics; /* loopback ADDRESS:PORT; NULL: none */
	bool tls;
	char *ca, *certificate, *key; /* files, with tls */
	struct rule *rules;
	size_t count;
};

/* Whether @text has 1 to @most letters, digits, - and _. */
bool config_is_word(const char *text, size_t most);
/* Reads @path. Returns 0, or a negative errno after an error message. Then call config_deinit(). */
int config_read(struct config *config, const char *path);
void config_deinit(struct config *config);
