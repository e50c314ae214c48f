/* SPDX-License-Identifier: Apache-2.0 */
/* Messages that no mirror sends are refused, and those that are read keep what they promise. */
#include "mirror/note.h"
#include "tests/fuzz/target.h"

static void show(const struct message *m, const struct note *note, void *context)
{
	const unsigned char *end = m->bytes + m->size;
	size_t *count = context;
	char text[2 * TICKET_SIZE + 1];
	unsigned char ticket[TICKET_SIZE];

	fuzz_check((*note->name || m->has_items) && strlen(note->name) <= TL_NAME_MAX &&
		   note->version);
	++*count;
	if (note->gone)
		return;
	fuzz_check(note->ndim >= 0 && note->ndim <= TL_NDIM_MAX && note->ttl_ns >= 0);
	for (int i = 0; i < note->ndim; i++)
		fuzz_check(note->shape[i] >= 0);
	fuzz_check((const unsigned char *)note->metadata >= m->bytes &&
		   (const unsigned char *)note->metadata + note->metadata_size <= end);
	fuzz_check(!note->bytes || ((const unsigned char *)note->bytes >= m->bytes &&
				    (const unsigned char *)note->bytes + note->nbytes <= end));
	ticket_write(note->ticket, text);
	fuzz_check(ticket_read(text, strlen(text), ticket) &&
		   !memcmp(ticket, note->ticket, TICKET_SIZE));
}

static void show_stream(const struct stream_note *stream, void *context)
{
	(void)context;
	fuzz_check(*stream->name && strlen(stream->name) <= TL_NAME_MAX && stream->ttl_ns >= 0);
}

struct items {
	const struct message *message;
	size_t parts;
};

static void show_item(const struct item_note *item, size_t first, void *context)
{
	struct items *items = context;
	const unsigned char *end = items->message->bytes + items->message->size;

	fuzz_check(item->number && item->parts && first == items->parts);
	fuzz_check((const unsigned char *)item->metadata + item->metadata_size <= end);
	items->parts += item->parts;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct message m;
	size_t count = 0;

	if (!message_read(&m, data, size)) {
		message_notes(&m, show, &count);
		fuzz_check(count == message_count(&m) && m.url);
		message_streams(&m, show_stream, NULL);
		if (m.has_items) {
			struct items items = { &m, 0 };

			message_items(&m, show_item, &items);
			fuzz_check(items.parts == count);
		}
	}
	message_deinit(&m);
	return 0;
}

#ifndef TL_LIBFUZZER
PLAIN_TEST(messages_of_the_corpus_are_survived)
{
	assert_true(replay("mirror") > 0);
}

int main(void)
{
	return suite_run();
}
#endif
