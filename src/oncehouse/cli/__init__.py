"""The command line: reads arguments, calls the rooms that do the work, and shows what they return."""
