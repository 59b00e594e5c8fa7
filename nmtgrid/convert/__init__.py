"""Models from and for other toolkits, without running anything that their files hold."""
