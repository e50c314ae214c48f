/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of which some members lie on a device: MEMBERS, GROUP, and what ends them halfway. */
#include "proto/description.h"
#include "tests/daemon/device_common.h"

enum { ROOM = 1000, EACH = 100 };
static const char *const no_warm[] = { "--warm-time", "0", NULL };

struct batch {
	union {
		struct wire_members fixed;
		alignas(8) unsigned char bytes[WIRE_MAX];
	};
	size_t length;
};

static struct batch batch_of(const struct wire_draft *draft)
{
	struct batch b = { .fixed = { .ref = draft->ref }, .length = sizeof(b.fixed) };

	return b;
}

static const DLTensor each = { .ndim = 1,
			       .dtype = { kDLUInt, 8, 1 },
			       .shape = (int64_t[]){ EACH } };

static struct tensor_description described(const char *name)
{
	return description_of(&each, 0, name, strlen(name), NULL, 0);
}

/* The messages that are in it count their own bytes. */
static void batch_added(struct batch *b)
{
	const struct wire_header *h = (const void *)(b->bytes + b->length);

	b->length += wire_padded(h->length);
	b->fixed.size = (uint32_t)(b->length - sizeof(b->fixed));
	b->fixed.count++;
}

static void add_shared(struct batch *b, const char *name, uint64_t offset)
{
	struct wire_member m = { .header = { .type = WIRE_MEMBER },
				 .ref = b->fixed.ref,
				 .offset = offset };
	const struct tensor_description d = described(name);

	description_encode(b->bytes + b->length, &m, &d);
	batch_added(b);
}

static void add_placed(struct batch *b, const struct wire_segment_ref *seg, const char *name,
		       uint64_t offset, uint64_t cookie, unsigned lifetime)
{
	struct wire_place m = { .header = { .type = WIRE_PLACE, .serial = 1 },
				.offset = offset,
				.cookie = cookie,
				.segment = seg->segment,
				.segment_generation = seg->segment_generation };
	struct tensor_description d = described(name);

	d.lifetime.flags = (uint8_t)lifetime;
	if (cookie % 2) {
		d.event = event;
		m.flags = WIRE_PLACE_EVENT;
	}
	description_encode(b->bytes + b->length, &m, &d);
	batch_added(b);
}

/* Sends it; @refs, unless it is NULL, gets those of all members. Returns 0 or the wire error. */
static int send_batch(struct raw *rc, struct batch *b, uint64_t *refs)
{
	struct conn_message answer;
	const struct wire_members_made *made = (const void *)answer.bytes;
	int r = rc_call(rc, WIRE_MEMBERS, b->bytes, b->length, &answer);

	if (!r)
		r = rc_judge(&answer, WIRE_MEMBERS_MADE);
	if (r)
		return r;
	must_be(made->count, b->fixed.count);
	if (refs)
		memcpy(refs, made + 1, made->count * sizeof(*refs));
	return 0;
}

static int publish(struct raw *rc, const struct wire_draft *draft, uint32_t count)
{
	struct wire_group group = { .ref = draft->ref, .count = count };
	struct conn_message answer;
	int r = rc_call(rc, WIRE_GROUP, &group, sizeof(group), &answer);

	return r ? r : rc_judge(&answer, WIRE_DONE);
}

/* Two members on the device, with the cookies 1 and 2, and one in shared memory. */
static void make_three(struct raw *rc, const struct wire_segment_ref *seg, struct wire_draft *draft,
		       uint64_t refs[3])
{
	struct batch b;

	must_be(rc_create(rc, "", EACH, 0, draft), 0);
	b = batch_of(draft);
	add_placed(&b, seg, "a", 0, 1, 0);
	add_shared(&b, "b", 0);
	add_placed(&b, seg, "c", EACH, 2, 0);
	must_be(send_batch(rc, &b, refs), 0);
	must_be(refs[1], 0);
}

