# SPDX-License-Identifier: Apache-2.0
"""VRAM: no way past the quota, nothing leaked, and everything that looks at memory agrees."""

from . import stress_claims, vram_claims, vram_matrix

CLAIMS = (
    vram_matrix.api_matrix,
    vram_claims.eight_slices_fill_the_gpu,
    vram_claims.no_grant_after_unasked_growth,
    vram_claims.what_is_shown,
    stress_claims.random_mix,
    stress_claims.kill_storm,
    vram_claims.the_ledger_is_safe,
    vram_claims.ledger_memory,
    stress_claims.cost_of_the_ledger,
)
