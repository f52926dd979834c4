# SPDX-License-Identifier: Apache-2.0
"""Unmodified tools that watch GPUs, in a slice: nvidia-ml-py, gpustat and nvitop show the slice, and nothing of a neighbour
that keeps the rest of the GPU busy."""

import json
import subprocess
import time
import unittest

from verify.lab import GIB, MIB, Lab, Slice
from verify.memory_claims import clients_python

QUOTA = 8 * GIB

# Everything that nvidia-smi's summary, -q and --query-gpu print of memory, processes and use, by the same functions.
BINDING = """
import json, pynvml as n
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
first, second = n.nvmlDeviceGetMemoryInfo(gpu), n.nvmlDeviceGetMemoryInfo(gpu, version=n.nvmlMemory_v2)
window, rates = n.nvmlDeviceGetBAR1MemoryInfo(gpu), n.nvmlDeviceGetUtilizationRates(gpu)
try:
    busy = {sample.pid: sample.smUtil for sample in n.nvmlDeviceGetProcessUtilization(gpu, 0)}
except n.NVMLError_NotFound:
    busy = {}
print(json.dumps({
    "total": [first.total, second.total, window.bar1Total, n.nvmlDeviceGetAttributes_v2(gpu).memorySizeMB << 20],
    "used": [first.used, second.used], "free": [first.free, second.free],
    "processes": {p.pid: p.usedGpuMemory for p in n.nvmlDeviceGetComputeRunningProcesses(gpu)},
    "graphics": len(n.nvmlDeviceGetGraphicsRunningProcesses(gpu)), "use": rates.gpu, "busy": busy}))
"""

# Over some seconds, as single ones are of a second or less.
MEAN_USE = """
import pynvml as n, time
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
uses = []
for _ in range(16):
    uses.append(n.nvmlDeviceGetUtilizationRates(gpu).gpu)
    time.sleep(0.25)
print(sum(uses) / len(uses))"""

NVITOP = """
import json, nvitop
gpu = nvitop.Device(0)
print(json.dumps({
    "total": gpu.memory_total(), "used": gpu.memory_used(), "free": gpu.memory_free(), "use": gpu.gpu_utilization(),
    "processes": {pid: process.gpu_memory() for pid, process in gpu.processes().items()}}))
"""


class NvmlTools(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.python = clients_python()

    def setUp(self):
        self.assertTrue(self.python, "the tools are not here: run scripts/setup.sh --clients")
        self.lab = Lab(simulate=True)
        self.addCleanup(self.lab.close)
        self.mine = self.hold(Slice("8GiB", compute=25, name="mine"))
        self.other = self.hold(Slice("20GiB", compute=75, name="other"))

    def hold(self, terms):
        held = self.lab.hold(terms)
        held.__enter__()
        self.addCleanup(held.__exit__)
        return held

    def shown(self, *command):
        """What a tool prints as JSON that runs in the slice."""
        done = self.mine.start([self.python, *command]).wait(60)
        self.assertEqual(done.status, 0, done.describe())
        return json.loads(done.output)

    def work(self, held, seconds):
        tenant = held.start(self.lab.sample("busy", "--seconds", seconds, "--kernel-us", 500))
        deadline = time.monotonic() + 30
        while not (using := [pid for pid in self.lab.truth().processes if tenant.owns(pid)]):
            self.assertTrue(tenant.running() and time.monotonic() < deadline, tenant.output())
            time.sleep(0.01)
        return using[0]

    def check(self, own_pid, is_used):
        """All tools, while `own_pid` is the slice's only process with memory."""
        direct = self.shown("-c", BINDING)
        used = direct["used"][0]
        self.assertEqual(direct["total"], [QUOTA] * 4)
        self.assertEqual(direct["used"], [used, used])
        self.assertEqual(direct["free"], [QUOTA - used] * 2)
        self.assertEqual(direct["processes"], {str(own_pid): used})
        self.assertEqual(direct["graphics"], 0)
        self.assertLessEqual(set(direct["busy"]), {str(own_pid)})
        self.assertLessEqual(max(direct["busy"].values(), default=0), 100)

        monitor = self.shown("-c", NVITOP)
        self.assertEqual((monitor["total"], monitor["used"], monitor["free"]), (QUOTA, used, QUOTA - used))
        self.assertEqual(monitor["processes"], {str(own_pid): used})

        [stat] = self.shown("-m", "gpustat", "--json")["gpus"]
        self.assertEqual((stat["memory.total"], stat["memory.used"]), (QUOTA // MIB, used // MIB))
        self.assertEqual([(p["pid"], p["gpu_memory_usage"]) for p in stat["processes"]], [(own_pid, used // MIB)])

        for tool, use in (("nvidia-ml-py", direct["use"]), ("nvitop", monitor["use"]), ("gpustat", stat["utilization.gpu"])):
            with self.subTest(tool):
                self.assertTrue(is_used(use), f"{use} % used")

    def test_a_slice_that_gets_its_share_is_shown_as_used(self):
        self.work(self.other, 40)
        own_pid = self.work(self.mine, 40)
        time.sleep(2.5)  # until the last second is one of both
        self.check(own_pid, lambda use: 1 <= use <= 100)
        before = self.lab.truth()
        shown = self.shown("-c", MEAN_USE)
        after = self.lab.truth()
        received = after.processes[own_pid].busy_ns - before.processes[own_pid].busy_ns
        of_share = min(100, 100 * received / (after.now_ns - before.now_ns) / 0.25)
        self.assertLess(abs(shown - of_share), 25, f"{shown} % shown, {of_share:.0f} % of the share received")

    def test_a_slice_that_does_nothing_is_shown_as_idle_beside_a_busy_one(self):
        self.work(self.other, 40)
        holder = self.mine.start([self.lab.program("tests/hold_memory"), 512], stdin=subprocess.PIPE)
        holder.wait_for_line("holds")
        [own_pid] = [pid for pid in self.lab.truth().processes if holder.owns(pid)]
        time.sleep(2.5)
        self.check(own_pid, lambda use: use == 0)

    def test_a_slice_alone_is_shown_as_used_and_never_more(self):
        own_pid = self.work(self.mine, 40)
        time.sleep(2.5)
        self.check(own_pid, lambda use: use == 100)

    def test_the_tools_screens_show_no_neighbour(self):
        neighbour = self.work(self.other, 40)
        own_pid = self.work(self.mine, 40)
        for command in (["-m", "nvitop", "--once", "--no-unicode"], ["-m", "gpustat", "--show-pid"]):
            done = self.mine.start([self.python, *command], {"COLUMNS": "120"}).wait(60)
            self.assertEqual(done.status, 0, done.describe())
            self.assertIn(str(own_pid), done.output)
            self.assertNotIn(str(neighbour), done.output)
            self.assertRegex(done.output, r"8\.00GiB|8192 MB|8192MiB")


if __name__ == "__main__":
    unittest.main()
