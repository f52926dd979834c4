#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the images of docker/rootfs.sh and runs them by runc: image_test.py BUILD_DIRECTORY"""
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else ROOT / "build/release"


def make(image, out):
    subprocess.run([ROOT / "docker/rootfs.sh", "--build", BUILD, image, out], check=True, stdin=subprocess.DEVNULL)


def member(archive, name):
    return archive.extractfile(name).read()


def container_id():
    return f"cuslice-image-test-{os.getpid()}-{time.monotonic_ns()}"


class Image:
    """An image as a runtime takes it: the configuration and the one layer, checked against their digests."""

    def __init__(self, path, root):
        with tarfile.open(path) as archive:
            (manifest,) = json.loads(member(archive, "manifest.json"))
            config = member(archive, manifest["Config"])
            assert manifest["Config"] == hashlib.sha256(config).hexdigest() + ".json"
            self.config = json.loads(config)
            (layer,) = manifest["Layers"]
            layer = member(archive, layer)
        assert ["sha256:" + hashlib.sha256(layer).hexdigest()] == self.config["rootfs"]["diff_ids"]
        root.mkdir()
        subprocess.run(["tar", "-x", "-C", root], input=layer, check=True)
        self.root = root

    def bundle(self, directory, arguments, mounts=(), environment=()):
        """An OCI bundle with a read-only root, no network and no capability, in the namespace of pids of the node."""
        user = int(self.config["config"]["User"])
        mounts = [{"destination": "/proc", "type": "proc", "source": "proc"}] + [
            {"destination": to, "type": "bind", "source": str(source), "options": ["rbind", mode]}
            for source, to, mode in mounts
        ]
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps({
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": user, "gid": user},
                "args": self.config["config"]["Entrypoint"] + list(arguments),
                "env": self.config["config"]["Env"] + list(environment),
                "cwd": "/",
                "noNewPrivileges": True,
            },
            "root": {"path": str(self.root), "readonly": True},
            "mounts": mounts,
            "linux": {"namespaces": [{"type": "mount"}, {"type": "network"}]},
        }))
        return directory


@unittest.skipUnless(os.geteuid() == 0, "runc makes containers as root")
@unittest.skipUnless(shutil.which("runc"), "no runc here: run scripts/setup.sh")
class ImageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # On disk and not under /tmp, which may be mounted so that nothing runs from it.
        cls.work = pathlib.Path(tempfile.mkdtemp(prefix="image-test-", dir=BUILD))
        cls.addClassCleanup(shutil.rmtree, cls.work)
        cls.images = {}
        for name in ("broker", "workload"):
            make(name, cls.work / f"{name}.tar")
            cls.images[name] = Image(cls.work / f"{name}.tar", cls.work / name)

    def run_image(self, name, arguments, entrypoint=None, **more):
        image = self.images[name]
        identity = container_id()
        bundle = image.bundle(self.work / identity, arguments, **more)
        if entrypoint:
            config = json.loads((bundle / "config.json").read_text())
            config["process"]["args"] = [entrypoint, *arguments]
            (bundle / "config.json").write_text(json.dumps(config))
        return subprocess.run(["runc", "run", "--bundle", bundle, identity], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=60)

    def test_the_same_build_gives_the_same_image(self):
        make("broker", self.work / "again.tar")
        self.assertEqual((self.work / "broker.tar").read_bytes(), (self.work / "again.tar").read_bytes())

    def test_every_program_finds_its_libraries_in_the_image(self):
        for name, image in self.images.items():
            programs = sorted((image.root / "opt/cuslice/bin").iterdir())
            self.assertTrue(programs)
            for program in programs:
                inside = f"/opt/cuslice/bin/{program.name}"
                result = self.run_image(name, ["--list", inside], entrypoint="/lib64/ld-linux-x86-64.so.2")
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertNotIn("not found", result.stdout)
                self.assertIn("libc.so.6 => /", result.stdout)

    def test_the_broker_serves_a_node_from_its_image(self):
        node, run = self.work / "node", self.work / "run"
        run.mkdir()
        simulator = [BUILD / "bin/simgpu", "--node", node]
        environment = subprocess.run([*simulator, "--", "env"], check=True, capture_output=True, text=True,
                                     stdin=subprocess.DEVNULL).stdout.splitlines()
        environment = [line for line in environment if line.startswith(("SIMGPU_", "LD_LIBRARY_PATH="))]
        image = self.images["broker"]
        identity = container_id()
        bundle = image.bundle(self.work / identity, ["--run-dir", "/run/cuslice"], environment=environment,
                              mounts=[(run, "/run", "rw"), (node, str(node), "rw"), (BUILD / "lib", str(BUILD / "lib"), "ro")])
        with open(self.work / "broker.log", "w") as log:
            broker = subprocess.Popen(["runc", "run", "--bundle", bundle, identity], stdin=subprocess.DEVNULL,
                                      stdout=log, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + 30
            while not (run / "cuslice/broker.sock").exists():
                self.assertIsNone(broker.poll(), (self.work / "broker.log").read_text())
                self.assertLess(time.monotonic(), deadline, "no socket after 30 s")
                time.sleep(0.05)
            sliced = subprocess.run(
                [*simulator, "--", BUILD / "bin/cuslicectl", "run", "--memory", "10GiB", "--compute", "25", "--",
                 BUILD / "bin/cuslicectl", "ls", "--json"],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                env=os.environ | {"CUSLICE_RUN_DIR": str(run / "cuslice")})
            self.assertEqual(sliced.returncode, 0, sliced.stderr)
            self.assertIn(str(10 << 30), sliced.stdout)
        finally:
            subprocess.run(["runc", "kill", identity, "TERM"], check=False)
            try:
                broker.wait(20)
            except subprocess.TimeoutExpired:
                subprocess.run(["runc", "delete", "--force", identity], check=False)
                broker.wait()
        self.assertEqual(broker.returncode, 0, (self.work / "broker.log").read_text())

    def test_an_image_says_what_it_is_made_of(self):
        for image in self.images.values():
            packages = {path.name for path in (image.root / "var/lib/dpkg/status.d").iterdir()}
            self.assertIn("libc6", packages)
            for package in packages | {"cuslice"}:
                self.assertTrue((image.root / "usr/share/doc" / package / "copyright").is_file(), f"no licence of {package}")

    def test_the_workload_starts_as_nobody(self):
        self.assertEqual(self.images["workload"].config["config"]["User"], "65534")


if __name__ == "__main__":
    unittest.main()
