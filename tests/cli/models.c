/* SPDX-License-Identifier: Apache-2.0 */
/* Models in several .safetensors files: load of a directory or an index, and save --shard-size. */
#include "files/bytes.h"
#include "tests/cli/files.h"

/* Writes a file with one tensor of @size bytes, each of them @value. */
static void write_shard(const char *path, const char *tensor, unsigned char value, size_t size)
{
	unsigned char all[512];
	int n = snprintf((char *)all + 8, sizeof(all) - 8,
			 "{\"%s\":{\"dtype\":\"U8\",\"shape\":[%zu],\"data_offsets\":[0,%zu]}}",
			 tensor, size, size);

	must(n > 0 && (size_t)n + size + 8 < sizeof(all));
	put_number(all, (uint64_t)n, 8);
	memset(all + 8 + n, value, size);
	write_file(path, all, 8 + (size_t)n + size);
}

static void write_text(const char *path, const char *text)
{
	write_file(path, text, strlen(text));
}

/* A folder with the two shards of a model, and its index. */
static struct path model_of_two(const struct test_daemon *d)
{
	struct path dir = in(d, "model");

	must_be(mkdir(dir.text, 0700), 0);
	write_shard(in(d, "model/m-1.safetensors").text, "a", 1, 3);
	write_shard(in(d, "model/m-2.safetensors").text, "b/c", 2, 5);
	write_text(in(d, "model/m.safetensors.index.json").text,
		   "{\"metadata\": {\"total_size\": 8}, \"weight_map\":"
		   " {\"b/c\": \"m-2.safetensors\", \"a\": \"m-1.safetensors\"}}\n");
	return dir;
}

static void must_load(const struct test_daemon *d, const char *prefix, const char *path,
		      const char *printed)
{
	cleanup_result struct result r = run(d, "load", prefix, path);

	must_exit(&r, 0);
	assert_string_equal(r.out, printed);
}

static void must_not_load(const struct test_daemon *d, const char *path, int code, const char *why)
{
	cleanup_result struct result r = run(d, "load", "none", path);

	must_exit(&r, code);
	must_contain(r.err, why);
	must_be(td_status(d).tensors, 0);
}

/* ---- load ---- */

TEST(a_model_in_several_files_is_loaded_at_once)
{
	cleanup_td struct test_daemon d = td_start(0);
	struct path dir = model_of_two(&d), index = in(&d, "model/m.safetensors.index.json");

	must_load(&d, "x", dir.text, "x/a\tuint8\t3\t3\nx/b/c\tuint8\t5\t5\n");
	must_load(&d, "y", index.text, "y/a\tuint8\t3\t3\ny/b/c\tuint8\t5\t5\n");
	{
		cleanup_result struct result r = run(&d, "load", "z", dir.text, "--json");
		cleanup_result struct result get = run(&d, "get", "y/b/c");
		cleanup_result struct result other = run(&d, "load", "z", dir.text, "-f", "npz");
		cJSON *json = json_of(&r);

		must_exit(&r, 0);
		must_contain(cJSON_GetObjectItem(json, "file")->valuestring,
			     "/m.safetensors.index.json");
		must_be(cJSON_GetObjectItem(json, "bytes")->valueint, 8);
		must_be(cJSON_GetArraySize(cJSON_GetObjectItem(json, "tensors")), 2);
		cJSON_Delete(json);
		must_contain(get.out, "values\t2 2 2 2 2\n");
		must_exit(&other, 2);
	}
}

TEST(a_directory_with_one_file_is_loaded)
{
	cleanup_td struct test_daemon d = td_start(0);
	struct path dir = in(&d, "one");

	must_be(mkdir(dir.text, 0700), 0);
	must_not_load(&d, dir.text, 1, "there is no .safetensors file in this directory");
	write_shard(in(&d, "one/.hidden.safetensors").text, "h", 1, 1);
	write_shard(in(&d, "one/model.safetensors").text, "w", 1, 4);
	must_load(&d, "x", dir.text, "x/w\tuint8\t4\t4\n");
}

