#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Configures and builds one of the presets of CMakePresets.json, with as many jobs as there are cores.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if (($# == 0)) || [[ $1 == -* ]]; then
  echo "usage: scripts/build.sh PRESET [TARGET...]    PRESET: dev, release, asan or tsan" >&2
  exit 2
fi
preset="$1"
shift

cmake --preset "$preset"
cmake --build --preset "$preset" --parallel "$(nproc)" ${1:+--target "$@"}
