/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handing tensors over to tl_publish(): memory of ours is not copied, other memory is copied once,
 * and it is clear at every moment who owns the tensor.
 */
#include <sys/mman.h>

#include "client/connection/client.h"
#include "client/connection/session.h"
#include "proto/ledger_layout.h"
#include "tests/client/common.h"

/* Another library's tensor over any memory, with a deleter that counts its calls. */
struct foreign {
	DLManagedTensorVersioned managed;
	DLManagedTensorVersioned *base; /* a tensor that it keeps alive, or NULL */
	int64_t dims[8];
	int deleted;
};

static void foreign_delete(DLManagedTensorVersioned *m)
{
	struct foreign *f = m->manager_ctx;

	f->deleted++;
	if (f->base)
		drop(f->base);
}

static void foreign_init(struct foreign *f, void *data, int64_t n, DLManagedTensorVersioned *base)
{
	*f = (struct foreign){ .base = base, .dims = { n } };
	f->managed = (DLManagedTensorVersioned){
		.version = { DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION },
		.manager_ctx = f,
		.deleter = foreign_delete,
		.dl_tensor = bytes_tensor(data, f->dims),
	};
}

static tl_draft *create_bytes(tl_client *client, const char *name, int64_t n)
{
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	tl_draft *draft = NULL;

	must_be(tl_create(client, name, &spec, &draft), 0);
	return draft;
}

TEST(a_foreign_tensor_is_copied_once)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	unsigned char data[5000];
	struct foreign f;
	DLManagedTensorVersioned *t;
	uint64_t version;
	bool copied = false;

	memset(data, 5, sizeof(data));
	foreign_init(&f, data, sizeof(data), NULL);
	f.managed.version.major = 2;
	must_be(tl_publish(client, "p", &f.managed, NULL, &copied, &version), -EINVAL);
	f.managed.version.major = 1;
	f.managed.dl_tensor.device.device_type = kDLOpenCL;
	must_be(tl_publish(client, "p", &f.managed, NULL, &copied, &version), -ENOTSUP);
	f.managed.dl_tensor.device.device_type = kDLCPU;
	must_be(tl_publish(client, "p/", &f.managed, NULL, &copied, &version), -EINVAL);
	must_be(f.deleted, 0); /* it is still ours */
	must_be(tl_publish(client, "p", &f.managed, NULL, &copied, &version), 0);
	must_be(f.deleted, 1);
	must_be(version, 1);
	must(copied);
	t = get(client, "p");
	must(all_bytes(t, 5, sizeof(data)));
	drop(t);
	tl_close(client);
}

/* Whoever forbids a copy gets none, and whoever always copies says so. */
TEST(a_copy_that_is_forbidden_is_not_made)
{
	static const char *const names[] = { "p" };
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_put_options o = { .size = sizeof(o), .flags = TL_PUBLISH_NO_COPY };
	unsigned char data[100] = { 0 };
	DLManagedTensorVersioned *one;
	const DLTensor *source;
	struct foreign f;
	tl_info info = { .size = sizeof(info) };

	foreign_init(&f, data, sizeof(data), NULL);
	one = &f.managed;
	source = &one->dl_tensor;
	must_be(tl_publish(client, "p", one, &o, NULL, NULL), -ENOTSUP);
	must_be(tl_publish_many(client, names, &one, 1, &o, NULL), -ENOTSUP);
	must(strstr(tl_last_error(), "'p'"));
	must_be(tl_put(client, "p", source, &o, NULL), -EINVAL);
	must(strstr(tl_last_error(), "tl_put: tl_put_options.flags has TL_PUBLISH_NO_COPY"));
	must_be(tl_put_many(client, names, &source, 1, &o), -EINVAL);
	must(strstr(tl_last_error(), "tl_put_many: "));
	must_be(tl_stat(client, "p", &info), -ENOENT);
	must_be(f.deleted, 0);
	tl_close(client);
}

