"""``python -m tritonprobe``: the command line, where the console script is not on the PATH."""

from tritonprobe.cli import main

if __name__ == "__main__":
    main(prog_name="tritonprobe")
