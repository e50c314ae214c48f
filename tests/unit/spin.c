/* SPDX-License-Identifier: Apache-2.0 */
/* Waits that are short are spun for, and no others. */
#include "util/spin.h"
#include "tests/harness/harness.h"

TEST(nobody_spins_after_a_long_wait)
{
	struct spin spin = { .begin_ns = now_mono_ns() - SPIN_NS };

	spin_end(&spin);
	spin_begin(&spin);
	must(!spin_again(&spin));
}

/* It is as if each wait was short, and the next one too. */
TEST(after_a_spin_in_vain_the_next_waits_sleep)
{
	struct spin spin = { .pays = true, .begin_ns = now_mono_ns() - SPIN_NS };

	must(!spin_again(&spin)); /* it has looked for long enough */
	for (unsigned i = 1; i < SPIN_REST; i++) {
		spin_begin(&spin);
		spin.pays = true;
		must(!spin_again(&spin));
	}
	eventually((spin_begin(&spin), spin.pays = true, spin.rest == 0 && spin_again(&spin)));
}

/* Another process may have the processor at any time, so it takes some attempts. */
TEST(a_short_wait_makes_the_next_one_spin)
{
	struct spin spin = { .pays = false };

	eventually((spin_begin(&spin), spin_end(&spin), spin_begin(&spin), spin_again(&spin)));
}

int main(void)
{
	return suite_run();
}
