# SPDX-License-Identifier: Apache-2.0
"""GPU time: shares that are exact, bursts that cost nobody, latency that is bounded."""

from . import cost_claims, share_claims, wait_claims

MODELS = {"h100": "simulated H100", "sm188": "simulated 188-SM card"}

# What a GPU's size changes nothing about.
ON_ANY_GPU = (
    cost_claims.cost_of_a_launch,
    cost_claims.idle_broker,
    cost_claims.torch_training,
)

CLAIMS = (
    share_claims.pairs_get_their_share,
    share_claims.eight_share_alike,
    share_claims.unequal_kernels,
    share_claims.convergence,
    share_claims.cap_holds_exactly,
    share_claims.alone_costs_nothing,
    wait_claims.latency_is_bounded,
    wait_claims.half_idle_tenants,
    wait_claims.hand_over,
    wait_claims.nothing_deadlocks,
    *ON_ANY_GPU,
)