TEST(a_directory_that_could_mean_several_is_refused)
{
	cleanup_td struct test_daemon d = td_start(0);
	struct path dir = model_of_two(&d), index = in(&d, "model/m.safetensors.index.json");

	write_shard(in(&d, "model/m.safetensors").text, "whole", 1, 4);
	must_not_load(&d, dir.text, 1, "and a whole file beside it: name the one to load");
	unlink(in(&d, "model/m.safetensors").text);
	write_text(in(&d, "model/n.safetensors.index.json").text, "{}");
	must_not_load(&d, dir.text, 1, "it has 2 indexes");
	unlink(in(&d, "model/n.safetensors.index.json").text);
	unlink(index.text);
	must_not_load(&d, dir.text, 1, "it has 2 .safetensors files and no index of them");
}

TEST(of_a_model_with_a_mistake_nothing_is_published)
{
	static const char *const indexes[][2] = {
		{ "{", "it is not JSON" },
		{ "{} x", "it is not JSON" },
		{ "[]", "it has no weight_map" },
		{ "{\"weight_map\": {}}", "it has no weight_map" },
		{ "{\"weight_map\": {\"a\": 5}}", "'a' is not in a file beside it" },
		{ "{\"weight_map\": {\"a\": \"../m-1.safetensors\"}}",
		  "'a' is not in a file beside it" },
		{ "{\"weight_map\": {\"a\": \"..\"}}", "'a' is not in a file beside it" },
		{ "{\"weight_map\": {\"a\": \"m-1.safetensors\", \"q\": \"m-1.safetensors\"}}",
		  "m-1.safetensors: it has no tensor 'q'" },
		{ "{\"weight_map\": {\"a\": \"m-1.safetensors\", \"b\": \"m-3.safetensors\"}}",
		  "m-3.safetensors: cannot open: No such file" },
	};
	cleanup_td struct test_daemon d = td_start(0);
	struct path dir = model_of_two(&d), index = in(&d, "model/m.safetensors.index.json");

	for (size_t i = 0; i < sizeof(indexes) / sizeof(indexes[0]); i++) {
		write_text(index.text, indexes[i][0]);
		must_not_load(&d, dir.text, 1, indexes[i][1]);
		must_not_load(&d, index.text, 1, indexes[i][1]);
	}
	must_not_load(&d, in(&d, "absent.safetensors.index.json").text, 1, "cannot open");
}

/* ---- save ---- */

static bool exists(const struct test_daemon *d, const char *name)
{
	return !access(in(d, name).text, F_OK);
}

TEST(a_model_is_saved_in_shards_that_load_reads)
{
	cleanup_td struct test_daemon d = td_start(0);
	struct path file = in(&d, "s.safetensors"), index = in(&d, "s.safetensors.index.json"),
		    one = in(&d, "in.safetensors");
	cJSON *json;

	for (int i = 0; i < 3; i++) {
		char name[8] = { 't', (char)('0' + i), '\0' };

		write_shard(one.text, name, (unsigned char)i, 100);
		must_load(&d, "m", one.text,
			  (const char *const[]){ "m/t0\tuint8\t100\t100\n",
						 "m/t1\tuint8\t100\t100\n",
						 "m/t2\tuint8\t100\t100\n" }[i]);
	}
	{
		cleanup_result struct result r = run(&d, "save", "m", file.text, "--shard-size",
						     "250", "--json");

		must_exit(&r, 0);
		json = json_of(&r);
		assert_string_equal(cJSON_GetObjectItem(json, "file")->valuestring, index.text);
		must_be(cJSON_GetArraySize(cJSON_GetObjectItem(json, "shards")), 2);
		cJSON_Delete(json);
	}
	must(exists(&d, "s-00001-of-00002.safetensors") &&
	     exists(&d, "s-00002-of-00002.safetensors"));
	must(!exists(&d, "s.safetensors"));
	{
		int fd = open(index.text, O_RDONLY | O_CLOEXEC);
		char *text = read_all(fd, NULL);
		const cJSON *map;

		close(fd);
		json = cJSON_Parse(text);
		map = cJSON_GetObjectItem(json, "weight_map");
		must_be(cJSON_GetObjectItem(cJSON_GetObjectItem(json, "metadata"), "total_size")
				->valueint,
			300);
		assert_string_equal(cJSON_GetObjectItem(map, "t0")->valuestring,
				    "s-00001-of-00002.safetensors");
		assert_string_equal(cJSON_GetObjectItem(map, "t1")->valuestring,
				    "s-00001-of-00002.safetensors");
		assert_string_equal(cJSON_GetObjectItem(map, "t2")->valuestring,
				    "s-00002-of-00002.safetensors");
		cJSON_Delete(json);
		free(text);
	}
	must_load(&d, "back", index.text,
		  "back/t0\tuint8\t100\t100\nback/t1\tuint8\t100\t100\nback/t2\tuint8\t100\t100\n");
	{
		struct path a = in(&d, "a.safetensors"), b = in(&d, "b.safetensors");
		cleanup_result struct result r = run(&d, "save", "m", a.text),
					     s = run(&d, "save", "back", b.text);

		must_exit(&r, 0);
		must_exit(&s, 0);
		must_be_same_file(a.text, b.text);
	}
}

