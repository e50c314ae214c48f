/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load and save: files of several tensors that go through the command line and a daemon and come
 * back.
 */
#include <zlib.h>

#include "files/bytes.h"
#include "tests/cli/files.h"

/* ---- Files made by hand ---- */

/* Writes a .safetensors file with that header and @size bytes 0, 1, 2, ... */
static void write_safetensors(const char *path, const char *header, size_t size)
{
	size_t n = strlen(header);
	unsigned char *bytes = malloc(8 + n + size);

	must(bytes);
	put_number(bytes, n, 8);
	for (size_t i = 0; i < n; i++)
		bytes[8 + i] = (unsigned char)header[i];
	for (size_t i = 0; i < size; i++)
		bytes[8 + n + i] = (unsigned char)i;
	write_file(path, bytes, 8 + n + size);
	free(bytes);
}

#define MODEL                                                                                       \
	"{\"__metadata__\":{\"format\":\"pt\",\"note\":\"\\u00e4\"},"                               \
	"\"model.layers.0.weight\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"   \
	"\"model.layers.1.weight\":{\"dtype\":\"F8_E4M3\",\"shape\":[4],\"data_offsets\":[12,16]}," \
	"\"q/packed\":{\"dtype\":\"F4\",\"shape\":[2,2],\"data_offsets\":[16,18]},"                 \
	"\"scale\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[18,22]},"                      \
	"\"six\":{\"dtype\":\"F6_E2M3\",\"shape\":[4],\"data_offsets\":[22,25]}}"

/* Writes a TensorProto of int32 and shape (3,), with that field of that many bytes. */
static void write_proto(const char *path, unsigned tag, const void *bytes, unsigned char size)
{
	unsigned char all[64] = { 0x08, 3, 0x12, 4, 0x12, 2, 0x08, 3 };

	all[8] = (unsigned char)tag;
	all[9] = size;
	memcpy(all + 10, bytes, size);
	write_file(path, all, 10U + size);
}

/*
 * Writes a .npz file with stored members a.npy, b.npy, ..., each with the same six floats. Member
 * @bad has a wrong checksum.
 */