TEST(each_of_many_has_dlpack_flags_of_its_own)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	const char *const names[2] = { "padded", "packed" };
	unsigned char data[9] = { 1, 2, 3, 4, 5, 6, 7, 8, 9 };
	tl_info info = { .size = sizeof(info) };
	DLManagedTensorVersioned *both[2], *t;
	struct foreign f[2];

	for (int i = 0; i < 2; i++) {
		foreign_init(&f[i], data, 9, NULL);
		f[i].managed.dl_tensor.dtype = (DLDataType){ TL_DTYPE_INT, 4, 1 };
		both[i] = &f[i].managed;
	}
	both[0]->flags = DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
	must_be(tl_publish_many(client, names, both, 2, NULL, NULL), 0);
	t = get(client, "padded");
	must(t->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED);
	must(!memcmp(t->dl_tensor.data, data, 9));
	must_be(tl_tensor_info(t, &info), 0);
	must_be(info.nbytes, 9);
	drop(t);
	must_be(tl_stat(client, "packed", &info), 0);
	must_be(info.nbytes, 5);
	must_be(f[0].deleted + f[1].deleted, 2);
	tl_close(client);
}

TEST(an_exported_draft_is_not_copied)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_put_options o = { .size = sizeof(o), .metadata = "now", .metadata_size = 3 };
	DLManagedTensorVersioned *exported, *t;
	bool copied = true;
	uint64_t version;
	static tl_info info = { .size = sizeof(info) };
	void *bytes;

	for (int64_t n = 1000; n < 10000000; n *= 100) {
		must_be(tl_draft_to_dlpack(create_bytes(client, "ignored", n), &exported), 0);
		must(!(exported->flags & DLPACK_FLAG_BITMASK_READ_ONLY));
		bytes = exported->dl_tensor.data;
		memset(bytes, 6, (size_t)n);
		must_be(tl_publish(client, "e", exported, &o, &copied, &version), 0);
		must(!copied);
		t = get(client, "e");
		must(all_bytes(t, 6, (size_t)n));
		must_be(tl_tensor_info(t, &info), 0);
		must(info.metadata_size == 3 && !memcmp(info.metadata, "now", 3));
		drop(t);
	}
	must_be(tl_stat(client, "ignored", &info), -ENOENT);
	tl_close(client);
	must_be(td_status(&d).drafts, 0);
}

/* A draft of a ring is copied to publish it under another name, or with much metadata. */
TEST(a_copy_of_an_exported_draft_has_what_the_draft_had)
{
	enum { N = 4096 };
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	const tl_put_options ring = { .size = sizeof(ring), .ring = TL_RING_AUTO };
	const tl_put_options no_copy = { .size = sizeof(no_copy), .flags = TL_PUBLISH_NO_COPY };
	const unsigned char much[100] = "much";
	unsigned char bytes[N] = { 1 };
	int64_t n = N;
	DLTensor t = bytes_tensor(bytes, &n);
	tl_spec spec = {
		.size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8, .ring = TL_RING_AUTO
	};
	static tl_info info = { .size = sizeof(info) };
	DLManagedTensorVersioned *exported;
	uint64_t version;
	tl_draft *draft;
	bool copied;

	while (!td_status(&d).rings)
		must_be(tl_put(client, "r", &t, &ring, &version), 0);
	must_be(tl_create(client, "r", &spec, &draft), 0);
	must_be(tl_draft_set_metadata(draft, "few", 3), 0);
	must_be(tl_draft_to_dlpack(draft, &exported), 0);
	must_be(tl_publish(client, "other", exported, NULL, &copied, &version), 0);
	must(copied);
	must_be(tl_stat(client, "other", &info), 0);
	must(info.metadata_size == 3 && !memcmp(info.metadata, "few", 3));

	must_be(tl_create(client, "r", &spec, &draft), 0);
	must_be(tl_draft_set_metadata(draft, much, sizeof(much)), 0);
	must_be(tl_draft_to_dlpack(draft, &exported), 0);
	must_be(tl_publish(client, "r", exported, &no_copy, &copied, &version), -ENOTSUP);
	must_be(tl_publish(client, "r", exported, NULL, &copied, &version), 0);
	must(copied);
	must_be(tl_stat(client, "r", &info), 0);
	must(info.metadata_size == sizeof(much) && !memcmp(info.metadata, much, sizeof(much)));
	tl_close(client);
	must_be(td_status(&d).drafts, 0);
}

/* Its user may have one name, so that a second one is refused. */
static struct test_daemon start_with_one_name(void)
{
	char config[] = "/tmp/tl-test-config-XXXXXX";
	const char *extra[] = { "--config", config, NULL };
	const int fd = mkstemp(config);
	struct test_daemon d;

