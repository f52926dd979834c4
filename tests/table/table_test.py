#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tables against NVIDIA's headers, and the generated files against a compiler and a linker.

CUSLICE_HEADER_SETS names the header directories, newest first, separated by ':'; without it those of
the set-up's cache are used. CXX names the compiler.
"""

import ctypes
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
GENERATE = ROOT / "interpose" / "generate.py"
sys.path.insert(0, str(ROOT / "interpose"))
import generate  # noqa: E402
import headers  # noqa: E402

CACHE = pathlib.Path(os.environ.get("CUSLICE_CACHE") or pathlib.Path.home() / ".cache/cuslice")
CXX = os.environ.get("CXX", "g++")
EMITS = tuple(generate.EMITS)
COMPILE = ["-std=gnu++20", "-O2", "-fPIC", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"]


def header_sets():
    if given := os.environ.get("CUSLICE_HEADER_SETS"):
        return [pathlib.Path(path) for path in given.split(":")]
    cached = (CACHE / f"cuda-{version}" / "include" for version in ("13.5", "13.0", "12.9"))
    return [path for path in cached if path.is_dir()]


SETS = header_sets()


def run_generator(*arguments):
    command = [sys.executable, str(GENERATE), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def append(path, text):
    path.chmod(0o644)
    path.write_text(path.read_text() + text)


def all_sets():
    also = [word for older in SETS[1:] for word in ("--also", older)]
    return ["--headers", SETS[0], *also]


class Scratch(unittest.TestCase):
    """Gives each test a folder of its own."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def generate(self, emit, sets=None):
        out = self.folder / "generated" / emit
        done = run_generator("--emit", emit, *(sets or all_sets()), "--out", out)
        self.assertEqual(done.returncode, 0, done.stderr)
        return out

    def compile(self, *arguments, compiler=CXX, include=None):
        includes = ["-isystem", include or SETS[0], "-I", self.folder, "-I", ROOT]
        command = [compiler, *COMPILE, *includes, *arguments]
        return subprocess.run(list(map(str, command)), capture_output=True, text=True)

    def compiled(self, *arguments, **options):
        done = self.compile(*arguments, **options)
        self.assertEqual(done.returncode, 0, done.stderr)

    def changed_headers(self, name, change):
        """A copy of the newest headers of which one was edited."""
        copy = self.folder / "headers"
        shutil.copytree(SETS[0], copy, ignore=lambda _, names: [n for n in names if not n.endswith(".h")])
        path = copy / name
        before = path.read_text(errors="replace")
        after = change(before)
        self.assertNotEqual(before, after)
        path.chmod(0o644)
        path.write_text(after)
        return copy

    def headers_with_function(self, name, since):
        old = "CUresult CUDAAPI cuInit("
        new = f"CUresult CUDAAPI {name}(CUdevice dev);\n{old}"
        changed = self.changed_headers("cuda.h", lambda text: text.replace(old, new, 1))
        typedef = f"typedef CUresult (CUDAAPI *PFN_{name}_v{since})(CUdevice dev);\n"
        append(changed / "cudaTypedefs.h", typedef)
        return changed

    def changed_table(self, change):
        path = self.folder / "driver_api.py"
        path.write_text(change(generate.TABLES["driver"].read_text()))
        return path


