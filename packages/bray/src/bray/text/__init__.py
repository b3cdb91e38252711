"""Training of language models: what the algorithms `sft`, `grpo` and `dpo` are made of.

    task ──prompts──► sampler ──answers──► task's rewards ──samples──► rows ──► trainer ──► model

A sample is one answer or one session of several turns. Its rows hold the token ids exactly as the
engine saw them, and a mask that marks the tokens which the policy sampled itself.
"""
