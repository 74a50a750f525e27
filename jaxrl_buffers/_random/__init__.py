"""Random numbers: hashing without loops, integers, permutations."""