class Table(Scratch):
    def test_both_generations_of_headers_are_here(self):
        self.assertGreaterEqual(len(SETS), 2, "run scripts/setup.sh: the 12.9 headers are missing")

    def test_each_header_set_alone_generates_everything(self):
        for directory in SETS:
            for emit in EMITS:
                with self.subTest(headers=directory, emit=emit):
                    self.generate(emit, ["--headers", directory])

    def test_every_row_is_known_to_some_header(self):
        for emit in ("interpose", "nvml-interpose"):
            done = run_generator("--emit", emit, *all_sets(), "--strict-rows")
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_row_no_header_has_is_named_when_asked(self):
        table = self.changed_table(lambda text: text + "cuNobodyHasThis = Pass()\n")
        done = run_generator("--emit", "interpose", *all_sets(), "--table", table, "--strict-rows")
        self.assertEqual(done.returncode, 1)
        self.assertIn("cuNobodyHasThis", done.stderr)

    def test_a_second_row_for_a_function_is_refused(self):
        table = self.changed_table(lambda text: text + "cuMemAlloc = Pass()\n")
        done = run_generator("--emit", "interpose", *all_sets(), "--table", table)
        self.assertEqual(done.returncode, 1)
        self.assertIn("more than one row for cuMemAlloc", done.stderr)

    def test_a_function_without_a_row_stops_the_build_by_name(self):
        changed = self.headers_with_function("cuFrobnicate", 14000)
        done = run_generator("--emit", "interpose", "--headers", changed, "--out", self.folder / "out")
        self.assertEqual(done.returncode, 1)
        self.assertIn("cuFrobnicate", done.stderr)
        self.assertIn("driver_api.py", done.stderr)
        self.assertFalse((self.folder / "out").exists())

    def test_a_version_of_which_no_driver_is_simulated_stops_the_build(self):
        changed = self.headers_with_function("cuFrobnicate", 14000)
        table = self.changed_table(lambda text: text + "cuFrobnicate = Pass()\n")
        done = run_generator("--emit", "sim", "--headers", changed, "--table", table)
        self.assertEqual(done.returncode, 1)
        self.assertIn("drivers [14000] brought functions; add them to SIMULATED_VERSIONS", done.stderr)

    def test_a_function_of_nvml_without_a_row_stops_the_build_by_name(self):
        old = "nvmlReturn_t DECLDIR nvmlShutdown("
        new = "nvmlReturn_t DECLDIR nvmlDeviceFrobnicate(nvmlDevice_t device);\n" + old
        changed = self.changed_headers("nvml.h", lambda text: text.replace(old, new, 1))
        done = run_generator("--emit", "nvml-interpose", "--headers", changed)
        self.assertEqual(done.returncode, 1)
        self.assertIn("nvmlDeviceFrobnicate", done.stderr)
        self.assertIn("nvml_api.py", done.stderr)

    def test_exports_and_typedefs_that_do_not_pair_stop_the_build_by_name(self):
        changed = self.changed_headers(
            "cudaTypedefs.h", lambda text: text.replace("PFN_cuMemAlloc_v3020)", "PFN_other)"))
        done = run_generator("--emit", "interpose", "--headers", changed)
        self.assertEqual(done.returncode, 1)
        said = "cuMemAlloc: exports ['cuMemAlloc', 'cuMemAlloc_v2'], typedefs of versions [2000]"
        self.assertIn(said, done.stderr)

    def test_a_function_only_older_headers_have_is_exported_and_can_be_hooked(self):
        older = self.headers_with_function("cuForgotten", 9000)
        table = self.changed_table(lambda text: text + "cuForgotten = Charge()\n")
        out = self.folder / "generated" / "interpose"
        done = run_generator("--emit", "interpose", "--headers", SETS[0], "--also", older, "--table", table,
                             "--out", out)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("CUresult cuForgotten(CUdevice dev) noexcept", (out / "hooks.inc").read_text())
        self.assertRegex((out / "lookup.inc").read_text(), r", 9000, 0, \d+\)  // cuForgotten\n")
        self.assertIn("    cuForgotten;\n", (out / "exports.map").read_text())

    def test_missing_headers_are_named_with_what_to_do(self):
        done = run_generator("--emit", "interpose", "--headers", self.folder)
        self.assertEqual(done.returncode, 1)
        self.assertIn("cuda.h", done.stderr)
        self.assertIn("scripts/setup.sh", done.stderr)

    def test_each_policy_that_is_not_forwarded_has_a_hook_for_every_variant(self):
        hooks = (self.generate("interpose") / "hooks.inc").read_text()
        table = generate.load_table(generate.TABLES["driver"])
        expected = {
            name for name, function in headers.read_sets(headers.DRIVER, SETS, CXX).items()
            if table[function.base] not in ("Pass", "Overhead")
        }
        self.assertEqual(set(re.findall(r'asm\("(\w+)"\)', hooks)), expected)

    def test_no_debugger_symbol_is_exported(self):
        for emit in EMITS:
            self.assertNotIn("cudbg", (self.generate(emit) / "exports.map").read_text())


