/* SPDX-License-Identifier: Apache-2.0 */
/* The command line and tensors on GPUs, which it can describe without a GPU. */
#include "tests/cli/files.h"
#include "tests/gpu/common.h"

enum { N = 3 << 20 };

static const char uuid[] = "GPU-fa4ecda0-1020-4030-8050-607011223300"; /* the first fake GPU's */

/* Publishes one tensor of each kind and keeps them until the end. */
static int publish_both(const struct test_daemon *d, void *arg)
{
	tl_client *client = gpu_open(d, 0);
	CUdeviceptr memory = gpu_alloc(N);
	struct gpu_foreign f;

	(void)arg;
	gpu_fill(memory, 1, N, CUDA_STREAM_LEGACY);
	gpu_foreign_init(&f, memory, N, 0);
	must_be(tl_publish(client, "gpu/legacy", &f.managed, NULL, NULL, NULL), 0);
	gpu_put_draft(client, "gpu/vmm", 2, N, 0, CUDA_STREAM_LEGACY);
	gpu_must(cuda->stream_synchronize(CUDA_STREAM_LEGACY));
	pause_at(1);
	return 0;
}

/* Takes the driver away, as on a machine without one. */
static char *hide_driver(void)
{
	const char *now = getenv("LD_LIBRARY_PATH"); /* gpu_init() has set it */
	char *path = strdup(now ? now : "");

	unsetenv("LD_LIBRARY_PATH");
	return path;
}

static void show_driver(char *path)
{
	setenv("LD_LIBRARY_PATH", path, 1);
	free(path);
}

static const char *text_of(const cJSON *object, const char *key)
{
	const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(object, key));

	return text ? text : "";
}

static bool lost(const struct test_daemon *d, const char *name)
{
	cleanup_result struct result info = run(d, "info", name, "--json");
	cJSON *json = json_of(&info);
	bool is = cJSON_IsTrue(cJSON_GetObjectItem(json, "lost"));

	must_exit(&info, 0);
	assert_string_equal(text_of(json, "device_uuid"), uuid);
	must_contain(text_of(json, "device"), uuid);
	cJSON_Delete(json);
	return is;
}

GPU_TEST(record_copies_tensors_on_a_gpu)
{
	cleanup_td struct test_daemon d = td_start(0), fresh = td_start(0);
	struct test_child child = child_start_ready(&d, publish_both, NULL);
	struct path file = in(&d, "file.tlrec");
	tl_client *c = td_connect(&fresh);
	DLManagedTensorVersioned *t;

	{
		cleanup_result struct result r = run(&d, "record", "-o", file.text, "-t", "0");
		cleanup_result struct result again = run(&fresh, "replay", file.text);

		must_exit(&r, 0);
		must(!strcmp(r.out, "gpu/legacy\t1\t0\ngpu/vmm\t1\t0\n"));
		must_exit(&again, 0);
	}
	for (int i = 1; i <= 2; i++) {
		const unsigned char *data;

		must_be(tl_get(c, i == 1 ? "gpu/legacy" : "gpu/vmm", NULL, &t), 0);
		data = t->dl_tensor.data;
		must_be(t->dl_tensor.device.device_type, kDLCPU);
		must(t->dl_tensor.shape[0] == N && data[0] == i && data[N - 1] == i);
		t->deleter(t);
	}
	tl_close(c);
	child_kill(&child);
}

GPU_TEST(ls_and_info_tell_where_a_tensor_lies)
{
	cleanup_td struct test_daemon d = td_start(0);
	struct test_child child = child_start_ready(&d, publish_both, NULL);
	struct raw rc;
	char *path;

	path = hide_driver();
	put_six(&d, "cpu");
	must(!lost(&d, "gpu/legacy"));
	{
		cleanup_result struct result ls = run(&d, "ls");
		cleanup_result struct result info = run(&d, "info", "gpu/vmm");

		must_exit(&ls, 0);
		must_contain(ls.out, "\tcpu\n");
		must_contain(ls.out, "gpu/vmm\t1\tuint8\t3145728\t3145728\t");
		must_contain(ls.out, "\tGPU-fa4ecda0-1020-4030-8050-607011223300\n");
		must_contain(info.out, "device\tGPU-fa4ecda0-1020-4030-8050-607011223300\n");
		must(!strstr(info.out, "lost"));
	}
	rc = rc_open(&d); /* the death of a producer also loses what is not finished */
	eventually(gpu_unfinished(&rc) == 0);
	rc_goodbye(&rc);
	child_kill(&child);
	td_sync(&d);
	must(lost(&d, "gpu/legacy")); /* it was in its producer's memory */
	must(!lost(&d, "gpu/vmm"));
	{
		cleanup_result struct result ls = run(&d, "ls", "gpu/legacy");
		cleanup_result struct result info = run(&d, "info", "gpu/legacy");

		must_contain(ls.out, "\tlost\n");
		must_contain(info.out, "lost\t1\n");
	}
	show_driver(path);
}

