"""``python -m hybridge`` is the command ``hybridge``."""

from hybridge.cli.main import main

if __name__ == "__main__":
    main()
