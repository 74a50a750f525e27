"""The algorithms, one in each file. Files whose names begin with an underscore hold shared parts."""
