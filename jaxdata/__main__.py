"""`python -m jaxdata`: the same as the command `jaxdata`."""

from jaxdata.cli import main

if __name__ == "__main__":
    main()
