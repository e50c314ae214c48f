/* SPDX-License-Identifier: Apache-2.0 */
/* Intrusive doubly-linked circular list. A head and an unlinked node both point at themselves. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct list {
	struct list *next;
	struct list *prev;
};

/* clang-format off */
#define LIST_INIT(name) { .next = &(name), .prev = &(name) }
/* clang-format on */

#ifndef container_of
#define container_of(ptr, type, member)                                                            \
	({                                                                                         \
		const __typeof__(((type *)0)->member) *member_ = (ptr);                            \
		(type *)((char *)member_ - offsetof(type, member));                                \
	})
#endif

#define list_entry(ptr, type, member) container_of(ptr, type, member)

/* The first or last entry of a list that is not empty. */
#define list_first_entry(head, type, member) list_entry((head)->next, type, member)
#define list_last_entry(head, type, member) list_entry((head)->prev, type, member)

/* Declares @pos, which walks the nodes. The body must not change the list. */
#define list_for_each(pos, head)                                                                   \
	for (struct list *pos = (head)->next; pos != (head); pos = pos->next)

/* The same, but the body may unlink and free @pos, and no other node. */
#define list_for_each_safe(pos, head)                                                              \
	for (struct list *pos = (head)->next, *next_of_##pos = pos->next; pos != (head);           \
	     pos = next_of_##pos, next_of_##pos = pos->next)

/* Declares @pos, a pointer to the struct that embeds the nodes. The body must not change the
 * list. */
#define list_for_each_entry(pos, head, member)                                                     \
	for (pos = list_entry((head)->next, __typeof__(*pos), member); &pos->member != (head);     \
	     pos = list_entry(pos->member.next, __typeof__(*pos), member))

/* The same, but the body may unlink and free @pos, though not @after, the next one. */
#define list_for_each_entry_safe(pos, after, head, member)                                         \
	for (pos = list_entry((head)->next, __typeof__(*pos), member),                             \
	    after = list_entry(pos->member.next, __typeof__(*pos), member);                        \
	     &pos->member != (head);                                                               \
	     pos = after, after = list_entry(pos->member.next, __typeof__(*pos), member))

static inline void list_init(struct list *node)
{
	node->next = node;
	node->prev = node;
}

static inline bool list_empty(const struct list *head)
{
	return head->next == head;
}

static inline void list_insert_(struct list *node, struct list *prev, struct list *next)
{
	node->prev = prev;
	node->next = next;
	prev->next = node;
	next->prev = node;
}

static inline void list_add_tail(struct list *head, struct list *node)
{
	list_insert_(node, head->prev, head);
}

static inline void list_add_head(struct list *head, struct list *node)
{
	list_insert_(node, head, head->next);
}

/* Unlinks @node and leaves it initialised, so that a second call does no harm. */
static inline void list_del(struct list *node)
{
	node->prev->next = node->next;
	node->next->prev = node->prev;
	list_init(node);
}

/* Appends all nodes of @from to @to, in constant time. */
static inline void list_move_all(struct list *to, struct list *from)
{
	if (list_empty(from))
		return;
	from->next->prev = to->prev;
	to->prev->next = from->next;
	from->prev->next = to;
	to->prev = from->prev;
	list_init(from);
}