class Versions(unittest.TestCase):
    def test_every_variant_has_the_version_that_brought_it(self):
        for directory in SETS:
            functions = headers.read_set(headers.DRIVER, directory, CXX)
            self.assertGreater(len(functions), 600)
            latest = {}
            for function in sorted(functions.values(), key=lambda f: f.variant):
                key = function.base, function.per_thread
                self.assertGreater(function.since, latest.get(key, 0), function.name)
                latest[key] = function.since

    def test_known_versions(self):
        functions = headers.read_sets(headers.DRIVER, SETS, CXX)
        for name, since in {
            "cuMemAlloc": 2000, "cuMemAlloc_v2": 3020, "cuCtxCreate_v4": 12050, "cuGetProcAddress_v2": 12000,
            "cuStreamGetCaptureInfo_v3": 12030, "cuCtxSynchronize_v2": 13000, "cuMemcpyHtoD_v2_ptds": 7000,
        }.items():
            self.assertEqual(functions[name].since, since, name)

    def test_every_per_thread_twin_has_the_signature_of_its_plain_form(self):
        functions = headers.read_sets(headers.DRIVER, SETS, CXX)
        twins = [function for function in functions.values() if function.per_thread]
        self.assertGreater(len(twins), 90)

        def types(parameters):
            unnamed = (re.sub(r"\w+$", "", parameter.strip()) for parameter in parameters.split(","))
            return ["".join(parameter.split()) for parameter in unnamed]

        for twin in twins:
            self.assertEqual(types(twin.parameters), types(functions[twin.plain].parameters), twin.name)


class Generated(Scratch):
    def test_a_second_run_writes_nothing(self):
        for emit in EMITS:
            out = self.generate(emit)
            before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
            os.utime(out / "names.inc", ns=(1, 1))
            before[out / "names.inc"] = 1
            self.generate(emit)
            self.assertEqual({path: path.stat().st_mtime_ns for path in out.iterdir()}, before)

    def test_the_listed_outputs_are_the_files_written(self):
        for emit in EMITS:
            listed = run_generator("--emit", emit, "--headers", ".", "--list-outputs").stdout
            written = sorted(path.name for path in self.generate(emit).iterdir())
            self.assertEqual(sorted(listed.strip().split(";")), written)

    def test_every_export_is_a_thunk_or_a_hook_and_never_both(self):
        for emit, loader_hooks in (("interpose", set(generate.LOADER_HOOKS)), ("nvml-interpose", set())):
            out = self.generate(emit)
            thunks = re.findall(r"^  thunk (\w+),", (out / "thunks.S").read_text(), re.M)
            hooks = re.findall(r'asm\("(\w+)"\)', (out / "hooks.inc").read_text())
            exported = re.findall(r"^    (\w+);", (out / "exports.map").read_text(), re.M)
            self.assertEqual(sorted(thunks + hooks), sorted(set(exported) - loader_hooks))

    def test_what_is_generated_compiles_from_each_header_set_alone_and_from_all(self):
        compilers = [CXX] + [clang for clang in ["clang++"] if shutil.which(clang)]
        for sets in [all_sets(), *(["--headers", directory] for directory in SETS)]:
            for emit in EMITS:
                self.generate(emit, sets)
            for compiler in compilers:
                for source in ("library.cpp", "sim_library.cpp", "null_library.cpp"):
                    with self.subTest(sets=sets, compiler=compiler, source=source):
                        self.compiled("-fsyntax-only", HERE / source, compiler=compiler, include=sets[1])
                twins = self.folder / "generated/sim/exports.cpp"
                self.compiled("-fsyntax-only", twins, compiler=compiler, include=sets[1])

    def test_nvml_files_compile(self):
        self.generate("nvml-interpose")
        self.generate("nvml-sim")
        source = self.folder / "nvml.cpp"
        source.write_text("""
            #define NVML_NO_UNVERSIONED_FUNC_DEFS
            #include <nvml.h>
            #include "generated/nvml-interpose/nvml_counts.h"
            #include "generated/nvml-interpose/names.inc"
            #include "generated/nvml-sim/declarations.inc"
            #define NVML_ENTRY(name, index, ...) static_assert(__is_same(__VA_ARGS__, decltype(::name)));
            #include "generated/nvml-interpose/nvml.inc"
            namespace hook {
            #include "generated/nvml-interpose/hooks.inc"
            }
            static_assert(sizeof nvml_table::kExportName / 2 == nvml_table::kFunctionCount);
            """)
        self.compiled("-fsyntax-only", "-Wno-deprecated-declarations", source)


