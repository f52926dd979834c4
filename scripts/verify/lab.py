# SPDX-License-Identifier: Apache-2.0
"""A GPU, simulated or real, and tenants on it.

A `Lab` is one node: on the simulator a fresh one of its own, with its own broker. `Lab.truth()` says what each process
holds and what GPU time it received as the GPU itself knows it, never as cuslice counts it: the judge is independent.
"""

import ctypes
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MIB = 1 << 20
GIB = 1 << 30


class LabError(Exception):
    """Something that a measurement needs did not work; the text says what and shows its output."""


def default_build():
    return pathlib.Path(os.environ.get("CUSLICE_BUILD", ROOT / "build" / "release")).resolve()


def real_gpu_name():
    """The name of the real GPU of this machine, or None. Asks the driver: nvidia-smi may be missing in a container."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        count, device, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(128)
        if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or count.value == 0:
            return None
        if driver.cuDeviceGet(ctypes.byref(device), 0) or driver.cuDeviceGetName(name, len(name), device):
            return None
        return name.value.decode()
    except (OSError, AttributeError):
        return None


@dataclasses.dataclass
class Slice:
    """What `cuslicectl run` is asked for."""

    memory: str | None = None
    compute: int | None = None
    compute_limit: int | None = None
    name: str | None = None
    priority: bool = False

    def options(self):
        pairs = (
            ("--memory", self.memory),
            ("--compute", self.compute),
            ("--compute-limit", self.compute_limit),
            ("--name", self.name),
        )
        given = [text for option, value in pairs if value is not None for text in (option, str(value))]
        return given + (["--priority"] if self.priority else [])


@dataclasses.dataclass
class Use:
    """What one process has of a GPU."""

    used_bytes: int
    busy_ns: int


@dataclasses.dataclass
class Truth:
    """One look at GPU 0 of the node."""

    now_ns: int
    total_bytes: int
    used_bytes: int
    busy_ns: int
    processes: dict  # pid -> Use


class NvmlMemory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class NvmlProcess(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


def nvml_memory(index):
    """A real GPU's memory and who uses how much of it. By NVML itself: nvidia-smi may be missing in a container."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        raise LabError(f"NVML: {error}") from None

    def call(name, *arguments):
        status = getattr(nvml, name)(*arguments)
        if status:
            raise LabError(f"{name}: NVML error {status}")

    call("nvmlInit_v2")
    try:
        device, memory = ctypes.c_void_p(), NvmlMemory()
        call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device))
        call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
        count, processes = ctypes.c_uint(1024), (NvmlProcess * 1024)()
        call("nvmlDeviceGetComputeRunningProcesses_v3", device, ctypes.byref(count), processes)
        return memory, {process.pid: Use(process.used, 0) for process in processes[: count.value]}
    finally:
        call("nvmlShutdown")


@dataclasses.dataclass
class Result:
    status: int
    output: str
    errors: str

    @property
    def succeeded(self):
        lines = self.output.splitlines()
        return self.status == 0 and bool(lines) and lines[-1] == "EXIT-SUCCESS"

    @property
    def json(self):
        for line in reversed(self.output.splitlines()):
            if line.startswith("{"):
                return json.loads(line)
        raise LabError(f"no result in the output\n{self.describe()}")

    def describe(self):
        return f"status {self.status}\n--- output\n{self.output}--- errors\n{self.errors}"


class Tenant:
    """A program that runs; its output goes to files, so that it never waits for a reader."""

    def __init__(self, command, environment, directory, stdin=subprocess.DEVNULL):
        self.command = [str(part) for part in command]
        self._files = [tempfile.TemporaryFile("w+", dir=directory) for _ in range(2)]
        self._process = subprocess.Popen(
            self.command,
            env=environment,
            stdin=stdin,
            stdout=self._files[0],
            stderr=self._files[1],
            start_new_session=True,
            text=True,
        )
        self.pid = self._process.pid
        self.stdin = self._process.stdin

    def running(self):
        return self._process.poll() is None

    def output(self):
        """What it has printed so far."""
        # The position of the file is the program's too: read beside it.
        return self._read(0)

    def _read(self, which):
        descriptor = self._files[which].fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def wait(self, timeout=120):
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise LabError(
                f"not finished after {timeout} s: {' '.join(self.command)}\n"
                + self._read(0)
                + self._read(1)
            ) from None
        return Result(status, self._read(0), self._read(1))

    def finish(self, timeout=120):
        """The result of a sample, which must have succeeded."""
        result = self.wait(timeout)
        if not result.succeeded:
            raise LabError(f"failed: {' '.join(self.command)}\n{result.describe()}")
        return result

    def wait_for_line(self, start, timeout=30, may_end=False):
        """Until it has printed a line that starts so: true. false if it ended before that, and may."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if any(line.startswith(start) for line in self.output().splitlines()):
                return True
            if not self.running():
                if may_end:
                    return False
                raise LabError(f"ended before '{start}': {' '.join(self.command)}\n{self.wait().describe()}")
            time.sleep(0.005)
        self.kill()
        raise LabError(f"no '{start}' within {timeout} s: {' '.join(self.command)}\n{self._read(0)}{self._read(1)}")

    def owns(self, pid):
        """Whether that process is this program or was started by it."""
        try:
            return os.getsid(pid) == self.pid
        except ProcessLookupError:
            return False

    def processes(self, name=None):
        """The living processes of this program; with a name, those that run a program of that name."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit() or not self.owns(int(entry.name)):
                continue
            try:
                program = os.readlink(entry / "exe")
            except OSError:  # just ended, or a zombie
                continue
            if name is None or pathlib.Path(program).name == name:
                found.append(int(entry.name))
        return found

    def kill(self):
        """Ends it and what it started. Its process group is its own, so nobody else is hit."""
        if self.running():
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()

    def forget_output(self):
        for file in self._files:
            file.close()