	must(fd >= 0 && dprintf(fd, "[user %u]\nnames = 1\n", getuid()) > 0);
	d = td_start(.extra = extra);
	must_be(close(fd) | unlink(config), 0); /* it was read */
	return d;
}

/* It is still a draft, which nobody else's bytes can come to lie in. */
TEST(a_refused_publish_leaves_the_draft_what_it_was_given)
{
	const tl_put_options refused = { .size = sizeof(refused),
					 .metadata = "refused",
					 .metadata_size = 7,
					 .ttl_ns = 3600 * SECOND };
	const int64_t n = 5000;
	tl_spec spec = { .size = sizeof(spec), .shape = &n, .ndim = 1, .dtype = U8 };
	static tl_info info = { .size = sizeof(info) };
	struct test_daemon d;
	DLManagedTensorVersioned *exported, *t;
	bool copied = true;
	tl_client *client;
	uint64_t version;
	tl_draft *draft;

	d = start_with_one_name();
	client = td_connect(&d);
	for (int i = 0; i < 3; i++) {
		spec.ring = i < 2 ? 0 : 4;
		spec.lifetime = i < 2 ? TL_LIFETIME_OWNER_BOUND : 0; /* rings have none */
		put_bytes(client, "a", 1, 100);
		must_be(tl_create(client, "b", &spec, &draft), 0);
		must_be(tl_draft_set_metadata(draft, "own", 3), 0);
		must_be(tl_draft_to_dlpack(draft, &exported), 0);
		must_be(tl_publish(client, "b", exported, i == 1 ? &refused : NULL, NULL, &version),
			-EDQUOT);
		memset(exported->dl_tensor.data, 7, (size_t)n);
		put_bytes(client, "a", 8, (size_t)n);
		must_be(tl_delete(client, "a"), 0);
		must_be(tl_publish(client, "b", exported, NULL, &copied, &version), 0);
		must(!copied);
		t = get(client, "b");
		must(all_bytes(t, 7, (size_t)n));
		drop(t);
		must_be(tl_stat(client, "b", &info), 0);
		must(info.metadata_size == 3 && !memcmp(info.metadata, "own", 3));
		must_be(info.lifetime, spec.lifetime);
		must_be(tl_delete(client, "b"), 0);
	}
	tl_close(client);
	td_stop(&d);
}

/* Nobody knows whether it was published. It is given up when its tensor is. */
TEST(a_late_refusal_leaves_no_draft)
{
	const int64_t n = 5000;
	const tl_spec spec = { .size = sizeof(spec),
			       .shape = &n,
			       .ndim = 1,
			       .dtype = U8,
			       .flags = TL_CREATE_OWN_PAGES };
	struct test_daemon d;
	DLManagedTensorVersioned *exported;
	tl_client *client, *other;
	uint64_t version;
	tl_draft *draft;

	d = start_with_one_name();
	other = td_connect(&d);
	put_bytes(other, "a", 1, 100);
	client = td_connect(&d);
	must_be(tl_create(client, "b", &spec, &draft), 0);
	must_be(tl_draft_to_dlpack(draft, &exported), 0);
	client_set_timeout(client, SECOND / 10);
	td_freeze(&d);
	must_be(tl_publish(client, "b", exported, NULL, NULL, &version), -ETIMEDOUT);
	td_thaw(&d);
	td_sync(&d);
	must_be(td_status(&d).drafts, 1);
	drop(exported);
	eventually(td_status(&d).drafts == 0);
	tl_close(client);
	tl_close(other);
	td_stop(&d);
}

TEST(bytes_of_a_draft_stay_when_it_is_refused)
{
	struct test_daemon d;
	DLManagedTensorVersioned *exported;
	tl_draft *draft[5];
	tl_client *client;
	struct foreign f;

	d = start_with_one_name();
	client = td_connect(&d);
	put_bytes(client, "a", 1, 100);
	must_be(tl_draft_to_dlpack(create_bytes(client, "b", 5000), &exported), 0);
	memset(exported->dl_tensor.data, 7, 5000);
	foreign_init(&f, exported->dl_tensor.data, 5000, NULL);
	must_be(tl_publish(client, "b", &f.managed, NULL, NULL, NULL), -EDQUOT);
	for (int i = 0; i < 5; i++) {
		draft[i] = create_bytes(client, "a", 5000);
		memset(tl_draft_tensor(draft[i])->data, 9, 5000);
	}
	must(all_bytes(exported, 7, 5000));
	for (int i = 0; i < 5; i++)
		tl_abort(draft[i]);
	drop(exported);
	eventually(td_status(&d).drafts == 0);
	tl_close(client);
	td_stop(&d);
}