static void write_npz(const char *path, int count, int bad)
{
	unsigned char all[8192] = { 0 }, *p = all, *start = NULL;
	const char header[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n";
	unsigned char npy[256] = "\x93NUMPY\x01";
	size_t n = 10 + sizeof(header) - 1, at[16];

	put_number(npy + 8, sizeof(header) - 1, 2);
	memcpy(npy + 10, header, sizeof(header));
	memcpy(npy + n, six, sizeof(six));
	n += sizeof(six);
	for (int dir = 0; dir < 2; dir++) {
		start = p;
		for (int i = 0; i < count; i++) {
			unsigned char name[] = { (unsigned char)('a' + i), '.', 'n', 'p', 'y' };
			unsigned long crc = crc32(0, npy, (unsigned)n) + (i == bad);

			if (!dir)
				at[i] = (size_t)(p - all);
			p = put_number(p, dir ? 0x02014b50 : 0x04034b50, 4);
			p = put_number(p, 20, dir ? 4 : 2);
			p = put_number(p, 0, 8);
			p = put_number(p, crc, 4);
			p = put_number(p, n, 4);
			p = put_number(p, n, 4);
			p = put_number(p, sizeof(name), 4);
			if (dir) {
				p = put_number(p, 0, 8);
				p = put_number(p, 0, 2);
				p = put_number(p, at[i], 4);
			}
			p = mempcpy(p, name, sizeof(name));
			if (!dir)
				p = mempcpy(p, npy, n);
		}
	}
	n = (size_t)(p - start);
	p = put_number(p, 0x06054b50, 4);
	p = put_number(p, 0, 4);
	p = put_number(p, (uint64_t)count, 2);
	p = put_number(p, (uint64_t)count, 2);
	p = put_number(p, n, 4);
	p = put_number(p, (uint64_t)(start - all), 4);
	p = put_number(p, 0, 2);
	write_file(path, all, (size_t)(p - all));
}

static void must_load(const struct test_daemon *d, const char *prefix, const char *file)
{
	cleanup_result struct result r = run(d, "load", prefix, file);

	must_exit(&r, 0);
}

static void must_save(const struct test_daemon *d, const char *prefix, const char *file)
{
	cleanup_result struct result r = run(d, "save", prefix, file);

	must_exit(&r, 0);
}

/* ---- Round trips ---- */

TEST(a_model_is_loaded_under_a_prefix)
{
	cleanup_td struct test_daemon d = td_start(0);
	struct path file = in(&d, "m.safetensors");

	write_safetensors(file.text, MODEL, 25);
	{
		cleanup_result struct result r = run(&d, "load", "m/v1", file.text);
		cleanup_result struct result get = run(&d, "get", "m/v1/scale");
		cleanup_result struct result info = run(&d, "info", "m/v1/q/packed");

		must_exit(&r, 0);
		assert_string_equal(r.out, "m/v1/model.layers.0.weight\tbfloat16\t2x3\t12\n"
					   "m/v1/model.layers.1.weight\tfloat8_e4m3fn\t4\t4\n"
					   "m/v1/q/packed\tfloat4_e2m1fn\t2x2\t2\n"
					   "m/v1/scale\tfloat32\tscalar\t4\n"
					   "m/v1/six\tfloat6_e2m3fn\t4\t3\n");
		must_exit(&get, 0);
		must_contain(get.out, "dtype\tfloat32\n");
		must_exit(&info, 0);
		must_contain(info.out, "size\t2\n");
		must_be(td_status(&d).tensors, 5);
	}
	{
		cleanup_result struct result r = run(&d, "--json", "load", "m/v2", file.text);
		cJSON *json = json_of(&r), *notes = cJSON_GetObjectItem(json, "metadata");

		must_exit(&r, 0);
		assert_string_equal(cJSON_GetObjectItem(notes, "format")->valuestring, "pt");
		assert_string_equal(cJSON_GetObjectItem(notes, "note")->valuestring, "\xc3\xa4");
		assert_string_equal(cJSON_GetObjectItem(json, "format")->valuestring,
				    "safetensors");
		must_be(cJSON_GetObjectItem(json, "bytes")->valueint, 25);
		must_be(cJSON_GetArraySize(cJSON_GetObjectItem(json, "tensors")), 5);
		cJSON_Delete(json);
	}
}

TEST(a_saved_file_loaded_and_saved_again_is_the_same)
{
	static const struct {
		const char *made, *first, *second;
	} cases[] = {
		{ "a.safetensors", "b.safetensors", "c.safetensors" },
		{ "a.npz", "b.npz", "c.npz" },
		{ "a.pb", "b.pb", "c.pb" },
		{ "a.npy", "b.npy", "c.npy" },
	};
	cleanup_td struct test_daemon d = td_start(0);

	write_safetensors(in(&d, "a.safetensors").text, MODEL, 25);
	write_npz(in(&d, "a.npz").text, 3, -1);
	write_proto(in(&d, "a.pb").text, 0x22, "0123456789ab", 12);
	write_npy(in(&d, "a.npy").text, 1, "<f4", false, "(2, 3)", six, sizeof(six));
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct path made = in(&d, cases[i].made), first = in(&d, cases[i].first);
		struct path second = in(&d, cases[i].second);

		must_load(&d, "x/1", made.text);
		must_save(&d, "x/1", first.text);
		must_load(&d, "x/2", first.text);
		must_save(&d, "x/2", second.text);
		must_be_same_file(first.text, second.text);
		if (i >= 2) /* these are written as they were read */
			must_be_same_file(first.text, made.text);
		if (i < 2) {
			cleanup_result struct result ls = run(&d, "ls", "x/");
			char *save = NULL;

			must_exit(&ls, 0);
			for (char *l = strtok_r(ls.out, "\t\n", &save); l;
			     l = strtok_r(NULL, "\t\n", &save)) {
				if (!strncmp(l, "x/", 2)) {
					cleanup_result struct result rm = run(&d, "rm", l);

					must_exit(&rm, 0);
				}
			}
		}
	}
}

