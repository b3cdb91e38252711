"""Simulators that call an actor: Gymnasium and PettingZoo environments in processes."""