TEST(a_view_of_an_exported_draft_is_committed)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	DLManagedTensorVersioned *exported, *t;
	struct foreign f;
	bool copied = true;
	uint64_t version;

	must_be(tl_draft_to_dlpack(create_bytes(client, "d", 4096), &exported), 0);
	memset(exported->dl_tensor.data, 7, 4096);
	foreign_init(&f, exported->dl_tensor.data, 4096, NULL);
	f.managed.dl_tensor.ndim = 3; /* Another shape and type over a part of the same bytes. */
	f.dims[0] = 10;
	f.dims[1] = 5;
	f.dims[2] = 20;
	f.managed.dl_tensor.dtype = (DLDataType){ TL_DTYPE_FLOAT, 32, 1 };
	must_be(tl_publish(client, "v", &f.managed, NULL, &copied, &version), 0);
	must(!copied);
	must_be(f.deleted, 1);
	t = get(client, "v");
	must_be(t->dl_tensor.ndim, 3);
	must(same_memory(t->dl_tensor.data, exported->dl_tensor.data));
	drop(t);
	/*
	 * The owner of the export still looks at its tensor, so it stays whatever the name means.
	 */
	must_be(put_bytes(client, "v", 1, 4000), 2);
	must_be(put_bytes(client, "v", 1, 4000), 3);
	must_be(td_status(&d).retired, 1);
	must(all_bytes(exported, 7, 4000));
	drop(exported);
	must_be(td_status(&d).retired, 0);
	tl_close(client);
}

/* This is the first lease of the client, so nothing else has counted in that page of its ledger. */
TEST(the_bytes_of_an_exported_draft_stay_after_its_commit)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *other = td_connect(&d);
	DLManagedTensorVersioned *exported;
	struct foreign f;
	uint64_t version;
	bool copied;

	must_be(tl_draft_to_dlpack(create_bytes(client, "n", 5000), &exported), 0);
	memset(exported->dl_tensor.data, 7, 5000);
	foreign_init(&f, exported->dl_tensor.data, 5000, NULL);
	must_be(tl_publish(client, "n", &f.managed, NULL, &copied, &version), 0);
	must(!copied);
	for (int i = 0; i < 20; i++)
		put_bytes(i % 2 ? client : other, "n", i, 5000);
	must(all_bytes(exported, 7, 5000));
	must_be(td_status(&d).retired, 1);
	drop(exported);
	must_be(td_status(&d).retired, 0);
	tl_close(other);
	tl_close(client);
}

TEST(an_unpublished_export_is_aborted)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	DLManagedTensorVersioned *a, *b;

	must_be(tl_draft_to_dlpack(create_bytes(client, "a", 100000), &a), 0);
	must_be(tl_draft_to_dlpack(create_bytes(client, "b", 100000), &b), 0);
	must_be(td_status(&d).drafts, 2);
	drop(a);
	must_be(td_status(&d).drafts, 1);
	tl_close(client);
	must_be(td_status(&d).drafts, 1); /* the export may still be written to */
	memset(b->dl_tensor.data, 1, 100000);
	drop(b);
	must_be(td_status(&d).drafts, 0);
	must_be(td_status(&d).clients, 0);
}

TEST(a_lost_export_is_copied_to_the_next_daemon)
{
	struct test_daemon first = td_start();
	cleanup_td struct test_daemon second = { .pid = 0 };
	tl_client *client = td_connect(&first);
	DLManagedTensorVersioned *exported, *t;
	bool copied = false;
	uint64_t version;

	must_be(tl_draft_to_dlpack(create_bytes(client, "a", 100000), &exported), 0);
	memset(exported->dl_tensor.data, 1, 100000);
	td_kill(&first);
	must_be(tl_publish(client, "e", exported, NULL, &copied, &version), -ENOTCONN); /* it stays
											   ours */
	second = td_start(.socket = first.socket);
	must(td_alive(&second));
	must_be(tl_publish(client, "e", exported, NULL, &copied, &version), 0);
	must(copied);
	t = get(client, "e");
	must(all_bytes(t, 1, 100000));
	drop(t);
	tl_close(client);
}

