/* SPDX-License-Identifier: Apache-2.0 */
/* The programs of examples/c do what they say, as a user runs them. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "tests/harness/gpu.h"
#include "tests/package/package.h"

enum { OUT_MAX = 4096 };

struct program {
	pid_t pid;
	int out; /* what it prints, errors too */
	char text[OUT_MAX];
	size_t used;
};

static struct program start(const char *socket, const char *const *args)
{
	char path[PACKAGE_PATH];
	struct program p = { 0 };
	int fd[2];

	snprintf(path, sizeof(path), "%s/examples/c/%s", package_build(), args[0]);
	must_be(pipe2(fd, O_CLOEXEC), 0);
	fflush(stdout);
	p.pid = fork();
	must(p.pid >= 0);
	if (p.pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		alarm(0);
		setenv("TENSORLEASE_SOCKET", socket, 1);
		dup2(fd[1], 1);
		dup2(fd[1], 2);
		execv(path, (char **)(uintptr_t)args);
		_exit(127);
	}
	close(fd[1]);
	p.out = fd[0];
	return p;
}

/* Reads until @n lines are there, or its end. */
static void read_lines(struct program *p, unsigned n)
{
	for (;;) {
		unsigned lines = 0;
		ssize_t got;

		for (size_t i = 0; i < p->used; i++)
			lines += p->text[i] == '\n';
		if (lines >= n)
			return;
		must(p->used < OUT_MAX - 1);
		got = read(p->out, p->text + p->used, OUT_MAX - 1 - p->used);
		must(got >= 0);
		if (!got)
			return;
		p->used += (size_t)got;
	}
}