TEST(a_group_on_a_device_is_published_in_one_step)
{
	cleanup_td struct test_daemon d = td_start(.extra = no_warm);
	struct device_before before = device_look(&d);
	struct raw producer = rc_open(&d), consumer = rc_open(&d);
	struct wire_segment_ref seg = export_vmm(&producer, ROOM);
	struct wire_draft draft;
	uint64_t refs[3];

	make_three(&producer, &seg, &draft, refs);
	must_be(td_status(&d).tensors, 0);
	must_be(atomic_load(&rc_row(&consumer, refs[0])->word),
		row_word(ref_generation(refs[0]), ROW_DRAFT));
	must_be(publish(&producer, &draft, 3), 0);
	must_be(td_status(&d).tensors, 3);
	must_be(td_status(&d).drafts, 0);
	for (int i = 0; i < 3; i += 2) {
		const struct catalog_row *row = rc_row(&consumer, refs[i]);

		must_be(atomic_load(&row->word), row_word(ref_generation(refs[i]), ROW_LIVE));
		must(row->flags & ROW_ON_DEVICE);
		must_be(row->segment, seg.segment);
		must_be(row->offset, (uint64_t)i / 2 * EACH);
		must_be(row->nbytes, EACH);
		must_be(rc_progress(&consumer, refs[i]), i ? ROW_FINISHED : ROW_UNFINISHED);
	}
	rc_finished(&producer, refs[0], false);
	rc_sync(&producer);
	must_be(rc_progress(&consumer, refs[0]), ROW_FINISHED);
	/* Each goes by itself: the memory of the one in shared memory does not keep the others. */
	must_be(rc_delete(&consumer, "a"), 0);
	must_be(rc_notice(&producer, WIRE_FREED).cookie, 1);
	must_be(rc_delete(&consumer, "b"), 0);
	must(rc_told_nothing(&producer));
	rc_goodbye(&producer); /* the other was written, and lies in memory that stays */
	must_be(td_status(&d).tensors, 1);
	must_be(rc_progress(&consumer, refs[2]), ROW_FINISHED);
	must_be(rc_delete(&consumer, "c"), 0);
	rc_goodbye(&consumer);
	must_be_as_before(&d, &before);
}

TEST(a_group_on_a_device_is_given_up_or_its_producer_dies)
{
	cleanup_td struct test_daemon d = td_start(.extra = no_warm);
	struct device_before before = device_look(&d);
	struct raw producer = rc_open(&d);
	struct wire_segment_ref seg = export_ipc(&producer, ROOM);
	struct wire_draft draft;
	uint64_t refs[3];

	make_three(&producer, &seg, &draft, refs);
	must_be(rc_ref(&producer, WIRE_ABORT, draft.ref), 0);
	must_be(rc_notice(&producer, WIRE_FREED).cookie + rc_notice(&producer, WIRE_FREED).cookie,
		3);
	must_be(td_status(&d).drafts, 0);
	make_three(&producer, &seg, &draft, refs);
	must_be(publish(&producer, &draft, 2), WIRE_E_INVALID); /* it has three */
	must_be(rc_notice(&producer, WIRE_FREED).cookie + rc_notice(&producer, WIRE_FREED).cookie,
		3);
	make_three(&producer, &seg, &draft, refs);
	rc_close(&producer);
	must_be_as_before(&d, &before);
}

TEST(a_member_that_cannot_be_made_spoils_its_group)
{
	cleanup_td struct test_daemon d = td_start(.extra = no_warm);
	struct device_before before = device_look(&d);
	struct raw producer = rc_open(&d), other = rc_open(&d);
	struct wire_segment_ref seg = export_ipc(&producer, ROOM),
				theirs = export_ipc(&other, ROOM);
	struct wire_draft draft;
	struct batch b;

	for (int i = 0; i < 4; i++) {
		must_be(rc_create(&producer, "", EACH, 0, &draft), 0);
		b = batch_of(&draft);
		add_placed(&b, &seg, "a", 0, 2, 0);
		if (i == 0)
			add_placed(&b, &theirs, "b", 0, 4, 0);
		else if (i == 1)
			add_placed(&b, &seg, "b", ROOM - EACH + 1, 4, 0);
		else if (i == 2)
			add_placed(&b, &seg, "b", 0, 4, WIRE_LIFETIME_EVICTABLE);
		else
			add_placed(&b, &seg, "b//c", 0, 4, 0);
		must_be(send_batch(&producer, &b, NULL), i ? WIRE_E_INVALID : WIRE_E_NOT_FOUND);
		must_be(publish(&producer, &draft, 2), WIRE_E_INVALID);
		must_be(rc_notice(&producer, WIRE_FREED).cookie, 2);
		must(rc_told_nothing(&producer));
		must_be(td_status(&d).drafts + td_status(&d).tensors, 0);
	}
	rc_goodbye(&producer);
	rc_goodbye(&other);
	must_be_as_before(&d, &before);
}

int main(void)
{
	return suite_run();
}
