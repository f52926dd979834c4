#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Sets up, builds the release preset and runs its tests. Nothing here needs a GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<USAGE
usage: scripts/test.sh [--clients] [--sanitize]

  --clients   also the tests labelled \`client\`: unmodified PyTorch, CuPy and others, fetched once (about 5 GB on disk)
  --sanitize  instead of all that, the tests labelled \`unit\` of the asan and tsan presets
USAGE
}

fail() {
  echo "test: error: $*" >&2
  exit 1
}

clients=false
sanitize=false
for option in "$@"; do
  case "$option" in
    --clients) clients=true ;;
    --sanitize) sanitize=true ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      usage >&2
      fail "unknown option '$option'"
      ;;
  esac
done

# `ctest` alone is content with no test at all. Tests that measure time get a second try: a machine that stood still for
# some milliseconds is no fault of ours, and ctest prints both tries.
run_tests() { ctest --no-tests=error --repeat until-pass:2 --preset "$@" </dev/null; }

setup_options=()
if $clients; then setup_options+=(--clients); fi
scripts/setup.sh "${setup_options[@]}"
set -a
eval "$(scripts/setup.sh --print-env)"
set +a

if $sanitize; then
  for preset in asan tsan; do
    scripts/build.sh "$preset" unit_tests
    run_tests "$preset" -L '^unit$'
  done
  exit 0
fi

scripts/build.sh release

# Where a compiler is missing CMake leaves out what needs it. Here that would hide tests, so it is an error.
if grep -E '^CUSLICE_(NVCC|CUDA)_.*-NOTFOUND$' build/release/CMakeCache.txt; then
  fail "the build above was configured without these; remove build/release and run this again"
fi
for product in bin/cuslicectl bin/cusliced bin/simgpu lib/libcuslice-cuda.so lib/libcuslice-nvml.so; do
  [[ -e build/release/$product ]] || fail "the build left no build/release/$product"
done

# Go modules of their own, built by the Go that was fetched and no other.
for module in dra deploy/test; do
  (cd "$module" && export GOTOOLCHAIN=local && "$CUSLICE_GO" vet ./... && "$CUSLICE_GO" test ./...) </dev/null
done

excluded='^(gpu|client)$'
if $clients; then excluded='^gpu$'; fi
run_tests release -LE "$excluded"
