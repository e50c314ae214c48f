/* SPDX-License-Identifier: Apache-2.0 */
/* load of PNG files: each kind of pixel, rows in each order, and files that are broken. */
#include <zlib.h>

#include "files/bytes.h"
#include "tests/cli/files.h"

enum { GREY = 0, RGB = 2, PALETTE = 3, GREY_ALPHA = 4, RGBA = 6, HEADER = 8 + 25 };

struct bytes {
	unsigned char at[4096];
	size_t n;
};

static void add_chunk(struct bytes *file, const char *type, const void *bytes, size_t n)
{
	unsigned char *at = file->at + file->n;

	must(file->n + n + 12 <= sizeof(file->at));
	put_big32(at, (uint32_t)n);
	memcpy(at + 4, type, 4);
	if (n)
		memcpy(at + 8, bytes, n);
	put_big32(at + 8 + n, (uint32_t)crc32(0, at + 4, (uInt)n + 4));
	file->n += n + 12;
}

/* What stands in a PNG file. A row of @rows begins with its filter. */
struct kind {
	uint32_t width, height;
	unsigned char depth, colour;
	bool interlaced;
	const char *palette; /* of three colours, or NULL */
	const char *clear;   /* tRNS, or NULL */
	size_t n_clear;
	const char *rows;
	size_t n_rows;
};

static struct bytes png_of(const struct kind *k)
{
	unsigned char header[13] = { 0 }, packed[1024];
	struct bytes file = { .at = "\x89PNG\r\n\x1a\n", .n = 8 };
	uLongf n = sizeof(packed);

	put_big32(put_big32(header, k->width), k->height);
	header[8] = k->depth;
	header[9] = k->colour;
	header[12] = k->interlaced;
	add_chunk(&file, "IHDR", header, sizeof(header));
	if (k->palette)
		add_chunk(&file, "PLTE", k->palette, 9);
	if (k->clear)
		add_chunk(&file, "tRNS", k->clear, k->n_clear);
	must_be(compress(packed, &n, (const Bytef *)k->rows, k->n_rows), Z_OK);
	add_chunk(&file, "IDAT", packed, n);
	add_chunk(&file, "IEND", NULL, 0);
	return file;
}

/* False, and says so, if the programs were built without libpng. */
static bool reads_png(const struct test_daemon *d)
{
	cleanup_result struct result r = run(d, "--version");

	must_exit(&r, 0);
	must_contain(r.out, "\nfeatures: ");
	return strstr(r.out, " png");
}

#define ROWS(bytes) .rows = (bytes), .n_rows = sizeof(bytes) - 1
#define CLEAR(bytes) .clear = (bytes), .n_clear = sizeof(bytes) - 1

TEST(png_files_of_each_kind_become_tensors)
{
	static const char palette[] = "\1\2\3\4\5\6\7\10\11";
	static const struct {
		struct kind kind;
		const char *dtype, *shape, *values;
	} cases[] = {
		{ { 3, 1, 8, GREY, ROWS("\0\1\2\3") }, "uint8", "1x3", "1 2 3" },
		{ { 3, 2, 1, GREY, ROWS("\0\xa0\0\x40") }, "uint8", "2x3", "255 0 255 0 255 0" },
		{ { 3, 1, 2, GREY, ROWS("\0\x1b") }, "uint8", "1x3", "0 85 170" },
		{ { 2, 1, 4, GREY, ROWS("\0\x1f") }, "uint8", "1x2", "17 255" },
		{ { 2, 1, 16, GREY, ROWS("\0\1\2\377\376") }, "uint16", "1x2", "258 65534" },
		{ { 1, 2, 8, RGB, ROWS("\0\1\2\3\0\4\5\6") }, "uint8", "2x1x3", "1 2 3 4 5 6" },
		{ { 1, 1, 16, RGB, ROWS("\0\0\1\1\0\0\2") }, "uint16", "1x1x3", "1 256 2" },
		{ { 1, 1, 8, RGBA, ROWS("\0\1\2\3\4") }, "uint8", "1x1x4", "1 2 3 4" },
		{ { 2, 1, 8, GREY_ALPHA, ROWS("\0\1\2\3\4") },
		  "uint8",
		  "1x2x4",
		  "1 1 1 2 3 3 3 4" },
		{ { 1, 1, 16, GREY_ALPHA, ROWS("\0\0\1\0\2") }, "uint16", "1x1x4", "1 1 1 2" },
		{ { 2, 1, 2, PALETTE, .palette = palette, ROWS("\0\x90") },
		  "uint8",
		  "1x2x3",
		  "7 8 9 4 5 6" },
		{ { 2, 1, 8, PALETTE, .palette = palette, CLEAR("\11"), ROWS("\0\0\1") },
		  "uint8",
		  "1x2x4",
		  "1 2 3 9 4 5 6 255" },
		{ { 2, 1, 8, GREY, CLEAR("\0\5"), ROWS("\0\5\6") },
		  "uint8",
		  "1x2x4",
		  "5 5 5 0 6 6 6 255" },
		{ { 1, 1, 8, RGB, CLEAR("\0\1\0\2\0\3"), ROWS("\0\1\2\3") },
		  "uint8",
		  "1x1x4",
		  "1 2 3 0" },
		/* differences from the left, from above, from their mean, and from what Paeth chose
		 */
		{ { 2, 4, 8, GREY, ROWS("\1\5\1\2\1\1\3\1\1\4\1\1") },
		  "uint8",
		  "4x2",
		  "5 6 6 7 4 6 5 7" },
		/* the pixel of pass 1, that of pass 6, and the row of pass 7 */
		{ { 2, 2, 8, GREY, .interlaced = true, ROWS("\0\1\0\2\0\3\4") },
		  "uint8",
		  "2x2",
		  "1 2 3 4" },
	};
	bool can;

	cleanup_td struct test_daemon d = td_start(0);
	struct path path = in(&d, "a.png");
	can = reads_png(&d);
	for (size_t i = 0; can && i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct bytes file = png_of(&cases[i].kind);
		char expected[64];

		write_file(path.text, file.at, file.n);
		{
			cleanup_result struct result load = run(&d, "load", "a", path.text);
			cleanup_result struct result get = run(&d, "get", "a");

			must_exit(&load, 0);
			snprintf(expected, sizeof(expected), "a\t%s\t%s\t", cases[i].dtype,
				 cases[i].shape);
			must_contain(load.out, expected);
			snprintf(expected, sizeof(expected), "\nvalues\t%s\n", cases[i].values);
			must_contain(get.out, expected);
		}
	}
	td_stop(&d);
	SKIP_UNLESS(can, "built without libpng");
}

