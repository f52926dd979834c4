#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# From a fresh machine to two tenants on one GPU: sets up, builds, runs both in slices and then without, and prints
# what each saw and got. Exit status 0 only if every value is within its bound. Uses the real GPU where there is one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case "${1:-}" in
  -h | --help)
    echo "usage: scripts/demo.sh [--simulated]    --simulated: not on the real GPU, even if there is one"
    exit 0
    ;;
esac
scripts/setup.sh
scripts/build.sh release
PYTHONPATH=scripts exec python3 -m verify.demo "$@"
