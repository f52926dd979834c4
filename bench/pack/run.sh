#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Compiles the CUDA samples, runs the tests labelled `gpu` and then the benchmarks. It writes to this folder only.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

usage() {
  cat <<USAGE
usage: ./run.sh [--tests | --benchmarks] [OPTION...]

  --tests        only the tests
  --benchmarks   only the benchmarks
  OPTION         for the benchmarks: --quick, --section NAME, --simulated (no GPU needed), ...

The report is report/report.txt and report/report.json, and the tests' results report/gpu-tests.txt.
USAGE
}

fail() {
  echo "run.sh: error: $*" >&2
  exit 1
}

tests=true benchmarks=true
case "${1:-}" in
  --tests) benchmarks=false; shift ;;
  --benchmarks) tests=false; shift ;;
  -h | --help) usage; exit 0 ;;
esac

for tool in cmake python3; do command -v "$tool" >/dev/null || fail "this needs $tool, which is not in PATH"; done
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || fail "this needs Python 3.10 or later"
build/bin/cuslicectl --help >/dev/null ||
  fail "cuslicectl does not start here (see above): it needs glibc 2.34 and the libstdc++ of GCC 12, or later ones"

if ! command -v ninja >/dev/null && ! command -v make >/dev/null; then PATH="$PATH:$PWD/build/bin"; fi
generator="Unix Makefiles"
if command -v ninja >/dev/null; then generator=Ninja; fi
export CUSLICE_BUILD="$PWD/build"
# The training loop's interpreter: empty where there is no PyTorch, and then it is left out.
if [[ -z ${CUSLICE_CLIENTS_PYTHON+set} ]]; then
  CUSLICE_CLIENTS_PYTHON="$(python3 -c 'import sys, torch; print(sys.executable)' 2>/dev/null || true)"
fi
export CUSLICE_CLIENTS_PYTHON

cmake -S . -B build -G "$generator" >build/configure.log 2>&1 || { cat build/configure.log >&2; fail "CMake failed"; }
cmake --build build --parallel "$(nproc)"

mkdir -p report
failed=false
if $tests; then
  # Without a GPU each of them is skipped and says so.
  ctest --test-dir build --label-regex '^gpu$' --no-tests=error --output-on-failure | tee report/gpu-tests.txt ||
    failed=true
fi
if $benchmarks; then bench/run.sh --out report "$@" || failed=true; fi
if $failed; then fail "not everything went well; see above"; fi
