#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the benchmarks and writes one report. Needs a release build; bench/run.sh --help says more.
set -euo pipefail
bench="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
PYTHONPATH="$bench:$bench/../scripts" exec python3 -m report "$@"
