/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An intrusive heap: the node with the smallest key is on top. It is a leftist tree, so that it
 * needs no memory of its own, and adding or removing any node takes O(log n) steps at worst.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct heap_node {
	struct heap_node *left, *right, *parent;
	uint64_t key;
	uint32_t rank; /* nodes from here down the right edge; 0: it is in no heap */
};

/* All zero means that it is empty. */
struct heap {
	struct heap_node *top;
};

static inline bool heap_has(const struct heap_node *node)
{
	return node->rank != 0;
}

/* The node must not be in a heap. */
void heap_add(struct heap *heap, struct heap_node *node, uint64_t key);
/* Does nothing if the node is in no heap. */
void heap_remove(struct heap *heap, struct heap_node *node);
