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

/* It is as if each wait was short, and the next one too. Returns how many waits sleep after a spin
 * in vain. */
static unsigned waits_after_vain_spin(struct spin *spin)
{
	unsigned waits = 0;

	spin_begin(spin);
	spin->pays = true;
	spin->begin_ns -= SPIN_NS;
	must(!spin_again(spin)); /* it has looked for long enough */
	spin_end(spin);
	for (bool spins = false; !spins; waits++) {
		spin_begin(spin);
		spin->pays = true;
		spins = spin->rest == 0;
		must(spins || !spin_again(spin));
	}
	return waits;
}

TEST(each_spin_in_vain_makes_more_waits_sleep)
{
	struct spin spin = { .pays = true };

	for (unsigned waits = SPIN_REST_MIN; waits < SPIN_REST_MAX; waits *= 2)
		must_be(waits_after_vain_spin(&spin), waits);
	must_be(waits_after_vain_spin(&spin), SPIN_REST_MAX);
	must_be(waits_after_vain_spin(&spin), SPIN_REST_MAX);
}

/* A daemon that sometimes takes long must not make all of its clients sleep. */
TEST(a_spin_that_succeeds_forgets_those_in_vain)
{
	struct spin spin = { .pays = true };

	must_be(waits_after_vain_spin(&spin), SPIN_REST_MIN);
	must_be(waits_after_vain_spin(&spin), 2 * SPIN_REST_MIN);
	eventually((spin_begin(&spin), spin.pays = true, spin.rest = 0, spin_again(&spin)) &&
		   (spin_end(&spin), spin.last_rest == 0));
	must_be(waits_after_vain_spin(&spin), SPIN_REST_MIN);
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