TEST(what_show_draws_is_loaded_as_it_is)
{
	bool can;

	cleanup_td struct test_daemon d = td_start(0);
	struct path npy = in(&d, "a.npy"), back = in(&d, "b.npy"), png = in(&d, "a.png");
	static unsigned char pixels[300 * 200 * 3];

	can = reads_png(&d);
	for (size_t i = 0; i < sizeof(pixels); i++)
		pixels[i] = (unsigned char)(i * i / 7);
	write_npy(npy.text, 1, "|u1", false, "(200, 300, 3)", pixels, sizeof(pixels));
	if (can) {
		cleanup_result struct result put = run(&d, "put", "a", npy.text);
		cleanup_result struct result show = run(&d, "show", "a", "-o", png.text);
		cleanup_result struct result load = run(&d, "load", "b", png.text);
		cleanup_result struct result get = run(&d, "get", "b", "-o", back.text);
		cleanup_result struct result save = run(&d, "save", "a", png.text);

		must_exit(&put, 0);
		must_exit(&show, 0);
		must_exit(&load, 0);
		must_exit(&get, 0);
		must_be_same_file(npy.text, back.text);
		must_exit(&save, 2);
		must_contain(save.err, "save writes no PNG files; `tensorlease show");
	}
	td_stop(&d);
	SKIP_UNLESS(can, "built without libpng");
}

static void must_refuse(const struct test_daemon *d, const struct bytes *file, const char *why)
{
	struct path path = in(d, "bad.png");

	write_file(path.text, file->at, file->n);
	{
		cleanup_result struct result r = run(d, "load", "bad", path.text);

		must_exit(&r, 1);
		must_contain(r.err, "bad.png: ");
		must_contain(r.err, why);
		must_be(td_status(d).tensors, 0);
	}
}

TEST(broken_png_files_are_refused_and_publish_nothing)
{
	static const struct kind grey = { 3, 1, 8, GREY, ROWS("\0\1\2\3") };
	struct kind k;
	struct bytes file;
	bool can;

	cleanup_td struct test_daemon d = td_start(0);
	can = reads_png(&d);
	if (can) {
		file = png_of(&grey);
		file.n = 4;
		must_refuse(&d, &file, "not a PNG file");
		for (file = png_of(&grey), file.n = HEADER + 4; file.n < png_of(&grey).n; file.n++)
			must_refuse(&d, &file, "truncated");
		file = png_of(&grey);
		file.at[HEADER - 1] ^= 1;
		must_refuse(&d, &file, "malformed PNG: IHDR: CRC error");
		file = png_of(&grey);
		file.at[file.n - 13] ^= 1;
		must_refuse(&d, &file, "malformed PNG: IDAT: CRC error");
		k = grey;
		k.width = 0;
		file = png_of(&k);
		must_refuse(&d, &file, "malformed PNG: Invalid IHDR data");
		k = grey;
		k.height = 2; /* more than there are rows */
		file = png_of(&k);
		must_refuse(&d, &file, "malformed PNG: ");
		k = grey;
		k.width = k.height = 32769;
		file = png_of(&k);
		must_refuse(&d, &file, "32769 x 32769 pixels has more than 2^30 numbers");
		k = grey;
		k.width = 0x7fffffff;
		file = png_of(&k);
		must_refuse(&d, &file, "malformed PNG: ");
	}
	td_stop(&d);
	SKIP_UNLESS(can, "built without libpng");
}

int main(void)
{
	return suite_run();
}
