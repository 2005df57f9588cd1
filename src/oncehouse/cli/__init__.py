"""The command line: reads arguments, calls the packages that do the work, and shows what they return."""
