# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's headers say: every exported function of an API, its signature and its version.

The headers preprocess to plain C, so the compiler's preprocessor and two regular expressions read
them. Nothing is guessed: whatever looks like a function and is not understood stops the build, and
versions come from the PFN_ typedefs, paired one to one with the exports.
"""

import dataclasses
import pathlib
import re
import subprocess
import tempfile


class Problem(Exception):
    """Something in the headers or the table that a person has to look at."""


@dataclasses.dataclass(frozen=True)
class Header:
    """A header, and the one with its PFN_ typedefs. `core` headers stand alone and must be there; the
    others need GL, EGL or VDPAU, so that their functions are exported but their types never named."""

    name: str
    typedefs: str = ""
    core: bool = True


@dataclasses.dataclass(frozen=True)
class Api:
    title: str
    prefix: str
    headers: tuple
    all_variants: str  # the macro that makes the headers declare every variant under its own name


DRIVER = Api(
    title="driver",
    prefix="cu",
    headers=(
        Header("cuda.h", "cudaTypedefs.h"),
        Header("cudaProfiler.h", "cudaProfilerTypedefs.h"),
        Header("cudaGL.h", "cudaGLTypedefs.h", core=False),
        Header("cudaEGL.h", "cudaEGLTypedefs.h", core=False),
        Header("cudaVDPAU.h", "cudaVDPAUTypedefs.h", core=False),
    ),
    all_variants="__CUDA_API_VERSION_INTERNAL",
)
NVML = Api(
    title="nvml",
    prefix="nvml",
    headers=(Header("nvml.h"),),
    all_variants="NVML_NO_UNVERSIONED_FUNC_DEFS",
)

# Included by the interop headers for types only; empty files do, whatever is installed here.
FOREIGN_HEADERS = ("GL/gl.h", "EGL/egl.h", "EGL/eglext.h", "vdpau/vdpau.h")


@dataclasses.dataclass(frozen=True)
class Function:
    """One export. `since` is the CUDA version that brought this variant, 0 where headers don't say.
    Without `core` its types may be unknown and `parameters` must not be used."""

    name: str
    base: str
    variant: int
    per_thread: str  # "", "_ptds" or "_ptsz"
    core: bool
    result: str = ""
    parameters: str = ""
    since: int = 0

    @property
    def plain(self):
        """The name of the twin that works on the legacy default stream."""
        return self.name.removesuffix(self.per_thread)


def split_name(name):
    """cuMemcpyHtoD_v2_ptds -> (cuMemcpyHtoD, 2, _ptds)"""
    base, variant, per_thread = re.fullmatch(r"(\w+?)(?:_v(\d+))?(_ptds|_ptsz)?", name).groups()
    return base, int(variant or 1), per_thread or ""


def preprocess(api, directory, names, compiler):
    with tempfile.TemporaryDirectory() as foreign:
        for path in (pathlib.Path(foreign, name) for name in FOREIGN_HEADERS):
            path.parent.mkdir(exist_ok=True)
            path.touch()
        includes = ["-I", foreign, "-I", str(directory)]
        command = [compiler, "-E", "-P", "-x", "c", f"-D{api.all_variants}", *includes, "-"]
        source = "".join(f"#include <{name}>\n" for name in names)
        done = subprocess.run(command, input=source, capture_output=True, text=True)
    if done.returncode:
        raise Problem(f"cannot preprocess the headers in {directory}:\n{done.stderr}")
    return done.stdout


def declarations(api, text, core):
    pattern = rf"\b(CUresult|nvmlReturn_t|const char ?\*)\s*({api.prefix}[A-Z]\w*)\s*\(([^;{{}}]*)\)\s*;"
    found = {}
    for result, name, parameters in re.findall(pattern, text):
        base, variant, per_thread = split_name(name)
        found[name] = Function(name, base, variant, per_thread, core, result, " ".join(parameters.split()))
    looks_like_one = set(re.findall(rf"\b{api.prefix}[A-Z]\w*(?=\s*\()", text))
    if odd := sorted(looks_like_one - set(found)):
        raise Problem(f"not understood as functions: {', '.join(odd)}; see declarations() in headers.py")
    return found


def with_versions(functions, text, directory):
    """Pairs, per base name and stream mode, the typedefs by version with the exports by variant."""
    versions, variants = {}, {}
    for base, version, per_thread in re.findall(r"\*\s*PFN_(\w+?)_v(\d+)(_ptds|_ptsz)?\s*\)", text):
        versions.setdefault((base, per_thread), set()).add(int(version))
    for function in functions.values():
        variants.setdefault((function.base, function.per_thread), []).append(function)
    odd = []
    for key in sorted(versions.keys() | variants.keys()):
        since = sorted(versions.get(key, ()))
        exports = sorted(variants.get(key, ()), key=lambda function: function.variant)
        if len(since) != len(exports):
            odd.append(f"{''.join(key)}: exports {[f.name for f in exports]}, typedefs of versions {since}")
        for function, version in zip(exports, since):
            functions[function.name] = dataclasses.replace(function, since=version)
    if odd:
        raise Problem(f"in {directory}, exports and PFN_ typedefs do not pair:\n  " + "\n  ".join(odd))


def read_set(api, directory, compiler):
    """All functions of one header directory, by name."""
    directory = pathlib.Path(directory)
    present = [h for h in api.headers if (directory / h.name).is_file() and (directory / h.typedefs).exists()]
    if missing := [h.name for h in api.headers if h.core and h not in present]:
        raise Problem(f"{directory} lacks {', '.join(missing)} or its typedefs; run scripts/setup.sh")
    core = [h.name for h in present if h.core]
    functions = declarations(api, preprocess(api, directory, core, compiler), core=True)
    if typedefs := [h.typedefs for h in present if h.typedefs]:
        text = preprocess(api, directory, [h.name for h in present] + typedefs, compiler)
        functions = declarations(api, text, core=False) | functions
        with_versions(functions, text, directory)
    return functions


def read_sets(api, directories, compiler):
    """The union of several header directories; what the first says about a function holds."""
    union = {}
    for directory in directories:
        for name, function in read_set(api, directory, compiler).items():
            known = union.setdefault(name, function)
            if known.since != function.since:
                raise Problem(f"{name}: version {function.since} in {directory}, {known.since} elsewhere")
    return union
