"""Several trainers that step together: their process group, messages and gradients."""
