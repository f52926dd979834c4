#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Formats our C++ and CUDA sources; with --check, changes nothing and fails where it would.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

options=(-i)
case "$*" in
  "") ;;
  --check) options=(--dry-run --Werror) ;;
  *)
    echo "usage: scripts/format.sh [--check]" >&2
    exit 2
    ;;
esac

git ls-files -z --cached --others --exclude-standard -- '*.h' '*.cpp' '*.cu' |
  xargs -0 --no-run-if-empty clang-format --style=file "${options[@]}"
