"""What decompositions iterate with: starts, the loop, and updates of a factor in it."""
