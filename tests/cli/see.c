/* SPDX-License-Identifier: Apache-2.0 */
/* What shows who publishes, how fast, and who reads: info, ls --long, status, top, watch. */
#include <pthread.h>
#include <pty.h>
#include <sys/syscall.h>
#include <termios.h>

#include "tests/cli/run.h"
#include "tests/harness/client.h"

enum { SIZE = 1000, COLUMNS = 120, ROWS = 24, TEXT = 1 << 20 };

static void put(tl_client *client, const char *name)
{
	const tl_put_options alone = { .size = sizeof(alone), .ring = TL_RING_NONE };
	unsigned char bytes[SIZE] = { 0 };
	int64_t shape[1] = { SIZE };
	const DLTensor t = bytes_tensor(bytes, shape);

	must_be(tl_put(client, name, &t, &alone, NULL), 0);
}

/* Publishes a name as fast as 100 times a second until it is told to end. */
struct publisher {
	tl_client *client;
	const char *name;
	_Atomic bool ends;
	pthread_t thread;
};

static void *publish(void *context)
{
	const struct timespec pause = { .tv_nsec = 10 * 1000 * 1000 };
	struct publisher *p = context;

	while (!atomic_load(&p->ends)) {
		put(p->client, p->name);
		nanosleep(&pause, NULL);
	}
	return NULL;
}

static void publisher_start(struct publisher *p, const struct test_daemon *d)
{
	*p = (struct publisher){ .client = connect_as(d, "camera.py"), .name = "cam0/rgb" };
	put(p->client, p->name);
	must_be(pthread_create(&p->thread, NULL, publish, p), 0);
}

static void publisher_end(struct publisher *p)
{
	atomic_store(&p->ends, true);
	must_be(pthread_join(p->thread, NULL), 0);
	tl_close(p->client);
}

static const cJSON *item(const cJSON *object, const char *key)
{
	const cJSON *found = cJSON_GetObjectItem(object, key);

	if (!found)
		print_error("no '%s'\n", key);
	must(found);
	return found;
}

static void must_be_camera(const cJSON *who, bool gone)
{
	assert_string_equal(item(who, "label")->valuestring, "camera.py");
	must_be((int)item(who, "pid")->valuedouble, getpid());
	must_be(cJSON_IsTrue(item(who, "gone")), gone);
}

TEST(info_tells_the_publisher_the_readers_and_the_rate)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *camera = connect_as(&d, "camera.py"), *reader = connect_as(&d, "detector.py");
	DLManagedTensorVersioned *t;
	char pid[48];

	put(camera, "cam0/rgb");
	must_be(tl_get(reader, "cam0/rgb", NULL, &t), 0);
	{
		cleanup_result struct result text = run(&d, "info", "cam0/rgb");
		cleanup_result struct result json = run(&d, "info", "cam0/rgb", "--json");
		cJSON *object = json_of(&json);

		must_exit(&text, 0);
		snprintf(pid, sizeof(pid), "publisher\tcamera.py\t%d\t", getpid());
		must_contain(text.out, pid);
		snprintf(pid, sizeof(pid), "reader\tdetector.py\t%d\t", getpid());
		must_contain(text.out, pid);
		must_contain(text.out, "readers\t1\n");
		must_contain(text.out, "rate\t0.0\n");
		must_be_camera(item(object, "publisher"), false);
		must_be(cJSON_GetArraySize(item(object, "readers")), 1);
		cJSON_Delete(object);
	}
	t->deleter(t);
	tl_close(camera);
	td_sync(&d);
	{
		cleanup_result struct result text = run(&d, "info", "cam0/rgb");
		cleanup_result struct result json = run(&d, "info", "cam0/rgb", "--json");
		cJSON *object = json_of(&json);

		must_contain(text.out, "publisher\tcamera.py (gone)\t");
		must_contain(text.out, "readers\t0\n");
		must_be_camera(item(object, "publisher"), true);
		cJSON_Delete(object);
	}
	tl_close(reader);
}

