/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's view of a stream's page. Members can write anything there: each word is loaded once
 * and checked, searches are bounded, and nonsense ends as "nothing there". */
#pragma once

#include "daemon/state/client.h"
#include "daemon/state/ring_page.h"

/* The number after the last one; if the page has nonsense, the first number that there can be. */
uint64_t stream_order_end(const struct stream *s);
/* True if the stream was ended, and not reopened, before @end. */
bool stream_order_is_closed(const struct stream *s, uint64_t end);
/* Of a queue: the number of items before @end that nobody has taken, or whose worker has ended. */
uint32_t stream_order_open(const struct stream *s, uint64_t end);
/* The position of that subscriber, whose word was read; 0: it is not known. */
uint64_t stream_position(const struct stream *s, uint32_t member, uint64_t word);
/* E2: appends a word that is no item. False: a subscriber may still want the item whose word would
 * be replaced, or a producer was faster again and again. */
bool stream_order_append(struct stream *s, unsigned what);
/* True if nobody will take the item in that entry any more: it has none, or its item was passed or,
 * in a queue, is done. */
bool stream_entry_is_passed(const struct stream *s, unsigned entry);
/* D2: opens what @member of a queue took and has not acknowledged. */
void stream_reopen(struct stream *s, uint32_t member);
/* D3: wakes all subscribers, and all producers. */
void stream_ring(struct stream *s);
void stream_make_room(struct stream *s);
/* Clears the member's bits, so that nobody is woken for it. */
void stream_bits_clear(struct stream *s, uint32_t member);
