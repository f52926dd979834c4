# SPDX-License-Identifier: Apache-2.0
"""One section of the benchmarks, quickly, on the simulator: the report is written, whole, and names what it is."""

import json
import pathlib
import subprocess
import tempfile
import unittest

RUN = pathlib.Path(__file__).resolve().parents[2] / "bench" / "run.sh"


class Report(unittest.TestCase):
    def test_a_section_makes_a_report(self):
        with tempfile.TemporaryDirectory() as out:
            run = subprocess.run(
                [RUN, "--quick", "--simulated", "--section", "hand_over", "--out", out],
                capture_output=True, text=True, check=False, timeout=120)
            self.assertEqual(run.returncode, 0, run.stderr)
            report = json.loads((pathlib.Path(out) / "report.json").read_text())
            self.assertTrue(report["simulated"])
            (section,) = report["sections"]
            self.assertEqual([figure["id"] for figure in section["figures"]], ["CS-HO-1", "CS-HO-2"])
            for figure in section["figures"]:
                self.assertIsInstance(figure["value"], float)
            self.assertEqual(report["plots"], ["hand_over.svg"])
            self.assertIn("<svg", (pathlib.Path(out) / "hand_over.svg").read_text())
            text = (pathlib.Path(out) / "report.txt").read_text()
            self.assertIn("every figure below is simulated", text)
            self.assertIn("CS-HO-1", text)

    def test_an_unknown_section_is_refused(self):
        run = subprocess.run([RUN, "--section", "everything"], capture_output=True, text=True, check=False, timeout=60)
        self.assertEqual(run.returncode, 2)
        self.assertIn("hand_over", run.stderr)


if __name__ == "__main__":
    unittest.main()
