"""Settings: YAML into checked dataclasses, with the place of each mistake."""