/* Its address shows that it lies in a draft of the connection that has ended. */
TEST(a_view_of_a_lost_export_has_what_the_draft_had)
{
	struct test_daemon first = td_start();
	cleanup_td struct test_daemon second = { .pid = 0 };
	tl_client *client = td_connect(&first);
	const int64_t n = 5000;
	const tl_spec spec = { .size = sizeof(spec),
			       .shape = &n,
			       .ndim = 1,
			       .dtype = U8,
			       .ttl_ns = 3600 * SECOND,
			       .lifetime = TL_LIFETIME_EVICTABLE };
	static tl_info info = { .size = sizeof(info) };
	DLManagedTensorVersioned *exported;
	bool copied = false;
	uint64_t version;
	tl_draft *draft;
	struct foreign f;

	must_be(tl_create(client, "d", &spec, &draft), 0);
	must_be(tl_draft_set_metadata(draft, "own", 3), 0);
	must_be(tl_draft_to_dlpack(draft, &exported), 0);
	foreign_init(&f, exported->dl_tensor.data, n, exported);
	td_kill(&first);
	second = td_start(.socket = first.socket);
	must(td_alive(&second));
	eventually(!tl_publish(client, "d", &f.managed, NULL, &copied, &version));
	must(copied);
	must_be(f.deleted, 1);
	must_be(tl_stat(client, "d", &info), 0);
	must(info.metadata_size == 3 && !memcmp(info.metadata, "own", 3));
	must_be(info.lifetime, TL_LIFETIME_EVICTABLE);
	must(info.ttl_ns > 0);
	tl_close(client);
}

TEST(an_export_of_another_daemon_is_copied_to_this_one)
{
	cleanup_td struct test_daemon here = td_start(), there = td_start();
	tl_client *client = td_connect(&here), *other = td_connect(&there);
	tl_draft *draft = create_bytes(other, "e", 3000);
	DLManagedTensorVersioned *t = NULL;
	uint64_t version;
	bool copied = false;
	tl_info info = { .size = sizeof(info) };

	must_be(tl_draft_to_dlpack(draft, &t), 0);
	memset(t->dl_tensor.data, 7, 3000);
	must_be(tl_publish(client, "p", t, NULL, &copied, &version), 0);
	must(copied && version == 1);
	must_be(tl_stat(other, "p", &info), -ENOENT);
	t = get(client, "p");
	must(all_bytes(t, 7, 3000));
	drop(t);
	tl_close(other);
	tl_close(client);
}

/* What one client publishes is that client's, whoever made the memory. */
TEST(an_export_of_another_client_is_copied)
{
	cleanup_td struct test_daemon d = td_start();
	const tl_put_options bound = { .size = sizeof(bound), .lifetime = TL_LIFETIME_OWNER_BOUND };
	const tl_put_options no_copy = { .size = sizeof(no_copy), .flags = TL_PUBLISH_NO_COPY };
	tl_client *client = td_connect(&d), *reader = td_connect(&d);
	DLManagedTensorVersioned *t;

	for (int closed = 0; closed < 2; closed++) {
		tl_client *other = td_connect(&d);
		bool copied = false;

		must_be(tl_draft_to_dlpack(create_bytes(other, "e", 3000), &t), 0);
		memset(t->dl_tensor.data, 7, 3000);
		if (closed)
			tl_close(other);
		must_be(tl_publish(client, "p", t, &no_copy, NULL, NULL), -ENOTSUP);
		must_be(tl_publish(client, "p", t, &bound, &copied, &(uint64_t){ 0 }), 0);
		must(copied);
		if (!closed)
			tl_close(other);
		td_sync(&d);
		t = get(reader, "p");
		must(all_bytes(t, 7, 3000));
		drop(t);
	}
	tl_close(client);
	must_be(td_status(&d).drafts, 0);
	must_be(tl_get(reader, "p", NULL, &t), -ENOENT);
	tl_close(reader);
}

