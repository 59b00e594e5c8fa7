"""Recurrent layers (section 2.6.1), with hand-written backward passes."""
