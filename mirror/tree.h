/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From which host each host gets a version. The origin decides. The origin and each host that
 * serves others give it to `fanout` hosts, so the origin sends few copies, and the last host waits
 * for log(hosts) others.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct node {
	char *host;	 /* NULL: the origin */
	char *url;	 /* where it serves others; NULL: it does not */
	unsigned parent; /* the parent's number; 0: the origin */
	unsigned children;
	bool lost;	     /* a child has reported that it does not answer */
	uint64_t want, sent; /* pieces that it wants; pieces sent to it */
	int64_t used_ns;     /* when it asked last */
};

struct tree {
	struct node *nodes; /* the first is the origin */
	unsigned count;	    /* 0: nobody has asked */
};

/*
 * Returns the number of a host's node, or a negative errno. A host that asks for the first time
 * gets the parent that is nearest to the origin among those with fewer than @fanout children. 0:
 * all get the version from the origin. @url and @lost may be NULL. @lost: the URL of its parent,
 * which does not answer; the host gets another parent, which is not below it in the tree.
 */
int tree_join(struct tree *tree, const char *host, const char *url, const char *lost,
	      unsigned fanout);
void tree_deinit(struct tree *tree);
