"""`python -m tandem` and the console script `tandem`: the program that comes with the package."""

import os
import pathlib
import sys

PROGRAM = pathlib.Path(__file__).with_name("bin") / "tandem"


def main():
    """Replaces this process by the program, with the same arguments, standard streams and exit code."""
    os.execv(PROGRAM, [str(PROGRAM), *sys.argv[1:]])


if __name__ == "__main__":
    main()
