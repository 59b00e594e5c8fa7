"""The command: see comparison.py."""

from benchmarks.peers.comparison import main

if __name__ == "__main__":
    main()