class Linked(Scratch):
    def link(self, emit, sources, *options):
        out = self.generate(emit)
        built = [path for path in sorted(out.iterdir()) if path.suffix in (".S", ".cpp")]
        script = f"-Wl,--version-script={out / 'exports.map'}"
        library = self.folder / f"{emit}.so"
        return library, self.compile("-shared", script, *options, *sources, *built, "-o", library)

    def symbols(self, library):
        command = ["nm", "-D", "--defined-only", library]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return {line.split()[-1] for line in listing.splitlines()}

    def exported(self, emit):
        text = (self.folder / "generated" / emit / "exports.map").read_text()
        return set(re.findall(r"^    (\w+);", text, re.M))

    def test_a_thunk_hands_all_arguments_on_and_resolves_once(self):
        library, done = self.link("interpose", [HERE / "library.cpp"], "-nostdlib")
        self.assertEqual(done.returncode, 0, done.stderr)
        loaded = ctypes.CDLL(str(library))
        function = loaded.cuCtxGetId
        function.argtypes = [ctypes.c_long] * 7 + [ctypes.c_double] * 2
        function.restype = ctypes.c_long
        expected = 1 + 10 * (1 + 4 + 9 + 16 + 25 + 36 + 49 + 8 * 8 + 9 * 9)
        for _ in range(3):
            self.assertEqual(function(1, 2, 3, 4, 5, 6, 7, 8.0, 9.0), expected)

    def test_a_hook_is_the_exported_symbol_itself(self):
        library, done = self.link("interpose", [HERE / "library.cpp"], "-nostdlib")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(ctypes.CDLL(str(library)).cuMemAlloc_v2(None, 0), 2)

    def test_thunks_and_names_need_no_relocation(self):
        library, done = self.link("interpose", [HERE / "library.cpp"], "-nostdlib")
        self.assertEqual(done.returncode, 0, done.stderr)
        shown = subprocess.run(["readelf", "-rW", library], capture_output=True, text=True, check=True).stdout
        self.assertIn("no relocations", shown)

    def test_a_hook_nobody_wrote_is_a_link_error_with_its_name(self):
        _, done = self.link("interpose", [HERE / "library.cpp"], "-Wl,-z,defs", "-Wl,--no-undefined-version")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("cuMemFree_v2", done.stderr)
        self.assertNotIn("cuMemAlloc_v2", done.stderr)

    def test_the_simulator_exports_everything_and_says_what_it_lacks(self):
        strict = ("-Wl,-Bsymbolic", "-Wl,-z,defs", "-Wl,--no-undefined-version")
        library, done = self.link("sim", [HERE / "sim_library.cpp"], *strict)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.symbols(library), self.exported("sim"))
        loaded = ctypes.CDLL(str(library))
        self.assertEqual(loaded.cuStreamQuery(None), 100)
        self.assertEqual(loaded.cuStreamQuery_ptsz(None), 101)
        self.assertEqual(loaded.cuStreamQuery(None), 100)
        self.assertEqual(loaded.cuInit(0), 801)
        self.assertEqual(loaded.cuMemcpyAsync_ptsz(None, None, None, None), 801)

    def test_the_driver_that_costs_nothing_exports_everything_and_succeeds(self):
        strict = ("-Wl,-z,defs", "-Wl,--no-undefined-version")
        library, done = self.link("null", [HERE / "null_library.cpp"], *strict)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.symbols(library), self.exported("null"))
        loaded = ctypes.CDLL(str(library))
        for name in sorted(self.exported("null") - {"cuStreamQuery"}):
            self.assertEqual(getattr(loaded, name)(0), 0, name)
        self.assertEqual(loaded.cuStreamQuery(None), 600)


if __name__ == "__main__":
    unittest.main(verbosity=2)
