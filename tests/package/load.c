/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs load the library when they run: as a plugin, as a Python module. Its thread-local
 * storage is static then, of which glibc keeps 1,664 bytes for all such libraries.
 */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include "tests/harness/program.h"
#include "tests/package/package.h"

enum { STATIC_TLS_MAX = 128, COPIES = 10 };

static void library_path(char path[PACKAGE_PATH])
{
	must(snprintf(path, PACKAGE_PATH, "%s/lib/libtensorlease.so", package_build()) <
	     PACKAGE_PATH);
}

TEST(the_library_takes_little_static_thread_local_storage)
{
	SKIP_UNLESS(!SANITIZED, "sanitizers have thread-local storage of their own");
	char path[PACKAGE_PATH];
	ElfW(Ehdr) header;
	ElfW(Phdr) part;
	size_t size = 0;
	FILE *f;

	library_path(path);
	must(f = fopen(path, "re"));
	must_be(fread(&header, sizeof(header), 1, f), 1);
	must_be(header.e_phentsize, sizeof(part));
	must_be(fseek(f, (long)header.e_phoff, SEEK_SET), 0);
	for (unsigned i = 0; i < header.e_phnum; i++) {
		must_be(fread(&part, sizeof(part), 1, f), 1);
		size += part.p_type == PT_TLS ? part.p_memsz : 0;
	}
	fclose(f);
	must(size && size <= STATIC_TLS_MAX);
}

/* In a child, since the library is never unloaded. */
static int load_copies(const struct test_daemon *d, void *arg)
{
	const char *dir = arg;

	(void)d;
	for (int i = 0; i < COPIES; i++) {
		const char *(*version)(void);
		char copy[PROGRAM_DIR + 16];
		void *library;

		snprintf(copy, sizeof(copy), "%s/%d.so", dir, i);
		library = dlopen(copy, RTLD_NOW | RTLD_LOCAL);
		if (!library)
			fprintf(stderr, "copy %d: %s\n", i, dlerror());
		must(library);
		*(void **)&version = dlsym(library, "tl_version");
		must(version && !strcmp(version(), tl_version()));
	}
	return 0;
}

TEST(a_program_loads_several_copies_of_the_library)
{
	SKIP_UNLESS(!SANITIZED, "sanitizers know one copy of their own");
	char dir[PROGRAM_DIR], path[PACKAGE_PATH], command[PROGRAM_DIR + PACKAGE_PATH + 64];

	library_path(path);
	program_directory(dir);
	for (int i = 0; i < COPIES; i++) {
		snprintf(command, sizeof(command), "cp '%s' '%s/%d.so'", path, dir, i);
		must_be(system(command), 0);
	}
	must_be(td_run_client(NULL, load_copies, dir), 0);
	snprintf(command, sizeof(command), "rm -r '%s'", dir);
	must_be(system(command), 0);
}

int main(void)
{
	return suite_run();
}
