#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the fuzzers of tests/fuzz with clang's libFuzzer, AddressSanitizer and UBSan, and runs each for some minutes.
# What they find new is kept in build/fuzz/corpus; an input that fails is left in build/fuzz, and its path printed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly kUsage="usage: scripts/fuzz.sh [--minutes N] [FUZZER...]     (30 minutes each, all fuzzers)"
fail() {
  echo "fuzz: error: $*" >&2
  exit 2
}

minutes=30
fuzzers=()
while (($#)); do
  case "$1" in
    --minutes)
      [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || fail "--minutes needs a whole number above 0; $kUsage"
      minutes="$2"
      shift
      ;;
    -h | --help)
      echo "$kUsage"
      exit 0
      ;;
    -*) fail "unknown option '$1'; $kUsage" ;;
    *)
      [[ -f tests/fuzz/$1_fuzz.cpp ]] || fail "no fuzzer '$1'; there are: $(cd tests/fuzz/corpus && echo *)"
      fuzzers+=("$1")
      ;;
  esac
  shift
done
if ((${#fuzzers[@]} == 0)); then fuzzers=($(cd tests/fuzz/corpus && echo *)); fi

set -a
eval "$(scripts/setup.sh --print-env)"
set +a
cmake -G Ninja -B build/fuzz -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_COMPILER=clang++ -DCUSLICE_FUZZ=ON \
  -DCUSLICE_SANITIZE=address,undefined,fuzzer-no-link >/dev/null
cmake --build build/fuzz --target fuzzers

for fuzzer in "${fuzzers[@]}"; do
  mkdir -p "build/fuzz/corpus/$fuzzer"
  echo "fuzz: $fuzzer for $minutes minutes"
  "build/fuzz/bin/tests/${fuzzer}_fuzz" -max_total_time=$((minutes * 60)) -max_len=1024 -print_final_stats=1 \
    -verbosity=0 -artifact_prefix="build/fuzz/$fuzzer-" "build/fuzz/corpus/$fuzzer" "tests/fuzz/corpus/$fuzzer" </dev/null
done
