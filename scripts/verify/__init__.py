# SPDX-License-Identifier: Apache-2.0
"""Measures what cuslice claims. `lab` runs tenants on a GPU, `table` prints, `suite_*` hold the claims."""