TEST(a_constant_fills_its_shape)
{
	cleanup_td struct test_daemon d = td_start(0);
	struct path file = in(&d, "one.pb");

	write_proto(file.text, 0x3a, "\x07", 1);
	{
		cleanup_result struct result load = run(&d, "load", "one", file.text);
		cleanup_result struct result get = run(&d, "get", "one");

		must_exit(&load, 0);
		assert_string_equal(load.out, "one\tint32\t3\t12\n");
		must_contain(get.out, "values\t7 7 7\n");
	}
}

TEST(standard_input_and_output_need_a_format)
{
	cleanup_td struct test_daemon d = td_start(0);
	struct path file = in(&d, "a.npz");

	write_npz(file.text, 2, -1);
	must_load(&d, "p", file.text);
	{
		cleanup_result struct result none = run(&d, "save", "p", "-");
		cleanup_result struct result odd = run(&d, "save", "p", "-", "--format", "zip");
		cleanup_result struct result out = run(&d, "save", "p", "-", "-f", "safetensors");
		cleanup_result struct result npy = run(&d, "load", "p", file.text, "-f", "npy");

		must_exit(&none, 2);
		must_contain(none.err, "--format");
		must_exit(&odd, 2);
		must_contain(odd.err, "not 'zip'");
		must_exit(&out, 0);
		must(!memcmp(out.out + 1, "\0\0\0\0\0\0\0{\"a\":", 12));
		must_exit(&npy, 1);
		must_contain(npy.err, "not a .npy file");
	}
}

/* ---- Failures ---- */

/* The file must be refused with that text, and nothing of it may ever be visible. */
static void must_refuse(const struct test_daemon *d, const char *file, const char *reason)
{
	cleanup_result struct result r = run(d, "--json", "load", "p", file);
	cJSON *json = json_of(&r);

	must_exit(&r, 1);
	must_contain(cJSON_GetObjectItem(json, "error")->valuestring, reason);
	cJSON_Delete(json);
	must_be(td_status(d).tensors, 0);
	must_be(td_status(d).drafts, 0);
	must_be(td_status(d).commits, 0);
}

#define ONE_OF_TWO "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
#define TWO_OF(name)                                                                               \
	ONE_OF_TWO "\"" name "\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}"

/* If anything is wrong, even in the last tensor only, nothing is published. */
TEST(a_broken_entry_publishes_nothing)
{
	static const struct {
		const char *header;
		size_t data;
		const char *reason;
	} cases[] = {
		{ ONE_OF_TWO "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}", 3,
		  "'b' overlaps another tensor" },
		{ TWO_OF("b"), 3, "truncated: 'b' ends at byte 4 of the data, there are 3" },
		{ TWO_OF("b"), 5, "1 bytes too many" },
		{ TWO_OF("a"), 4, "'a' occurs twice" },
		{ TWO_OF("b//c"), 4, "'p/b//c' is not a name: a component of the name is empty" },
		{ TWO_OF(".."), 4, "'p/..' is not a name" },
		{ TWO_OF(""), 4, "'p/' is not a name" },
		{ TWO_OF("\\u001b"), 4, "is not a name: the name has a control character in it" },
		{ "{\"__metadata__\":{\"k\xff\":\"v\"},\"a\":{\"dtype\":\"U8\",\"shape\":[2],"
		  "\"data_offsets\":[0,2]}}",
		  2, "no UTF-8 at byte 19" },
		{ "{}", 0, "there is no tensor in it" },
	};
	cleanup_td struct test_daemon d = td_start(0);
	struct path st = in(&d, "x.safetensors"), npz = in(&d, "x.npz"), npy = in(&d, "x.npy");
	struct path pb = in(&d, "x.pb");

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		write_safetensors(st.text, cases[i].header, cases[i].data);
		must_refuse(&d, st.text, cases[i].reason);
	}
	for (int bad = 0; bad < 3; bad++) { /* only noticed when the data is read */
		write_npz(npz.text, 3, bad);
		must_refuse(&d, npz.text, "does not have the checksum");
	}
	write_npy(npy.text, 1, "<f4", true, "(2, 4)", six, sizeof(six));
	must_refuse(&d, npy.text, "promises 32 bytes of data, there are 24");
	write_proto(pb.text, 0x22, "0123456789", 10);
	must_refuse(&d, pb.text, "tensor_content has 10 bytes, dtype and shape make 12");
	write_proto(pb.text, 0x3a, "\1\2\3\4", 4);
	must_refuse(&d, pb.text, "int_val has 4 elements, the shape has only 3");
	write_proto(pb.text, 0x42, "text", 4);
	must_refuse(&d, pb.text, "string_val in a tensor of int32");
}