TEST(what_fits_into_one_file_is_saved_in_one)
{
	cleanup_td struct test_daemon d = td_start(0);
	struct path file = in(&d, "s.safetensors");

	put_six(&d, "m/six");
	{
		cleanup_result struct result r = run(&d, "save", "m", file.text, "--shard-size",
						     "5GB");

		must_exit(&r, 0);
	}
	must(exists(&d, "s.safetensors") && !exists(&d, "s.safetensors.index.json"));
}

/* An index from before would name shards of which some are new. */
TEST(after_a_failed_save_there_is_no_index)
{
	cleanup_td struct test_daemon d = td_start(0);
	struct path file = in(&d, "s.safetensors");

	put_six(&d, "m/a");
	put_six(&d, "m/b");
	write_text(in(&d, "s.safetensors.index.json").text, "{}");
	must_be(mkdir(in(&d, "s-00002-of-00002.safetensors").text, 0700), 0);
	{
		cleanup_result struct result r = run(&d, "save", "m", file.text, "--shard-size",
						     "1KB"),
					     s = run(&d, "save", "m", file.text, "--shard-size",
						     "24");

		must_exit(&r, 0); /* one file needs no index, and leaves one alone */
		must_exit(&s, 1);
		must_contain(s.err, "s-00002-of-00002.safetensors: ");
	}
	must(exists(&d, "s-00001-of-00002.safetensors") && !exists(&d, "s.safetensors.index.json"));
	rmdir(in(&d, "s-00002-of-00002.safetensors").text);
}

TEST(mistakes_in_shards_are_named)
{
	static const char *const wrong[] = { "",
					     "0",
					     "-1",
					     "5G",
					     "5gb",
					     "GB",
					     "5.5GB",
					     "5GBs",
					     "9223372036854775808",
					     "9223372037GB" };
	cleanup_td struct test_daemon d = td_start(0);
	struct path file = in(&d, "s.safetensors"), npz = in(&d, "s.npz"), other = in(&d, "s.bin");

	put_six(&d, "m/a");
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		cleanup_result struct result r = run(&d, "save", "m", file.text, "--shard-size",
						     wrong[i]);

		must_exit(&r, 2);
		must_contain(r.err, "--shard-size must be a number of bytes");
	}
	{
		cleanup_result struct result z = run(&d, "save", "m", npz.text, "--shard-size",
						     "5GB");
		cleanup_result struct result o = run(&d, "save", "m", other.text, "-f",
						     "safetensors", "--shard-size", "5GB");
		cleanup_result struct result s = run(&d, "save", "m", "-", "-f", "safetensors",
						     "--shard-size", "5GB");

		must_exit(&z, 2);
		must_contain(z.err, "--shard-size needs a file that ends in .safetensors");
		must_exit(&o, 2);
		must_exit(&s, 2);
	}
}

int main(void)
{
	return suite_run();
}
