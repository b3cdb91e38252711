"""Checks of arguments, and the switch of those checks that read the values of tensors.

The rule of the whole package, in two halves:

- Always checked: tensors are tensors, of the expected rank, shape and type (actions are integers,
  flags are bool), and plain numbers (γ, ε, clips, coefficients, temperatures) lie in their range.
  Each such check costs less than a microsecond.
- Checked while the switch is on: the values of tensors. Numbers that count are finite, every row
  has a legal action, actions exist, a Beta's actions lie within 0 and 1. The switch is on unless
  Python runs with -O. These checks run on a CPU alone, outside of `torch.compile` and exports: on a
  GPU the host would have to wait, and compiled code cannot branch on a value.

Padding, and what else a function does not read, may hold anything.
"""

from bray_algo.validation.switch import set_validation, validating

__all__ = ["set_validation", "validating"]
