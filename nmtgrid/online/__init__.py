"""Simultaneous (online) translation: policies, objectives, streaming and evaluation (chapter 4)."""
