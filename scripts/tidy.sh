#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs clang-tidy over our C++, with the headers it includes: all that a preset compiles, or the files named. .clang-tidy
# has the checks. Left out is what CMake does not compile itself: CUDA sources, and what table_test compiles.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ ${1:-} == -* ]]; then
  echo "usage: scripts/tidy.sh [FILE...]    for the preset in CUSLICE_PRESET, by default dev" >&2
  exit 2
fi
preset="${CUSLICE_PRESET:-dev}"
commands="build/$preset/compile_commands.json"

# Nothing needs to be compiled first, but generated headers have to be there.
scripts/build.sh "$preset" generated

# One file a line, from the repository's root on, without what was generated.
compiled() { sed -n "s|^ *\"file\": \"$PWD/\(.*\.cpp\)\",\?$|\1|p" "$commands" | grep -v ^build/ | sort -u; }

files=()
for file in "$@"; do
  file="$(realpath --relative-to=. -- "$file")"
  if ! compiled | grep -Fqx -- "$file"; then
    echo "tidy: error: $commands does not compile '$file'" >&2
    exit 2
  fi
  files+=("$file")
done
if (($# == 0)); then mapfile -t files < <(compiled); fi

# How many warnings it did not show is of no interest.
printf '%s\0' "${files[@]}" |
  xargs -0 -n 1 -P "$(nproc)" clang-tidy -quiet -p "build/$preset" 2> >(grep -Ev '^[0-9]+ warnings? generated' >&2)
echo "tidy: ${#files[@]} files, nothing found"
