#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Measures again what we claim. Needs a release build; scripts/verify.sh --help says more.
set -euo pipefail
scripts="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
PYTHONPATH="$scripts" exec python3 -m verify "$@"
