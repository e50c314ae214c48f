/* SPDX-License-Identifier: Apache-2.0 */
/* util/heap.h: the smallest key is on top whatever is added and removed. */
#include "util/heap.h"
#include "tests/harness/harness.h"
#include "tests/harness/messages.h"

enum { NODES = 2000, STEPS = 20000 };

static struct heap_node nodes[NODES];

static uint32_t rank_below(const struct heap_node *node)
{
	return node ? node->rank : 0;
}

/* How many nodes the tree has, all of which are as the invariants say. */
static unsigned check(const struct heap_node *node, const struct heap_node *parent)
{
	if (!node)
		return 0;
	must(node->parent == parent && (!parent || parent->key <= node->key));
	must_be(node->rank, rank_below(node->right) + 1);
	must(rank_below(node->left) >= rank_below(node->right));
	return 1 + check(node->left, node) + check(node->right, node);
}

static uint64_t smallest(void)
{
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < NODES; i++)
		if (heap_has(&nodes[i]) && nodes[i].key < least)
			least = nodes[i].key;
	return least;
}

PLAIN_TEST(the_smallest_key_is_on_top_whatever_is_added_and_removed)
{
	struct heap heap = { 0 };
	uint64_t seed = 4711;
	unsigned count = 0;

	for (int step = 0; step < STEPS; step++) {
		struct heap_node *node = &nodes[samples_random(&seed) % NODES];

		if (heap_has(node)) {
			heap_remove(&heap, node);
			must(!heap_has(node));
			count--;
		} else {
			heap_add(&heap, node, samples_random(&seed) % 64);
			count++;
		}
		if (step % 500 == 0) {
			must_be(check(heap.top, NULL), count);
			must_be(heap.top ? heap.top->key : UINT64_MAX, smallest());
		}
	}
	while (heap.top) {
		must_be(heap.top->key, smallest());
		heap_remove(&heap, heap.top);
		count--;
	}
	must_be(count, 0);
}

PLAIN_TEST(keys_in_ascending_and_descending_order_come_out_in_order)
{
	struct heap heap = { 0 };

	for (int i = 0; i < NODES; i++)
		heap_add(&heap, &nodes[i], (uint64_t)(i % 2 ? i : NODES - i));
	must_be(check(heap.top, NULL), NODES);
	for (uint64_t last = 0; heap.top; heap_remove(&heap, heap.top)) {
		must(heap.top->key >= last);
		last = heap.top->key;
	}
}

PLAIN_TEST(removing_what_is_in_no_heap_does_nothing)
{
	struct heap heap = { 0 };
	struct heap_node node = { 0 };

	heap_remove(&heap, &node);
	must(!heap.top);
}

int main(void)
{
	return suite_run();
}
