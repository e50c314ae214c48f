/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration file: its sections and lines, and what is said about a wrong one. */
#include "daemon/options.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "tests/harness/harness.h"

/* What init() made of a configuration, and what it printed. */
struct reading {
	int r;
	struct options o;
	char path[64], text[1024];
};

static int init(struct options *o, const char *path)
{
	const char *argv[] = { "tensorleased", "--config", path, "--capacity", "1M", NULL };

	return options_init(o, 5, (char **)(uintptr_t)argv);
}

static struct reading read_bytes(const char *bytes, size_t size)
{
	struct reading read = { .path = "/tmp/tl-config-XXXXXX" };
	int file = mkstemp(read.path), shown = dup(STDERR_FILENO), log = memfd_create("log", 0);

	must(file >= 0 && shown >= 0 && log >= 0);
	must_be(write(file, bytes, size), size);
	must_be(dup2(log, STDERR_FILENO), STDERR_FILENO);
	read.r = init(&read.o, read.path);
	must_be(dup2(shown, STDERR_FILENO), STDERR_FILENO);
	must(pread(log, read.text, sizeof(read.text) - 1, 0) >= 0);
	must_be(unlink(read.path), 0);
	must_be(close(file) | close(shown) | close(log), 0);
	return read;
}

static struct reading read_text(const char *text)
{
	return read_bytes(text, strlen(text));
}

#define must_be_fine(read)                                                                         \
	do {                                                                                       \
		if ((read).r)                                                                      \
			print_error("%s", (read).text);                                            \
		must_be((read).r, 0);                                                              \
	} while (0)

TEST(a_section_without_a_key_counts)
{
	struct reading read = read_text("[namespace lab]\n[user 1000]\n[namespace user-*]");

	must_be_fine(read);
	must_be(read.o.config.namespace_count, 2);
	must(!strcmp(read.o.config.namespaces[1].name, "lab"));
	must_be(read.o.config.namespaces[1].mode, 0770);
	must_be(read.o.config.users.mode, 0700);
	must_be(read.o.config.rule_count, 2);
	must_be(read.o.config.rules[1].id, 1000);
	options_deinit(&read.o);
}

TEST(names_of_sections_are_not_cut)
{
	char text[256], name[TENSOR_NAMESPACE_MAX + 1];
	struct reading read;

	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	snprintf(text, sizeof(text),
		 "[namespace %s]\nmode = 0700\n[namespace %.61s]\nmode = 0750\n", name, name);
	read = read_text(text);
	must_be_fine(read);
	must_be(read.o.config.namespace_count, 3);
	must(!strcmp(read.o.config.namespaces[1].name, name));
	must_be(read.o.config.namespaces[1].mode, 0700);
	must_be(strlen(read.o.config.namespaces[2].name), 61);
	must_be(read.o.config.namespaces[2].mode, 0750);
	options_deinit(&read.o);
}

TEST(what_editors_write_is_read)
{
	char text[1024];
	struct reading read;

	snprintf(text, sizeof(text),
		 "\xef\xbb\xbf[namespace lab] ; its people\r\n"
		 "\tmode = 0750\r\n"
		 "    max-tensors = 64 ; enough\r\n"
		 "# %0300d\n"
		 ";%0190d max-tensors = 65\n"
		 "\n"
		 "  [user *]  \n"
		 "  tensors: 7",
		 0, 0);
	read = read_text(text);
	must_be_fine(read);
	must_be(read.o.config.namespaces[1].mode, 0750);
	must_be(read.o.config.namespaces[1].limits.max_tensors, 64);
	must_be(read.o.config.rules[0].max[SHARE_TENSORS], 7);
	options_deinit(&read.o);
}