/* The machine may be busy: only that there is a rate is sure. */
TEST(rates_of_names_without_a_ring_are_measured)
{
	cleanup_td struct test_daemon d = td_start();
	struct publisher p;

	publisher_start(&p, &d);
	{
		cleanup_result struct result info = run(&d, "info", "cam0/rgb", "--json");
		cleanup_result struct result ls = run(&d, "ls", "--long", "--json");
		cleanup_result struct result lines = run(&d, "ls", "--long");
		cleanup_result struct result top = run(&d, "top", "--json");
		cJSON *one = json_of(&info), *all = json_of(&ls), *seen = json_of(&top);
		const cJSON *name = cJSON_GetArrayItem(item(all, "tensors"), 0);

		must(cJSON_IsNumber(item(one, "rate")));
		must(item(one, "rate")->valuedouble > 0);
		must(item(name, "rate")->valuedouble > 0);
		must(item(name, "bytes_per_second")->valuedouble >
		     SIZE * 0.99 * item(name, "rate")->valuedouble);
		must_be_camera(item(name, "publisher"), false);
		must_contain(lines.out, "\tcamera.py\t");
		name = cJSON_GetArrayItem(item(seen, "names"), 0);
		assert_string_equal(item(name, "name")->valuestring, "cam0/rgb");
		must(item(name, "rate")->valuedouble > 0);
		must_be_camera(item(name, "publisher"), false);
		cJSON_Delete(one);
		cJSON_Delete(all);
		cJSON_Delete(seen);
	}
	publisher_end(&p);
}

TEST(status_tells_how_many_names_each_client_published)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *camera = connect_as(&d, "camera.py"), *other = connect_as(&d, "other.py");

	put(camera, "a");
	put(camera, "b");
	put(other, "b");
	{
		cleanup_result struct result status = run(&d, "status", "--clients", "--json");
		cJSON *object = json_of(&status);
		const cJSON *client;
		int seen = 0;

		cJSON_ArrayForEach(client, item(object, "client_list"))
		{
			const char *label = item(client, "label")->valuestring;

			must(item(client, "since_ns"));
			if (!strcmp(label, "camera.py") || !strcmp(label, "other.py"))
				seen += item(client, "published")->valuedouble == 1;
		}
		must_be(seen, 2);
		cJSON_Delete(object);
	}
	tl_close(camera);
	tl_close(other);
}

TEST(top_prints_lines_when_nobody_sees_it)
{
	cleanup_td struct test_daemon d = td_start();
	tl_client *camera = connect_as(&d, "camera.py");

	put(camera, "a/b");
	put(camera, "c");
	{
		cleanup_result struct result all = run(&d, "top", "--sort", "name");
		cleanup_result struct result below = run(&d, "top", "a");
		cleanup_result struct result bad = run(&d, "top", "--sort", "colour");

		must_exit(&all, 0);
		must(!strncmp(all.out, "a/b\t0\t0\t1000\t", 13));
		must_contain(all.out, "\nc\t0\t0\t1000\t");
		must_contain(all.out, "\tcamera.py\t");
		must(!strchr(all.out, '\033'));
		must(!strncmp(below.out, "a/b\t", 4) && !strstr(below.out, "\nc\t"));
		must_exit(&bad, 2);
		must_contain(bad.err, "--sort must be rate, bytes, size, age, readers or name, "
				      "not 'colour'");
	}
	tl_close(camera);
}

/* ---- On a terminal ---- */

struct terminal {
	int pty, end;
	struct termios before;
	char *text; /* all that it was sent */
	size_t used, mark;
};

/* Starts the command with the terminal as its input and output. */
static struct running start_on(struct terminal *t, const struct test_daemon *d,
			       const char *const *args)
{
	const struct winsize size = { .ws_col = COLUMNS, .ws_row = ROWS };
	int input = dup(STDIN_FILENO);
	struct running running;

	*t = (struct terminal){ .text = malloc(TEXT) };
	must(t->text);
	must_be(openpty(&t->pty, &t->end, NULL, NULL, &size), 0);
	must_be(fcntl(t->pty, F_SETFD, FD_CLOEXEC) | fcntl(t->end, F_SETFD, FD_CLOEXEC), 0);
	must_be(tcgetattr(t->end, &t->before), 0);
	must(dup2(t->end, STDIN_FILENO) == STDIN_FILENO);
	running = start_printing_to(t->end, d->socket, args);
	must(dup2(input, STDIN_FILENO) == STDIN_FILENO);
	close(input);
	return running;
}

/* Reads what the terminal is sent until it has @text since the last key. */
static void see(struct terminal *t, const char *text)
{
	while (!strstr(t->text + t->mark, text)) {
		ssize_t n = read(t->pty, t->text + t->used, TEXT - 1 - t->used);

		if (n <= 0)
			print_error("the terminal does not show '%s': %s\n", text,
				    t->text + t->mark);
		must(n > 0);
		t->used += (size_t)n;
		t->text[t->used] = '\0';
	}
}

