/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/doctor/doctor.h"

int command_doctor(struct cli *cli)
{
	struct doctor d = { .cli = cli };
	bool quick = cli->given & OPTION_QUICK;

	if (quick && cli->given & OPTION_CLEAN)
		return cli_fail(cli, CLI_USAGE, "--quick and --clean exclude each other");
	if (cli->given & OPTION_CLEAN)
		return doctor_clean(cli);
	if (cli->given & OPTION_YES)
		return cli_fail(cli, CLI_USAGE, "--yes is for doctor --clean");
	if (cli->json)
		d.probes = json_array();
	if (quick) {
		doctor_section(&d, "daemon");
		doctor_quick(&d);
		return doctor_sum_up(&d);
	}
	doctor_section(&d, "system");
	doctor_system(&d);
	doctor_section(&d, "memory");
	doctor_memory(&d);
	doctor_section(&d, "daemon");
	doctor_daemons(&d);
	doctor_exchange(&d);
	doctor_section(&d, "gpu");
	doctor_gpus(&d);
	doctor_daemon_end();
	return doctor_sum_up(&d);
}
