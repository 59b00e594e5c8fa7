"""The command line of comparison.py."""

from benchmarks.peers.comparison import main

if __name__ == "__main__":
    main()
