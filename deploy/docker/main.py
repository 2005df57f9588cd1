"""What spark-submit runs as the driver: the command line, with the arguments of the application."""

from oncehouse.cli.app import main

if __name__ == "__main__":
    main()
