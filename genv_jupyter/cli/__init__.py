"""`jupyter gpu`: the same verbs in a terminal."""
