"""`python -m vitscale` is `vitscale`."""

from vitscale.cli.main import main

if __name__ == "__main__":
    main()
