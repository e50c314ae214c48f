/* SPDX-License-Identifier: Apache-2.0 */
/* top: who publishes what, how fast, and where the memory is, again each second. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tensorlease/stream.h>

#include "cli/cli.h"
#include "cli/describe.h"
#include "cli/format.h"
#include "cli/out.h"
#include "cli/overview.h"
#include "cli/screen.h"
#include "util/clock.h"

enum { FILTER_MAX = 63, BAR = 60, HEAD = 5 }; /* lines above the names */

static const char *const sort_names[SORTS] = { "rate", "bytes", "size", "age", "readers", "name" };

/* What the screen shows. */
enum view { VIEW_NAMES, VIEW_NAME, VIEW_CLIENTS };

/* The parts of the memory. */
enum part { PART_LIVE, PART_RINGS, PART_STREAMS, PART_WARM, PART_KEPT, PART_OTHER, PARTS };

struct top {
	struct cli *cli;
	struct screen screen;
	const char *path;
	enum view view;
	enum cli_sort sort;
	char filter[FILTER_MAX + 1];
	bool typing;  /* the filter */
	char *chosen; /* the name under the cursor, or NULL */
	size_t first; /* row that is shown first */
	tl_status status;
	struct overview now;
	const struct overview_row **rows; /* of @now, that the filter lets through, sorted */
	size_t count;
	tl_client_info *clients;
	size_t client_count;
	char *error; /* why the last look failed, or NULL */
};

bool top_sort(const char *text, enum cli_sort *sort)
{
	for (unsigned i = 0; i < SORTS; i++) {
		if (!strcmp(text, sort_names[i])) {
			*sort = i;
			return true;
		}
	}
	return false;
}

/* ---- Looking ---- */

static int compare_numbers(double a, double b)
{
	return (a < b) - (a > b); /* the largest first */
}

static int compare_rows(const void *left, const void *right, void *context)
{
	const struct overview_row *a = *(const struct overview_row *const *)left;
	const struct overview_row *b = *(const struct overview_row *const *)right;
	int r = 0;

	switch (*(const enum cli_sort *)context) {
	case SORT_RATE:
		r = compare_numbers(a->rate, b->rate);
		break;
	case SORT_BYTES:
		r = compare_numbers(a->bytes_rate, b->bytes_rate);
		break;
	case SORT_SIZE:
		r = compare_numbers((double)a->nbytes, (double)b->nbytes);
		break;
	case SORT_AGE:
		r = compare_numbers((double)a->committed_ns, (double)b->committed_ns);
		break;
	case SORT_READERS:
		r = compare_numbers(a->readers, b->readers);
		break;
	default:
		break;
	}
	return r ? r : strcmp(a->name, b->name);
}

static void rows_choose(struct top *top)
{
	top->rows = cli_need(realloc(top->rows, (top->now.count + 1) * sizeof(*top->rows)));
	top->count = 0;
	for (size_t i = 0; i < top->now.count; i++) {
		if (strstr(top->now.rows[i].name, top->filter))
			top->rows[top->count++] = &top->now.rows[i];
	}
	if (top->count)
		qsort_r(top->rows, top->count, sizeof(*top->rows), compare_rows, &top->sort);
}

static int visit_client(const tl_client_info *info, void *context)
{
	struct top *top = context;

	top->clients = cli_grow(top->clients, top->client_count, sizeof(*top->clients));
	top->clients[top->client_count++] = *info;
	return 0;
}

static int clients_take(struct top *top)
{
	top->client_count = 0;
	return tl_list_clients(top->cli->client, visit_client, top);
}

/* Looks again. While the daemon is away, what was there before stays on the screen. */
static int look(struct top *top)
{
	struct overview next = { 0 };
	int r = tl_get_status(top->cli->client, &top->status);

	if (!r)
		r = overview_take(top->cli->client, top->path, &next);
	if (!r && (top->view == VIEW_CLIENTS || !top->cli->terminal || top->cli->json))
		r = clients_take(top);
	free(top->error);
	top->error = r ? cli_text("%s", cli_reason(r)) : NULL;
	if (r) {
		overview_deinit(&next);
		return r;
	}
	overview_rates(&next, &top->now);
	overview_deinit(&top->now);
	top->now = next;
	rows_choose(top);
	return 0;
}

/* ---- Memory ---- */

static const struct {
	const char *name;
	char letter;
} parts[PARTS] = {
	[PART_LIVE] = { "live", 'L' },	     [PART_RINGS] = { "rings", 'R' },
	[PART_STREAMS] = { "streams", 'S' }, [PART_WARM] = { "warm", 'W' },
	[PART_KEPT] = { "kept", 'K' },	     [PART_OTHER] = { "other", 'O' },
};

