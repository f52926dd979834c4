# SPDX-License-Identifier: Apache-2.0
"""simgpu as a user runs it. Usage: simgpu_test.py PATH_OF_SIMGPU"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest

SIMGPU = sys.argv.pop(1)


def simgpu(*arguments, **options):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SIMGPU_", "CUSLICE_"))}
    environment.update(options.pop("env", {}))
    return subprocess.run([SIMGPU, *arguments], env=environment, capture_output=True, text=True, timeout=60, **options)


def show(directory):
    return json.loads(simgpu("show", directory, "--json").stdout)


class Run(unittest.TestCase):
    def test_status_is_the_commands(self):
        self.assertEqual(simgpu("--", "true").returncode, 0)
        self.assertEqual(simgpu("--", "sh", "-c", "exit 7").returncode, 7)
        self.assertEqual(simgpu("--", "sh", "-c", "kill -TERM $$").returncode, 128 + signal.SIGTERM)
        missing = simgpu("--", "/no/such/program")
        self.assertEqual(missing.returncode, 127)
        self.assertIn("/no/such/program", missing.stderr)

    def test_ends_where_its_parent_ignores_ended_children(self):
        run = simgpu("--", "sh", "-c", "exit 7", preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        self.assertEqual(run.returncode, 7)

    def test_options_of_the_command_are_its_own(self):
        self.assertEqual(simgpu("--", "echo", "--gpu", "--", "-x").stdout, "--gpu -- -x\n")

    def test_environment_of_the_command(self):
        script = 'echo "$SIMGPU_NODE|$LD_LIBRARY_PATH|$CUSLICE_RUN_DIR|$SIMGPU_KERNELS"'
        run = simgpu("--kernel", "gemm=250", "--kernel", "fill=3.5", "--", "sh", "-c", script,
                     env={"LD_LIBRARY_PATH": "/before"})
        node, libraries, run_directory, kernels = run.stdout.strip().split("|")
        library_directory = os.path.normpath(os.path.join(os.path.dirname(SIMGPU), "..", "lib", "sim"))
        self.assertEqual(libraries, f"{library_directory}/driver-13.0:{library_directory}:/before")
        self.assertEqual(run_directory, node + "/run")
        self.assertEqual(kernels, "gemm=250,fill=3.5")
        self.assertFalse(os.path.exists(node), "its own node goes with it")

    def test_driver_lacks_what_is_newer_than_its_version(self):
        script = ("import ctypes; driver = ctypes.CDLL('libcuda.so.1'); print([name for name in ('cuCtxCreate_v3',"
                  " 'cuGreenCtxCreate', 'cuCtxCreate_v4', 'cuCtxGetDevice_v2') if hasattr(driver, name)])")
        has = {
            "11.0": [], "11.4": ["cuCtxCreate_v3"], "12.3": ["cuCtxCreate_v3"],
            "12.4": ["cuCtxCreate_v3", "cuGreenCtxCreate"],
            "12.7": ["cuCtxCreate_v3", "cuGreenCtxCreate", "cuCtxCreate_v4"],  # of which no function is
            "13.0": ["cuCtxCreate_v3", "cuGreenCtxCreate", "cuCtxCreate_v4", "cuCtxGetDevice_v2"],
            "19.0": ["cuCtxCreate_v3", "cuGreenCtxCreate", "cuCtxCreate_v4", "cuCtxGetDevice_v2"],
        }
        for version, names in has.items():
            run = simgpu("--driver", version, "--", "python3", "-c", script)
            self.assertEqual(run.stdout, f"{names}\n", version + run.stderr)

    def test_driver_is_that_of_the_node(self):
        with tempfile.TemporaryDirectory() as base:
            simgpu("--node", base, "--driver", "12.8", "--", "true")
            run = simgpu("--node", base, "--", "sh", "-c", "echo $LD_LIBRARY_PATH")
            self.assertIn("/driver-12.8:", run.stdout)

    def test_run_directory_of_the_caller_holds(self):
        run = simgpu("--", "sh", "-c", "echo $CUSLICE_RUN_DIR", env={"CUSLICE_RUN_DIR": "/mine"})
        self.assertEqual(run.stdout, "/mine\n")

    def test_signals_reach_the_command(self):
        with tempfile.TemporaryDirectory() as base:
            script = 'trap "echo stopped; exit 3" TERM; echo ready; while :; do sleep 0.05; done'
            process = subprocess.Popen([SIMGPU, "--", "sh", "-c", script], env={**os.environ, "TMPDIR": base},
                                       stdout=subprocess.PIPE, text=True)
            self.assertEqual(process.stdout.readline(), "ready\n")
            self.assertEqual(len(os.listdir(base)), 1)
            process.terminate()
            self.assertEqual(process.stdout.read(), "stopped\n")
            self.assertEqual(process.wait(timeout=30), 3)
            process.stdout.close()
            self.assertEqual(os.listdir(base), [])


class SharedNode(unittest.TestCase):
    def test_node_is_made_and_its_settings_hold(self):
        with tempfile.TemporaryDirectory() as base:
            directory = os.path.join(base, "node")
            made = simgpu("--node", directory, "--gpu", "b200", "--count", "3", "--driver", "12.8", "--", "true")
            self.assertEqual(made.returncode, 0, made.stderr)
            state = show(directory)
            self.assertEqual(state["gpu"], "b200")
            self.assertEqual(state["driver_version"], 12080)
            self.assertEqual([device["index"] for device in state["devices"]], [0, 1, 2])
            self.assertEqual(len({device["uuid"] for device in state["devices"]}), 3)
            self.assertEqual(state["devices"][0]["used_bytes"], 0)
            self.assertEqual(state["devices"][0]["processes"], [])

            self.assertEqual(simgpu("--node", directory, "--", "true").returncode, 0)
            self.assertEqual(simgpu("--node", directory, "--gpu", "b200", "--", "true").returncode, 0)
            other = simgpu("--node", directory, "--gpu", "h100", "--", "true")
            self.assertEqual(other.returncode, 2)
            self.assertIn("other settings", other.stderr)

    def test_show_for_people(self):
        with tempfile.TemporaryDirectory() as directory:
            simgpu("--node", directory, "--", "true")
            text = simgpu("show", directory).stdout
            self.assertIn("1 x NVIDIA H100 80GB HBM3 (h100), driver 13.0", text)
            self.assertIn("0 of 81079 MiB used", text)

    def test_show_of_no_node_fails(self):
        with tempfile.TemporaryDirectory() as directory:
            shown = simgpu("show", directory)
            self.assertEqual(shown.returncode, 1)
            self.assertIn("no node", shown.stderr)


class Fault(unittest.TestCase):
    def test_is_set_for_a_device_and_refused_by_name(self):
        with tempfile.TemporaryDirectory() as node:
            self.assertEqual(simgpu("--node", node, "--", "true").returncode, 0)
            self.assertEqual(simgpu("fault", node, "lost,refuse-every=2").returncode, 0)
            self.assertEqual(simgpu("fault", node, "none", "--xid", "79").returncode, 0)
            for arguments, says in [((node, "lots"), "lots"), ((node, "lost", "--gpu", "1"), "--gpu 1"),
                                    ((node,), "name a fault"), ((node, "--xid", "31", "--pid", "1"), "process 1"),
                                    ((node + "/none", "lost"), "no node")]:
                run = simgpu("fault", *arguments)
                self.assertNotEqual(run.returncode, 0, arguments)
                self.assertIn(says, run.stderr)


class Serve(unittest.TestCase):
    def test_serves_one_node_once_until_it_is_told_to_end(self):
        with tempfile.TemporaryDirectory() as node:
            server = subprocess.Popen([SIMGPU, "--node", node, "serve"], stdout=subprocess.PIPE, text=True)
            self.assertIn("serving", server.stdout.readline())
            self.assertIn("another serves", simgpu("--node", node, "serve").stderr)
            self.assertEqual(simgpu("--node", node, "--", "true").returncode, 0)
            server.terminate()
            self.assertEqual(server.wait(timeout=10), 0)
            self.assertFalse(os.path.exists(node + "/pids"))
            server.stdout.close()


class BadInput(unittest.TestCase):
    def test_usage_errors(self):
        for arguments, says in [
            ([], "--"),
            (["--gpu", "h900", "--", "true"], "h100"),
            (["--count", "0", "--", "true"], "1 to 16"),
            (["--count", "many", "--", "true"], "many"),
            (["--driver", "13", "--", "true"], "13.0"),
            (["--driver", "99.9", "--", "true"], "driver 99.9: give 11.0 to 19.99"),
            (["--kernel", "gemm", "--", "true"], "gemm=250"),
            (["--kernel", "=3", "--", "true"], "gemm=250"),
            (["--switch-us", "-1", "--", "true"], "switch-us"),
            (["--time-slice-us", "0", "--", "true"], "time slice"),
            (["--context-mib", "999999", "--", "true"], "more memory"),
            (["--no-such-option", "--", "true"], "no-such-option"),
            (["list", "--", "true"], "list"),
        ]:
            with self.subTest(arguments=arguments), tempfile.TemporaryDirectory() as base:
                run = simgpu(*arguments, env={"TMPDIR": base})
                self.assertEqual(run.returncode, 2, run.stderr)
                self.assertIn(says, run.stderr + run.stdout)
                self.assertEqual(os.listdir(base), [], "nothing is left behind")

    def test_list_names_every_model(self):
        models = simgpu("list").stdout
        for key in ["a100", "h100", "h200", "l40s", "b200", "sm188"]:
            self.assertIn("\n" + key + " ", models)


if __name__ == "__main__":
    unittest.main()