TEST(a_leased_tensor_gets_another_name)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	DLManagedTensorVersioned *t, *u;
	bool copied = true;
	uint64_t version;

	put_bytes(client, "one", 8, 5000);
	must_be(tl_publish(client, "two", get(client, "one"), NULL, &copied, &version), 0);
	must(!copied);
	t = get(client, "one");
	u = get(client, "two");
	must(same_memory(t->dl_tensor.data, u->dl_tensor.data));
	drop(t);
	must_be(tl_delete(client, "one"), 0);
	must(all_bytes(u, 8, 5000)); /* each keeps the bytes */
	drop(u);
	put_bytes(client, "new", 9, 5000);
	u = get(client, "two");
	must(all_bytes(u, 8, 5000));

	/* The lease's tensor is retired when it is published once more. */
	put_bytes(client, "two", 10, 5000);
	must_be(tl_publish(client, "three", u, NULL, &copied, &version), 0);
	must(!copied);
	t = get(client, "three");
	must(all_bytes(t, 8, 5000));
	drop(t);
	tl_close(client);
	must_be(td_status(&d).retired, 0);
}

TEST(a_foreign_wrapper_of_a_lease_is_recognised)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	DLManagedTensorVersioned *t, *u;
	struct foreign f;
	bool copied = true;
	uint64_t version;

	put_bytes(client, "zero", 1, 5000);
	put_bytes(client, "one", 8, 5000);
	t = get(client, "one");
	foreign_init(&f, t->dl_tensor.data, 5000, t);
	must_be(tl_publish(client, "two", &f.managed, NULL, &copied, &version), 0);
	must(!copied);
	must_be(f.deleted, 1);
	t = get(client, "one");
	u = get(client, "two");
	must(same_memory(t->dl_tensor.data, u->dl_tensor.data));
	drop(u);

	foreign_init(&f, t->dl_tensor.data, 4999, t); /* one byte less than the lease has */
	must_be(tl_publish(client, "part", &f.managed, NULL, &copied, &version), 0);
	must(copied);
	tl_close(client);
}

/* Those of the ledger that counts what the client holds. */
static unsigned pages_of_ledger(tl_client *client, unsigned slots)
{
	const struct session *s = atomic_load(&client->session);
	uintptr_t first = (uintptr_t)s->held / LEDGER_PAGE;
	size_t n = ((uintptr_t)(s->held + slots) + LEDGER_PAGE - 1) / LEDGER_PAGE - first;
	unsigned char there[64];
	unsigned count = 0;

	must(n <= sizeof(there));
	must_be(mincore((void *)(first * LEDGER_PAGE), n * LEDGER_PAGE, there), 0);
	for (size_t i = 0; i < n; i++)
		count += there[i] & 1;
	return count;
}

/* Tensors of others cost it nothing. */
TEST(a_lease_is_recognised_by_what_is_held_alone)
{
	enum { OTHERS = 8 * LEDGER_PAGE_SLOTS };
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d), *other = td_connect(&d);
	DLManagedTensorVersioned *t;
	struct foreign f;
	bool copied = true;
	char name[16];
	unsigned pages;

	for (int i = 0; i < OTHERS; i++) {
		snprintf(name, sizeof(name), "other/%d", i);
		put_bytes(other, name, 1, 1);
	}
	put_bytes(client, "one", 8, 5000);
	t = get(client, "one");
	foreign_init(&f, t->dl_tensor.data, 5000, t);
	pages = pages_of_ledger(client, OTHERS);
	must(pages < 4);
	must_be(tl_publish(client, "two", &f.managed, NULL, &copied, NULL), 0);
	must(!copied);
	must(pages_of_ledger(client, OTHERS) <= pages + 1); /* its own */
	tl_close(client);
	tl_close(other);
}

TEST(a_private_copy_is_copied)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = td_connect(&d);
	tl_get_options cow = { .size = sizeof(cow), .mode = TL_MODE_COPY_ON_WRITE };
	DLManagedTensorVersioned *t;
	bool copied = false;
	uint64_t version;

	put_bytes(client, "one", 8, 5000);
	must_be(tl_get(client, "one", &cow, &t), 0);
	memset(t->dl_tensor.data, 9, 5000);
	must_be(tl_publish(client, "two", t, NULL, &copied, &version), 0);
	must(copied);
	t = get(client, "two");
	must(all_bytes(t, 9, 5000));
	drop(t);
	t = get(client, "one");
	must(all_bytes(t, 8, 5000));
	drop(t);
	tl_close(client);
}

int main(void)
{
	return suite_run();
}
