#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the fuzzers of tests/fuzz with clang's libFuzzer, AddressSanitizer and UBSan, and runs each for some minutes, as
# many at once as there are processors. What they find new is kept in build/fuzz/corpus; an input that fails is left in
# build/fuzz, and its path printed. Says of each what it ran; fails if one of them did.
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
if ((${#fuzzers[@]} == 0)); then mapfile -t fuzzers < <(ls tests/fuzz/corpus); fi

set -a
eval "$(scripts/setup.sh --print-env)"
set +a
cmake -G Ninja -B build/fuzz -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_COMPILER=clang++ -DCUSLICE_FUZZ=ON \
  -DCUSLICE_SANITIZE=address,undefined,fuzzer-no-link >/dev/null
cmake --build build/fuzz --target fuzzers

# One fuzzer; its output goes to build/fuzz/NAME.log.
fuzz() {
  mkdir -p "build/fuzz/corpus/$1"
  local log="build/fuzz/$1.log" status=0
  "build/fuzz/bin/tests/$1_fuzz" -max_total_time=$((minutes * 60)) -max_len=1024 -print_final_stats=1 \
    -verbosity=0 -artifact_prefix="build/fuzz/$1-" "build/fuzz/corpus/$1" "tests/fuzz/corpus/$1" \
    </dev/null >"$log" 2>&1 || status=$?
  local runs
  runs="$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")"
  if ((status == 0)) && [[ -n $runs && $runs != 0 ]]; then
    echo "fuzz: $1: clean after $runs runs in $minutes minutes, $(find "build/fuzz/corpus/$1" -type f | wc -l) inputs kept"
    return 0
  fi
  echo "fuzz: $1: FAILED (exit status $status, ${runs:-unknown number of} runs); the end of $log:"
  tail -n 40 "$log"
  return 1
}

jobs="$(nproc)"
echo "fuzz: ${#fuzzers[@]} fuzzers, $minutes minutes each, $jobs at once: ${fuzzers[*]}"
running=0 failed=0
for fuzzer in "${fuzzers[@]}"; do
  if ((running == jobs)); then
    wait -n || failed=$((failed + 1))
    running=$((running - 1))
  fi
  fuzz "$fuzzer" &
  running=$((running + 1))
done
for ((; running > 0; running--)); do wait -n || failed=$((failed + 1)); done
if ((failed > 0)); then
  echo "fuzz: $failed of ${#fuzzers[@]} fuzzers failed" >&2
  exit 1
fi
