/* SPDX-License-Identifier: Apache-2.0 */
/*
 * show: pictures in letters, in colour on a terminal and as PNG files, and histograms of other
 * tensors.
 */
#include <float.h>
#include <math.h>
#include <pty.h>
#include <zlib.h>

#include "tests/cli/files.h"

/* Publishes a tensor that a test made. */
static void put(const struct test_daemon *d, const char *name, DLDataType t, int ndim,
		const int64_t *shape, const void *data)
{
	tl_client *client = td_connect(d);
	int64_t strides[8], step = 1;
	DLTensor tensor = { .data = (void *)(uintptr_t)data,
			    .device = { kDLCPU, 0 },
			    .ndim = ndim,
			    .dtype = t,
			    .shape = (int64_t *)(uintptr_t)shape,
			    .strides = strides };

	for (int i = ndim - 1; i >= 0; i--) {
		strides[i] = step;
		step *= shape[i];
	}
	must_be(tl_put(client, name, &tensor, NULL, NULL), 0);
	tl_close(client);
}

#define SHAPE(...)                                                                                 \
	(int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), (const int64_t[])             \
	{                                                                                          \
		__VA_ARGS__                                                                        \
	}

static const DLDataType u8 = { kDLUInt, 8, 1 }, f32 = { kDLFloat, 32, 1 };

/* ---- PNG ---- */

struct png {
	uint32_t width, height;
	int colour;
	unsigned char pixels[4096];
};