GPU_TEST(get_needs_a_driver_and_says_what_does_not)
{
	struct test_child child;
	char *path;

	SKIP_UNLESS(access("/dev/nvidiactl", F_OK), "there is a driver on this machine");
	cleanup_td struct test_daemon d = td_start(0);

	child = child_start_ready(&d, publish_both, NULL);
	path = hide_driver();
	{
		cleanup_result struct result r = run(&d, "get", "gpu/vmm");

		must_exit(&r, 1);
		must_contain(r.err, "'gpu/vmm' is on a GPU: `tensorlease info`");
	}
	show_driver(path);
	child_finish(&child);
}

GPU_TEST(status_tells_what_lies_on_each_gpu)
{
	cleanup_td struct test_daemon d = td_start(.extra = (const char *const[]){ "--gpu-capacity",
										   "1G", NULL });
	struct test_child child;

	{
		cleanup_result struct result r = run(&d, "status", "--json");
		cJSON *json = json_of(&r);

		must(cJSON_IsArray(cJSON_GetObjectItem(json, "gpus")));
		must_be(cJSON_GetArraySize(cJSON_GetObjectItem(json, "gpus")), 0);
		cJSON_Delete(json);
	}
	child = child_start_ready(&d, publish_both, NULL);
	{
		cleanup_result struct result r = run(&d, "status", "--json");
		cleanup_result struct result text = run(&d, "status");
		cJSON *json = json_of(&r);
		const cJSON *gpu = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "gpus"), 0);

		must_exit(&r, 0);
		assert_string_equal(text_of(gpu, "uuid"), uuid);
		must(cJSON_GetObjectItem(gpu, "bytes_used")->valuedouble >= 2 * N);
		must_be(cJSON_GetObjectItem(gpu, "capacity")->valuedouble, 1 << 30);
		must(cJSON_IsNull(cJSON_GetObjectItem(gpu, "user_capacity")));
		must_be(cJSON_GetObjectItem(gpu, "segments")->valueint, 2);
		must_contain(text.out, "gpu\tGPU-fa4ecda0-1020-4030-8050-607011223300\t");
		must_contain(text.out, "\t1073741824\t2\n");
		cJSON_Delete(json);
	}
	child_finish(&child);
}

GPU_TEST(load_fails_when_what_it_owns_went_with_the_daemon)
{
	static const char *const with_keeper[] = { "--keeper", "yes", NULL };
	cleanup_td struct test_daemon d = td_start(.extra = with_keeper, .expect_ready = true);
	const struct path file = in(&d, "file.npy");
	cleanup_result struct result restart = { 0 }, r = { 0 };
	struct running loading;

	write_npy(file.text, 1, "|u1", false, "(3,)", "abc", 3);
	loading = start(&d, "load", "g", file.text, "--device", "cuda:0", "--owner-bound");
	eventually(has_said(&loading, "\n"));
	restart = run(&d, "restart");
	must_exit(&restart, 0);
	r = finish(&loading);
	must_exit(&r, 1);
	must_contain(r.err, "'g' is lost: the daemon was restarted without it");
}

GPU_TEST(wait_needs_no_driver)
{
	cleanup_td struct test_daemon d = td_start(0);
	struct test_child child = child_start_ready(&d, publish_both, NULL);
	char *path;

	path = hide_driver();
	{
		cleanup_result struct result r = run(&d, "wait", "gpu/vmm", "--timeout", "60");

		must_exit(&r, 0);
		assert_string_equal(r.out, "gpu/vmm\t1\n");
	}
	show_driver(path);
	child_finish(&child);
}

/* No command may read a device pointer: it must report an error, not end by a signal. */
GPU_TEST(what_needs_the_bytes_says_that_they_are_on_a_gpu)
{
	static const struct {
		const char *args[6];
	} cases[] = {
		{ { "get", "gpu/vmm", "-o", NULL } },
		{ { "show", "gpu/vmm", "-o", NULL } },
	};
	cleanup_td struct test_daemon d = td_start(0);
	struct test_child child = child_start_ready(&d, publish_both, NULL);

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct path file = in(&d, i == 1 ? "x.png" : "x.npy");
		const char *args[8];
		int n = 0;

		for (; cases[i].args[n]; n++)
			args[n] = cases[i].args[n];
		args[n++] = file.text;
		args[n] = NULL;
		{
			cleanup_result struct result r = run_at(d.socket, args);

			if (r.code != 1 || !*r.err)
				print_error("case %zu: %s %s\n", i, args[0], args[1]);
			must_exit(&r, 1);
			must_contain(r.err, "gpu/");
			must_contain(r.err, "is on a GPU");
			must_be(access(file.text, F_OK) ? errno : 0, ENOENT);
		}
	}
	child_finish(&child);
}

