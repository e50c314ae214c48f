/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of all messages: wire_requests.h, wire_requests_device.h, wire_requests_admin.h,
 * wire_requests_claim.h, wire_requests_restart.h, wire_requests_members.h, wire_requests_ring.h,
 * wire_requests_stream.h, wire_requests_watch.h, wire_requests_handover.h and wire_replies.h have
 * lines of these forms.
 *
 *	STRUCT(name)                         begins the fixed part of one or several messages:
 *	HEADER                               struct wire_header
 *	FIELD(type, name, meaning)           a member
 *	ARRAY(type, name, count, meaning)    a member that is an array
 *	END(name, size)                      the end, and sizeof(struct name)
 *	MESSAGE(id, number, struct, ...)     the message WIRE_<id>, and its rules. On either
 *	                                     side numbers ascend and are never used again.
 *
 * A file that includes this one first defines the forms that it needs as macros; the others expand
 * to nothing. wire.h makes the types and structs in this way, and wire_table.c the table that
 * wire_check() and wire_print() walk. No other list of members is needed.
 *
 * The meanings, which are macros of wire_table.c:
 *
 *	ANY, SIGNED, HEX       any number, and how it is printed
 *	NUMBER(least, most)    a number within these bounds
 *	REF                    a ref, not 0
 *	INDEX_OR_NONE          an index of the catalog, or CATALOG_NONE
 *	FLAGS(known, ...)      no bits but @known; the names of the bits, from bit 0 on
 *	ZERO                   reserved
 *	LIFETIME               bits of WIRE_LIFETIME_*
 *	ERROR_CODE             one of enum wire_error
 *	LABEL                  text, padded with NUL
 *	UUID, OPAQUE           bytes, printed or not
 *	MEMBERS(name)          an embedded struct, which has no header
 *	SIZES, STRIDES, NAME(least), NAMES(least), NAMESPACE, METADATA, TEXT, REFS, MESSAGES
 *	                       how many 8-byte sizes, or bytes, follow the fixed part, in the order
 *	                       of these members
 *	.unit = n              with FLAGS: if the flag is set, @n more bytes follow after all others
 *
 * These rules may be given for a message:
 *
 *	SERIAL                 the serial is not 0: a request that has an answer, or the answer
 *	WITH_FD, FD_IF(rule)   exactly one descriptor comes with it, always or if @rule says so
 *	OF_MESSAGES            `count` whole messages follow the fixed part
 *	CHECK(rule)            a further rule, mostly between members
 */
/* No #pragma once: wire.h and wire_table.c include this file several times, for other purposes. */

#ifndef STRUCT
#define STRUCT(name)
#endif
#ifndef HEADER
#define HEADER
#endif
#ifndef FIELD
#define FIELD(type, name, ...)
#endif
#ifndef ARRAY
#define ARRAY(type, name, count, ...)
#endif
#ifndef END
#define END(name, size)
#endif
#ifndef MESSAGE
#define MESSAGE(id, number, ...)
#endif
#ifndef END_OF /* after the last message of a side: REQUEST or REPLY */
#define END_OF(side)
#endif

#include "proto/wire_requests.h"
#include "proto/wire_requests_device.h"

#include "proto/wire_requests_admin.h" /* a block of its own, since the numbers must ascend */

#include "proto/wire_requests_claim.h"
#include "proto/wire_requests_restart.h"

#include "proto/wire_requests_members.h"

#include "proto/wire_requests_watch.h"

#include "proto/wire_requests_ring.h"

#include "proto/wire_requests_stream.h"

#include "proto/wire_requests_handover.h"

#include "proto/wire_requests_look.h" /* has the highest number */
END_OF(REQUEST)
#include "proto/wire_replies.h"
END_OF(REPLY)

#undef STRUCT
#undef HEADER
#undef FIELD
#undef ARRAY
#undef END
#undef MESSAGE
#undef END_OF
