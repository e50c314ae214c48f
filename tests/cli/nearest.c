/* SPDX-License-Identifier: Apache-2.0 */
/* What is mistyped is told with the nearest command, option or name. */
#include "tests/cli/files.h"

static void must_say(const char *text, const char *const *args)
{
	cleanup_result struct result r = run_at("/nonexistent/socket", args);

	must_exit(&r, 2);
	must_contain(r.err, text);
}

#define SAYS(text, ...) must_say(text, (const char *const[]){ __VA_ARGS__, NULL })

TEST(a_mistyped_command_is_told_with_the_nearest_one)
{
	SAYS("unknown command 'stauts'; did you mean 'status'?", "stauts");
	SAYS("unknown command 'pt'; did you mean 'put'?", "pt");
	SAYS("unknown command 'docter'; did you mean 'doctor'?", "docter");
	SAYS("unknown command 'hlep'; did you mean 'help'?", "hlep");
	SAYS("unknown command 'list'; it is 'ls' here", "list");
	SAYS("unknown command 'xyz'; see 'tensorlease --help'", "xyz");
	SAYS("unknown command ''; see 'tensorlease --help'", "");
	SAYS("unknown command 'doctor-chidl'; see", "doctor-chidl"); /* it is no command for people
								      */
}

TEST(a_mistyped_option_is_told_with_the_nearest_one)
{
	SAYS("unknown option '--sockt'; did you mean '--socket'?", "ls", "--sockt");
	SAYS("unknown option '--sockt'; did you mean '--socket'?", "ls", "--sockt=/a");
	SAYS("unknown option '--owner-bond'; did you mean '--owner-bound'?", "ls", "--owner-bond");
	SAYS("unknown option '--nothing-like-it'; see 'tensorlease --help'", "--nothing-like-it");
	SAYS("ambiguous option '--use'; see 'tensorlease --help'", "status", "--use");
}

TEST(a_mistyped_name_is_told_with_the_nearest_one)
{
	static const char *const commands[] = { "get", "info", "show" };
	cleanup_td struct test_daemon d = td_start(0);
	struct path file = in(&d, "saved.npz"), one = in(&d, "saved.npy");

	put_six(&d, "cam0/rgb");
	put_six(&d, "model/v1/weight");
	for (size_t i = 0; i < 3; i++) {
		cleanup_result struct result near = run(&d, commands[i], "cam0/rbg"),
					     far = run(&d, commands[i], "cam7/depth");

		must_exit(&near, 3);
		must_contain(near.err, "; did you mean 'cam0/rgb'?");
		must_exit(&far, 3);
		must(!strstr(far.err, "did you mean"));
	}
	{
		cleanup_result struct result below = run(&d, "save", "modle/v1/", file.text),
					     single = run(&d, "save", "cam0/rbg", one.text),
					     far = run(&d, "save", "other", file.text);

		must_exit(&below, 3);
		must_contain(below.err, "did you mean 'model/v1'?");
		must_exit(&single, 3);
		must_contain(single.err, "did you mean 'cam0/rgb'?");
		must_exit(&far, 3);
		must(!strstr(far.err, "did you mean"));
	}
}

int main(void)
{
	return suite_run();
}
