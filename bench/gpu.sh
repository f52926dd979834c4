#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Packs what is needed to take real figures: unpack it on a machine with a GPU and start ./run.sh there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly kBuild="${CUSLICE_BUILD:-build/release}"
readonly kMostBytes=$((64 << 20))
readonly kPrograms=(bin/cusliced bin/cuslicectl bin/simgpu bin/launch_benchmark)
readonly kLibraries=(
  lib/libcuslice-cuda.so lib/libcuslice-nvml.so lib/null/libcuda.so.1
  lib/sim/driver-13.0/libcuda.so.1 lib/sim/libnvidia-ml.so.1 lib/sim/libsimgpu-node.so
)

usage() {
  cat <<USAGE
usage: bench/gpu.sh [ARCHIVE]    ARCHIVE: what to write (cuslice-gpu.tar.gz)

Takes the release build (\$CUSLICE_BUILD, build/release). The machine that runs it needs x86-64 Linux with glibc 2.34
and GCC 12's libstdc++ or later, nvcc 12 or later with its host compiler, CMake 3.22 and Python 3.10; PyTorch for the
training loop. Nothing is fetched and nothing installed there.
USAGE
}

fail() {
  echo "gpu.sh: error: $*" >&2
  exit 1
}

case "${1:-}" in
  -h | --help)
    usage
    exit 0
    ;;
  -*)
    usage >&2
    echo "gpu.sh: error: unknown option '$1'" >&2
    exit 2
    ;;
esac
archive="$(realpath -m "${1:-cuslice-gpu.tar.gz}")"
[[ -d "$(dirname "$archive")" ]] || fail "$(dirname "$archive") is not there"
for file in "${kPrograms[@]}" "${kLibraries[@]}"; do
  [[ -f $kBuild/$file ]] || fail "$kBuild/$file is not there; run scripts/build.sh release"
done

staging="$(mktemp -d)"
trap 'rm -rf "$staging"' EXIT
pack="$staging/cuslice-gpu"
mkdir -p "$pack"/{bench,scripts,tests,build/bin,build/lib/{sim/driver-13.0,null,private}}

# Sources: what runs there and what is compiled there.
cp -r bench/pack/. "$pack"
cp -r bench/report bench/run.sh bench/torch_training.py "$pack/bench"
cp -r scripts/verify "$pack/scripts"
cp -r cuda_samples LICENSE "$pack"
cp -r tests/bench "$pack/tests"
find "$pack" -name __pycache__ -prune -exec rm -r {} +

# Programs and libraries: what needs more than that machine has to be built. Without symbols they are a tenth.
for file in "${kPrograms[@]}" "${kLibraries[@]}"; do strip --strip-unneeded -o "$pack/build/$file" "$kBuild/$file"; done

# What a file needs beside what every such machine has: glibc, and the C++ runtime of its compiler.
needed_by() {
  # Where nothing is left over, grep says so by its status.
  ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' |
    { grep -vE '/(libc|libm|libdl|librt|libpthread|ld-linux-x86-64|libstdc\+\+|libgcc_s)\.so[^/]*$' || true; } |
    { grep -v '/libsimgpu-node\.so$' || true; }
}
for program in bin/cusliced bin/cuslicectl; do needed_by "$kBuild/$program"; done | sort -u |
  while read -r library; do cp -L "$library" "$pack/build/lib/private/"; done
needed_by "$kBuild/lib/sim/driver-13.0/libcuda.so.1" |
  while read -r library; do cp -L "$library" "$pack/build/lib/sim/"; done
# CMake alone builds nothing; where neither make nor ninja is installed this one serves.
if [[ -x /usr/bin/ninja ]]; then cp /usr/bin/ninja "$pack/build/bin/ninja"; fi

tar -czf "$archive.part" -C "$staging" cuslice-gpu
bytes="$(stat -c %s "$archive.part")"
if ((bytes > kMostBytes)); then
  rm -f "$archive.part"
  fail "the archive has $bytes bytes, and $kMostBytes is the most it may have"
fi
mv "$archive.part" "$archive"
echo "$archive: $((bytes >> 20)) MiB"