static void type(struct terminal *t, const char *keys)
{
	t->mark = t->used;
	must_be(write(t->pty, keys, strlen(keys)), (ssize_t)strlen(keys));
}

/* Waits for the end; the terminal must be as it was. */
static void must_end(struct terminal *t, const struct running *running, bool whole)
{
	cleanup_result struct result r = finish(running);
	struct termios now;

	must_exit(&r, 0);
	if (whole)
		see(t, "\033[?25h\033[?1049l");
	must_be(tcgetattr(t->end, &now), 0);
	must_be(now.c_lflag, t->before.c_lflag);
	close(t->end);
	close(t->pty);
	free(t->text);
}

TEST(top_shows_names_clients_and_memory_and_obeys_keys)
{
	static const char *const args[] = { "top", NULL };
	cleanup_td struct test_daemon d = td_start();
	struct running running;
	struct publisher p;
	struct terminal t;

	publisher_start(&p, &d);
	put(p.client, "weights/a\u202eb");
	running = start_on(&t, &d, args);
	see(&t, "\033[?1049h");
	see(&t, "live");
	see(&t, "cam0/rgb");
	see(&t, "weights/a\\xe2\\x80\\xaeb"); /* nothing in a name reaches the terminal */
	see(&t, "by rate");
	type(&t, "n");
	see(&t, "by name");
	type(&t, "/wei");
	see(&t, "filter: wei_");
	type(&t, "\n");
	see(&t, "/ filter wei");
	type(&t, "\r");
	see(&t, "publisher    camera.py, pid ");
	type(&t, "c");
	see(&t, "PUBLISHES");
	see(&t, "camera.py");
	type(&t, "\033");
	see(&t, "Enter open");
	type(&t, "/\033");
	see(&t, "cam0/rgb");
	type(&t, "\033[Bq");
	must_end(&t, &running, true);
	publisher_end(&p);
}

TEST(top_goes_on_with_the_next_daemon)
{
	static const char *const args[] = { "top", NULL };
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = connect_as(&d, "camera.py");
	struct running running;
	struct terminal t;

	put(client, "before");
	running = start_on(&t, &d, args);
	see(&t, "before");
	daemon_kill(client);
	put(client, "after");
	type(&t, "n");
	see(&t, "after");
	must_be(kill(running.pid, SIGTERM), 0);
	must_end(&t, &running, true);
	tl_close(client);
}

/* In a write, which waits. */
static bool is_held_up(pid_t pid)
{
	char path[64];
	long call = -1;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/syscall", (int)pid);
	f = fopen(path, "re");
	must(f);
	if (fscanf(f, "%ld", &call) != 1) /* it runs */
		call = -1;
	fclose(f);
	return call == SYS_write;
}

TEST(top_ends_well_while_its_terminal_is_full)
{
	static const char *const args[] = { "top", NULL };
	cleanup_td struct test_daemon d = td_start();
	tl_client *client = connect_as(&d, "camera.py");
	char keys[1001] = { 0 };
	struct running running;
	struct terminal t;

	put(client, "a");
	running = start_on(&t, &d, args);
	see(&t, "live");
	memset(keys, 'n', sizeof(keys) - 1);
	type(&t, keys);
	eventually(is_held_up(running.pid));
	must_be(kill(running.pid, SIGWINCH), 0); /* a part was written, and now nothing can be */
	for (int i = 0; i < 100; i++)
		eventually(is_held_up(running.pid));
	must_be(kill(running.pid, SIGTERM), 0);
	see(&t, "\033[?25h\033[?1049l");
	must_end(&t, &running, false);
	tl_close(client);
}

/* A line for each name, which changes. */
TEST(watch_changes_its_lines_in_place_on_a_terminal)
{
	static const char *const args[] = { "watch", NULL };
	cleanup_td struct test_daemon d = td_start();
	struct running running;
	struct publisher p;
	struct terminal t;

	publisher_start(&p, &d);
	running = start_on(&t, &d, args);
	see(&t, "cam0/rgb");
	see(&t, "camera.py");
	put(p.client, "other");
	see(&t, "other");
	see(&t, "\033[3A"); /* up to its first line */
	must_be(kill(running.pid, SIGINT), 0);
	must_end(&t, &running, false);
	publisher_end(&p);
}

int main(void)
{
	return suite_run();
}
