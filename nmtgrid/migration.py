"""Models of other programs, read without running anything that their files hold."""
