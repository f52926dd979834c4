#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which slices a process is in, and what happens where that can't be found out: session_test.py BUILD_DIR"""

import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import in_slice  # noqa: E402

BUILD = in_slice.Build(sys.argv[1])
NEEDS_DRIVER = BUILD.tests / "needs_driver"
TAKE = BUILD.tests / "take_to_refusal"
OFF_LIMITS = BUILD.tests / "other_gpus_are_off_limits"

VERSION_AT = 8  # in both files
FLAGS_AT = 96   # in limits
GPUS_AT = 320   # likewise; the first GPU's UUID
DRAINING = 2
COUNTERS_AT = 256      # in state
UNKNOWN_AT = 2363904   # likewise


def patch(path, offset, value):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(struct.pack("<I", value))


class SessionTest(unittest.TestCase):
    def setUp(self):
        self.node = in_slice.Node(BUILD, "--count", "2")
        self.node.__enter__()
        self.addCleanup(self.node.__exit__)

    def refused(self, *slices, because, **variables):
        """cuInit says that the system is not ready, and stderr why, in one line."""
        run = self.node.run(NEEDS_DRIVER, slices=slices, **variables)
        self.assertIn("cuInit 802", run.stdout)
        self.assertEqual(len(run.stderr.splitlines()), 1, run.stderr)
        self.assertRegex(run.stderr, "^cuslice: the GPU is refused to this process: ")
        self.assertIn(because, run.stderr)

    def test_functions_that_the_table_does_not_know_are_counted_and_named(self):
        directory = self.node.make_slice("slice", 2048)
        environment = self.node.environment([directory], LD_PRELOAD=BUILD.preload,
                                            LD_LIBRARY_PATH=str(BUILD.directory / "lib/newer_driver"))
        for process in (1, 2):
            subprocess.run([BUILD.tests / "needs_newer_driver"], env=environment, check=True, timeout=60)
            state = (directory / "state").read_bytes()
            # Looked up before the process had attached.
            self.assertEqual(struct.unpack_from("<Q", state, COUNTERS_AT + 8)[0], process)
            names = [entry[8:].rstrip(b"\0") for entry in
                     (state[at:at + 64] for at in range(UNKNOWN_AT, len(state), 64)) if any(entry)]
            self.assertEqual(names, [b"cuFunctionOfTheFuture"])

    # --- Closed

    def test_a_slice_of_another_version_is_refused(self):
        for file in ("limits", "state"):
            directory = self.node.make_slice(f"slice-{file}", 2048)
            patch(directory / file, VERSION_AT, 77)
            self.refused(directory, because="another cuslice version")

    def test_a_slice_that_nobody_finished_is_refused_after_a_moment(self):
        directory = self.node.make_slice("slice", 2048)
        patch(directory / "limits", VERSION_AT, 0)
        started = time.monotonic()
        self.refused(directory, because="has not finished")
        self.assertLess(time.monotonic() - started, 5)

    def test_a_slice_that_is_just_being_made_is_waited_for(self):
        directory = self.node.make_slice("slice", 2048)
        patch(directory / "limits", VERSION_AT, 0)
        later = threading.Timer(0.3, patch, (directory / "limits", VERSION_AT, 1))
        later.start()
        self.assertIn("cuInit 0,", self.node.run(NEEDS_DRIVER, slices=[directory]).stdout)
        later.join()

    def test_a_damaged_slice_is_refused(self):
        for file in ("limits", "state"):
            directory = self.node.make_slice(f"short-{file}", 2048)
            os.truncate(directory / file, 4096)
            self.refused(directory, because="shorter than the format")
            directory = self.node.make_slice(f"magic-{file}", 2048)
            patch(directory / file, 0, 1)
            self.refused(directory, because="not a slice")

    def test_a_slice_that_is_not_there_is_refused(self):
        self.refused(self.node.directory / "no-slice", because="not there")

    def test_a_directory_with_a_part_of_a_slice_is_refused(self):
        empty = self.node.directory / "empty"
        empty.mkdir()
        self.refused(empty, because="not there")
        for file in ("limits", "state"):
            directory = self.node.make_slice(f"without-{file}", 2048)
            (directory / file).unlink()
            self.refused(directory, because="not there")
            (directory / file).touch()
            self.refused(directory, because="has not finished")
            (directory / file).unlink()
            (directory / file).mkdir()
            self.refused(directory, because="could not be mapped")

    def test_a_slice_that_is_being_released_is_refused(self):
        directory = self.node.make_slice("slice", 2048)
        patch(directory / "limits", FLAGS_AT, DRAINING)
        self.refused(directory, because="being released")

    def test_one_gpu_in_two_slices_is_refused(self):
        one, two = self.node.make_slice("one", 2048), self.node.make_slice("two", 2048)
        self.refused(one, two, because="another slice")

    def test_a_broken_slice_beside_a_good_one_is_refused(self):
        good = self.node.make_slice("good", 2048)
        self.refused(good, self.node.directory / "no-slice", because="not there")
        # And nothing stays charged to the good one.
        self.assertEqual(self.node.run(TAKE, "cuMemAlloc", 2048, slices=[good]).returncode, 0)

    @unittest.skipIf(os.geteuid() != 0 or not shutil.which("setpriv"), "needs root and setpriv")
    def test_a_slice_without_permission_is_refused(self):
        directory = self.node.make_slice("slice", 2048)
        for path in (self.node.directory, *self.node.directory.rglob("*")):
            path.chmod(0o777)
        (directory / "state").chmod(0o600)
        nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
        run = subprocess.run(
            [*nobody, *self.node.command(*self.node.with_preload(True, [NEEDS_DRIVER]))], text=True,
            capture_output=True, env=self.node.environment([directory]))
        if "cuInit" not in run.stdout:
            self.skipTest("another user can't run what was built here")
        self.assertIn("cuInit 802", run.stdout)
        self.assertIn("permission denied", run.stderr)

    @unittest.skipIf(os.geteuid() != 0 or not shutil.which("unshare"), "needs root and unshare")
    def test_slices_are_found_where_a_container_has_them(self):
        directory = self.node.make_slice("slice", 2048)

        def in_container(mounts, program):
            script = f"mount -t tmpfs none /run && mkdir -p /run/cuslice/slice && {mounts} && exec {program}"
            return self.node.run("unshare", "-m", "sh", "-c", script, preload=False)

        tenant = f"env LD_PRELOAD='{BUILD.preload}' {TAKE} cuMemAlloc 2048"
        found = in_container(
            f"mkdir /run/cuslice/slice/main && mount --bind {directory} /run/cuslice/slice/main", tenant)
        if "mount" in found.stderr or "unshare" in found.stderr:
            self.skipTest("may not mount here: " + found.stderr.strip())
        self.assertTrue(found.stdout.endswith("EXIT-SUCCESS\n"), found.stdout + found.stderr)
        # The container's device rules decide about other GPUs.
        other = in_container(
            f"mkdir /run/cuslice/slice/main && mount --bind {directory} /run/cuslice/slice/main",
            f"env LD_PRELOAD='{BUILD.preload}' CUDA_VISIBLE_DEVICES=1 "
            f"{BUILD.tests / 'hold_memory'} 4096 </dev/null")
        self.assertEqual((other.stdout.splitlines()[0], other.stderr), ("holds", ""))
        empty = in_container("true", f"env LD_PRELOAD='{BUILD.preload}' {NEEDS_DRIVER}")
        self.assertIn("cuInit 802", empty.stdout)
        self.assertIn("empty", empty.stderr)

    # --- Transparent

    def test_no_slice_is_no_limit_and_no_word(self):
        run = self.node.run(NEEDS_DRIVER)
        self.assertEqual((run.stdout, run.stderr), ("cuInit 0, cuDeviceGetCount 0, 2 devices\n", ""))

    # --- Attached

    def test_a_gpu_in_no_slice_is_seen_and_gives_nothing(self):
        for own in (0, 1):
            mine = self.node.make_slice(f"mine-{own}", 2048, own)
            run = self.node.run(OFF_LIMITS, own, slices=[mine])
            self.assertTrue(run.stdout.endswith("EXIT-SUCCESS\n"), run.stdout + run.stderr)
            told, refusal = run.stderr.splitlines()
            uuid = "GPU-[0-9a-f-]{36}"
            self.assertRegex(told, rf"^cuslice: GPU ({uuid}) is refused to this process, .*--gpu.*"
                                   rf"CUDA_VISIBLE_DEVICES\. Slices here: mine-{own} \((?!\1){uuid}\)$")
            self.assertIn("cuMemAlloc of 16 EiB or more refused", refusal)

    def test_a_slice_of_another_node_gives_nothing_here(self):
        foreign = self.node.make_slice("foreign", 2048)
        for word in range(4):
            patch(foreign / "limits", GPUS_AT + 4 * word, 0x5a5a5a5a)
        run = self.node.run(OFF_LIMITS, 2, slices=[foreign])
        self.assertTrue(run.stdout.endswith("EXIT-SUCCESS\n"), run.stdout + run.stderr)
        self.assertEqual(len(run.stderr.splitlines()), 1, run.stderr)
        self.assertIn("Slices here: foreign (GPU-5a5a5a5a-", run.stderr)

    def test_the_gpu_is_known_by_its_uuid_whatever_its_number(self):
        second = self.node.make_slice("second", 2048, 1)
        run = self.node.run(TAKE, "cuMemAlloc", 2048, slices=[second], CUDA_VISIBLE_DEVICES="1")
        self.assertTrue(run.stdout.endswith("EXIT-SUCCESS\n"), run.stdout + run.stderr)

    def test_a_process_can_be_in_a_slice_of_each_gpu(self):
        first, second = self.node.make_slice("first", 2048, 0), self.node.make_slice("second", 3072, 1)
        for visible, memory in (("0", 2048), ("1", 3072)):
            run = self.node.run(TAKE, "cuMemAlloc", memory, slices=[first, second],
                                CUDA_VISIBLE_DEVICES=visible)
            self.assertTrue(run.stdout.endswith("EXIT-SUCCESS\n"), run.stdout + run.stderr)

    def test_a_dead_process_is_reaped_by_the_next_without_a_broker(self):
        directory = self.node.make_slice("slice", 2048)
        for _ in range(3):
            holder = self.node.start(BUILD.tests / "hold_memory", 1024, slices=[directory])
            self.assertEqual(holder.stdout.readline(), "holds\n")
            pid = int(holder.stdout.readline())
            os.kill(pid, 9)
            holder.communicate()
        run = self.node.run(TAKE, "cuMemAlloc", 2048, slices=[directory])
        self.assertTrue(run.stdout.endswith("EXIT-SUCCESS\n"), run.stdout + run.stderr)

    # --- The broker

    def answer(self, directory, reply):
        """A broker that says `reply` to the first process, or nothing. Returns what it heard."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(directory / "attach"))
        listener.listen()
        self.addCleanup(listener.close)
        heard = []

        def serve():
            connection, _ = listener.accept()
            heard.append(struct.unpack("<IIII", connection.recv(64)))
            if reply is not None:
                connection.send(struct.pack("<IIII", reply, 4321, 0, 0))
                heard.append(connection.recv(1))
            else:
                time.sleep(4)
            connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        return heard, thread

    def test_the_broker_is_told_the_slot_and_the_socket_is_closed(self):
        directory = self.node.make_slice("slice", 2048)
        heard, thread = self.answer(directory, 0)
        self.assertIn("cuInit 0,", self.node.run(NEEDS_DRIVER, slices=[directory]).stdout)
        thread.join(10)
        self.assertEqual(heard, [(1, 0, 0, 0), b""])

    def test_a_broker_that_refuses_is_obeyed(self):
        replies = {1: "refused this process", 2: "another cuslice version", 3: "releasing it"}
        for status, because in replies.items():
            directory = self.node.make_slice(f"slice-{status}", 2048)
            self.answer(directory, status)
            self.refused(directory, because=because)

    def test_a_broker_that_says_nothing_is_not_waited_for_long(self):
        directory = self.node.make_slice("slice", 2048)
        self.answer(directory, None)
        started = time.monotonic()
        self.assertIn("cuInit 0,", self.node.run(NEEDS_DRIVER, slices=[directory]).stdout)
        self.assertLess(time.monotonic() - started, 4)

    # --- What a refused program is told

    def test_a_refusal_names_slice_quota_use_and_request_once(self):
        directory = self.node.make_slice("team-a", 2048)
        holder = self.node.start(BUILD.tests / "hold_memory", 512, slices=[directory])
        self.assertEqual(holder.stdout.readline(), "holds\n")
        pid = int(holder.stdout.readline())
        run = self.node.run(BUILD.tests / "hold_memory", 1024, slices=[directory])
        self.assertEqual(len(run.stderr.splitlines()), 1, run.stderr)
        self.assertRegex(run.stderr, r"^cuslice: slice team-a: cuMemAlloc of 1 GiB refused: .* has 2 GiB ")
        self.assertIn(f"hold_memory (pid {pid}) 1012 MiB", run.stderr)
        holder.communicate("\n")

    def test_memory_of_other_slices_is_named_when_the_gpu_is_full(self):
        generous = self.node.make_slice("generous", 1 << 20)
        run = self.node.run(BUILD.tests / "hold_memory", 100 << 10, slices=[generous])
        self.assertRegex(run.stderr, r"cuMemAlloc of 100 GiB refused: GPU full")

    def test_nvml_lists_the_slices_processes_only(self):
        mine, others = self.node.make_slice("mine", 4096), self.node.make_slice("others", 4096)
        outsiders = [self.node.start(BUILD.tests / "hold_memory", 512, slices=[others]),
                     self.node.start(BUILD.tests / "hold_memory", 512, preload=False)]
        for outsider in outsiders:
            self.assertEqual(outsider.stdout.readline(), "holds\n")
        run = self.node.run(BUILD.tests / "memory_reports_agree", 4096, slices=[mine])
        self.assertTrue(run.stdout.endswith("EXIT-SUCCESS\n"), run.stdout + run.stderr)
        for outsider in outsiders:
            outsider.communicate("\n")


class GuestTest(unittest.TestCase):
    """Programs that have nothing to do with a GPU."""

    def preloaded(self, *command):
        return subprocess.run(command, env={**os.environ, "LD_PRELOAD": BUILD.preload}, text=True,
                              capture_output=True, timeout=30)

    def test_is_silent_and_changes_nothing(self):
        imports = "import ctypes, ssl, sqlite3; print(1)"
        for command in (("bash", "-c", ":"), ("ls", "/"), ("python3", "-c", imports)):
            plain = subprocess.run(command, text=True, capture_output=True)
            run = self.preloaded(*command)
            self.assertEqual((run.returncode, run.stdout, run.stderr),
                             (plain.returncode, plain.stdout, plain.stderr))

    def test_makes_no_thread_and_opens_no_file(self):
        look = "import os; print(len(os.listdir('/proc/self/task')), len(os.listdir('/proc/self/fd')))"
        plain = subprocess.run(("python3", "-c", look), text=True, capture_output=True)
        self.assertEqual(self.preloaded("python3", "-c", look).stdout, plain.stdout)

    def test_lives_with_an_allocator_that_looks_up_symbols(self):
        found = re.findall(r"=> (/\S*libjemalloc\.so\.2|/\S*libtcmalloc_minimal\.so\.4)",
                           subprocess.run(["/sbin/ldconfig", "-p"], text=True, capture_output=True).stdout)
        if not found:
            self.skipTest("neither libjemalloc2 nor libtcmalloc-minimal4 is installed")
        for allocator in found:
            for order in (f"{BUILD.preload} {allocator}", f"{allocator} {BUILD.preload}"):
                run = subprocess.run(["python3", "-c", "import ctypes; print('alive')"], text=True,
                                     timeout=30, capture_output=True,
                                     env={**os.environ, "LD_PRELOAD": order})
                self.assertEqual((run.stdout, run.stderr), ("alive\n", ""))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
