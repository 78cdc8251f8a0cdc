"""`python -m pagefleet_cli`, as `pagefleet`."""

from pagefleet_cli.program import main

if __name__ == "__main__":
    main()
