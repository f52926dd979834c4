# SPDX-License-Identifier: Apache-2.0
"""VRAM: no way past the quota, nothing leaked, and everything that looks at memory agrees."""

from . import stress_claims, vram_matrix

CLAIMS = (
    vram_matrix.api_matrix,
    stress_claims.random_mix,
    stress_claims.kill_storm,
    stress_claims.cost_of_the_ledger,
)
