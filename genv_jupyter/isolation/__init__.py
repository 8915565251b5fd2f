"""What holds an environment to its grant: variables, processes, fences."""
