/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From whom each host gets a version, as its origin says. The origin and each host that serves
 * others give it to @fanout hosts, so the origin sends few copies, and the last host waits for
 * log(hosts) others.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct node {
	char *host;	 /* NULL: the origin */
	char *url;	 /* where it serves others; NULL: it does not */
	unsigned parent; /* its number; 0: the origin */
	unsigned children;
	bool lost;	     /* by a child */
	uint64_t want, sent; /* pieces, by it and to it */
	int64_t used_ns;     /* when it asked last */
};

struct tree {
	struct node *nodes; /* the first is the origin */
	unsigned count;	    /* 0: nobody has asked */
};

/*
 * Returns the number of a host's node, or a negative errno. A host that asks for the first time
 * gets the parent that is the nearest to the origin of those that have fewer than @fanout children.
 * 0: all get it from the origin. @url and @lost may be NULL. @lost: where its parent is, which does
 * not answer; it gets another one, which is not among those that wait for it.
 */
int tree_join(struct tree *tree, const char *host, const char *url, const char *lost,
	      unsigned fanout);
void tree_deinit(struct tree *tree);