/* Its exit status, when it has ended; @signal, if not 0, ends it. */
static int finish(struct program *p, int signal)
{
	int status;

	if (signal)
		must_be(kill(p->pid, signal), 0);
	read_lines(p, UINT32_MAX);
	close(p->out);
	must_be(waitpid(p->pid, &status, 0), p->pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

static void must_say(const struct program *p, const char *words)
{
	if (!strstr(p->text, words))
		fprintf(stderr, "no '%s' in: %s\n", words, p->text);
	must(strstr(p->text, words));
}

/* Runs a program to its end, which is a good one, and it has said @words. */
static void run(const char *socket, const char *words, const char *const *args)
{
	struct program p = start(socket, args);
	int status = finish(&p, 0);

	must_say(&p, words);
	must_be(status, 0);
}
#define ARGS(...) ((const char *const[]){ __VA_ARGS__, NULL })

TEST(a_consumer_reads_what_a_producer_writes)
{
	cleanup_td struct test_daemon d = td_start();
	struct program producer = start(d.socket, ARGS("producer", "picture", "1"));

	run(d.socket, "921600 bytes, mean", ARGS("consumer", "picture", "3"));
	must_be(finish(&producer, SIGTERM), 256 + SIGTERM);
}

TEST(an_event_loop_hears_of_new_tensors)
{
	cleanup_td struct test_daemon d = td_start();
	struct program loop = start(d.socket, ARGS("epoll", "picture"));
	struct program producer = start(d.socket, ARGS("producer", "picture", "1"));

	read_lines(&loop, 4);
	must_say(&loop, "listening on 127.0.0.1 port ");
	must_say(&loop, "picture version ");
	must_say(&loop, "dimensions");
	must_be(finish(&producer, SIGTERM), 256 + SIGTERM);
	must_be(finish(&loop, SIGTERM), 256 + SIGTERM);
}

static int kick_epoll(const tl_client_info *info, void *client)
{
	return strcmp(info->label, "epoll") == 0 ? tl_kick(client, info->id) : 0;
}

/* A thread: reads what a program prints, up to its end, and notes that it told of a name. */
struct reader {
	struct program *program;
	const char *name;
	_Atomic bool told;
};

static void *read_all(void *arg)
{
	struct reader *r = arg;
	char line[256];
	FILE *f = fdopen(dup(r->program->out), "r");

	must(f);
	while (fgets(line, sizeof(line), f)) {
		if (!strncmp(line, r->name, strlen(r->name)))
			atomic_store(&r->told, true);
	}
	fclose(f);
	return NULL;
}

struct fast {
	tl_client *client;
	_Atomic bool ends;
};

static void put_one(tl_client *client, const char *name)
{
	unsigned char byte = 7;
	DLTensor tensor = { .data = &byte, .device = { kDLCPU, 0 }, .dtype = { kDLUInt, 8, 1 } };

	must_be(tl_put(client, name, &tensor, NULL, NULL), 0);
}

/* A thread: leaves the program no moment without news. */
static void *put_on(void *arg)
{
	struct fast *f = arg;

	while (!atomic_load(&f->ends))
		put_one(f->client, "fast");
	return NULL;
}

/* Asks the program's socket, and returns whether it has answered. */
static bool answers(int fd, const char *word)
{
	struct pollfd answer = { .fd = fd, .events = POLLIN };
	char text[64];

	must(send(fd, word, strlen(word), 0) > 0);
	return poll(&answer, 1, WAIT_MS) == 1 && recv(fd, text, sizeof(text), 0) > 0;
}

TEST(an_event_loop_serves_a_socket_and_a_slow_name_beside_a_fast_one)
{
	cleanup_td struct test_daemon d = td_start();
	struct program loop = start(d.socket, ARGS("epoll", "fast", "slow"));
	struct reader reader = { .program = &loop, .name = "slow version" };
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), port;
	struct fast fast = { .client = td_connect(&d) };
	tl_client *producer = td_connect(&d);
	pthread_t reads, puts;

	read_lines(&loop, 1);
	must_be(sscanf(loop.text, "listening on 127.0.0.1 port %d", &port), 1);
	at.sin_port = htons((uint16_t)port);
	must_be(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	must_be(pthread_create(&reads, NULL, read_all, &reader), 0);
	must_be(pthread_create(&puts, NULL, put_on, &fast), 0);
	must(answers(fd, "how many"));
	put_one(producer, "slow");
	eventually(atomic_load(&reader.told));
	must(answers(fd, "stop"));
	must_be(pthread_join(reads, NULL), 0);
	must_be(finish(&loop, 0), 0);
	atomic_store(&fast.ends, true);
	must_be(pthread_join(puts, NULL), 0);
	close(fd);
	tl_close(fast.client);
	tl_close(producer);
}

TEST(an_event_loop_ends_when_its_client_is_kicked)
{
	cleanup_td struct test_daemon d = td_start();
	struct program producer = start(d.socket, ARGS("producer", "picture", "1"));
	struct program loop = start(d.socket, ARGS("epoll", "picture"));
	tl_client *client = td_connect(&d);

	read_lines(&loop, 2); /* it watches */
	must_be(finish(&producer, SIGTERM), 256 + SIGTERM);
	must_be(tl_list_clients(client, kick_epoll, client), 0);
	must_be(finish(&loop, 0), 1);
	must_say(&loop, "disconnected");
	tl_close(client);
}

TEST(a_pair_is_got_as_it_was_published)
{
	cleanup_td struct test_daemon d = td_start();

	run(d.socket, "", ARGS("group", "publish", "5"));
	run(d.socket, "left 4, right 4: a pair", ARGS("group", "get"));
}

TEST(learners_get_each_rollout_of_actors)
{
	cleanup_td struct test_daemon d = td_start();
	struct program learner = start(d.socket, ARGS("rollouts", "learn", "4"));

	run(d.socket, "", ARGS("rollouts", "act", "7", "3"));
	run(d.socket, "", ARGS("rollouts", "act", "8", "3"));
	must_be(finish(&learner, 0), 0);
	must_say(&learner, "rollout of actor 7, return 0\n");
	must_say(&learner, "rollout of actor 7, return 32\n");
	must_say(&learner, "rollout of actor 7, return 64\n");
	must_say(&learner, "rollout of actor 8, return 0\n");
	run(d.socket, "rollout of actor 8, return 32\nrollout of actor 8, return 64\n",
	    ARGS("rollouts", "learn", "2"));
}

TEST(without_a_daemon_the_reason_is_said)
{
	struct program p = start("/nonexistent/socket", ARGS("consumer"));

	must_be(finish(&p, 0), 1);
	must_say(&p, "cannot connect: ");
	must_say(&p, "/nonexistent/socket");
}

GPU_TEST(a_tensor_on_a_gpu_outlives_the_program_that_wrote_it)
{
	cleanup_td struct test_daemon d = td_start();

	run(d.socket, "", ARGS("cuda", "publish", "t"));
	run(d.socket, "t begins with 42", ARGS("cuda", "get", "t"));
}

int main(int argc, char **argv)
{
	(void)argc;
	gpu_init(argv);
	return suite_run();
}
