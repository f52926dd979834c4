# SPDX-License-Identifier: Apache-2.0
"""The main job, end to end: a real program in a slice sees it, can't take more, and gets its share."""

from . import demo, guest_claims, memory_claims, time_claims


def two_tenants(lab, _):
    """The demo: two tenants at once in slices of 30 GB / 75 % and 10 GB / 25 %, and the same two without slices."""
    _, _, with_slices, without = demo.compare(lab, lambda text: None)
    yield from with_slices
    for row in without:
        row.what = "no slices, " + row.what
        yield row


CLAIMS = (
    two_tenants,
    memory_claims.hog_in_a_slice,
    memory_claims.nothing_is_left,
    memory_claims.race_for_memory,
    memory_claims.torch_in_a_slice,
    memory_claims.runtime_programs,
    time_claims.shares_hold,
    time_claims.alone_costs_nothing,
    time_claims.cap_holds,
    guest_claims.cost_of_a_call,
    guest_claims.programs_without_cuda,
    guest_claims.slice_that_cannot_be_attached,
    guest_claims.broker_dies,
)
