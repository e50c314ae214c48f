/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients of a daemon that stands still: calls end in their time while its backlog or the socket is
 * full, and what they had to tell the daemon is told when it goes on.
 */
#include <sys/socket.h>
#include <sys/un.h>

#include <tensorlease/watch.h>

#include "client/connection/client.h"
#include "proto/conn.h"
#include "tests/client/rings.h"

/* ---- A full backlog ---- */

static int socket_at(struct sockaddr_un *a, const struct test_daemon *d)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	must(fd >= 0);
	*a = (struct sockaddr_un){ .sun_family = AF_UNIX };
	snprintf(a->sun_path, sizeof(a->sun_path), "%s/other", d->dir);
	return fd;
}

/* The timeout is a whole number of seconds, and hardly any of it has passed before the wait. */
TEST(connecting_ends_in_its_time_while_the_backlog_is_full)
{
	cleanup_td struct test_daemon d = td_start();
	struct sockaddr_un a;
	int listener = socket_at(&a, &d), first = socket_at(&a, &d);
	tl_connect_options o = { .size = sizeof(o),
				 .address = a.sun_path,
				 .timeout_ns = 1 * SECOND };
	int64_t start;
	tl_client *client;

	must_be(bind(listener, (struct sockaddr *)&a, sizeof(a)), 0);
	must_be(listen(listener, 0), 0);
	must_be(connect(first, (struct sockaddr *)&a, sizeof(a)), 0);
	start = now_ns();
	must_be(tl_connect(&o, &client), -ETIMEDOUT);
	must(now_ns() - start >= 1 * SECOND);
	close(first);
	close(listener);
	must_be(unlink(a.sun_path), 0);
}

/* ---- A full socket ---- */

/* Sends what means nothing, until nothing more fits. The daemon stands still. */
static void fill_socket(tl_client *client)
{
	struct wire_unclaim m = { .header = { .type = WIRE_UNCLAIM, .length = sizeof(m) },
				  .claim = INT32_MAX };
	int socket = session_socket(atomic_load(&client->session)), r;

	do {
		r = conn_send(socket, &m, -1, MSG_DONTWAIT);
	} while (!r);
	must_be(r, -EAGAIN);
}

static void claim_soon(tl_client *client, const char *name)
{
	tl_claim_options o = { .size = sizeof(o), .timeout_ns = WAIT_S * SECOND };

	must_be(tl_claim(client, name, &o), 0);
}

TEST(a_claim_that_is_given_up_is_free_when_the_daemon_goes_on)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *other = td_connect(&d);
	char name[TL_NAME_MAX + 1];

	memset(name, 'x', TL_NAME_MAX);
	name[TL_NAME_MAX] = '\0';
	must_be(tl_claim(client, name, NULL), 0);
	must_be(tl_claim(client, "short", NULL), 0);
	client_set_timeout(client, 20 * MS);
	td_freeze(&d);
	fill_socket(client);
	must_be(tl_unclaim(client, name), 0);
	must_be(tl_unclaim(client, "short"), 0);
	td_thaw(&d);
	claim_soon(other, name);
	claim_soon(other, "short");
	tl_close(client);
	tl_close(other);
}

struct claimant {
	tl_client *client;
	_Atomic int result; /* 1: none yet */
};

static void *claim_in_vain(void *arg)
{
	const tl_claim_options o = { .size = sizeof(o), .timeout_ns = SECOND / 2 };
	struct claimant *c = arg;

	atomic_store(&c->result, tl_claim(c->client, "c", &o));
	return NULL;
}

/* A thread waits to send what is left, and ends although nothing can be opened for that. */
static int closes_at_its_limit(const struct test_daemon *d, void *arg)
{
	tl_client *client = td_connect(d);

	(void)arg;
	must_be(tl_claim(client, "c", NULL), 0);
	td_freeze(d);
	fill_socket(client);
	must_be(tl_unclaim(client, "c"), 0);
	forbid_descriptors();
	must_be(tl_close(client), 0);
	return 0;
}

TEST(a_client_with_unsent_messages_is_closed_at_the_limit_of_descriptors)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *other = td_connect(&d);

	must_be(td_run_client(&d, closes_at_its_limit, NULL), 0);
	td_thaw(&d);
	claim_soon(other, "c");
	tl_close(other);
}

TEST(a_wait_for_a_claim_that_timed_out_keeps_nobody_from_it)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *other = td_connect(&d);
	struct claimant c = { td_connect(&d), 1 };
	pthread_t thread;

	must_be(tl_claim(client, "c", NULL), 0);
	client_set_timeout(c.client, 20 * MS);
	must_be(pthread_create(&thread, NULL, claim_in_vain, &c), 0);
	eventually(share_used(client, TL_SHARE_WAITS) == 2 || atomic_load(&c.result) != 1);
	td_freeze(&d);
	fill_socket(c.client);
	must_be(pthread_join(thread, NULL), 0);
	must_be(c.result, -ETIMEDOUT);
	td_thaw(&d);
	must_be(tl_unclaim(client, "c"), 0);
	claim_soon(other, "c");
	tl_close(c.client);
	tl_close(client);
	tl_close(other);
}

TEST(watches_that_are_closed_end_when_the_daemon_goes_on)
{
	enum { WATCHES = 40 };
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *other = td_connect(&d);
	tl_watch *watches[WATCHES];
	char name[16];

	for (unsigned i = 0; i < WATCHES; i++) {
		snprintf(name, sizeof(name), "w/%u", i);
		must_be(tl_watch_open(client, name, NULL, &watches[i]), 0);
	}
	must_be(share_used(other, TL_SHARE_WATCHES), WATCHES);
	td_freeze(&d);
	fill_socket(client);
	for (unsigned i = 0; i < WATCHES; i++)
		must_be(tl_watch_close(watches[i]), 0);
	td_thaw(&d);
	eventually(share_used(other, TL_SHARE_WATCHES) == 0);
	tl_close(client);
	tl_close(other);
}

/* Publishing in a ring sends nothing but which rows the daemon may give back. */
TEST(a_ring_gets_its_rows_back_when_the_daemon_goes_on)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *other = td_connect(&d);
	tl_info info = { .size = sizeof(info) };
	uint64_t version = begin(client, "r"), before = commits(other);

	must_be(tl_stat(client, "r", &info), 0);
	client_set_timeout(client, 20 * MS);
	td_freeze(&d);
	fill_socket(client);
	for (uint32_t i = 0; i < info.ring / 2; i++)
		must_be(put_ring(client, "r", 2), ++version);
	td_thaw(&d);
	eventually(commits(other) == before + info.ring / 2);
	tl_close(client);
	tl_close(other);
}

int main(void)
{
	return suite_run();
}