static uint32_t big32(const char *p)
{
	const unsigned char *b = (const unsigned char *)p;

	return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

/* Reads a small PNG file that show wrote: one IDAT, and rows filtered by the row above. */
static struct png read_png(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct png png = { 0 };
	unsigned char raw[8192], *out = png.pixels;
	uLongf n = sizeof(raw);
	size_t size = 0, row;
	char *bytes, *at;

	must(fd >= 0);
	bytes = read_all(fd, &size);
	close(fd);
	must(size > 57 && !memcmp(bytes, "\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 16));
	for (at = bytes + 8; at < bytes + size; at += 12 + big32(at))
		must(crc32(0, (Bytef *)at + 4, 4 + big32(at)) == big32(at + 8 + big32(at)));
	must(at == bytes + size && !memcmp(at - 8, "IEND", 4));
	png.width = big32(bytes + 16);
	png.height = big32(bytes + 20);
	must_be((unsigned char)bytes[24], 8);
	png.colour = (unsigned char)bytes[25];
	row = png.width * (png.colour == 0 ? 1U : png.colour == 2 ? 3U : 4U);
	must(!memcmp(bytes + 37, "IDAT", 4));
	must_be(uncompress(raw, &n, (Bytef *)bytes + 41, big32(bytes + 33)), Z_OK);
	must_be(n, (row + 1) * png.height);
	for (uint32_t y = 0; y < png.height; y++) {
		must_be(raw[y * (row + 1)], 2);
		for (size_t x = 0; x < row; x++, out++)
			*out = (unsigned char)(raw[y * (row + 1) + 1 + x] +
					       (y ? out[-(long)row] : 0));
	}
	free(bytes);
	return png;
}

static struct png shown(const struct test_daemon *d, const char *name)
{
	struct path file = in(d, "shown.png");
	cleanup_result struct result r = run(d, "show", name, "-o", file.text);
	struct png png;

	must_exit(&r, 0);
	assert_string_equal(r.out, "");
	png = read_png(file.text);
	unlink(file.text);
	return png;
}

TEST(pictures_become_png_files)
{
	static const unsigned char rgb[12] = { 255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 8, 7 };
	static const unsigned char rgba[8] = { 1, 2, 3, 0, 4, 5, 6, 255 };
	static const unsigned char planes[12] = { 1, 2, 3, 4, 11, 12, 13, 14, 21, 22, 23, 24 };
	static const unsigned char together[12] = { 1, 11, 21, 2, 12, 22, 3, 13, 23, 4, 14, 24 };
	static const struct {
		DLDataType t;
		int64_t shape[3];
		int ndim, colour;
		uint32_t width, height;
		const unsigned char *data, *pixels;
		size_t n;
	} cases[] = {
		{ { kDLUInt, 8, 1 }, { 3, 4 }, 2, 0, 4, 3, rgb, rgb, 12 },
		{ { kDLUInt, 8, 1 }, { 2, 2, 3 }, 3, 2, 2, 2, rgb, rgb, 12 },
		{ { kDLUInt, 8, 3 }, { 2, 2 }, 2, 2, 2, 2, rgb, rgb, 12 }, /* lanes are channels */
		{ { kDLUInt, 8, 1 }, { 1, 2, 4 }, 3, 6, 2, 1, rgba, rgba, 8 },
		{ { kDLUInt, 8, 1 }, { 3, 2, 2 }, 3, 2, 2, 2, planes, together, 12 },
		{ { kDLUInt, 8, 1 }, { 1, 2, 6 }, 3, 0, 6, 2, rgb, rgb, 12 },
		{ { kDLUInt, 8, 1 }, { 6, 2, 1 }, 3, 0, 2, 6, rgb, rgb, 12 },
	};
	cleanup_td struct test_daemon d = td_start(0);

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct png png;

		put(&d, "p", cases[i].t, cases[i].ndim, cases[i].shape, cases[i].data);
		png = shown(&d, "p");
		must_be(png.width, cases[i].width);
		must_be(png.height, cases[i].height);
		must_be(png.colour, cases[i].colour);
		must(!memcmp(png.pixels, cases[i].pixels, cases[i].n));
	}
}

TEST(values_are_scaled_from_the_smallest_to_the_largest)
{
	static const float floats[6] = { -1, 0, 1, NAN, INFINITY, -INFINITY };
	static const int16_t ints[4] = { -100, 20, 100, 50 };
	static const unsigned char bools[2] = { 0, 1 }, nibbles[2] = { 0x80, 0x0f };
	static const uint16_t bf16[2] = { 0x3f80, 0x4000 };
	static const float alpha[8] = { 10, 0, 5, 0.5F, 0, 10, 5, 2 };
	static const double far[3] = { -DBL_MAX, 0, DBL_MAX };
	cleanup_td struct test_daemon d = td_start(0);

	put(&d, "f", f32, SHAPE(2, 3), floats);
	must(!memcmp(shown(&d, "f").pixels, "\0\x80\xff\0\xff\0", 6));
	put(&d, "i", (DLDataType){ kDLInt, 16, 1 }, SHAPE(2, 2), ints);
	must(!memcmp(shown(&d, "i").pixels, "\0\x99\xff\xbf", 4));
	put(&d, "b", (DLDataType){ kDLBool, 8, 1 }, SHAPE(1, 2), bools);
	must(!memcmp(shown(&d, "b").pixels, "\0\xff", 2));
	put(&d, "n", (DLDataType){ kDLUInt, 4, 1 }, SHAPE(1, 4), nibbles);
	must(!memcmp(shown(&d, "n").pixels, "\0\x88\xff\0", 4));
	put(&d, "h", (DLDataType){ kDLBfloat, 16, 1 }, SHAPE(1, 2), bf16);
	must(!memcmp(shown(&d, "h").pixels, "\0\xff", 2));
	put(&d, "far", (DLDataType){ kDLFloat, 64, 1 }, SHAPE(1, 3), far);
	must(!memcmp(shown(&d, "far").pixels, "\0\x80\xff", 3));
	/* Alpha ranges from 0 to 1 and does not count for the scale. */
	put(&d, "a", f32, SHAPE(1, 2, 4), alpha);
	must(!memcmp(shown(&d, "a").pixels, "\xff\0\x80\x80\0\xff\x80\xff", 8));
}

TEST(what_is_no_picture_is_not_drawn_to_a_file)
{
	cleanup_td struct test_daemon d = td_start(0);
	struct path file = in(&d, "no.png");
	static const float values[30];
	static const struct {
		int ndim;
		int64_t shape[4];
	} shapes[] = { { 0, { 0 } }, { 1, { 30 } }, { 3, { 2, 5, 2 } }, { 4, { 1, 3, 2, 5 } } };

	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
		put(&d, "x", f32, shapes[i].ndim, shapes[i].shape, values);
		{
			cleanup_result struct result r = run(&d, "show", "x", "-o", file.text);

			must_exit(&r, 1);
			must_contain(r.err, "x is no picture, but float32");
			must(access(file.text, F_OK) != 0);
		}
	}
}

/* ---- Text ---- */

TEST(a_picture_is_drawn_in_letters)
{
	cleanup_td struct test_daemon d = td_start(0);
	static unsigned char wide[200 * 100];
	unsigned char levels[8][10];
	const char *line;

	unsetenv("COLUMNS");
	for (int x = 0; x < 10; x++)
		levels[0][x] = (unsigned char)(x * 255 / 9);
	for (int y = 1; y < 8; y++)
		memcpy(levels[y], levels[0], sizeof(levels[y]));
	put(&d, "levels", u8, SHAPE(8, 10), levels);
	put(&d, "matrix", u8, SHAPE(7, 10), levels);
	put(&d, "wide", u8, SHAPE(100, 200), wide);
	{
		cleanup_result struct result r = run(&d, "show", "levels");
		cleanup_result struct result m = run(&d, "show", "matrix");
		cleanup_result struct result w = run(&d, "show", "wide");

		must_exit(&r, 0);
		assert_string_equal(r.out, "levels version 1: uint8 8x10\n .:-=+*#%@\n"
					   " .:-=+*#%@\n .:-=+*#%@\n .:-=+*#%@\n");
		must_exit(&m, 0);
		must_contain(m.out, "count 70, min 0, max 255"); /* numbers, not a picture */
		must_exit(&w, 0);
		line = strchr(w.out, '\n') + 1;
		must_be(strchr(line, '\n') - line, 80);
	}
	setenv("COLUMNS", "33", 1);
	{
		cleanup_result struct result w = run(&d, "show", "wide");

		line = strchr(w.out, '\n') + 1;
		must_be(strchr(line, '\n') - line, 33);
	}
	unsetenv("COLUMNS");
}

TEST(numbers_are_drawn_only_when_asked_for)
{
	static const float weights[16 * 16] = { 1 };
	static const unsigned char bytes[16 * 16] = { 1 };
	static const char count[] = "\ncount 256, min 0, max 1,";
	cleanup_td struct test_daemon d = td_start(0);

	put(&d, "weights", f32, SHAPE(16, 16), weights);
	put(&d, "planes", f32, SHAPE(1, 16, 16), weights);
	put(&d, "numbers", (DLDataType){ kDLInt, 8, 1 }, SHAPE(16, 16), bytes);
	put(&d, "mask", (DLDataType){ kDLBool, 8, 1 }, SHAPE(16, 16), bytes);
	put(&d, "line", f32, SHAPE(256), weights);
	for (const char *const *name =
		     (const char *const[]){ "weights", "planes", "numbers", NULL };
	     *name; name++) {
		cleanup_result struct result plain = run(&d, "show", *name);
		cleanup_result struct result drawn = run(&d, "show", *name, "--picture");

		must_exit(&plain, 0);
		must_contain(plain.out, count);
		must_exit(&drawn, 0);
		must(!strstr(drawn.out, "count"));
		must_contain(drawn.out, "\n                \n"); /* black, but for a corner */
	}
	{
		cleanup_result struct result mask = run(&d, "show", "mask");
		cleanup_result struct result line = run(&d, "show", "line", "-p");
		cleanup_result struct result json = run(&d, "show", "weights", "--json");
		cleanup_result struct result asked = run(&d, "show", "weights", "--json", "-p");

		must_exit(&mask, 0);
		must(!strstr(mask.out, "count"));
		must_exit(&line, 1);
		must_contain(line.err, "line is no picture, but float32 256");
		must(!strstr(json.out, "\"image\"") && strstr(json.out, "\"count\":256"));
		must_contain(asked.out, "\"image\":{\"width\":16,\"height\":16,\"channels\":1}");
	}
}

/* Runs it with a terminal of that size as its standard output, and returns what it wrote there. */
static char *on_terminal(const struct test_daemon *d, const char *name, unsigned short columns)
{
	struct winsize size = { .ws_col = columns, .ws_row = 24 };
	static char text[65536];
	size_t used = 0;
	int fd, status;
	ssize_t n;
	pid_t pid = forkpty(&fd, NULL, NULL, &size);

	must(pid >= 0);
	if (!pid) {
		setenv("TENSORLEASE_SOCKET", d->socket, 1);
		setenv("TERM", "xterm", 1);
		execl(cli_path(), "tensorlease", "show", name, NULL);
		_exit(126);
	}
	while ((n = read(fd, text + used, sizeof(text) - 1 - used)) > 0)
		used += (size_t)n;
	text[used] = '\0';
	close(fd);
	must(waitpid(pid, &status, 0) == pid);
	must_be(status, 0);
	return text;
}

TEST(a_picture_is_drawn_in_colour_on_a_terminal)
{
	static const unsigned char rgb[18] = { 1, 2, 3, 4,   5,	  6,   7,   8,	 9,
					       9, 9, 9, 100, 101, 102, 200, 201, 202 };
	cleanup_td struct test_daemon d = td_start(0);
	static unsigned char wide[200 * 100];
	const char *text;
	int cells = 0;

	unsetenv("COLUMNS");
	unsetenv("NO_COLOR");
	put(&d, "p", u8, SHAPE(3, 2, 3), rgb);
	text = on_terminal(&d, "p", 80);
	must_contain(text, "\033[38;2;1;2;3m\033[48;2;7;8;9m\u2580"
			   "\033[38;2;4;5;6m\033[48;2;9;9;9m\u2580\033[0m");
	must_contain(text, "\n\033[38;2;100;101;102m\u2580\033[38;2;200;201;202m\u2580\033[0m");
	put(&d, "wide", u8, SHAPE(100, 200), wide);
	text = strchr(on_terminal(&d, "wide", 30), '\n') + 1;
	for (; *text != '\n'; text++)
		cells += *text == '\xe2';
	must_be(cells, 30);
	setenv("NO_COLOR", "1", 1);
	text = on_terminal(&d, "p", 80);
	must(!strstr(text, "\033["));
	unsetenv("NO_COLOR");
}

TEST(other_tensors_become_a_histogram)
{
	static const float floats[8] = { 0, 1, 1, 2, 16, NAN, INFINITY, 0 };
	static const int64_t ints[5] = { -1, 1, 1, 1, 2 };
	static const float pair[4] = { 3, 4, 0, 0 };
	static const double far[3] = { -1.6e308, 0, 1.6e308 };
	static const uint64_t large[3] = { UINT64_MAX, UINT64_MAX - 1, UINT64_MAX - 2 };
	cleanup_td struct test_daemon d = td_start(0);

	put(&d, "f", f32, SHAPE(8), floats);
	put(&d, "i", (DLDataType){ kDLInt, 64, 1 }, SHAPE(5), ints);
	put(&d, "c", (DLDataType){ kDLComplex, 64, 1 }, SHAPE(2), pair);
	put(&d, "far", (DLDataType){ kDLFloat, 64, 1 }, SHAPE(3), far);
	put(&d, "large", (DLDataType){ kDLUInt, 64, 1 }, SHAPE(3), large);
	put(&d, "none", f32, SHAPE(0, 3), floats);
	{
		cleanup_result struct result f = run(&d, "show", "f");
		cleanup_result struct result large_out = run(&d, "show", "large");
		cleanup_result struct result i = run(&d, "show", "i");
		cleanup_result struct result c = run(&d, "show", "c");
		cleanup_result struct result far_out = run(&d, "show", "far");
		cleanup_result struct result none = run(&d, "show", "none");

		must_exit(&f, 0);
		must_contain(f.out, "\n                   0 .. 1            2 ####");
		must_contain(f.out, "\n                 15 .. 16            1 ####");
		must_contain(f.out,
			     "count 8, min 0, max 16, mean 3.3333333333333335, 1 NaN, 1 infinite");
		must_exit(&i, 0);
		must_contain(i.out, "\n                       -1            1 ##");
		must_contain(i.out, "\n                        0            0 \n");
		must_contain(i.out, "count 5, min -1, max 2, mean 0.8\n");
		must_exit(&c, 0);
		must_contain(c.out, "count 2, min 0, max 5, mean 2.5\n"); /* magnitudes */
		must_exit(&far_out, 0);
		must_contain(far_out.out, " 0 .. 2e+307            1 ####");
		must_contain(far_out.out, " 1.4e+308 .. 1.6e+308            1 ####");
		must_exit(&large_out, 0); /* as doubles all are 2^64 */
		must_contain(large_out.out, " 1.845e+19 .. 1.845e+19            3 ####");
		must_exit(&none, 0);
		assert_string_equal(none.out, "none version 1: float32 0x3\ncount 0\n");
	}
	{
		cleanup_result struct result r = run(&d, "--json", "show", "i");
		cJSON *json = json_of(&r);

		must_be(cJSON_GetArraySize(cJSON_GetObjectItem(json, "histogram")), 4);
		must_be(cJSON_GetObjectItem(json, "count")->valueint, 5);
		cJSON_Delete(json);
	}
}

int main(void)
{
	return suite_run();
}
