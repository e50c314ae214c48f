/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "mirror/tree.h"

enum { HOSTS_MAX = 1 << 16 };

/* Returns a node's distance from the origin, or -1 if it gets the version by way of @other. */
static int depth_of(const struct tree *t, unsigned n, unsigned other)
{
	int depth = 0;

	for (; n && n != other; n = t->nodes[n].parent)
		depth++;
	return n ? -1 : depth;
}

/* Returns the node from which @self gets the version. A node that has lost its parent may have
 * others below it, so it moves to the top: each node has one extra place for that. If all places
 * are taken, as many hosts do not serve others, it gets a node with the fewest children. */
static unsigned choose(const struct tree *t, unsigned self, unsigned fanout, bool moves)
{
	unsigned best = 0, best_children = t->nodes[0].children;
	int best_depth = 0;

	if (!fanout || best_children < fanout)
		return 0;
	for (unsigned n = 1; n < t->count; n++) {
		const struct node *node = &t->nodes[n];
		const unsigned children = node->children < fanout + moves ? 0 : node->children;
		int depth;

		if (!node->url || node->lost || children > best_children)
			continue;
		depth = depth_of(t, n, self);
		if (depth < 0 || (children == best_children && depth >= best_depth))
			continue;
		best = n;
		best_children = children;
		best_depth = depth;
	}
	return best;
}

static int add(struct tree *t, const char *host, const char *url)
{
	struct node *nodes;
	struct node node = { .host = host ? strdup(host) : NULL, .url = url ? strdup(url) : NULL };

	nodes = t->count < HOSTS_MAX ? reallocarray(t->nodes, t->count + 1, sizeof(*nodes)) : NULL;
	if (nodes)
		t->nodes = nodes;
	if (!nodes || (host && !node.host) || (url && !node.url)) {
		free(node.host);
		free(node.url);
		return -ENOMEM;
	}
	nodes[t->count] = node;
	return (int)t->count++;
}

static int find(const struct tree *t, const char *host)
{
	for (unsigned n = 1; n < t->count; n++) {
		if (!strcmp(t->nodes[n].host, host))
			return (int)n;
	}
	return -ENOENT;
}

static void adopt(struct tree *t, unsigned child, unsigned fanout, bool moves)
{
	const unsigned parent = choose(t, child, fanout, moves);

	t->nodes[child].parent = parent;
	t->nodes[parent].children++;
}

int tree_join(struct tree *t, const char *host, const char *url, const char *lost, unsigned fanout)
{
	int n = t->count ? 0 : add(t, NULL, NULL);
	struct node *node, *parent;

	if (n < 0)
		return n;
	n = find(t, host);
	if (n < 0) {
		n = add(t, host, url);
		if (n > 0)
			adopt(t, (unsigned)n, fanout, false);
		return n;
	}
	node = &t->nodes[n];
	parent = &t->nodes[node->parent];
	if (url && (!node->url || strcmp(node->url, url) != 0)) {
		free(node->url);
		node->url = strdup(url);
	}
	if (node->lost) { /* it is back, and has lost its place */
		node->lost = false;
		adopt(t, (unsigned)n, fanout, true);
	} else if (lost && parent->url && !strcmp(parent->url, lost)) {
		if (!parent->lost)
			t->nodes[parent->parent].children--;
		parent->lost = true;
		parent->children--;
		adopt(t, (unsigned)n, fanout, true);
	}
	return n;
}

void tree_deinit(struct tree *t)
{
	for (unsigned n = 0; n < t->count; n++) {
		free(t->nodes[n].host);
		free(t->nodes[n].url);
	}
	free(t->nodes);
	*t = (struct tree){ 0 };
}
