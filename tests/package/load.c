/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs load the library when they run: as a plugin, as a Python module. Its thread-local
 * storage is static then, of which glibc keeps 1,664 bytes for all such libraries.
 */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>

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

/* The functions of the library that is loaded, once it is. */
static struct {
	int (*connect)(const tl_connect_options *options, tl_client **out);
	int (*delete)(tl_client *client, const char *name);
	const char *(*last_error)(void);
	int (*close)(tl_client *client);
	tl_client *client;
	int refusals;
} loaded;

static void call_in_fork(void)
{
	tl_client *other;

	if (!loaded.client)
		return;
	must_be(loaded.delete(loaded.client, "none"), -EDEADLK);
	must(strstr(loaded.last_error(), "pthread_atfork()"));
	must_be(loaded.connect(NULL, &other), -EDEADLK);
	loaded.refusals++;
}

static int fork_with_older_handlers(const struct test_daemon *d, void *arg)
{
	tl_connect_options o = { .size = sizeof(o), .address = d->socket };
	void *library;
	int status;
	pid_t pid;

	must_be(pthread_atfork(call_in_fork, call_in_fork, call_in_fork), 0);
	must(library = dlopen(arg, RTLD_NOW | RTLD_LOCAL));
	*(void **)&loaded.connect = dlsym(library, "tl_connect");
	*(void **)&loaded.delete = dlsym(library, "tl_delete");
	*(void **)&loaded.last_error = dlsym(library, "tl_last_error");
	*(void **)&loaded.close = dlsym(library, "tl_close");
	must_be(loaded.connect(&o, &loaded.client), 0);
	pid = fork();
	must(pid >= 0);
	must_be(loaded.refusals, 2); /* before the fork, and after it */
	must_be(loaded.delete(loaded.client, "none"), -ENOENT);
	must_be(loaded.close(loaded.client), 0);
	if (pid == 0)
		_exit(0);
	must_be(waitpid(pid, &status, 0), pid);
	return status;
}

TEST(handlers_of_fork_that_are_older_than_the_library_do_not_hang)
{
	SKIP_UNLESS(!SANITIZED, "sanitizers know one copy of their own");
	char path[PACKAGE_PATH];
	cleanup_td struct test_daemon d = td_start();

	library_path(path);
	must_be(td_run_client(&d, fork_with_older_handlers, path), 0);
}

int main(void)
{
	return suite_run();
}