/* A reader who sees the new version of one tensor must see the new versions of all. */
static int load_again_and_again(const struct test_daemon *d, void *arg)
{
	char *const *files = arg;

	for (int i = 0; i < 20; i++) {
		cleanup_result struct result r = run(d, "load", "p", files[i % 2]);

		must_exit(&r, 0);
	}
	return 0;
}

TEST(a_group_is_seen_as_a_whole)
{
	cleanup_td struct test_daemon d = td_start(0);
	struct path one = in(&d, "1.safetensors"), two = in(&d, "2.safetensors");
	char *files[2] = { one.text, two.text };
	const char *names[2] = { "p/a", "p/b" };
	struct test_child child;
	tl_client *client;

	test_timeout(120);
	write_safetensors(one.text,
			  "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
			  "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
			  2);
	write_safetensors(two.text,
			  "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
			  "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
			  4);
	must_load(&d, "p", one.text);
	client = td_connect(&d);
	child = child_start(&d, load_again_and_again, files);
	for (int i = 0; i < 2000; i++) {
		DLManagedTensorVersioned *both[2];

		must_be(tl_get_many(client, names, 2, NULL, both), 0);
		must_be(both[0]->dl_tensor.shape[0], both[1]->dl_tensor.shape[0]);
		both[0]->deleter(both[0]);
		both[1]->deleter(both[1]);
	}
	child_must_succeed(&child);
	tl_close(client);
}

TEST(what_cannot_be_saved_is_a_failure)
{
	cleanup_td struct test_daemon d = td_start(0);
	struct path st = in(&d, "m.safetensors"), npz = in(&d, "m.npz"), npy = in(&d, "m.npy");

	write_safetensors(st.text, MODEL, 25);
	must_load(&d, "m", st.text);
	{
		cleanup_result struct result bf = run(&d, "save", "m", npz.text);
		cleanup_result struct result none = run(&d, "save", "x", npz.text);
		cleanup_result struct result one = run(&d, "save", "m", npy.text);
		cleanup_result struct result part = run(&d, "save", "m/scal", npz.text);
		cleanup_result struct result q = run(&d, "save", "m/q/packed", npy.text);

		must_exit(&bf, 1);
		must_contain(bf.err, "model.layers.0.weight: a .npy file cannot hold bfloat16");
		must_exit(&none, 3);
		must_exit(&one, 3);
		must_exit(&part, 3);
		must_exit(&q, 1);
		must_contain(q.err, "float4_e2m1fn");
		must(access(npz.text, F_OK) && access(npy.text, F_OK));
	}
}

TEST(a_file_that_does_not_fit_is_refused)
{
	cleanup_td struct test_daemon d = td_start(.capacity = 1 << 20);
	struct path file = in(&d, "large.pb");
	static const unsigned char large[] = { 0x08, 1,	   0x12, 8,    0x12, 6, 0x08, 0x80, 0x80,
					       0x80, 0x80, 0x20, 0x2d, 0,    0, 0x80, 0x3f };

	write_file(file.text, large, sizeof(large)); /* the same float 2^33 times */
	{
		cleanup_result struct result r = run(&d, "load", "large", file.text);

		must_exit(&r, 1);
		must_contain(r.err, "creating a group: 34359738368 bytes never fit");
		must_be(td_status(&d).tensors, 0);
	}
}

int main(void)
{
	return suite_run();
}