/* A ring's rows beside the newest are its own. What is left over is held by readers, being written,
 * or of another namespace. */
static void memory_parts(const struct top *top, uint64_t bytes[PARTS])
{
	uint64_t sum = 0;

	memset(bytes, 0, PARTS * sizeof(*bytes));
	for (size_t i = 0; i < top->now.count; i++) {
		const struct overview_row *row = &top->now.rows[i];

		if (row->stream)
			bytes[PART_STREAMS] += row->nbytes;
		else if (!strcmp(row->device, "cpu"))
			bytes[PART_LIVE] += row->nbytes;
		if (row->ring)
			bytes[PART_RINGS] += (row->ring - 1) * row->nbytes;
	}
	bytes[PART_WARM] = top->status.bytes_warm;
	bytes[PART_KEPT] = top->status.bytes_kept;
	for (unsigned i = 0; i < PART_OTHER; i++)
		sum += bytes[i];
	bytes[PART_OTHER] = top->status.bytes_used > sum ? top->status.bytes_used - sum : 0;
}

static void print_memory(const struct top *top)
{
	uint64_t bytes[PARTS], capacity = top->status.capacity;
	char *used = format_size(top->status.bytes_used, true), *all = format_size(capacity, true);
	int at = 0;

	memory_parts(top, bytes);
	printf("%s of %s  [", used, all);
	for (unsigned i = 0; i < PARTS && capacity; i++) {
		double part = (double)bytes[i] / (double)capacity * BAR;

		for (int n = (int)(part + 0.5) + (part > 0 && part < 0.5); n > 0 && at < BAR; n--)
			at += putchar(parts[i].letter) >= 0;
	}
	printf("%*s]\n", BAR - at, "");
	for (unsigned i = 0; i < PARTS; i++) {
		char *text = format_size(bytes[i], true);

		printf("%s%c %s %s", i ? "  " : "", parts[i].letter, parts[i].name, text);
		free(text);
	}
	putchar('\n');
	free(used);
	free(all);
}

/* ---- Drawing ---- */

static void add_line(struct table *table, const struct overview_row *row, bool people)
{
	table_row(table,
		  (char *[]){ cli_text("%s", row->name), overview_rate(row->rate),
			      format_size((uint64_t)row->bytes_rate, people),
			      format_size(row->nbytes, people),
			      people ? format_age(row->committed_ns)
				     : cli_text("%" PRIu64, row->committed_ns),
			      cli_text("%u", row->readers), cli_text("%s", row->type),
			      cli_text("%s", row->shape), cli_text("%s", row->device),
			      overview_publisher(&row->publisher),
			      cli_text(row->publisher.id ? "%u" : "-", row->publisher.pid) });
}

static const char *const headers[] = { "NAME", "RATE",	"BYTES/S", "SIZE",	"AGE", "READERS",
				       "TYPE", "SHAPE", "DEVICE",  "PUBLISHER", "PID" };
enum { COLUMNS = sizeof(headers) / sizeof(headers[0]), RIGHT = 0x43e & ~(1 << 4) };

static size_t lines_for_names(const struct top *top)
{
	const size_t rows = (size_t)top->screen.rows;

	return rows > HEAD + 2 ? rows - HEAD - 1 : 1;
}

/* The row of the chosen name, or that which is now where it was. */
static size_t chosen_at(const struct top *top)
{
	for (size_t i = 0; i < top->count && top->chosen; i++) {
		if (!strcmp(top->rows[i]->name, top->chosen))
			return i;
	}
	return 0;
}

static void choose(struct top *top, size_t at)
{
	const size_t lines = lines_for_names(top);

	free(top->chosen);
	top->chosen = NULL;
	if (!top->count)
		return;
	at = at < top->count ? at : top->count - 1;
	top->chosen = cli_text("%s", top->rows[at]->name);
	if (at < top->first)
		top->first = at;
	else if (at >= top->first + lines)
		top->first = at - lines + 1;
}

static void draw_names(struct top *top)
{
	struct table table = { .columns = COLUMNS, .right = RIGHT };
	const size_t lines = lines_for_names(top), chosen = chosen_at(top);

	if (top->first + lines > top->count)
		top->first = top->count > lines ? top->count - lines : 0;
	for (size_t i = top->first; i < top->count && i < top->first + lines; i++)
		add_line(&table, top->rows[i], true);
	table.mark = top->chosen ? 1 + chosen - top->first : 0;
	table_print(&table, headers, true);
	table_deinit(&table);
}

static int visit_reader(const tl_reader *reader, void *context)
{
	char *label = overview_publisher(&reader->client);

	cli_field(context, "reader", "%s, pid %u, client %" PRIu64 ", %" PRIu64 " leases", label,
		  reader->client.pid, reader->client.id, reader->leases);
	free(label);
	return 0;
}

