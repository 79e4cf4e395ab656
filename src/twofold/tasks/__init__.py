"""Tasks with an answer: sequences, recall, sentences, images. Generated from a seed, or read from where they lie."""
