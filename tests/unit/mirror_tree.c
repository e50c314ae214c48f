/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From whom each of 1,000 hosts gets a version. Nothing is sent: pieces are counted, one for each
 * link in each step.
 */
#include "mirror/tree.h"
#include "tests/harness/harness.h"

enum { HOSTS = 1000, PIECES = 40, NOTICE = 3, FANOUTS = 4 };

struct host {
	char name[16];
	unsigned node, have;
	unsigned silent; /* steps without an answer of its parent */
	bool dead;
};

/* tree.nodes[n] is that of hosts[n]; hosts[0] is the origin. */
struct net {
	struct tree tree;
	unsigned fanout;
	struct host hosts[HOSTS + 1];
	uint64_t sent; /* pieces, by the origin */
};

static void net_start(struct net *net, unsigned fanout)
{
	*net = (struct net){ .fanout = fanout };
	net->hosts[0].have = PIECES;
	for (unsigned n = 1; n <= HOSTS; n++) {
		struct host *h = &net->hosts[n];

		snprintf(h->name, sizeof(h->name), "h%u", n);
		must_be(tree_join(&net->tree, h->name, h->name, NULL, fanout), (int)n);
	}
}

static unsigned depth_of(const struct net *net, unsigned n)
{
	unsigned depth = 0;

	for (; n; n = net->tree.nodes[n].parent) {
		must(depth <= HOSTS); /* else it waits for itself */
		depth++;
	}
	return depth;
}

/* floor(log of HOSTS to the base @fanout) */
static unsigned levels(unsigned fanout)
{
	unsigned n = 0;

	for (unsigned hosts = HOSTS; hosts >= fanout; hosts /= fanout)
		n++;
	return n;
}

TEST(the_parent_of_host_i_is_i_minus_1_by_fanout)
{
	static struct net net;

	for (unsigned fanout = 2; fanout <= FANOUTS; fanout++) {
		net_start(&net, fanout);
		for (unsigned n = 1; n <= HOSTS; n++) {
			must_be(net.tree.nodes[n].parent, (n - 1) / fanout);
			must(depth_of(&net, n) <= levels(fanout) + 1);
			must_be(tree_join(&net.tree, net.hosts[n].name, NULL, NULL, fanout),
				(int)n);
			must_be(net.tree.nodes[n].parent, (n - 1) / fanout);
		}
		tree_deinit(&net.tree);
	}
}

TEST(without_fanout_all_get_it_from_the_origin)
{
	static struct net net;

	net_start(&net, 0);
	for (unsigned n = 1; n <= HOSTS; n++)
		must_be(net.tree.nodes[n].parent, 0);
	tree_deinit(&net.tree);
}

TEST(hosts_that_serve_nobody_are_spread)
{
	struct tree tree = { 0 };
	char name[16];

	for (unsigned n = 1; n <= 100; n++) { /* two of them serve */
		snprintf(name, sizeof(name), "h%u", n);
		must_be(tree_join(&tree, name, n <= 2 ? name : NULL, NULL, 2), (int)n);
	}
	must_be(tree.nodes[0].children + tree.nodes[1].children + tree.nodes[2].children, 100);
	for (unsigned n = 0; n <= 2; n++)
		must(tree.nodes[n].children >= 33 && tree.nodes[n].children <= 34);
	tree_deinit(&tree);
}

TEST(only_a_child_can_lose_its_parent)
{
	struct tree tree = { 0 };

	must_be(tree_join(&tree, "a", "a", NULL, 1), 1);
	must_be(tree_join(&tree, "b", "b", NULL, 1), 2);
	must_be(tree_join(&tree, "c", "c", NULL, 1), 3);
	must_be(tree_join(&tree, "c", "c", "a", 1), 3); /* that of b */
	must(!tree.nodes[1].lost);
	must_be(tree.nodes[3].parent, 2);
	must_be(tree_join(&tree, "b", "b", "a", 1), 2);
	must(tree.nodes[1].lost);
	must_be(tree.nodes[2].parent, 0);
	must_be(tree_join(&tree, "a", "a", NULL, 1), 1); /* it is back */
	must(!tree.nodes[1].lost);
	must_be(tree.nodes[1].parent, 2);
	tree_deinit(&tree);
}

/* One piece goes over each link. */
static void step(struct net *net)
{
	unsigned had[HOSTS + 1];

	for (unsigned n = 0; n <= HOSTS; n++)
		had[n] = net->hosts[n].have;
	for (unsigned n = 1; n <= HOSTS; n++) {
		struct host *h = &net->hosts[n];
		const unsigned parent = net->tree.nodes[n].parent;

		if (h->dead || h->have == PIECES)
			continue;
		if (net->hosts[parent].dead) {
			if (++h->silent < NOTICE)
				continue;
			h->silent = 0;
			tree_join(&net->tree, h->name, h->name, net->hosts[parent].name,
				  net->fanout);
			continue;
		}
		h->silent = 0;
		if (had[parent] > h->have) {
			h->have++;
			net->sent += !parent;
		}
	}
}

static unsigned children_of_origin(const struct net *net)
{
	unsigned count = 0;

	for (unsigned n = 1; n <= HOSTS; n++)
		count += !net->tree.nodes[n].parent && !net->tree.nodes[n].lost;
	return count;
}

/* One of @one_in hosts dies before all have it. */
static void storm(unsigned fanout, unsigned one_in)
{
	static struct net net;
	unsigned steps = 0, deepest = 0, died = 0;
	bool all = false;

	net_start(&net, fanout);
	for (; !all; steps++) {
		must(steps < 100 * PIECES);
		if (steps < PIECES)
			net.hosts[1 + (unsigned)rand() % HOSTS].dead |= (unsigned)rand() % 100 <
									4000 / one_in;
		step(&net);
		must(children_of_origin(&net) <= fanout);
		all = true;
		for (unsigned n = 1; n <= HOSTS; n++) {
			all &= net.hosts[n].dead || net.hosts[n].have == PIECES;
			if (!net.hosts[n].dead && depth_of(&net, n) > deepest)
				deepest = depth_of(&net, n);
		}
	}
	for (unsigned n = 1; n <= HOSTS; n++)
		died += net.hosts[n].dead;
	printf("  fanout %u: %u died, %u steps for %d pieces, deepest %u of %u, the origin sent %.2f copies\n",
	       fanout, died, steps, PIECES, deepest, levels(fanout), (double)net.sent / PIECES);
	must(died > 0);
	must(deepest <= levels(fanout) + 2);
	must(net.sent <= fanout * PIECES * 11 / 10);
	tree_deinit(&net.tree);
}

TEST(all_get_it_though_hosts_die)
{
	for (unsigned fanout = 2; fanout <= FANOUTS; fanout++) {
		storm(fanout, 40);
		storm(fanout, 100);
	}
}

int main(void)
{
	return suite_run();
}
