"""Checkpoints of transformers' families into Twofold's decoder and back, without a change of any number."""
