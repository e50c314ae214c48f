/* SPDX-License-Identifier: Apache-2.0 */
/* Hands a tensor on to another process, by a token: docs/protocol/leases.md, Handing on. */
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "client/connection/call.h"
#include "client/connection/request.h"
#include "client/error.h"
#include "client/read/get.h"
#include "client/read/lease_tensor.h"
#include "client/read/lookup.h"
#include "client/read/sleep.h"

/* "tl": the first two bytes of a token. */
enum { TOKEN_MAGIC = 0x6c74 };

struct token {
	uint16_t magic, part; /* struct handed_part */
	uint32_t description;
	uint64_t instance; /* of the catalog */
	uint64_t ref, id;  /* the latter is 0 in a token that may be received often */
};

_Static_assert(sizeof(struct token) == TL_TOKEN_SIZE, "a token has this size");

/* Numbers that others can guess would let them end a handover. */
static int random_id(uint64_t *id)
{
	ssize_t n;

	do
		n = getrandom(id, sizeof(*id), 0);
	while (n < 0 && errno == EINTR);
	return n == sizeof(*id)
		       ? 0
		       : tl_fail(-EIO, "the kernel gives no random numbers: %s", strerror(errno));
}

/* -EINVAL, with the reason in the text, if the receiver would look for the tensor elsewhere. */
static int check_place(tl_client *client, const struct tensor_lease *l)
{
	struct use use;
	int r = call_look(client, &use);

	if (r)
		return r;
	if (use.session->catalog.instance != l->session->catalog.instance)
		r = tl_fail(-EINVAL,
			    "tl_handover: the tensor is of another daemon or namespace than "
			    "the client, which is connected" LATE_AT,
			    LATE_AT_ARGS(use.session->address));
	client_leave(&use);
	return r;
}

/* The daemon may still do what it has not answered, and nobody would have the token. */
static void take_back(struct session *s, const struct wire_handover *asked)
{
	struct wire_receive m = { .header = { .type = WIRE_RECEIVE,
					      .length = sizeof(m),
					      .serial = session_serial(s) },
				  .ref = asked->ref,
				  .id = asked->id };

	session_post(s, &m);
}

int lease_hand_on(tl_client *client, const struct tensor_lease *l, struct handed_part part,
		  uint64_t ttl_ns, unsigned char *token)
{
	struct session *s = l->session;
	struct wire_handover m = { .header = { .type = WIRE_HANDOVER, .length = sizeof(m) },
				   .ref = l->ref,
				   .ttl_ns = ttl_ns };
	struct conn_message answer;
	int r = session_usable(s);

	if (!r)
		r = check_place(client, l);
	if (!r)
		r = random_id(&m.id);
	if (!r)
		r = s->held ? session_call(s, &m, session_deadline(s), &answer) : SESSION_E_UNSENT;
	if (r == -ETIMEDOUT)
		take_back(s, &m);
	if (!r)
		r = answer_expect(&answer, WIRE_DONE, "handing on a tensor");
	if (r > 0 || r == -ESTALE)
		return tl_fail(-ENOTCONN, "the tensor cannot be handed on: %s",
			       s->held ? "the daemon that knows it has ended"
				       : "this process has inherited it by fork(): get it anew");
	if (!r)
		memcpy(token,
		       &(struct token){ .magic = TOKEN_MAGIC,
					.part = part.index,
					.description = part.description,
					.instance = s->catalog.instance,
					.ref = l->ref,
					.id = part.many ? 0 : m.id },
		       TL_TOKEN_SIZE);
	return r;
}

struct receiving {
	struct token token;
	const tl_get_options *options;
	DLManagedTensorVersioned **out;
};

static int gone(const struct session *s)
{
	return tl_fail(-ENOENT,
		       "the tensor of this token is not there any more" LATE_AT
		       ": it was received before or handed on too long ago, or the process that "
		       "handed it on has ended",
		       LATE_AT_ARGS(s->address));
}

/* V1 and V2: takes a lease, and maps the tensor. *@out has the use's count. */
static int receive_map(struct call *c, const struct use *use, struct receiving *receiving)
{
	struct session *s = use->session;
	const struct catalog_row *row = &s->catalog.rows[ref_slot(receiving->token.ref)];
	struct backoff backoff = { 0 };
	int r = lease_hold_handed(s, receiving->token.ref);

	if (r)
		return r;
	if (load_once(&row->flags) & ROW_RING && !load_once(&row->version))
		r = ring_ask_page(s, ring_slot_ring(load_once(&row->ring)));
	while (!r) {
		r = tensor_lease_new(use, receiving->token.ref, receiving->options, call_until(c),
				     receiving->out);
		if (!r)
			return 0;
		if (r == LEASE_E_STALE && lease_stands(s, receiving->token.ref))
			r = lookup_again(s, &backoff);
	}
	lease_release(s, ref_slot(receiving->token.ref));
	return r;
}

/* V3 */
static int receive_tell(struct call *c, struct session *s, const struct token *token)
{
	struct wire_receive m = { .header = { .type = WIRE_RECEIVE, .length = sizeof(m) },
				  .ref = token->ref,
				  .id = token->id };
	struct conn_message answer;
	int r = session_call(s, &m, call_deadline(c), &answer);

	return r ? r : answer_expect(&answer, WIRE_DONE, "receiving a tensor");
}

static int receive_attempt(struct call *c, const struct use *use, void *context)
{
	struct receiving *receiving = context;
	struct session *s = use->session;
	int r;

	if (receiving->token.instance != s->catalog.instance)
		return tl_fail(-ENOENT,
			       "the token is not of the daemon" LATE_AT
			       ", or of another namespace, or of a former daemon there",
			       LATE_AT_ARGS(s->address));
	r = receive_map(c, use, receiving);
	if (!r) {
		r = receive_tell(c, s, &receiving->token);
		if (!r)
			return 0;
		use_count_join(&s->users, 1); /* the tensor has the one of @use */
		(*receiving->out)->deleter(*receiving->out);
	}
	if (r == LEASE_E_STALE || r == -ENOENT)
		return gone(s);
	if (r == LEASE_E_LOST)
		return tl_fail(-ENODATA, "the process that published the tensor has ended, and "
					 "its GPU memory with it");
	return r == LEASE_E_TOO_MANY ? lease_too_many("the tensor") : r;
}

int lease_receive(tl_client *client, const unsigned char *token, const tl_get_options *options,
		  struct handed_part *part, DLManagedTensorVersioned **out)
{
	struct receiving receiving = { .options = options };
	struct call c = call_begin_request(client);
	DLManagedTensorVersioned *got = NULL;
	int r;

	memcpy(&receiving.token, token, TL_TOKEN_SIZE);
	if (receiving.token.magic != TOKEN_MAGIC ||
	    (receiving.token.description && !receiving.token.part) ||
	    !ref_generation(receiving.token.ref))
		return tl_fail(-EINVAL, "tl_receive: these %d bytes are no token of tl_handover()",
			       TL_TOKEN_SIZE);
	receiving.out = &got;
	r = call_run(&c, receive_attempt, &receiving);
	if (!r)
		*out = got;
	part->index = receiving.token.part;
	part->description = receiving.token.description;
	return r;
}
