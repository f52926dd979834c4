#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Processes that come and go in every way a program may, in a slice with a broker. CUSLICE_LONG_TESTS=1: the long forms."""

import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import time
import unittest

from verify.lab import GIB, Lab, Slice

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from told_tenant import DriverTenant  # noqa: E402

EVADER = pathlib.Path(__file__).resolve().parent / "evader.py"
LONG = os.environ.get("CUSLICE_LONG_TESTS") == "1"
OUT_OF_MEMORY = 2
NOT_READY = "802"
SLOTS = 2048
# Of shm/layout.h, in `state`.
SLOTS_HIGH_AT = 24
SLOTS_AT = 4608
SLOT_BYTES = 64
LEDGER_AT = 266752
VERSION_AT = 8


def can(*command):
    """Whether this machine lets us."""
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0


def eventually(seconds, done):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if done():
            return True
        time.sleep(0.02)
    return bool(done())


class Lifecycle(unittest.TestCase):
    def setUp(self):
        self.lab = Lab(simulate=True)
        self.addCleanup(self.lab.close)

    def hold(self, memory="4GiB", name="job", **terms):
        held = self.lab.hold(Slice(memory, name=name, **{"compute": 40, **terms}))
        held.__enter__()
        self.addCleanup(held.__exit__)
        return held

    def program(self, name):
        return self.lab.build / "bin/tests" / name

    def ctl(self, *arguments):
        done = self.lab.run([self.lab.program("cuslicectl"), *arguments], timeout=30)
        self.assertEqual(done.status, 0, done.describe())
        return done.output

    def slice(self, name="job"):
        return next(each for each in self.lab.slices()["slices"] if each["id"] == name)

    def used(self, name="job"):
        return self.slice(name)["gpus"][0]["used_bytes"]

    def pids(self, name="job"):
        return {process["pid"] for process in self.slice(name)["processes"]}

    def becomes_empty(self, name="job"):
        """Nobody in it, nothing charged: all was given back."""
        return eventually(10, lambda: not self.pids(name) and self.used(name) == 0)

    def crowd(self, held, count, before=()):
        crowd = held.start([*before, self.program("crowd"), count], stdin=subprocess.PIPE)
        crowd.wait_for_line("{", 120)
        return crowd, json.loads(crowd.output())

    def end(self, crowd):
        crowd.stdin.close()
        return crowd.wait(60)

    def holder(self, held, mib, before=(), environment=None):
        """A process that has so much memory. Returns it and its pid as it knows it."""
        tenant = held.start([*before, self.program("hold_memory"), mib], environment, stdin=subprocess.PIPE)
        tenant.wait_for_line("holds", 60)
        eventually(10, lambda: tenant.output().count("\n") >= 2)
        return tenant, int(tenant.output().splitlines()[1])

    # --- Crowds

    def test_300_processes_start_at_once_and_end_at_once(self):
        held = self.hold()
        crowd, told = self.crowd(held, 300)
        print(told)
        self.assertEqual(told["results"], {"0": 300})
        # All of them are known to the broker as the processes that they are.
        self.assertEqual(self.pids(), set(crowd.processes("crowd")) - {crowd.pid})
        os.killpg(crowd.pid, signal.SIGKILL)
        self.assertTrue(self.becomes_empty())

    @unittest.skipUnless(can("unshare", "-pf", "--mount-proc"), "no pid namespaces here")
    def test_a_crowd_in_another_pid_namespace_starts_at_once(self):
        held = self.hold()
        crowd, told = self.crowd(held, 200, ["unshare", "-pf", "--mount-proc"])
        print(told)
        self.assertEqual(told["results"], {"0": 200})
        self.assertEqual(len(self.pids()), 200)
        os.killpg(crowd.pid, signal.SIGKILL)
        self.assertTrue(self.becomes_empty())

    def test_a_process_too_many_is_told_and_harms_nobody(self):
        held, other = self.hold(), self.hold(name="other")
        neighbour = DriverTenant(other)
        spare = 5
        if LONG:
            crowd, told = self.crowd(held, SLOTS + spare)
            self.assertEqual(told["results"], {"0": SLOTS, NOT_READY: spare})
        else:
            self.fill_slots(held.directory / "state", SLOTS - 20, os.getpid())
            crowd, told = self.crowd(held, 20 + spare)
            self.assertEqual(told["results"], {"0": 20, NOT_READY: spare})
        self.assertEqual(neighbour.do("take", 1024), 0)
        lines = self.end(crowd).errors.splitlines()
        self.assertEqual(len(lines), spare, lines)
        for line in lines:
            self.assertRegex(line, r"^cuslice: the GPU is refused to this process: slice .*: all its 2048 process slots "
                                   r"are taken; end some of its processes$")
        self.assertEqual(neighbour.do("free"), 0)
        # Room again.
        crowd, told = self.crowd(held, spare)
        self.assertEqual(told["results"], {"0": spare})

    def fill_slots(self, state, count, pid):
        """As if a living process were in each of the first `count` slots."""
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            start_time = int(stat.read().rsplit(")", 1)[1].split()[19])
        namespace = os.stat("/proc/self/ns/pid").st_ino
        with open(state, "r+b") as file:
            for slot in range(count):
                file.seek(SLOTS_AT + SLOT_BYTES * slot)
                owner, = struct.unpack("<I", file.read(4))
                file.seek(SLOTS_AT + SLOT_BYTES * slot)
                # Owner; then pid, pid namespace and start time, each with the generation above it.
                generation = (owner >> 16) << 48
                words = [generation | value for value in (pid, namespace, start_time)]
                file.write(struct.pack("<IIQQQ", owner | 1, 0, *words))
            file.seek(SLOTS_HIGH_AT)
            file.write(struct.pack("<I", count))

    # --- Namespaces and users

    def uses_its_quota_and_gives_it_back(self, held, before):
        """Processes that are started so get what the slice has and no more, and are reaped when they are killed."""
        tenant, _ = self.holder(held, 3072, before)
        self.assertTrue(eventually(5, lambda: len(self.pids()) == 1 and self.used() >= 3 * GIB))
        host_pid = next(iter(self.pids()))
        # By the pid that the node knows it by.
        self.assertEqual(pathlib.Path(os.readlink(f"/proc/{host_pid}/exe")).name, "hold_memory")
        self.assertIn(host_pid, self.lab.truth().processes)
        refused = held.start([*before, self.program("hold_memory"), 512]).wait(30)
        self.assertIn("refused: the slice has 4 GiB", refused.errors)
        self.assertTrue(eventually(10, lambda: self.pids() == {host_pid}))
        os.kill(host_pid, signal.SIGKILL)
        self.assertTrue(self.becomes_empty())
        tenant.wait(10)

    @unittest.skipUnless(can("unshare", "-pf", "--mount-proc"), "no pid namespaces here")
    def test_in_a_pid_namespace(self):
        self.uses_its_quota_and_gives_it_back(self.hold(), ["unshare", "-pf", "--mount-proc"])

    @unittest.skipUnless(can("unshare", "-pf"), "no pid namespaces here")
    def test_in_a_pid_namespace_with_the_proc_of_another_nobody_is_taken_for_dead(self):
        broker = self.broker()
        held = self.hold()
        self.crash(broker)  # peers look after each other now
        # Two that hold at the same time: the second to attach looks whether the first is alive.
        both = held.start(["unshare", "-pf", "sh", "-c", 'sleep 60 | "$0" 1024 & sleep 1; sleep 60 | "$0" 1024',
                           self.program("hold_memory")])
        self.assertTrue(eventually(30, lambda: both.output().count("holds") == 2), both.output())
        self.assertGreaterEqual(self.used(), 2 * GIB)
        both.kill()

    @unittest.skipUnless(can("unshare", "-Ur"), "no user namespaces here")
    def test_in_a_user_namespace(self):
        self.uses_its_quota_and_gives_it_back(self.hold(), ["unshare", "-Ur"])

    @unittest.skipUnless(can("unshare", "-Urpf", "--mount-proc"), "no user namespaces here")
    def test_in_a_user_and_pid_namespace(self):
        self.uses_its_quota_and_gives_it_back(self.hold(), ["unshare", "-Urpf", "--mount-proc"])

    def container(self, held, program, user=0):
        """The command that runs a program as a container has it: root read-only, the slice mounted read-only but for
        `state`, the library in /etc/ld.so.preload, and nothing of it in the environment."""
        preload = self.lab.directory / "preload"
        preload.write_text("\n".join(held.environment["LD_PRELOAD"].split(":")) + "\n")
        self.lab.directory.chmod(0o755)
        self.lab.run_directory.chmod(0o755)
        node = self.lab.directory / "node"
        node.chmod(0o755)
        for file in node.iterdir():
            file.chmod(0o666)
        mounted = "/run/cuslice/slice/main"
        script = f"""
            set -e
            mount -t tmpfs none /run && mkdir -p {mounted} /run/etc
            mount --bind {held.directory} {mounted} && mount -o remount,bind,ro {mounted}
            mount --bind {held.directory}/state {mounted}/state
            cp -a /etc/. /run/etc && cp {preload} /run/etc/ld.so.preload && mount --bind /run/etc /etc
            mount -o remount,bind,ro / && mount -o remount,ro /run
            exec "$@" """
        bare = ["env", "-i"] + [f"{name}={held.environment[name]}" for name in ("LD_LIBRARY_PATH", "SIMGPU_NODE")]
        as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs"] if user else []
        return ["env", "-u", "LD_PRELOAD", "unshare", "-m", "sh", "-c", script, "sh", *as_user, *bare, *program]

    @unittest.skipUnless(os.geteuid() == 0 and can("unshare", "-m"), "needs root and mount namespaces")
    def test_in_a_container_with_a_read_only_root_and_as_another_user(self):
        held = self.hold()
        for user in (0, 1000):
            run = held.start(self.container(held, ["touch", "/etc/x"], user)).wait(30)
            self.assertIn("Read-only file system", run.errors)
            if held.start(self.container(held, ["test", "-x", self.program("hold_memory")], user)).wait(30).status != 0:
                self.skipTest("another user cannot run what was built here")
            self.uses_its_quota_and_gives_it_back(held, self.container(held, [], user))

    # --- What programs do with themselves

    def test_a_daemon_that_closes_every_descriptor_keeps_what_it_holds_until_it_dies(self):
        held = self.hold()
        told = self.lab.directory / "daemon"
        parent = held.start([self.program("daemon"), 1024, told])
        self.assertEqual(parent.wait(30).status, 0)
        self.assertTrue(eventually(20, told.exists))
        pid = int(told.read_text())
        self.assertEqual(self.pids(), {pid})
        self.assertGreaterEqual(self.used(), GIB)
        refused = held.start([self.program("hold_memory"), 3072]).wait(30)
        self.assertIn("refused: the slice has 4 GiB", refused.errors)
        os.kill(pid, signal.SIGKILL)
        self.assertTrue(self.becomes_empty())

    @unittest.skipUnless(os.geteuid() == 0 and can("unshare", "-m"), "needs root and mount namespaces")
    def test_a_child_without_environment_is_in_the_containers_slice(self):
        held = self.hold()
        self.uses_its_quota_and_gives_it_back(held, self.container(held, []))

    def test_a_child_without_environment_is_found_where_only_the_environment_names_the_slice(self):
        held = self.hold()
        bare = ["env", "-i"] + [f"{name}={held.environment[name]}" for name in ("LD_LIBRARY_PATH", "SIMGPU_NODE")]
        # A child of what `cuslicectl run` started, which the holder of a slice has none of.
        command = ["sh", "-c", 'sleep 60 | "$@"', "sh", *bare, self.program("hold_memory"), "512"]
        owner = self.lab.start(command, Slice("1GiB", compute=10, name="owned"))
        self.assertTrue(eventually(15, lambda: '"state": "bypassed"' in json.dumps(self.lab.slices())))
        self.assertRegex(self.ctl("explain", "owned"), r"Past the limits: process \d+ \(hold_memory\) holds [0-9.]+ MiB on GPU 0 and never attached")
        owner.kill()

    # --- Processes that go past their slice

    def evade(self, way, mib, held):
        return held.start(["python3", EVADER, way, mib], stdin=subprocess.PIPE)

    def is_found(self, words):
        self.assertTrue(eventually(20, lambda: words in self.ctl("explain", "job")), self.ctl("explain", "job"))

    def test_a_copied_driver_is_found_and_charged_and_blocked(self):
        held = self.hold("4GiB")
        evader = self.evade("copy", 6144, held)
        evader.wait_for_line("holds")
        self.assertIn("cuMemAlloc_v2 0\n", evader.output())
        self.is_found("(python3) holds 6.4 GiB on GPU 0 and never attached")
        self.assertRegex(self.ctl("explain", "job"), r"\n  6.4 GiB of processes that never attached, named below\n")
        self.assertNotIn("have ended", self.ctl("explain", "job"))
        self.assertEqual(self.used(), self.lab.truth().used_bytes)
        # Nobody of the slice gets more on top of that; by policy nobody gets anything.
        honest = held.start([self.program("hold_memory"), 16]).wait(30)
        self.assertNotIn("holds", honest.output)
        self.ctl("set", "job", "--bypass", "block")
        self.assertEqual(self.slice()["state"], "blocked: bypassed")
        evader.kill()
        self.assertTrue(self.becomes_empty())
        self.assertTrue(eventually(10, lambda: self.slice()["state"] != "blocked: bypassed"))
        self.holder(held, 1024)

    def test_a_bypass_is_ended_by_policy_and_nobody_else(self):
        held, other = self.hold("4GiB"), self.hold("4GiB", name="other")
        honest, neighbour = DriverTenant(held), DriverTenant(other)
        self.ctl("set", "job", "--bypass", "kill")
        evader = self.evade("copy", 1024, held)
        self.assertEqual(evader.wait(30).status, -signal.SIGKILL)
        self.assertEqual((honest.do("take", 64), neighbour.do("take", 64)), (0, 0))

    def test_the_drivers_own_file_in_a_namespace_of_dlmopen_is_ours(self):
        evader = self.evade("namespace", 6144, self.hold("4GiB"))
        evader.wait_for_line("holds")
        self.assertIn(f"cuMemAlloc_v2 {OUT_OF_MEMORY}\n", evader.output())

    def test_a_driver_opened_to_bind_deeply_is_ours(self):
        evader = self.evade("deepbind", 6144, self.hold("4GiB"))
        evader.wait_for_line("holds")
        self.assertIn(f"cuMemAlloc_v2 {OUT_OF_MEMORY}\n", evader.output())

    def test_a_process_that_goes_past_the_hooks_is_found(self):
        evader = self.evade("entry", 6144, self.hold("4GiB"))
        evader.wait_for_line("holds")
        self.assertIn("cuMemAlloc_v2 0\n", evader.output())
        self.is_found("(python3) holds 6 GiB on GPU 0 more than it admits to")

    def test_a_process_that_strikes_out_what_it_holds_is_found(self):
        evader = self.evade("scribble", 3072, self.hold("4GiB"))
        evader.wait_for_line("cuMemAlloc_v2 0")
        used = self.lab.truth().used_bytes
        self.assertTrue(eventually(10, lambda: self.used() == used and '"estimated": true' not in self.ctl("explain", "job", "--json")))
        evader.stdin.write("\n")
        evader.stdin.flush()
        evader.wait_for_line("holds")
        self.is_found("(python3) holds 3 GiB on GPU 0 more than it admits to")
        self.assertEqual(self.used(), self.lab.truth().used_bytes)

    # --- A new broker under running programs

    def broker(self, before=()):
        broker = self.lab.start([*before, self.lab.program("cusliced")])
        self.addCleanup((self.lab.run_directory / "broker.sock").unlink, missing_ok=True)  # what close() waits for
        self.addCleanup(broker.kill)
        self.assertTrue(eventually(20, lambda: json.loads(
            self.lab.run([self.lab.program("cuslicectl"), "ls", "--json"]).output)["broker_answers"]))
        return broker

    def crash(self, broker):
        for pid in broker.processes("cusliced"):  # what was started is simgpu
            os.kill(pid, signal.SIGKILL)
        broker.wait(10)

    def test_programs_live_through_new_brokers(self):
        broker = self.broker()
        held = self.hold()
        tenants = [DriverTenant(held) for _ in range(3)]
        gone = DriverTenant(held)
        for _ in range(3):
            for tenant in tenants:
                self.assertEqual(tenant.do("take", 64), 0)
            self.crash(broker)
            # Without one the quota holds, and who comes now is found by the next broker.
            self.assertEqual(tenants[0].do("take", 4096), OUT_OF_MEMORY)
            tenants[0].do("take", 16)
            broker = self.broker()
            self.assertTrue(eventually(10, lambda: self.used() == self.lab.truth().used_bytes),
                            f"{self.used()} charged, {self.lab.truth().used_bytes} used")
            self.assertEqual(self.pids(), {each.pid for each in [*tenants, gone]})
        self.crash(broker)
        os.kill(gone.pid, signal.SIGKILL)
        late = DriverTenant(held)
        broker = self.broker()
        self.assertEqual(self.pids(), {each.pid for each in [*tenants, late]})
        for tenant in [*tenants, late]:
            tenant.end()
        self.assertTrue(self.becomes_empty())

    @unittest.skipUnless(can("unshare", "-pf", "--mount-proc"), "no pid namespaces here")
    def test_a_new_broker_in_another_pid_namespace_takes_nobody_for_dead(self):
        broker = self.broker()
        held = self.hold()
        recorded = DriverTenant(held)
        self.crash(broker)
        unrecorded = DriverTenant(held)
        tenants = [recorded, unrecorded]
        for tenant in tenants:
            self.assertEqual(tenant.do("take", 256), 0)
        broker = self.broker(before=["unshare", "-pf", "--mount-proc"])
        for tenant in tenants:
            self.assertEqual(tenant.do("take", 256), 0)
        self.assertEqual(tenants[0].do("take", 3072), OUT_OF_MEMORY)
        self.crash(broker)
        # Back where they are seen: they are as they were, and one that has gone is noticed.
        os.kill(unrecorded.pid, signal.SIGKILL)
        self.broker()
        self.assertTrue(eventually(10, lambda: self.used() == self.lab.truth().used_bytes))
        self.assertEqual(self.pids(), {recorded.pid})
        recorded.end()
        self.assertTrue(self.becomes_empty())

    def test_a_slice_of_another_layout_is_left_to_its_programs_until_it_is_released(self):
        broker = self.broker()
        held = self.hold()
        tenant = DriverTenant(held)
        self.crash(broker)
        for file in ("limits", "state"):
            with open(held.directory / file, "r+b") as words:
                words.seek(VERSION_AT)
                words.write(struct.pack("<I", 77))
        broker = self.broker()
        self.assertEqual(tenant.do("take", 1024), 0)  # by its own library
        self.assertEqual(tenant.do("take", 4096), OUT_OF_MEMORY)
        refused = held.start([self.program("hold_memory"), 16]).wait(30)
        self.assertIn("its format is of another cuslice version; use the library and the broker of one", refused.errors)
        listed = self.lab.run([self.lab.program("cuslicectl"), "ls", "--json"])
        self.assertIn("another cuslice version", listed.output)
        tenant.end()
        # Its owner ends and releases it, whatever its version.
        held.__exit__()
        self.assertEqual(self.lab.slices()["slices"], [])
        self.assertFalse(held.directory.exists())


if __name__ == "__main__":
    unittest.main()