class HeldSlice:
    """A slice that stays, whatever processes come and go in it."""

    def __init__(self, lab, terms):
        self._lab = lab
        program = "import json, os, sys; print(json.dumps(dict(os.environ)), flush=True); sys.stdin.read()"
        self._holder = lab.start(["python3", "-c", program], terms, stdin=subprocess.PIPE)
        self._holder.wait_for_line("{")
        self.environment = json.loads(self._holder.output())
        self.directory = pathlib.Path(self.environment["CUSLICE_SLICE"])

    def start(self, command, environment=None, stdin=subprocess.DEVNULL):
        return self._lab.start_with(command, {**self.environment, **(environment or {})}, stdin)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._holder.stdin.close()
        self._holder.wait(20)


class Lab:
    def __init__(self, build=None, *, simulate=None, gpu="h100", node_options=()):
        self.build = pathlib.Path(build) if build else default_build()
        self.real_name = None if simulate else real_gpu_name()
        if simulate is False and self.real_name is None:
            raise LabError("there is no GPU here")
        self.simulated = self.real_name is None
        self.model = gpu if self.simulated else None
        self._node_options = ["--gpu", gpu, *node_options]
        self._tenants = []
        parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="cuslice-lab-", dir=parent))
        self.run_directory = self.directory / "run"
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("LD_PRELOAD", "CUSLICE_SLICE") and not (self.simulated and name.startswith("SIMGPU_"))
        }
        self.environment["CUSLICE_RUN_DIR"] = str(self.run_directory)
        if self.simulated:
            # Makes the node, so that it can be looked at before the first program uses it.
            made = self.run(["true"], timeout=20)
            if made.status != 0:
                raise LabError(f"simgpu: {made.describe()}")

    @property
    def gpu_name(self):
        return self.real_name or "simulated"

    def program(self, name):
        path = self.build / "bin" / name
        if not path.exists():
            raise LabError(f"{path} is not there; run scripts/build.sh release")
        return path

    def sample(self, name, *options):
        return [self.program(f"samples/{name}"), "--json", *map(str, options)]

    def on_node(self, command):
        """The command line that runs this on the GPU of this lab."""
        if not self.simulated:
            return list(command)
        return [self.program("simgpu"), *self._node_options, "--node", self.directory / "node", "--", *command]

    def in_slice(self, command, terms):
        return [self.program("cuslicectl"), "run", *terms.options(), "--", *command]

    def start(self, command, terms=None, environment=None, stdin=subprocess.DEVNULL):
        """Starts a program, in a slice of its own if one is given."""
        inner = self.in_slice(command, terms) if terms else list(command)
        return self._add(Tenant(self.on_node(inner), {**self.environment, **(environment or {})}, self.directory, stdin))

    def start_with(self, command, environment, stdin=subprocess.DEVNULL):
        """Starts a program in exactly this environment, which is of this node already."""
        return self._add(Tenant(command, environment, self.directory, stdin))

    def run(self, command, terms=None, environment=None, timeout=120):
        return self.start(command, terms, environment).wait(timeout)

    def _add(self, tenant):
        self._tenants.append(tenant)
        return tenant

    def hold(self, terms):
        return HeldSlice(self, terms)

    def like_this(self):
        """Another lab on a GPU of the same kind: on the simulator one that nobody else uses."""
        return Lab(self.build, simulate=self.simulated, gpu=self.model)

    # ---- What the GPU says

    def truth(self):
        return self._simulated_truth() if self.simulated else self._real_truth()

    def _simulated_truth(self):
        shown = subprocess.run(
            [self.program("simgpu"), "show", self.directory / "node", "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
        if shown.returncode != 0:
            raise LabError(f"simgpu show: status {shown.returncode}: {shown.stderr}")
        state = json.loads(shown.stdout)
        device = state["devices"][0]
        uses = {use["pid"]: Use(use["used_bytes"], use["busy_ns"]) for use in device["processes"]}
        return Truth(state["now_ns"], device["total_bytes"], device["used_bytes"], device["busy_ns"], uses)

    def _real_truth(self):
        """Memory only: no driver tells exactly what GPU time a process received."""
        memory, uses = nvml_memory(0)
        return Truth(time.monotonic_ns(), memory.total, memory.used, 0, uses)

    def use_of(self, tenant, truth=None):
        """The sum over the processes that a tenant started."""
        uses = [use for pid, use in (truth or self.truth()).processes.items() if tenant.owns(pid)]
        return Use(sum(use.used_bytes for use in uses), sum(use.busy_ns for use in uses))

    def slices(self):
        """What cuslice itself says, for comparison with the truth."""
        listed = self.run([self.program("cuslicectl"), "ls", "--json"], timeout=20)
        if listed.status != 0:
            raise LabError(f"cuslicectl ls: {listed.describe()}")
        return json.loads(listed.output)

    def close(self):
        for tenant in self._tenants:
            tenant.kill()
            tenant.forget_output()
        # The broker that served the last slice ends by itself; its directory must not go before it does.
        end = time.monotonic() + 10
        while time.monotonic() < end and (self.run_directory / "broker.sock").exists():
            time.sleep(0.05)
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