TEST(a_mistake_is_told_with_its_line)
{
	static const struct {
		const char *text, *said;
		int line;
	} wrong[] = {
		{ "[namespaces lab]\n", "[namespaces lab]: a section is", 1 },
		{ "warm-time = 1\n\n[namespace a b]\n[user *]\n", "[namespace a b]: ", 3 },
		{ "[]\nmax-tensors = 64\n", "[]: a section is", 1 },
		{ "[namespace lab\n", "`[section]`", 1 },
		{ "[namespace lab] mode = 0700\n", "`[section]`", 1 },
		{ "[user no-such-user]\n", "there is no such user", 1 },
		{ "\nnonsense\nmax-tensors = 0\n", "`name = value`", 2 },
		{ "[namespace lab]\nfeet = 2\n", "there is no option feet in this section", 2 },
		{ "[namespace lab]\nmode = 0800\n", "mode = 0800: it must be", 2 },
		{ "[namespace lab]\ncapacity = 0\n",
		  "capacity = 0: it must be a number of bytes, 4096 or more", 2 },
		{ "[namespace lab]\ncapacity = 0%\n", "capacity = 0%: it must be", 2 },
		{ "[namespace user-*]\ncapacity = 4095\n", "capacity = 4095: it must be", 2 },
		{ "[namespace user-*]\nowner = 0\n",
		  "there is no option owner in this section: a namespace user-UID is its user's",
		  2 },
		{ "[namespace user-*]\n\ngroup = 0\n", "there is no option group", 3 },
		{ "max-tensors = 1\n  2\n", "`name = value`", 2 },
	};

	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		struct reading read = read_text(wrong[i].text);
		char where[128];

		snprintf(where, sizeof(where), "tensorleased: %s:%d: ", read.path, wrong[i].line);
		if (read.r != OPTIONS_E_USAGE || strncmp(read.text, where, strlen(where)) != 0 ||
		    !strstr(read.text, wrong[i].said))
			print_error("%s-> %d, %s", wrong[i].text, read.r, read.text);
		must_be(read.r, OPTIONS_E_USAGE);
		must(!strncmp(read.text, where, strlen(where)));
		must(strstr(read.text, wrong[i].said));
		options_deinit(&read.o);
	}
}

/* The daemon does not know the sizes of GPUs. */
TEST(a_part_of_gpus_needs_their_capacity)
{
	struct reading read = read_text("[group 7]\ngpu-bytes = 25%\n");

	must_be(read.r, OPTIONS_E_USAGE);
	must(strstr(read.text, "tensorleased: [group 7] gpu-bytes = 25%: "));
	must(strstr(read.text, "gpu-capacity"));
	options_deinit(&read.o);
	read = read_text("[user *]\ngpu-bytes = 0%\n");
	must_be(read.r, OPTIONS_E_USAGE);
	must(strstr(read.text, "tensorleased: [user *] gpu-bytes = 0%: "));
	options_deinit(&read.o);
	read = read_text("gpu-capacity = 8G\n[user 7]\ngpu-bytes = 25%\n");
	must_be_fine(read);
	options_deinit(&read.o);
	read = read_text("[user 7]\ngpu-bytes = 8G\n");
	must_be_fine(read);
	options_deinit(&read.o);
}

/* With the default one there are as many as may be, and then come other sections. */
TEST(there_are_at_most_so_many_namespaces)
{
	size_t size = NAMESPACES_MAX * 32, at = 0;
	char *text = malloc(size);
	struct reading read;

	must(text);
	for (int i = 1; i < NAMESPACES_MAX; i++)
		at += (size_t)snprintf(text + at, size - at, "[namespace n%d]\n", i);
	snprintf(text + at, size - at, "[namespace user-*]\n[namespace n7]\n");
	read = read_text(text);
	must_be_fine(read);
	must_be(read.o.config.namespace_count, NAMESPACES_MAX);
	must_be(read.o.config.users.mode, 0700);
	options_deinit(&read.o);
	snprintf(text + at, size - at, "[namespace more]\n");
	read = read_text(text);
	must_be(read.r, OPTIONS_E_USAGE);
	must(strstr(read.text, ":4096: [namespace more]: there are at most 4096 namespaces"));
	options_deinit(&read.o);
	free(text);
}

