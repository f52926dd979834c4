# SPDX-License-Identifier: Apache-2.0
"""The benchmarks' one report: `metrics` defines what is measured, `sections` measures it, `__main__` writes it."""
