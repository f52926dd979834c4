#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs clang-tidy over the C++ that a preset builds: all of it, or the files named.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ ${1:-} == -* ]]; then
  echo "usage: scripts/tidy.sh [FILE...]    for the preset in CUSLICE_PRESET, by default dev" >&2
  exit 2
fi
preset="${CUSLICE_PRESET:-dev}"

# Generated headers are part of what is checked, so they have to be there.
scripts/build.sh "$preset"

# Without names: what the compile commands list of ours, and nothing that was generated.
files=("$@")
if ((${#files[@]} == 0)); then
  mapfile -t files < <(git ls-files --cached --others --exclude-standard -- '*.cpp')
fi
patterns=("${files[@]/#/^"$PWD"/}")
run-clang-tidy -quiet -p "build/$preset" -j "$(nproc)" "${patterns[@]/%/\$}"