TEST(a_line_that_would_be_cut_is_refused)
{
	char text[512];
	struct reading read;

	snprintf(text, sizeof(text), "warm-time = 1\nsocket = /%0220d\n", 0);
	read = read_text(text);
	must_be(read.r, OPTIONS_E_USAGE);
	must(strstr(read.text, ":2: the line is too long"));
	options_deinit(&read.o);
	read = read_bytes("warm-time = 1\0 0\n", 17);
	must_be(read.r, OPTIONS_E_USAGE);
	must(strstr(read.text, ":1: the line has a byte that is 0"));
	options_deinit(&read.o);
}

/* A daemon that goes on with a configuration finds the numbers that its names had. */
TEST(a_name_that_was_looked_up_is_not_looked_up_again)
{
	static const char *const argv[] = { "tensorleased", "--config", "/gone", NULL };
	struct reading read = read_text("[user root]\n[namespace lab]\nowner = root\ngroup = root");
	struct options again;
	char text[256] = "", *at = text;
	int fd;

	must_be_fine(read);
	fd = options_texts(&read.o);
	must(fd >= 0);
	must(pread(fd, text, sizeof(text), 0) > 0);
	while ((at = memmem(at, sizeof(text) - (size_t)(at - text), "\n0\n", 3)))
		must_be(pwrite(fd, "\n7\n", 3, at++ - text), 3);
	must_be(options_init_again(&again, 3, (char **)(uintptr_t)argv, fd), 0);
	must_be(again.config.rules[1].id, 7);
	must_be(again.config.namespaces[1].uid, 7);
	must_be(again.config.namespaces[1].gid, 7);
	options_deinit(&again);
	options_deinit(&read.o);
	must_be(close(fd), 0);
}

static int lookup_error; /* 0: there is no such entry */

/* In the place of the C library's, since a test cannot have a name service fail. */
struct passwd *getpwnam(const char *name)
{
	static struct passwd root;

	errno = lookup_error;
	return strcmp(name, "root") ? NULL : &root;
}

struct group *getgrnam(const char *name)
{
	static struct group root;

	errno = lookup_error;
	return strcmp(name, "root") ? NULL : &root;
}

TEST(a_name_that_cannot_be_looked_up_is_not_called_unknown)
{
	static const struct {
		const char *text;
		int error;
		const char *said;
	} wrong[] = {
		{ "[user alice]\n", 0, ": [user alice]: there is no such user\n" },
		{ "[group lab]\n", ENOENT, ": [group lab]: there is no such group\n" },
		{ "[user alice]\n", EMFILE,
		  ": [user alice]: cannot look up user alice: Too many open files\n" },
		{ "[group lab]\n", EIO,
		  ": [group lab]: cannot look up group lab: Input/output error\n" },
		{ "[namespace a]\nowner = alice\n", 0, ": owner = alice: there is no such user\n" },
		{ "[namespace a]\ngroup = lab\n", EIO,
		  ": group = lab: cannot look up group lab: Input/output error\n" },
	};

	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		lookup_error = wrong[i].error;
		struct reading read = read_text(wrong[i].text);

		lookup_error = 0;
		must_be(read.r, OPTIONS_E_USAGE);
		if (!strstr(read.text, wrong[i].said))
			print_error("%s-> %s", wrong[i].text, read.text);
		must(strstr(read.text, wrong[i].said));
		must(strstr(read.text, read.o.error));
		options_deinit(&read.o);
	}
}

/* A keeper starts no other daemon after a mistake. */
TEST(a_lack_of_memory_is_no_mistake)
{
	static void *volatile last;
	struct rlimit none = { 0 };
	struct options o;
	int status;
	pid_t pid;

	SKIP_UNLESS(!SANITIZED, "sanitizers take memory elsewhere");
	pid = fork();
	must(pid >= 0);
	if (!pid) {
		setrlimit(RLIMIT_AS, &none);
		for (size_t size = 1 << 20; size >= 16; size /= 2)
			while ((last = malloc(size)))
				;
		_exit(init(&o, "/dev/null") == -ENOMEM ? 0 : 1);
	}
	must_be(waitpid(pid, &status, 0), pid);
	must_be(status, 0);
}

TEST(a_directory_is_no_configuration)
{
	struct options o;

	must_be(init(&o, "/tmp"), OPTIONS_E_USAGE);
	options_deinit(&o);
}

int main(void)
{
	return suite_run();
}
