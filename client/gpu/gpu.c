/* SPDX-License-Identifier: Apache-2.0 */
#include "client/gpu/gpu.h"
#include "client/gpu/device.h"
#include "client/gpu/end.h"
#include "client/gpu/export.h"
#include "client/gpu/finish.h"
#include "client/gpu/fork.h"
#include "client/gpu/group.h"
#include "client/gpu/hear.h"
#include "client/gpu/lease.h"
#include "client/gpu/publication.h"
#include "client/gpu/publish.h"
#include "client/gpu/threads.h"
#include "client/gpu/session.h"
#include "client/gpu/take.h"

const struct memory_kind cuda_kind = {
	.device = kDLCUDA,
	.lease = cuda_lease_new,
	.lease_known = cuda_lease_known,
	.lease_delete = cuda_lease_delete,
	.lease_again = cuda_lease_again,
	.ordinal = cuda_ordinal,
	.create = cuda_create,
	.put = cuda_put,
	.publish = cuda_publish,
	.second_name = cuda_second_name,
	.keeps_strides = true,
	.draft_written = cuda_draft_written,
	.draft_stream = cuda_draft_stream,
	.draft_commit = cuda_draft_commit,
	.draft_abort = cuda_draft_end,
	.draft_close = cuda_draft_close,
	.drafts_left = cuda_drafts_left,
	.draft_end = cuda_draft_end,
	.members_allocate = cuda_members_allocate,
	.members_copy = cuda_members_copy,
	.members_place = cuda_members_place,
	.member_message = cuda_member_message,
	.member_made = cuda_member_made,
	.members_asked = cuda_members_asked,
	.members_end = cuda_members_end,
	.messages = {
		[KIND_UNSOLICITED] = {
			[WIRE_FREED - WIRE_WELCOME] = cuda_take_freed,
			[WIRE_UNMAP - WIRE_WELCOME] = cuda_take_unmap,
		},
		[KIND_LATE] = {
			[WIRE_EXPORTED - WIRE_WELCOME] = cuda_late_export,
			[WIRE_PLACED - WIRE_WELCOME] = cuda_late_answer,
			[WIRE_DONE - WIRE_WELCOME] = cuda_late_answer,
			[WIRE_ERROR - WIRE_WELCOME] = cuda_late_answer,
		},
	},
	.wake = cuda_wake,
	.session_adopted = cuda_session_adopted,
	.session_finish = cuda_finish,
	.session_end = cuda_session_end,
	.fork_before = cuda_before_fork,
	.fork_parent = cuda_after_fork_parent,
	.fork_child = cuda_after_fork_child,
	.fork_child_unlocked = cuda_child_releases,
};