GPU_TEST(save_copies_what_is_on_a_gpu)
{
	cleanup_td struct test_daemon d = td_start(0);
	struct test_child child = child_start_ready(&d, publish_both, NULL);
	struct path one = in(&d, "x.npy"), all = in(&d, "x.npz");

	{
		cleanup_result struct result r = run(&d, "save", "gpu/vmm", one.text);

		must_exit(&r, 0);
		must_be(access(one.text, R_OK), 0);
	}
	{
		cleanup_result struct result r = run(&d, "save", "gpu", all.text);

		must_exit(&r, 0);
		must_be(access(all.text, R_OK), 0);
	}
	child_finish(&child);
}

/* What a command has put on a GPU stays there when it has ended. */
GPU_TEST(load_publishes_on_a_gpu)
{
	cleanup_td struct test_daemon d = td_start(0);
	struct path file = in(&d, "m.npz"), back_file = in(&d, "g.npz");
	static const char *const wrong[] = {
		"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:99999999999", ""
	};

	put_six(&d, "m/a");
	put_six(&d, "m/b");
	{
		cleanup_result struct result save = run(&d, "save", "m", file.text);
		cleanup_result struct result load = run(&d, "load", "g", file.text, "--device",
							"cuda:0");
		cleanup_result struct result info = run(&d, "info", "g/b", "--json");
		cleanup_result struct result back = run(&d, "save", "g", back_file.text);
		cJSON *json = json_of(&info);

		must_exit(&save, 0);
		must_exit(&load, 0);
		must_contain(load.out, "g/a\tfloat32\t");
		must_exit(&info, 0);
		assert_string_equal(text_of(json, "device_uuid"), uuid);
		must(!lost(&d, "g/b"));
		must_exit(&back, 0);
		must_be_same_file(file.text, back_file.text);
		cJSON_Delete(json);
	}
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		cleanup_result struct result r = run(&d, "load", "g", file.text, "--device",
						     wrong[i]);

		must_exit(&r, 2);
		must_contain(r.err, "--device must be cpu, cuda, or cuda: and a number, not '");
	}
	{
		cleanup_result struct result r = run(&d, "load", "g", file.text, "--device",
						     "cuda:77");

		must_exit(&r, 1);
		must_contain(r.err, "77");
	}
}

/*
 * Tensors go to the GPU by way of a stage that is as large as the largest, where each begins at a
 * multiple of TL_ALIGNMENT. The second is larger than the first, but by less than that.
 */
GPU_TEST(load_stages_tensors_that_hardly_differ_in_size)
{
	enum { STAGE = 64 << 20, A = STAGE + 1, B = STAGE + 257, C = 4096 };
	cleanup_td struct test_daemon d = td_start(0);
	struct path file = in(&d, "large.safetensors");
	char header[512];
	uint64_t length;
	FILE *f;

	length = (uint64_t)snprintf(
		header, sizeof(header),
		"{\"a\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[0,%d]},"
		"\"b\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[%d,%d]},"
		"\"c\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[%d,%d]}}",
		A, A, B, A, A + B, C, A + B, A + B + C);
	f = fopen(file.text, "we");
	must(f);
	must(fwrite(&length, sizeof(length), 1, f) == 1);
	must(fwrite(header, length, 1, f) == 1);
	must(!fflush(f));
	must(!ftruncate(fileno(f), (off_t)(sizeof(length) + length) + A + B + C));
	must(!fclose(f));
	{
		cleanup_result struct result load = run(&d, "load", "g", file.text, "-d", "cuda");

		must_exit(&load, 0);
		must_contain(load.out, "g/c\tuint8\t4096");
	}
}

GPU_TEST(load_waits_for_space_on_a_full_gpu)
{
	enum { BYTES = 6 << 20 };
	cleanup_td struct test_daemon d = td_start(0);
	struct path file = in(&d, "big.npy");
	unsigned char *big = calloc(BYTES, 1);

	must(big);
	write_npy(file.text, 1, "|u1", false, "(6291456,)", big, BYTES);
	free(big);
	gpu_setenv("FAKECUDA_MEMORY", "4194304");
	{
		cleanup_result struct result now = run(&d, "load", "g", file.text, "-d", "cuda");
		cleanup_result struct result late = run(&d, "load", "g", file.text, "-d", "cuda",
							"-t", "0.05");

		must_exit(&now, 1);
		must_contain(now.err, "tensorlease status --clients");
		must(!strstr(now.err, " ms"));
		must_exit(&late, 4);
		must_contain(late.err, "no space came within 50 ms");
	}
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
