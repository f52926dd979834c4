#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a slice tells of its memory, to its own processes and to who looks from outside, while several of them use it."""

import json
import os
import pathlib
import random
import re
import signal
import sys
import time
import unittest

from verify.lab import GIB, MIB, Lab, Slice

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from told_tenant import DriverTenant  # noqa: E402

OUT_OF_MEMORY = 2


class SliceTells(unittest.TestCase):
    def setUp(self):
        self.lab = Lab(simulate=True)
        self.addCleanup(self.lab.close)

    def hold(self, memory):
        held = self.lab.hold(Slice(memory, compute=50, name="job"))
        held.__enter__()
        self.addCleanup(held.__exit__)
        return held

    def ctl(self, *arguments, status=0):
        done = self.lab.run([self.lab.program("cuslicectl"), *arguments], timeout=30)
        self.assertEqual(done.status, status, done.describe())
        return done.output

    def broker(self):
        """The pid of the one that answers, if one does."""
        served = re.search(r"served by broker (\d+)", self.ctl("explain", "job"))
        return int(served.group(1)) if served else None

    def explained(self):
        return json.loads(self.ctl("explain", "job", "--json"))

    def agreed_look(self, tenants):
        """What each of them and the outside see, which must be the same and add up. The broker measures now and then, so
        only what lies between two looks that are alike counts."""
        looks, before = [each.do("look") for each in tenants], None
        for _ in range(20):
            outside = self.explained()["gpus"][0]
            before, looks = looks, [each.do("look") for each in tenants]
            if before == looks:
                break
        self.assertEqual(before, looks)
        first = looks[0]
        for look in looks[1:]:
            self.assertEqual(look, first)
        used = first["total"] - first["free"]
        self.assertEqual(first["nvml"], {"free": first["free"], "total": first["total"], "used": used})
        self.assertEqual(sum(first["processes"].values()), used)
        self.assertEqual((outside["quota_bytes"], outside["free_bytes"]), (first["total"], first["free"]))
        return first

    def test_free_never_rises_while_programs_only_take(self):
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        chance = random.Random(seed)
        held = self.hold("4GiB")
        tenants = [DriverTenant(held)]
        least = tenants[0].do("look")["free"]
        refused = 0
        while refused < 4:
            tenant = chance.choice(tenants)
            room_for_one = len(tenants) < 3 and least > GIB
            way = chance.choices(["take", "take_pool", "context", "start"], [8, 6, 1, 2 if room_for_one else 0])[0]
            if way == "start":
                tenants.append(DriverTenant(held))
            elif way == "context":
                refused += tenant.do("context") == OUT_OF_MEMORY
            else:
                refused += tenant.do(way, chance.choice([1, 3, 17, 64, 200])) == OUT_OF_MEMORY
            free = self.agreed_look(tenants)["free"]
            self.assertLessEqual(free, least, f"{way} by one of {len(tenants)}")
            least = free
        # Small allocations share a granule of 2 MiB, of which each process is charged once for what is left of it, when the
        # broker has seen that it was taken: it looks every second.
        used, granules = self.lab.truth().used_bytes, len(tenants) * 2 * MIB
        deadline = time.monotonic() + 20
        while 4 * GIB - least < used and time.monotonic() < deadline:
            free = self.agreed_look(tenants)["free"]
            self.assertLessEqual(free, least)
            least = free
        self.assertTrue(0 <= 4 * GIB - least - used <= granules, f"{4 * GIB - least} shown as used, {used} are")

    def test_the_first_refusal_says_who_has_the_memory_and_explain_knows_it_too(self):
        held = self.hold("4GiB")
        peers = [DriverTenant(held) for _ in range(5)]
        for peer, mib in zip(peers, (10, 20, 300, 200, 400)):
            self.assertEqual(peer.do("take", mib), 0)
        self.assertEqual(peers[4].do("take_pool", 32), 0)
        victim = DriverTenant(held)
        self.assertEqual(victim.do("take", 2048), OUT_OF_MEMORY)
        self.assertEqual(victim.do("take_pool", 3000), OUT_OF_MEMORY)
        lines = victim.end().splitlines()
        self.assertEqual(len(lines), 1, lines)
        by_pid = {process["pid"]: process for process in self.explained()["processes"]}

        def shown(peer):
            return rf"python3 \(pid {peer.pid}\) [0-9.]+ (MiB|GiB)"

        self.assertRegex(
            lines[0],
            r"^cuslice: slice job: cuMemAlloc of 2 GiB refused: the slice has 4 GiB of GPU 0, [0-9.]+ GiB in use: "
            + f"this process, {shown(victim)}, {shown(peers[4])}, {shown(peers[2])}, {shown(peers[3])}, "
            + "and 2 more [0-9.]+ (MiB|GiB); of this, the driver's own [0-9.]+ GiB; other processes' memory pools, "
            + r"which only they can empty, 32 MiB\. Further refusals are not printed: cuslicectl explain job has them\.$",
        )
        self.assertEqual(by_pid[peers[4].pid]["memory"][0]["pooled_bytes"], 32 * MIB)

        refusals = self.explained()["refusals"]
        self.assertEqual([(refusal["function"], refusal["request_bytes"], refusal["pid"]) for refusal in refusals],
                         [("cuMemAlloc", 2 * GIB, victim.pid), ("cuMemAllocAsync", 3000 * MIB, victim.pid)])
        for refusal in refusals:
            self.assertEqual((refusal["name"], refusal["quota_bytes"]), ("python3", 4 * GIB))
            self.assertEqual(refusal["peer_pooled_bytes"], 32 * MIB)
            self.assertGreater(refusal["overhead_bytes"], 6 * 64 * MIB)
        text = self.ctl("explain", "job")
        self.assertRegex(text, rf"{peers[4].pid} +python3 +[0-9.]+ [MG]iB +432 MiB +32 MiB ")
        self.assertIn("torch.cuda.empty_cache()", text)
        self.assertIn("cuslicectl set job --memory", text)
        self.assertRegex(text, rf"{victim.pid} +python3 +cuMemAllocAsync +2.9 GiB ")

    def test_a_quota_follows_set_at_once_and_survives_the_broker(self):
        held = self.hold("8GiB")
        tenant = DriverTenant(held)
        for _ in range(12):
            self.assertEqual(tenant.do("take", 256), 0)

        told = self.ctl("set", "job", "--memory", "2GiB")
        self.assertRegex(told, r"are in use on GPU-\S+: no new memory until 1\.[0-9] GiB were given back")
        self.assertRegex(self.ctl("ls"), r"over quota by 1\.[0-9] GiB: no new memory")
        self.assertRegex(self.ctl("explain", "job"), r"over quota by 1\.[0-9] GiB: no new memory")
        look = tenant.do("look")
        self.assertEqual((look["total"], look["free"]), (2 * GIB, 0))
        self.assertEqual(look["nvml"], {"free": 0, "total": 2 * GIB, "used": 2 * GIB})
        self.assertEqual(tenant.do("take", 1), OUT_OF_MEMORY)
        for _ in range(5):
            self.assertEqual(tenant.do("free"), 0)
        self.assertEqual(tenant.do("take", 1), OUT_OF_MEMORY)  # still over
        for _ in range(2):
            self.assertEqual(tenant.do("free"), 0)
        self.assertNotIn("over quota", self.ctl("ls"))
        self.assertEqual(tenant.do("take", 1), 0)

        self.ctl("set", "job", "--memory", "12GiB")
        self.assertEqual(tenant.do("take", 9 * 1024), 0)

        os.kill(self.broker(), signal.SIGKILL)
        self.assertIsNone(self.broker())
        self.lab.start([self.lab.program("cusliced"), "--transient"])
        deadline = time.monotonic() + 20
        while self.broker() is None:
            self.assertLess(time.monotonic(), deadline)
        refused = self.lab.run([self.lab.program("cuslicectl"), "set", "job", "--memory", "900GiB"], timeout=30)
        self.assertEqual(refused.status, 1)
        self.assertRegex(refused.errors, "free")
        self.assertEqual(tenant.do("look")["total"], 12 * GIB)


if __name__ == "__main__":
    unittest.main()
