#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Formats our C++, CUDA and Go sources; with --check, changes nothing and fails where it would. Go is formatted by the
# gofmt that setup fetched.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

options=(-i)
check=false
case "$*" in
  "") ;;
  --check)
    options=(--dry-run --Werror)
    check=true
    ;;
  *)
    echo "usage: scripts/format.sh [--check]" >&2
    exit 2
    ;;
esac

git ls-files -z --cached --others --exclude-standard -- '*.h' '*.cpp' '*.cu' |
  xargs -0 --no-run-if-empty clang-format --style=file "${options[@]}"

eval "$(scripts/setup.sh --print-env)"
gofmt="$(dirname "$CUSLICE_GO")/gofmt"
if [[ ! -x $gofmt ]]; then
  echo "format: error: no $gofmt: run scripts/setup.sh" >&2
  exit 1
fi
# gofmt -l names the files and is content with having done so.
unformatted="$(git ls-files -z --cached --others --exclude-standard -- '*.go' | xargs -0 --no-run-if-empty "$gofmt" -l)"
if [[ -n $unformatted ]]; then
  if $check; then
    echo "format: error: not formatted by gofmt: ${unformatted//$'\n'/ }" >&2
    exit 1
  fi
  xargs -d '\n' "$gofmt" -w <<<"$unformatted"
fi
