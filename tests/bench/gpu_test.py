# SPDX-License-Identifier: Apache-2.0
"""Programs in slices on a GPU: `gpu_test.py --real|--simulated [CASE...]`.

With --real and no GPU the exit status is 77: skipped. On the simulator the same cases show that they can pass and fail.
"""

import sys
import unittest

from verify import loads
from verify.contest import contest
from verify.cost_claims import TRAINING
from verify.lab import GIB, MIB, Lab, Slice, real_gpu_name
from verify.memory_claims import POOL_APIS, clients_python, most_left
from verify.timelines import shares

SKIPPED = 77
# Each sample with what keeps it short.
SAMPLES = {
    "busy": ("--seconds", 1, "--streams", 3),
    "launch_sync": ("--seconds", 1),
    "graph_replay": ("--seconds", 1),
    "request_loop": ("--seconds", 1),
    "stream_capture": (),
    "multi_process": ("--rounds", 5, "--chunk-mib", 512),
}
QUOTA = 4 * GIB


class Gpu(unittest.TestCase):
    simulate = True

    def setUp(self):
        self.lab = Lab(simulate=self.simulate)
        self.addCleanup(self.lab.close)

    def test_samples_run_in_a_slice(self):
        for name, options in SAMPLES.items():
            with self.subTest(name):
                self.lab.start(self.lab.sample(name, *options), Slice("4GiB", compute=50)).finish()

    def test_every_kind_of_launch(self):
        for form in ("cooperative", "cluster", "overlapped"):
            with self.subTest(form):
                result = self.lab.run(
                    self.lab.sample("launch_forms", "--seconds", 1, "--form", form), Slice("4GiB", compute=50)
                )
                if "this GPU has no" not in result.errors:
                    self.assertTrue(result.succeeded, result.describe())

    def test_same_results_as_without_a_slice(self):
        programs = sorted((self.lab.build / "bin" / "samples").glob("runtime_check-*"))
        self.assertTrue(programs)
        for program in programs:
            with self.subTest(program.name):
                plain, sliced = self.lab.run([program]), self.lab.run([program], Slice("4GiB", compute=50))
                self.assertTrue(plain.succeeded, plain.describe())
                self.assertEqual(plain.output, sliced.output, sliced.errors)

    def test_memory_is_refused_at_the_quota(self):
        for api in ("malloc", "pitch", "managed", "async", "pool", "vmm", "array", "mipmap"):
            with self.subTest(api):
                result = self.lab.start(self.lab.sample("hog", "--api", api), Slice("4GiB", compute=50)).finish()
                seen = result.json["apis"][0]
                self.assertEqual(seen["error"], 2)
                self.assertEqual(seen["total_bytes"], QUOTA)
                self.assertLessEqual(seen["free_refused_bytes"], most_left(api))
                self.assertEqual(seen["taken_again_bytes"], seen["taken_bytes"])
                # A context is a GiB at the very most.
                self.assertGreater(seen["taken_bytes"], QUOTA - GIB - (32 * MIB if api in POOL_APIS else 0))

    def test_two_tenants_get_their_shares(self):
        timelines, begin, end = loads.pair_over_time(self.lab, (75, 25), 5)
        self.assertAlmostEqual(shares(timelines, begin, end)[0], 0.75, delta=0.03)

    def test_a_cap_holds(self):
        terms = Slice("50%", compute=25, compute_limit=25)
        rates = [contest(self.lab, [(own, ())], 3).rate(0) for own in (None, terms)]
        self.assertAlmostEqual(rates[1] / rates[0], 0.25, delta=0.03)

    def test_a_training_loop_runs(self):
        python = clients_python()
        if not python:
            self.skipTest("PyTorch is not here")
        self.lab.start([python, TRAINING, "2", "96", "16"], Slice("8GiB", compute=50)).finish(240)


def main():
    where, cases = sys.argv[1], sys.argv[2:]
    if where not in ("--real", "--simulated"):
        sys.exit(f"gpu_test.py: '{where}': --real or --simulated is needed")
    if where == "--real" and real_gpu_name() is None:
        print("skipped: there is no GPU here")
        sys.exit(SKIPPED)
    Gpu.simulate = where == "--simulated"
    unittest.main(argv=[sys.argv[0], *(f"Gpu.test_{case}" for case in cases)])


if __name__ == "__main__":
    main()