/* One name. It is looked at now, since the list does not have all of it. */
static void draw_name(const struct top *top)
{
	const struct overview_row *row = overview_find(&top->now, top->chosen ? top->chosen : "");
	tl_info info = { .size = sizeof(info) };
	char *rate, *bytes;

	if (!row || (!row->stream && tl_stat(top->cli->client, top->chosen, &info))) {
		cli_print("'%s' is not there\n", top->chosen ? top->chosen : "");
		return;
	}
	rate = overview_rate(row->rate);
	bytes = format_size((uint64_t)row->bytes_rate, true);
	if (row->stream)
		cli_print("%s is a %s stream, %s items\n", row->name, row->type, row->shape);
	else
		describe_info(top->cli, &info);
	cli_field(top->cli, "rate", "%s a second, %s a second", rate, bytes);
	cli_field(top->cli, "readers", "%u", row->readers);
	if (!row->stream)
		tl_list_readers(top->cli->client, row->name, visit_reader, top->cli);
	free(rate);
	free(bytes);
}

static void draw_clients(const struct top *top)
{
	static const char *const titles[] = { "CLIENT",	   "PID",   "UID",  "SINCE",
					      "PUBLISHES", "HOLDS", "SIZE", "LABEL" };
	struct table table = { .columns = 8, .right = 0x7f };
	size_t *published = cli_need(calloc(top->client_count + 1, sizeof(*published)));

	/* the last one counts those whose publisher is not among them */
	for (size_t i = 0; i < top->now.count; i++)
		published[overview_client(top->clients, top->client_count,
					  top->now.rows[i].publisher.id)]++;
	for (size_t i = 0; i < top->client_count; i++) {
		const tl_client_info *c = &top->clients[i];

		table_row(&table,
			  (char *[]){ cli_text("%" PRIu64, c->id), cli_text("%u", c->pid),
				      cli_text("%u", c->uid), format_age(c->since_ns),
				      cli_text("%zu", published[i]),
				      cli_text("%" PRIu64, c->tensors_held),
				      format_size(c->bytes_held, true), format_label(c->label) });
	}
	table_print(&table, titles, true);
	table_deinit(&table);
	free(published);
}

static void draw_head(const struct top *top)
{
	char *uptime = format_age(top->status.started_ns), *rate, *bytes;
	double versions = 0, throughput = 0;

	for (size_t i = 0; i < top->now.count; i++) {
		versions += top->now.rows[i].rate;
		throughput += top->now.rows[i].bytes_rate;
	}
	rate = overview_rate(versions);
	bytes = format_size((uint64_t)throughput, true);
	fputs(SCREEN_BOLD, stdout);
	cli_print("%s, up %s, %u clients, %zu names", top->status.address, uptime,
		  top->status.clients, top->now.count);
	printf(", %s published a second, %s a second\n", rate, bytes);
	print_memory(top);
	putchar('\n');
	free(uptime);
	free(rate);
	free(bytes);
}

static void draw_foot(const struct top *top)
{
	if (top->error)
		printf(SCREEN_INVERSE "%s", top->error);
	else if (top->typing)
		printf("filter: %s_", top->filter);
	else if (top->view != VIEW_NAMES)
		fputs("q quit  Esc back", stdout);
	else
		printf("q quit  Enter open  c clients  / filter%s%s  by %s: "
		       "r rate  b bytes  s size  a age  d readers  n name",
		       *top->filter ? " " : "", top->filter, sort_names[top->sort]);
}

static int draw(struct top *top)
{
	screen_begin(&top->screen);
	draw_head(top);
	if (top->view == VIEW_CLIENTS)
		draw_clients(top);
	else if (top->view == VIEW_NAME)
		draw_name(top);
	else
		draw_names(top);
	draw_foot(top);
	return screen_show(&top->screen);
}

/* ---- Keys ---- */

static void type(struct top *top, int key)
{
	size_t len = strlen(top->filter);

	if (key == '\n' || key == '\r')
		top->typing = false;
	else if (key == KEY_ESCAPE)
		top->filter[0] = '\0';
	else if ((key == 0x7f || key == '\b') && len)
		top->filter[len - 1] = '\0';
	else if (key < KEY_NONE && !iscntrl(key) && len < FILTER_MAX)
		memcpy(top->filter + len, (char[]){ (char)key, '\0' }, 2);
	if (key == KEY_ESCAPE)
		top->typing = false;
	top->first = 0;
	rows_choose(top);
}

