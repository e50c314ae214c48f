/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Invariants: no node's key is below its parent's; the left child's rank is never below the right
 * one's. A node of rank r therefore has at least 2^r - 1 nodes below and including itself. So a
 * right edge, the only path that a merge walks, has at most log2(n + 1) nodes.
 */
#include "util/heap.h"

static uint32_t rank_of(const struct heap_node *node)
{
	return node ? node->rank : 0;
}

/* Sets the order of the children and the rank right. False: the rank was right. */
static bool node_update(struct heap_node *node)
{
	struct heap_node *left = node->left;
	uint32_t rank;

	if (rank_of(left) < rank_of(node->right)) {
		node->left = node->right;
		node->right = left;
	}
	rank = rank_of(node->right) + 1;
	if (rank == node->rank)
		return false;
	node->rank = rank;
	return true;
}

/* Merges two trees, either of which may be NULL. The caller sets the parent of the result. */
static struct heap_node *merge(struct heap_node *a, struct heap_node *b)
{
	struct heap_node *lower;

	if (!a || !b)
		return a ? a : b;
	if (b->key < a->key) {
		lower = b;
		b = a;
		a = lower;
	}
	a->right = merge(a->right, b);
	a->right->parent = a;
	node_update(a);
	return a;
}

void heap_add(struct heap *heap, struct heap_node *node, uint64_t key)
{
	*node = (struct heap_node){ .key = key, .rank = 1 };
	heap->top = merge(heap->top, node);
	heap->top->parent = NULL;
}

/* Ranks only change as long as they shrink along the way up, which is O(log n) nodes. */
void heap_remove(struct heap *heap, struct heap_node *node)
{
	struct heap_node *parent = node->parent, *rest;

	if (!heap_has(node))
		return;
	rest = merge(node->left, node->right);
	if (rest)
		rest->parent = parent;
	if (!parent)
		heap->top = rest;
	else if (parent->left == node)
		parent->left = rest;
	else
		parent->right = rest;
	while (parent && node_update(parent))
		parent = parent->parent;
	*node = (struct heap_node){ 0 };
}
