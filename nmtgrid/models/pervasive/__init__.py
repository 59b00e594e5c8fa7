"""Pervasive Attention (chapter 3) and its DenseNet form (CoNLL 2018)."""