static void move(struct top *top, int key)
{
	const size_t at = chosen_at(top), page = lines_for_names(top);

	if (key == KEY_UP || key == 'k')
		choose(top, at ? at - 1 : 0);
	else if (key == KEY_DOWN || key == 'j')
		choose(top, top->chosen ? at + 1 : 0);
	else if (key == KEY_PAGE_UP)
		choose(top, at > page ? at - page : 0);
	else if (key == KEY_PAGE_DOWN)
		choose(top, at + page);
	else if (key == KEY_HOME)
		choose(top, 0);
	else if (key == KEY_LAST)
		choose(top, top->count);
}

/* Returns false to quit. */
static bool handle_key(struct top *top, int key)
{
	static const char sorts[SORTS + 1] = "rbsadn";
	const char *sort = key > 0 && key < KEY_NONE ? strchr(sorts, key) : NULL;

	if (top->typing) {
		type(top, key);
	} else if (key == 'q' || key == KEY_STOP) {
		return false;
	} else if (key == '/') {
		top->typing = true;
		top->view = VIEW_NAMES;
	} else if (key == 'c') {
		top->view = top->view == VIEW_CLIENTS ? VIEW_NAMES : VIEW_CLIENTS;
		clients_take(top);
	} else if (key == KEY_ESCAPE) {
		top->view = VIEW_NAMES;
	} else if ((key == '\n' || key == '\r') && top->count) {
		choose(top, chosen_at(top));
		top->view = VIEW_NAME;
	} else if (sort && *sort) {
		top->sort = (enum cli_sort)(sort - sorts);
		rows_choose(top);
	} else {
		move(top, key);
	}
	return true;
}

/* ---- The command ---- */

static int run_screen(struct top *top)
{
	int64_t next = now_mono_ns() + NS_PER_SEC;
	int key, r;

	screen_enter(&top->screen, true);
	while (!(r = draw(top))) {
		key = screen_key(&top->screen, next);
		if (key == KEY_STOP || (key != KEY_NONE && !handle_key(top, key)))
			break;
		if (now_mono_ns() < next)
			continue;
		look(top); /* an error is shown */
		next += NS_PER_SEC;
		if (next < now_mono_ns())
			next = now_mono_ns() + NS_PER_SEC;
	}
	screen_leave(&top->screen);
	return r ? CLI_FAILURE : CLI_OK;
}

static void print_json(const struct top *top)
{
	cJSON *object = json_object(), *names = json_array(), *memory = json_object();
	uint64_t bytes[PARTS];

	memory_parts(top, bytes);
	for (unsigned i = 0; i < PARTS; i++)
		json_u64(memory, parts[i].name, bytes[i]);
	for (size_t i = 0; i < top->count; i++) {
		const struct overview_row *row = top->rows[i];
		cJSON *name = json_object();

		json_text(name, "name", row->name);
		json_bool(name, "stream", row->stream);
		json_u64(name, "version", row->version);
		json_double(name, "rate", row->rate);
		json_double(name, "bytes_per_second", row->bytes_rate);
		json_u64(name, "bytes", row->nbytes);
		json_u64(name, "committed_ns", row->committed_ns);
		json_u64(name, "readers", row->readers);
		json_u64(name, "uid", row->uid);
		overview_identity_json(name, "publisher", &row->publisher);
		json_add(names, NULL, name);
	}
	json_u64(object, "capacity", top->status.capacity);
	json_u64(object, "bytes_used", top->status.bytes_used);
	json_add(object, "memory", memory);
	json_u64(object, "clients", top->status.clients);
	json_add(object, "names", names);
	json_print(object);
}

/* What there is after a second, as lines. */
static int run_once(struct top *top)
{
	struct table table = { .columns = COLUMNS };
	int r;

	nanosleep(&(struct timespec){ .tv_sec = 1 }, NULL);
	r = look(top);
	if (r)
		return cli_fail_library(top->cli, r);
	if (top->cli->json) {
		print_json(top);
		return CLI_OK;
	}
	for (size_t i = 0; i < top->count; i++)
		add_line(&table, top->rows[i], false);
	table_print(&table, headers, false);
	table_deinit(&table);
	return CLI_OK;
}

int command_top(struct cli *cli)
{
	struct top top = { .cli = cli,
			   .path = cli->nargs ? cli->args[0] : "",
			   .sort = cli->sort,
			   .status.size = sizeof(top.status) };
	int r;

	r = cli_connect(cli, false);
	if (r)
		return r;
	r = look(&top);
	if (r)
		r = cli_fail_library(cli, r);
	else if (cli->terminal && !cli->json)
		r = run_screen(&top);
	else
		r = run_once(&top);
	overview_deinit(&top.now);
	free(top.rows);
	free(top.clients);
	free(top.chosen);
	free(top.error);
	return r;
}
